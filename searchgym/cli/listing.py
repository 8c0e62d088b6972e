"""The ``list`` command: tables of the cards that ship, with what of their data is on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from searchgym.cli.options import completed
from searchgym.cli.output import Json, emit_rows, say
from searchgym.cli.run import evaluation_data
from searchgym.errors import DataMissingError, UnknownNameError, UsageError
from searchgym.options.cards import AgentCard, CorpusCard, EncoderCard, load_card
from searchgym.options.cards import list_cards as cards_of
from searchgym.options.model_cards import PretrainedCard, load_model_card
from searchgym.options.yaml import read_yaml

if TYPE_CHECKING:
    from searchgym.envs.cards import EnvCard
    from searchgym.envs.options import TaskOptions
    from searchgym.eval.suites.cards import SuitePart

COLUMNS: Final = {
    "envs": "id data n ready summary",
    "agents": "name summary",
    "recipes": "name method agent model steps summary",
    "models": "name parameters licence summary",
    "corpora": "name passages ready licence summary",
    "retrievers": "name kind summary",
    "encoders": "name dimension licence model",
    "suites": "name n ready parts summary",
    "pipelines": "name summary",
    "options": "name type default kind text",
    "terms": "name options text",
}
"""Kind of card to the columns of its table."""
DETAILS: Final = {"envs": {"data"}, "recipes": {"agent", "model"}}
"""Columns that only ``--json`` shows, for a table that fits a terminal."""
Listed = tuple[Any, dict[str, Any]]
"""What is listed, such as a card, and the columns that are not its fields."""


def list_cards(
    kind: Annotated[
        str, typer.Argument(help=f"One of {', '.join(COLUMNS)}.", autocompletion=completed(lambda: COLUMNS))
    ] = "envs",
    containing: Annotated[str, typer.Argument(help="List only what has this in its name.", show_default=False)] = "",
    json: Json = False,
) -> None:
    """List environments, agents, recipes and the like.

    The options and credit terms are those of a recipe: `searchgym list options optimizer` lists a section's.
    """
    kind = "envs" if kind == "environments" else kind
    if kind not in COLUMNS:
        raise UnknownNameError("kind", kind, COLUMNS)
    columns = [name for name in COLUMNS[kind].split() if json or name not in DETAILS.get(kind, ())]
    rows = []
    for card, computed in CARDS[kind]():
        row = {name: computed.get(name, getattr(card, name, None)) for name in columns}
        if containing in str(next(iter(row.values()))):
            rows.append(_for_people(row) if kind == "options" and not json else row)
    if not rows and not json:
        say(f"no {kind} with {containing!r} in the name")
    emit_rows(rows, json, kind)


def _for_people(option: dict[str, Any]) -> dict[str, Any]:
    """Returns an option of a recipe with its type, default and kinds behind its text."""
    kinds = f"; kind {option['kind']}" if option["kind"] else ""
    text = f"{option['text']} ({option['type']}; default {option['default']}{kinds})"
    return {"name": option["name"], "text": text}


def _envs() -> Iterator[Listed]:
    from searchgym.envs.registration import env_options, find_env, registered

    for env in map(find_env, registered()):
        data = f"{env.questions.title}, {env.questions.split_name}"
        yield env, {"data": data, "n": env.questions.count, "ready": _ready(env, env_options(env.id))}


def _recipes() -> Iterator[Listed]:
    from searchgym.options import kind_name
    from searchgym.train.recipe.load import load_recipe

    for name in cards_of("train"):
        recipe = load_recipe(name)
        yield recipe, {"name": name, "method": kind_name(recipe.method)}


def _pipelines() -> Iterator[Listed]:
    for name, path in cards_of("pipelines").items():
        yield None, {"name": name, "summary": read_yaml(path)["summary"]}


def _options() -> Iterator[Listed]:
    from searchgym.train.recipe.listing import recipe_options

    yield from ((option, {}) for option in recipe_options())


def _terms() -> Iterator[Listed]:
    from searchgym.train.recipe.listing import credit_terms

    yield from ((term, {}) for term in credit_terms())


def _models() -> Iterator[Listed]:
    yield from ((load_model_card(path), {}) for path in cards_of("models").values())
    yield from ((load_card(PretrainedCard, path), {}) for path in cards_of("pretrained").values())


def _corpora() -> Iterator[Listed]:
    for path in cards_of("corpora").values():
        corpus = load_card(CorpusCard, path)
        yield corpus, {"ready": "yes" if _is_here(corpus.name) else "no"}


def _retrievers() -> Iterator[Listed]:
    from searchgym.retrieval.cards import find_retriever

    yield from ((find_retriever(name), {"name": name}) for name in cards_of("retrievers"))


def _suites() -> Iterator[Listed]:
    from searchgym.eval.suites.cards import load_suite

    for suite in map(load_suite, cards_of("suites")):
        count = sum(len(part.ids) or (part.subset.n if part.subset else part.n) for part in suite.parts)
        ready = "yes" if all(map(_part_ready, suite.parts)) else "no"
        yield suite, {"n": count, "ready": ready, "parts": ", ".join(part.name for part in suite.parts)}


def _agents() -> Iterator[Listed]:
    yield from ((load_card(AgentCard, path), {}) for path in cards_of("agents").values())


def _encoders() -> Iterator[Listed]:
    yield from ((load_card(EncoderCard, path), {}) for path in cards_of("encoders").values())


CARDS: Final[dict[str, Callable[[], Iterator[Listed]]]] = {
    "envs": _envs,
    "agents": _agents,
    "recipes": _recipes,
    "models": _models,
    "corpora": _corpora,
    "retrievers": _retrievers,
    "encoders": _encoders,
    "suites": _suites,
    "pipelines": _pipelines,
    "options": _options,
    "terms": _terms,
}
"""Kind to the function that yields what is listed."""


def _is_here(corpus: str) -> bool:
    """Returns whether the corpus of a card is on this machine."""
    from searchgym.envs.data import find_corpus

    try:
        find_corpus(corpus)
    except (DataMissingError, UsageError):
        return False
    return True


def _ready(card: EnvCard, options: TaskOptions, evaluated: bool = True) -> str:
    """Returns ``yes`` if an evaluation finds an environment's data on this machine, else what it lacks.

    What the hub would give is not counted, since asking it takes the network; SEARCHGYM_DATA is if `evaluated` is true.
    """
    from searchgym.envs.options import own_questions, with_options

    merged = {**(evaluation_data(card, options) if evaluated else {}), **options}
    source = with_options(card, merged).questions
    questions = own_questions(merged) is not None or source.missing() is None
    brought = bool({"corpus", "retriever", "distractors"} & merged.keys()) or source.brings_corpus
    corpus = brought or _is_here(card.corpus)
    if questions and corpus:
        return "yes"
    return "no corpus" if questions else "no questions" if corpus else "no"


def _part_ready(part: SuitePart) -> bool:
    """Returns whether the data of a part of a suite are on this machine; a part never takes others for its own."""
    from searchgym.envs.registration import env_options, find_env
    from searchgym.eval.suites.cards import resolved

    try:
        return _ready(find_env(part.env), env_options(part.env, resolved(part.options)), evaluated=False) == "yes"
    except (DataMissingError, UnknownNameError):
        return False
