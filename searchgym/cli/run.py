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

from searchgym.cards import (
    AdapterCard,
    AgentCard,
    CorpusCard,
    EncoderCard,
    EnvCard,
    ModelCard,
    PretrainedCard,
    load_card,
    load_model_card,
)
from searchgym.cards import list_cards as cards_of
from searchgym.cli.options import MaxTurns, Source, TaskChoice, TopK, takes_records
from searchgym.cli.output import Json, emit, emit_rows, say
from searchgym.errors import DataMissingError, UnknownNameError, UsageError
from searchgym.yaml_reader import parse_yaml

if TYPE_CHECKING:
    from searchgym.envs.task import Task, TaskOptions
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
    from searchgym.envs.task import TaskOptions

    fields = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    chosen = {name: value for name, value in fields.items() if value is not None and value is not False}
    if "retrievers" in chosen:
        chosen["retrievers"] = parse_yaml(chosen["retrievers"], "--retrievers")
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
    from searchgym.corpora.retrieval.remote.client import HttpRetriever
    from searchgym.envs.registration import env_options, find_env, own_card
    from searchgym.envs.task import load_task

    if name is None:
        card = own_card(f"own/{Path(_own_questions(options)).stem}")
    else:
        try:
            card = find_env(name)
        except UnknownNameError as error:
            if "questions" not in options:
                raise
            raise UsageError(f"{error}. Your own questions need no environment: {_without(name)}") from None
        options = cast("TaskOptions", {**env_options(name), **options})
        options = cast("TaskOptions", {**_evaluation_data(card, options), **options})
    task = load_task(card, **options)
    if wait:
        if not isinstance(task.retriever, HttpRetriever):
            raise UsageError("--wait needs a retrieval server: give its URL as --retriever")
        task.retriever.wait(wait)
    return task


def chosen_task(env: str | None, choice: TaskChoice) -> Task:
    """Returns the task of an environment, with the user's options and number of questions."""
    options = task_options(choice)
    if choice.skip_bad and choice.questions is not None:
        options["questions"] = read_given_questions(choice.questions, choice.skip_bad, choice.aliases)
    return limited(load(env, options, choice.wait), choice.limit)


def limited(task: Task, most: int | None) -> Task:
    """Returns a task with its first questions only; with all of them if `most` is None."""
    return task if most is None else task.asking(task.questions[:most])


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
    if "questions" not in options:
        raise UsageError(
            "which environment? Give its ID (searchgym list), or your own --questions FILE with --corpus, --retriever "
            "or --distractors"
        )
    if not {"corpus", "retriever", "distractors"} & options.keys():
        raise UsageError("nothing to search: give --corpus, --retriever or --distractors with your own --questions")
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
    from searchgym.corpora.own import home
    from searchgym.envs.data import find_corpus

    source, base = card.questions, os.environ.get("SEARCHGYM_DATA")
    given = "questions" in options or bool(source.bundled) or card.world is not None
    if not base or given or (home() / "data" / source.file).exists():
        return {}
    folder = Path(base) / source.dataset.lower()
    if not (folder / "questions.json").is_file():
        return {}
    say(f"questions of {card.id}: {folder} (SEARCHGYM_DATA)")
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
    from searchgym.envs.registration import registered

    return [
        {"id": c.id, "data": f"{c.questions.dataset}, {c.questions.split}", "n": c.questions.size, "summary": c.summary}
        for c in registered().values()
    ]


def _agents() -> Rows:
    cards = [load_card(AgentCard, path) for path in cards_of("agents").values()]
    return [{"name": c.name, "summary": c.summary} for c in cards]


def _recipes() -> Rows:
    from searchgym.train.recipe.load import load_recipe

    recipes = {name: load_recipe(name) for name in cards_of("train")}
    return [
        {"name": name, "method": r.method, "agent": r.agent, "model": r.model, "steps": r.steps, "summary": r.summary}
        for name, r in recipes.items()
    ]


def _models() -> Rows:
    cards: list[ModelCard | AdapterCard | PretrainedCard] = list(map(load_model_card, cards_of("models").values()))
    cards += [load_card(PretrainedCard, path) for path in cards_of("pretrained").values()]
    return [{"name": c.name, "parameters": c.parameters, "licence": c.licence, "summary": c.summary} for c in cards]


def _corpora() -> Rows:
    cards = [load_card(CorpusCard, path) for path in cards_of("corpora").values()]
    return [{"name": c.name, "passages": c.passages, "licence": c.licence, "summary": c.summary} for c in cards]


def _retrievers() -> Rows:
    from searchgym.corpora.retrieval.cards import find_retriever

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
        rows.append({"name": suite.name, "n": asked, "parts": parts, "summary": suite.summary})
    return rows


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
