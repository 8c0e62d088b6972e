"""Loading of the task of a command, with the options that the user gave."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from searchgym.cli.options import SourceOptions, TaskChoice, completed, env_names
from searchgym.cli.output import say
from searchgym.errors import DataMissingError, UnknownNameError, UsageError
from searchgym.options.yaml import parse_yaml

if TYPE_CHECKING:
    from searchgym.envs.cards import EnvCard
    from searchgym.envs.options import TaskOptions
    from searchgym.envs.task import Task

OwnEnv = Annotated[
    str | None,
    typer.Argument(
        metavar="ID",
        help="Environment id, short name (HotpotQA) or YAML card; left out for your own --questions.",
        show_default=False,
        autocompletion=completed(env_names),
    ),
]


def task_options(source: SourceOptions) -> TaskOptions:
    """Returns the environment options that the user gave, out of a record of command-line options."""
    from searchgym.envs.options import TaskOptions

    fields = {field.name: getattr(source, field.name) for field in dataclasses.fields(source)}
    chosen = {name: value for name, value in fields.items() if value is not None and value is not False}
    for name in ("retrievers", "faults"):
        if name in chosen:
            chosen[name] = parse_yaml(chosen[name], f"--{name}")
    for name in ("questions", "retriever"):
        if str(chosen.get(name, "")).startswith("{"):
            chosen[name] = parse_yaml(chosen[name], f"--{name}")
    return cast("TaskOptions", {name: chosen[name] for name in TaskOptions.__annotations__ if name in chosen})


def card_of(name: str | None, options: TaskOptions) -> EnvCard:
    """Returns the card of an environment, or one for the user's own questions.

    Args:
        name: Environment id, short name or YAML card; None for the user's own questions.
        options: The user's options.

    Raises:
        UsageError: `name` is None and something is missing, or `name` is unknown and the questions need none.
        UnknownNameError: Nothing has that name.
    """
    from searchgym.envs.registration import find_env

    if name is None:
        return _own_env(options)
    try:
        return find_env(name)
    except UnknownNameError as error:
        if "questions" not in options:
            raise
        typed = sys.argv[1:]
        if name in typed:
            typed.remove(name)
        command = shlex.join(["searchgym", *typed])
        raise UsageError(f"{error} Your own questions need no environment: {command}") from None


def load(name: str | None, options: TaskOptions, wait: float = 0.0) -> Task:
    """Returns the task of an environment; the user's options override those registered with the id.

    Args:
        name: Environment id, short name or YAML card; None for the user's own questions.
        options: The user's options.
        wait: Seconds to wait for a retrieval server.

    Raises:
        UsageError: `wait` is given, but the retriever is no server; or see `card_of`.
        UnknownNameError: Nothing has that name.
    """
    from searchgym.envs.registration import env_options
    from searchgym.envs.task import load_task
    from searchgym.retrieval.kinds.http import HttpRetriever

    card = card_of(name, options)
    if name is not None:
        options = env_options(name, options)
        files = evaluation_data(card, options)
        if "questions" in files:
            folder = Path(str(files["questions"])).parent
            say(f"questions of {card.id}: {folder} (SEARCHGYM_DATA), not its {card.questions.split_name}")
        options = cast("TaskOptions", {**files, **options})
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
        from searchgym.cli.data import report
        from searchgym.corpora.questions import read_questions
        from searchgym.errors import BadLines

        bad = BadLines(choice.skip_bad)
        options["questions"] = read_questions(choice.questions, None, bad, choice.aliases)
        report(bad)
    task = load(env, options, choice.wait)
    if choice.qrels is not None:
        task = _judged(task, choice.qrels)
    return task.subset(choice.limit, choice.draw_seed)


def _judged(task: Task, qrels: Path) -> Task:
    """Returns the task with the gold pages of a file of qrels.

    Raises:
        UsageError: The corpus is not on this machine, so that the titles of the passages are unknown.
    """
    from searchgym.eval.retrieval import read_qrels, with_qrels
    from searchgym.retrieval.retriever import corpus_of

    corpus = corpus_of(task.retriever)
    if corpus is None:
        raise UsageError("--qrels needs the corpus on this machine, for the titles of passages: give --corpus")
    return task.asking(with_qrels(task.questions, read_qrels(qrels), corpus.passages()))


def _own_env(options: TaskOptions) -> EnvCard:
    """Returns a card for the user's own questions, which must be given with something to search."""
    from searchgym.envs.options import own_questions
    from searchgym.envs.registration import own_card

    if "questions" not in options:
        raise UsageError(
            "which environment? Give its ID (searchgym list), or your own --questions FILE with --corpus, --retriever "
            "or --distractors"
        )
    if not {"corpus", "retriever", "distractors"} & options.keys():
        raise UsageError("nothing to search: give --corpus, --retriever or --distractors with your own --questions")
    if own_questions(options) is None:
        raise UsageError("fields of a question source are those of an environment: give its ID (searchgym list)")
    return own_card(f"own/{Path(str(options['questions'])).stem}")


def evaluation_data(card: EnvCard, options: TaskOptions) -> TaskOptions:
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
    files: TaskOptions = {"questions": folder / "questions.json"}
    if (folder / "id_aliases.json").is_file():
        files["aliases"] = folder / "id_aliases.json"
    if "corpus" not in options and not options.get("distractors") and (folder / "corpus.json").is_file():
        try:
            find_corpus(card.corpus)
        except DataMissingError:
            files["corpus"] = folder / "corpus.json"
    return files
