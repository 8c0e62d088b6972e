"""Runs a demonstration: trains a small model to search, and evaluates it before and after.

The held-out questions are those of ``searchgym/World-v0``. Their names never occur in training.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from searchgym.agents.base import LoadedAgent, load_agent
from searchgym.cli.demo.progress import DemoProgress
from searchgym.cli.demo.summary import SCRIPTED, summarise
from searchgym.corpora.files import write_atomic
from searchgym.corpora.folders import lock_folder
from searchgym.envs.registration import find_env
from searchgym.envs.task import Task, load_task
from searchgym.errors import RunExistsError, UsageError
from searchgym.eval.report.write import write_report
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.eval.scores import Scores
from searchgym.questions.worlds import build_world
from searchgym.rollout.foreign.template_options import template_format
from searchgym.rollout.models import Loading, load_models
from searchgym.rollout.transformers.sampler import load_sampler
from searchgym.train.demonstrations.worlds import ReadingTest
from searchgym.train.loop.assembly import train
from searchgym.train.recipe.recipe import Recipe

ENV: Final = "searchgym/World-v0"
REPORT: Final = "report.html"
PARTS: Final = {"before", "after", "train", "summary.json", REPORT, *SCRIPTED}
"""Names of the files and folders that a demonstration writes, and that a repetition replaces."""


def run_demo(recipe: Recipe, out: Path, progress: DemoProgress, questions: int | None = None) -> dict[str, Any]:
    """Evaluates a recipe's model on held-out questions, trains it, and evaluates it again.

    Args:
        recipe: Recipe to train, on a generated world, with one model key.
        out: Output folder; an earlier demonstration in it is replaced.
        progress: Told of each part and each step.
        questions: Number of held-out questions to ask, drawn by kind; all if None.

    Returns:
        Content of ``summary.json``: ``n``, ``em_before``, ``em_after``, ``seconds`` (of training), ``seconds_in_all``,
        ``example`` and more.

    Raises:
        RunExistsError: The folder holds other files, or is in use.
        UsageError: The recipe has several model keys.
    """
    if recipe.models:
        raise UsageError(
            f"{recipe.name} has several model keys, the demonstration trains only one: use `searchgym train`"
        )
    task, agent = load_task(find_env(ENV)), load_agent(recipe.agent)
    task = task.subset(questions)
    began = time.perf_counter()
    with _locked_folder(out):
        progress.begin()
        scores = {name: evaluate(task, load_agent(name), out / name) for name in SCRIPTED}
        progress.begin()
        untrained = dict.fromkeys(agent.roles, recipe.model)
        scores["before"] = evaluate_model(task, agent, untrained, out / "before", recipe.template, progress.advance)
        progress.begin()
        reading = reading_ceiling(task, recipe.model, recipe.template)
        progress.begin()
        started = time.perf_counter()
        result = train(recipe, out / "train", report=progress.step)
        seconds = time.perf_counter() - started
        progress.begin()
        trained = dict.fromkeys(agent.roles, str(result.checkpoint))
        scores["after"] = evaluate_model(task, agent, trained, out / "after", recipe.template, progress.advance)
        summary = summarise(task.questions, out, scores, reading) | {
            "seconds": round(seconds, 1),
            "seconds_in_all": round(time.perf_counter() - began, 1),
            "recipe": recipe.name,
            "model": recipe.model,
            "agent": recipe.agent,
            "seed": recipe.seed,
            "steps": result.progress.step,
            "generated_tokens": result.progress.generated_tokens,
            "retokenisation_mismatch": sum(row.get("retokenisation_mismatch", 0.0) for row in result.rows),
            "curve": str(out / "train" / "curve.png"),
            "episodes": str(out / "train" / "episodes.jsonl"),
            "checkpoint": str(result.checkpoint),
            "report": str(out / REPORT),
        }
        with write_atomic(out / "summary.json") as file:
            file.write((json.dumps(summary, indent=2) + "\n").encode())
        progress.begin()
        write_report([out / name for name in ("before", "after", *SCRIPTED, "train")], out / REPORT)
    return summary


def reading_ceiling(task: Task, model: str, template: Mapping[str, Any] = {}) -> dict[str, float]:
    """Returns EM by question id of the model with the gold pages in its context.

    Questions that need the same page twice are left out.

    Args:
        task: Task over a generated world.
        model: Model folder or name.
        template: Arguments of its chat template.
    """
    world = task.card.questions.world_spec()
    assert world is not None
    sampler, tokenizer = load_sampler(model)
    form = template_format(tokenizer, task.rules.protocol, template)
    test = ReadingTest(dataclasses.replace(build_world(world), questions=task.questions), form)
    return {question.id: score for question, score in zip(test.task.questions, test.scores(sampler), strict=True)}


def evaluate_model(
    task: Task,
    agent: LoadedAgent,
    models: Mapping[str, str],
    out: Path,
    template: Mapping[str, Any] = {},
    progress: Callable[[int, int], None] | None = None,
) -> Scores:
    """Returns the scores of greedy episodes with a model per role; resumes an unfinished evaluation in `out`."""
    loaded = load_models(models, task.rules.protocol, Loading(template=template))
    return evaluate(task, agent, out, loaded, EvalOptions(resume=out.exists()), progress=progress)


@contextmanager
def _locked_folder(out: Path) -> Iterator[None]:
    """Locks the output folder while the block runs, and removes an earlier demonstration from it."""
    if out.exists() and {path.name for path in out.iterdir()} - PARTS - {".lock"}:
        raise RunExistsError(f"{out} holds files that no demonstration wrote: choose another folder with --out")
    with lock_folder(out):
        for path in out.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != ".lock":
                path.unlink()
        yield
