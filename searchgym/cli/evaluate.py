"""The ``eval`` command: evaluates an agent on an environment's questions."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from searchgym.cli.options import LoadOptions, RunOptions, TaskChoice, takes_records
from searchgym.cli.output import Json, emit, progress, say, show, table, tell
from searchgym.cli.run import OwnEnv, load, task_options
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
    env: OwnEnv = None,
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
    """Evaluate an agent on an environment's questions, or on your own: --questions FILE with something to search."""
    from searchgym.agents.base import load_agent
    from searchgym.eval.runner import EvalOptions, check_out
    from searchgym.rollout.models import Loading

    loaded = with_max_tokens(load_agent(agent), run.max_tokens)
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


def with_max_tokens(agent: LoadedAgent, most: int | None) -> LoadedAgent:
    """Returns an agent whose roles may write at most this many tokens per output; None leaves its card's numbers.

    Raises:
        UsageError: The agent has no roles.
    """
    if most is None:
        return agent
    if not agent.roles:
        raise UsageError(f"agent {agent.name} has no roles that ask a model: leave out --max-tokens")
    roles = {name: dataclasses.replace(role, max_tokens=most) for name, role in agent.roles.items()}
    source = f"{agent.source}, max_tokens {most}"  # of the run's record, so that --resume refuses another number
    return dataclasses.replace(agent, roles=roles, source=source)


def chosen_task(env: str | None, choice: TaskChoice) -> Task:
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

    if named:
        say(f"loading {', '.join(dict.fromkeys(map(str, named.values())))} ...")
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


# -- the printed scores --------------------------------------------------------------------------------------------

TABLES: Final = ("legal_by_role", "refused", "notes", "endings", "splits")
"""Keys of scores that explain the others; they have tables of their own."""
UNMEASURED: Final = {
    ("sp_", "evidence_", "joint_"): "the agent names no supporting evidence",
    ("response_tokens", "legal"): "no model was asked",
    ("title_recall",): "the questions name no gold pages",
    ("",): "not produced by the agent",
}
"""Beginnings of keys, with the reason why their scores can be missing."""
LOW: Final = 0.5
"""Share of legal outputs below which the printed scores come with advice."""


def print_scores(title: str, scores: Mapping[str, Any]) -> None:
    """Prints scores with their confidence intervals, splits, what explains them, and advice."""
    rows: list[tuple[str, str, str]] = []
    for name, value in scores.items():
        if name == "n" or name in TABLES or name.endswith("_ci95") or value is None:
            continue
        interval = scores.get(f"{name}_ci95")
        if name == "title_recall":
            rows += _by_turn(value, scores["title_recall_ci95"])
        elif value or name not in ("retriever_errors", "full_contexts"):
            rows.append((name, show(value), "" if interval is None else " – ".join(map(show, interval))))
    table(("metric", "value", "95 % interval"), rows, f"{title}, {scores['n']} questions")
    _print_splits(scores["splits"])
    _print_outputs(scores)
    for line in (*_unmeasured(scores), *_advice(scores)):
        tell(line)


def _by_turn(means: Sequence[float], intervals: Sequence[Sequence[float]]) -> Iterator[tuple[str, str, str]]:
    """Yields a row for each run of turns whose values are equal."""
    shown = [(show(mean), " – ".join(map(show, bounds))) for mean, bounds in zip(means, intervals, strict=True)]
    for cells, alike in itertools.groupby(range(len(shown)), shown.__getitem__):
        turns = [turn + 1 for turn in alike]
        yield (f"title_recall by turn {turns[0]}" + (f" to {turns[-1]}" if turns[1:] else ""), *cells)


def _print_splits(splits: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Prints scores by hops and by type, where the questions differ in them."""
    rows = [
        (f"{kind} {value}", *("" if score is None else show(score) for score in scores.values()))
        for kind, own in splits.items()
        if len(own) > 1
        for value, scores in own.items()
    ]
    if rows:
        table(("questions", "n", "EM", "F1", "legal", "searches"), rows)


def _print_outputs(scores: Mapping[str, Any]) -> None:
    """Prints legal shares by role, why outputs were refused, and what the workflow noted."""
    roles = scores["legal_by_role"]
    if len(roles) > 1 or scores["refused"]:
        table(("role", "outputs", "legal"), [(r, show(own["calls"]), show(own["legal"])) for r, own in roles.items()])
    if scores["refused"]:
        reasons = [(r["role"], r["reason"], show(r["calls"]), r["example"]) for r in scores["refused"]]
        table(("role", "refused because", "outputs", "example"), reasons)
    if scores["notes"]:
        notes = [(name, show(own["episodes"]), show(own["mean"])) for name, own in scores["notes"].items()]
        table(("note", "episodes", "mean"), notes)


def _unmeasured(scores: Mapping[str, Any]) -> list[str]:
    """Returns a line that names the missing scores and the reasons, if any are missing."""
    reasons: dict[str, list[str]] = {}
    for name in (name for name, value in scores.items() if value is None):
        prefix, why = next((p, why) for ps, why in UNMEASURED.items() for p in ps if name.startswith(p))
        reasons.setdefault(why, []).append(f"{prefix}*" if prefix.endswith("_") else name)
    parts = [f"{', '.join(dict.fromkeys(names))} ({why})" for why, names in reasons.items()]
    return [f"not measured: {'; '.join(parts)}"] if parts else []


def _advice(scores: Mapping[str, Any]) -> Iterator[str]:
    """Yields lines that explain a low score and name the next thing to try."""
    legal = scores["legal"]
    if legal is not None and legal < LOW:
        yield (
            f"Only {100 * legal:.0f} % of the models' outputs are legal, so these scores say little about searching: "
            "the model does not write what the prompts ask for."
        )
        if scores["refused"][0]["reason"].startswith("cut off"):
            yield "Next: give more room with --max-tokens."
        else:
            yield (
                "Next: worked examples in the prompts (as those of the agent search-r1-few-shot), the grammar that the "
                "model was trained on (--protocol tool_calls), or other prompts: copy the agent's folder, edit them, "
                "and give its card.yaml as --agent. A training teaches the form too (docs/training.md)."
            )
    elif scores["answered"] < LOW:
        ends = ", ".join(f"{name} {count}" for name, count in scores["endings"].items())
        yield f"Most episodes ended without an answer ({ends}): more --max-turns, or a prompt that asks to answer."
    elif not scores.get("em") and scores["cover_em"]:
        yield "No answer equals a gold answer, but some contain one (cover_em): ask for the answer alone in the prompt."
