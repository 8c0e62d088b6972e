"""The ``eval`` command: evaluates an agent on an environment's questions."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from searchgym.cli.options import LoadOptions, RunOptions, TaskChoice, takes_records
from searchgym.cli.output import Json, emit, progress, say, show, table
from searchgym.cli.run import EnvName, load, task_options
from searchgym.errors import SearchGymError, UsageError

if TYPE_CHECKING:
    from searchgym.agents.base import LoadedAgent
    from searchgym.envs.task import Task
    from searchgym.eval.runner import EvalOptions
    from searchgym.eval.scores import Scores
    from searchgym.records import Question
    from searchgym.rollout.models import Loading, Model


@takes_records
def evaluate(
    *,
    env: EnvName,
    agent: Annotated[str, typer.Option(help="Agent card (searchgym list agents), agent folder, or module:Class.")],
    model: Annotated[
        list[str] | None,
        typer.Option(help="[ROLE=]MODEL for one role or all: a folder, checkpoint, name, or URL#NAME."),
    ] = None,
    choice: TaskChoice,
    run: RunOptions,
    loading: LoadOptions,
    json: Json = False,
) -> None:
    """Evaluate an agent on an environment's questions."""
    from searchgym.agents.base import load_agent
    from searchgym.eval.runner import EvalOptions, check_out
    from searchgym.rollout.models import Loading

    loaded = load_agent(agent)
    if model and not loaded.roles:
        raise UsageError(f"agent {loaded.name} has no roles that ask a model: leave out --model")
    if (run.resume or run.overwrite) and run.out is None:
        raise UsageError("--resume and --overwrite need --out: the folder of the run")
    if run.out is not None:
        check_out(run.out, resume=run.resume, overwrite=run.overwrite)
    how = Loading(loading.sampler, loading.dtype, run.concurrency, loading.max_context)
    named = named_models(model or [], loaded, how)
    task = chosen_task(env, choice)
    folder = run.out or new_folder(task, loaded.name)
    if run.resume and not (folder / "run.json").exists():
        say(f"nothing to resume in {folder}: a new run")
    options = EvalOptions(run.temperature, run.seed, run.concurrency, run.resume, run.overwrite)
    with open_models(named, task, how) as models:
        scores = run_evaluation(task, loaded, folder, models, options)
    if json:
        emit({"env": task.card.id, "agent": loaded.name, "out": str(folder)} | scores, True)
    else:
        print_scores(f"{task.card.id} · {loaded.name}", scores)


def chosen_task(env: str, choice: TaskChoice) -> Task:
    """Returns the task of an environment, with the user's options and number of questions."""
    options = task_options(choice)
    if choice.skip_bad and choice.questions is not None:
        options["questions"] = read_given_questions(choice.questions, choice.skip_bad, choice.aliases)
    task = load(env, options, choice.wait)
    return task if choice.limit is None else dataclasses.replace(task, questions=task.questions[: choice.limit])


def read_given_questions(source: str, skip_bad: int, aliases: Path | None) -> list[Question]:
    """Reads questions, skipping and reporting bad rows."""
    from searchgym.cli.data import report
    from searchgym.corpora.files import BadLines
    from searchgym.corpora.hub import open_questions

    bad = BadLines(skip_bad)
    questions = open_questions(source, bad, aliases)
    report(bad)
    return questions


def new_folder(task: Task, agent: str) -> Path:
    """Returns a run folder that does not exist yet, named after the environment, the agent and the time."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / "eval" / f"{task.card.id.split('/')[-1]}_{agent.replace(':', '.')}_{stamp}"
    folder, n = base, 1
    while folder.exists():
        n += 1
        folder = base.with_name(f"{base.name}_{n}")
    return folder


def named_models(specs: list[str], agent: LoadedAgent, how: Loading) -> dict[str, str | Path]:
    """Returns the URL or folder of the model behind each role; wrong ones are refused before anything is loaded."""
    from searchgym.rollout.checkpoints import in_checkpoints
    from searchgym.rollout.models import find_models, parse_models

    return find_models(in_checkpoints(parse_models(specs, agent.roles), agent), how)


@contextlib.contextmanager
def open_models(named: Mapping[str, str | Path], task: Task, how: Loading) -> Iterator[Mapping[str, Model]]:
    """Loads the model behind each role of an agent, and closes the samplers when the block ends."""
    from searchgym.rollout.models import load_models

    with contextlib.ExitStack() as opened:
        with contextlib.redirect_stdout(sys.stderr):  # libraries that print when they are imported
            models = load_models(named, task.rules.protocol, how)
        for model in {id(model): model for model in models.values()}.values():  # roles may share a model
            opened.callback(model.sampler.close)
        yield models


def run_evaluation(
    task: Task, agent: LoadedAgent, out: Path, models: Mapping[str, Model], options: EvalOptions
) -> Scores:
    """Evaluates with a progress bar on standard error; when interrupted, prints how to resume."""
    from searchgym.eval import runner

    say(f"run folder: {out}")
    try:
        with progress(f"{task.card.id} {agent.name}") as advance:
            scores = runner.evaluate(task, agent, out, models, options, progress=advance)
    except KeyboardInterrupt:
        say(f"interrupted: finished episodes are kept in {out}; go on with the same command and --out {out} --resume")
        raise typer.Exit(130) from None
    except SearchGymError:
        raise
    except Exception:
        say(f"stopped by the error below: finished episodes are kept in {out}; --out {out} --resume goes on")
        raise
    if scores["retriever_errors"]:
        say(f"warning: {scores['retriever_errors']} episodes ended in a retriever error (score 0); --resume repeats")
    return scores


def print_scores(title: str, scores: Mapping[str, Any]) -> None:
    """Prints a table of scores with their confidence intervals."""
    rows = []
    for name, value in scores.items():
        interval = scores.get(f"{name}_ci95")
        if name == "title_recall" and value is not None:
            rows += [
                (f"title_recall by turn {turn}", show(mean), " – ".join(map(show, bounds)))
                for turn, (mean, bounds) in enumerate(zip(value, interval or [], strict=True), start=1)
            ]
        elif not name.endswith("_ci95"):
            rows.append((name, show(value), "" if interval is None else " – ".join(map(show, interval))))
    table(("metric", "value", "95 % interval"), rows, title)
