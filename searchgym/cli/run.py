"""The ``list`` and ``play`` commands, and the loading of a task that ``eval`` shares with them."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from searchgym.cli.options import MaxTurns, Source, TaskChoice, TopK, takes_records
from searchgym.cli.output import Json, emit, emit_rows, say
from searchgym.envs.cards import EnvCard
from searchgym.errors import DataMissingError, UnknownNameError, UsageError
from searchgym.options.cards import AgentCard, CorpusCard, EncoderCard, load_card
from searchgym.options.cards import list_cards as cards_of
from searchgym.options.model_cards import AdapterCard, ModelCard, PretrainedCard, load_model_card
from searchgym.options.yaml import parse_yaml

if TYPE_CHECKING:
    from searchgym.envs.options import TaskOptions
    from searchgym.envs.task import Task
    from searchgym.eval.suites.cards import SuitePart
    from searchgym.records import Question

OwnEnv = Annotated[
    str | None,
    typer.Argument(
        metavar="[ID]",
        help="Environment id, short name (HotpotQA) or YAML card; left out for your own --questions.",
        show_default=False,
    ),
]


def task_options(given: Source) -> TaskOptions:
    """Returns the environment options that the user gave, out of a record of command-line options."""
    from searchgym.envs.options import TaskOptions

    fields = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    chosen = {name: value for name, value in fields.items() if value is not None and value is not False}
    if "retrievers" in chosen:
        chosen["retrievers"] = parse_yaml(chosen["retrievers"], "--retrievers")
    for name in ("questions", "retriever"):
        if str(chosen.get(name, "")).startswith("{"):
            chosen[name] = parse_yaml(chosen[name], f"--{name}")
    return cast("TaskOptions", {name: chosen[name] for name in TaskOptions.__annotations__ if name in chosen})


def load(name: str | None, options: TaskOptions, wait: float = 0.0) -> Task:
    """Returns the task of an environment; the user's options override those registered with the id.

    Args:
        name: Environment id, short name or YAML card; None for the user's own questions.
        options: The user's options.
        wait: Seconds to wait for a retrieval server.

    Raises:
        UsageError: `wait` is given, but the retriever is no server; or `name` is None and something is missing.
        UnknownNameError: Nothing has that name.
    """
    from searchgym.envs.registration import env_options, find_env, own_card
    from searchgym.envs.task import load_task
    from searchgym.retrieval.remote.client import HttpRetriever

    if name is None:
        card = own_card(f"own/{Path(_own_questions(options)).stem}")
    else:
        try:
            card = find_env(name)
        except UnknownNameError as error:
            if "questions" not in options:
                raise
            raise UsageError(f"{error}. Your own questions need no environment: {_without(name)}") from None
        options = cast("TaskOptions", env_options(name, options))
        found = _evaluation_data(card, options)
        if "questions" in found:
            folder = Path(str(found["questions"])).parent
            say(f"questions of {card.id}: {folder} (SEARCHGYM_DATA), not its {card.questions.split_name}")
        options = cast("TaskOptions", {**found, **options})
    task = load_task(card, **options)
    if wait:
        if not isinstance(task.retriever, HttpRetriever):
            raise UsageError("--wait needs a retrieval server: give its URL as --retriever")
        task.retriever.wait(wait)
    return task


def chosen_task(env: str | None, choice: TaskChoice) -> Task:
    """Returns the task of an environment, with the user's options and number of questions.

    Args:
        env: The environment; None for the user's own questions.
        choice: The user's options.
    """
    options = task_options(choice)
    if choice.skip_bad and choice.questions is not None:
        options["questions"] = read_given_questions(choice.questions, choice.skip_bad, choice.aliases)
    return load(env, options, choice.wait).subset(choice.limit, choice.draw_seed)


def read_given_questions(source: str, skip_bad: int, aliases: Path | None) -> list[Question]:
    """Reads questions, skipping and reporting bad rows."""
    from searchgym.cli.data import report
    from searchgym.corpora.files import BadLines
    from searchgym.corpora.hub import open_questions

    bad = BadLines(skip_bad)
    questions = open_questions(source, bad, aliases)
    report(bad)
    return questions


def _own_questions(options: TaskOptions) -> str:
    """Returns the user's question file; without an environment, it and something to search must be given."""
    from searchgym.envs.options import own_questions

    if "questions" not in options:
        raise UsageError(
            "which environment? Give its ID (searchgym list), or your own --questions FILE with --corpus, --retriever "
            "or --distractors"
        )
    if not {"corpus", "retriever", "distractors"} & options.keys():
        raise UsageError("nothing to search: give --corpus, --retriever or --distractors with your own --questions")
    if own_questions(options) is None:
        raise UsageError("fields of a question source are those of an environment: give its ID (searchgym list)")
    return str(options["questions"])


def _without(name: str) -> str:
    """Returns the command that the user typed, without an argument."""
    typed = sys.argv[1:]
    if name in typed:
        typed.remove(name)
    return shlex.join(["searchgym", *typed])


def _evaluation_data(card: EnvCard, options: TaskOptions) -> TaskOptions:
    """Returns the files of ``$SEARCHGYM_DATA/DATASET`` where neither the user nor the data folder has questions.

    They are for evaluation only, hence here: `load_task`, by which trainings load their tasks, never reads that folder.
    """
    from searchgym.envs.data import find_corpus

    base = os.environ.get("SEARCHGYM_DATA")
    if not base or "questions" in options or card.questions.missing() is None:
        return {}
    folder = Path(base) / card.questions.title.lower()
    if not (folder / "questions.json").is_file():
        return {}
    found: TaskOptions = {"questions": folder / "questions.json"}
    if (folder / "id_aliases.json").is_file():
        found["aliases"] = folder / "id_aliases.json"
    if "corpus" not in options and not options.get("distractors") and (folder / "corpus.json").is_file():
        try:
            find_corpus(card.corpus)
        except DataMissingError:
            found["corpus"] = folder / "corpus.json"
    return found


def list_cards(
    kind: Annotated[
        str, typer.Argument(help="envs, suites, agents, recipes, models, corpora, retrievers or encoders.")
    ] = "envs",
    json: Json = False,
) -> None:
    """List available environments, suites, agents, recipes, models, corpora, retrievers or encoders."""
    kind = "envs" if kind == "environments" else kind
    if kind not in LISTED:
        raise UnknownNameError("kind", kind, LISTED)
    emit_rows(LISTED[kind](), json, kind)


Rows = list[dict[str, Any]]


def _envs() -> Rows:
    from searchgym.envs.registration import env_options, find_env, registered

    return [
        {
            "id": c.id,
            "data": f"{c.questions.title}, {c.questions.split_name}",
            "n": c.questions.count,
            "ready": _ready(c, cast("TaskOptions", env_options(c.id))),
            "summary": c.summary,
        }
        for c in map(find_env, registered())
    ]


def _ready(card: EnvCard, options: TaskOptions, evaluated: bool = True) -> str:
    """Returns ``yes`` if an evaluation finds an environment's data on this machine, else what it lacks.

    What the hub would give is not counted, since asking it takes the network; SEARCHGYM_DATA is if `evaluated` is true.
    """
    from searchgym.envs.data import find_corpus
    from searchgym.envs.options import own_questions, with_options

    given = {**(_evaluation_data(card, options) if evaluated else {}), **options}
    source = with_options(card, given).questions
    questions = own_questions(given) is not None or source.missing() is None
    corpus = bool({"corpus", "retriever", "distractors"} & given.keys()) or source.brings_corpus
    if not corpus:
        try:
            find_corpus(card.corpus)
            corpus = True
        except (DataMissingError, UsageError):
            corpus = False
    if questions and corpus:
        return "yes"
    return "no corpus" if questions else "no questions" if corpus else "no"


def _agents() -> Rows:
    cards = [load_card(AgentCard, path) for path in cards_of("agents").values()]
    return [{"name": c.name, "summary": c.summary} for c in cards]


def _recipes() -> Rows:
    from searchgym.options import kind_name
    from searchgym.train.recipe.load import load_recipe

    recipes = {name: load_recipe(name) for name in cards_of("train")}
    return [
        {
            "name": name,
            "method": kind_name(r.method),
            "agent": r.agent,
            "model": r.model,
            "steps": r.steps,
            "summary": r.summary,
        }
        for name, r in recipes.items()
    ]


def _models() -> Rows:
    cards: list[ModelCard | AdapterCard | PretrainedCard] = list(map(load_model_card, cards_of("models").values()))
    cards += [load_card(PretrainedCard, path) for path in cards_of("pretrained").values()]
    return [{"name": c.name, "parameters": c.parameters, "licence": c.licence, "summary": c.summary} for c in cards]


def _corpora() -> Rows:
    cards = [load_card(CorpusCard, path) for path in cards_of("corpora").values()]
    return [
        {"name": c.name, "passages": c.passages, "ready": _here(c), "licence": c.licence, "summary": c.summary}
        for c in cards
    ]


def _here(card: CorpusCard) -> str:
    """Returns whether a corpus is on this machine."""
    from searchgym.envs.data import find_corpus

    try:
        find_corpus(card.name)
    except DataMissingError:
        return "no"
    return "yes"


def _retrievers() -> Rows:
    from searchgym.retrieval.cards import find_retriever

    cards = {name: find_retriever(name) for name in cards_of("retrievers")}
    return [{"name": name, "kind": c.kind, "summary": c.summary} for name, c in cards.items()]


def _encoders() -> Rows:
    cards = [load_card(EncoderCard, path) for path in cards_of("encoders").values()]
    return [{"name": c.name, "dimension": c.dimension, "licence": c.licence, "model": c.model} for c in cards]


def _suites() -> Rows:
    from searchgym.eval.suites.cards import load_suite

    rows = []
    for suite in map(load_suite, cards_of("suites")):
        asked = sum(len(part.ids) or (part.subset.n if part.subset else part.n) for part in suite.parts)
        parts = ", ".join(part.name for part in suite.parts)
        ready = "yes" if all(map(_part_ready, suite.parts)) else "no"
        rows.append({"name": suite.name, "n": asked, "ready": ready, "parts": parts, "summary": suite.summary})
    return rows


def _part_ready(part: SuitePart) -> bool:
    """Returns whether the data of a part of a suite are on this machine; a part never takes others for its own."""
    from searchgym.envs.registration import env_options, find_env
    from searchgym.eval.suites.cards import resolved

    try:
        options = cast("TaskOptions", env_options(part.env, resolved(part.options)))
        return _ready(find_env(part.env), options, False) == "yes"
    except (DataMissingError, UnknownNameError):
        return False


LISTED: Final[dict[str, Callable[[], Rows]]] = {
    "envs": _envs,
    "agents": _agents,
    "recipes": _recipes,
    "models": _models,
    "corpora": _corpora,
    "retrievers": _retrievers,
    "encoders": _encoders,
    "suites": _suites,
}
"""Kind of card to the function that returns a row of the table for each card."""


@takes_records
def play(
    *,
    env: OwnEnv = None,
    source: Source,
    question: Annotated[str | None, typer.Option(help="Question id; a random one by default.")] = None,
    top_k: TopK = None,
    max_turns: MaxTurns = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the random choice of question.")] = None,
    json: Json = False,
) -> None:
    """Play an episode yourself in the terminal."""
    from searchgym.cli.play import play_episode
    from searchgym.envs.single import SearchEnv

    options = task_options(source)
    if top_k is not None:
        options["top_k"] = top_k
    if max_turns is not None:
        options["max_turns"] = max_turns
    outcome = play_episode(SearchEnv(load(env, options, source.wait)), question, seed)
    if outcome is None:
        say("left before the end")
        raise typer.Exit(130)
    emit(outcome, json, "outcome")
