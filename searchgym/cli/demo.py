"""The ``demo`` command's work: train a small model that searches badly, and score it before and after.

The held-out questions are those of ``searchgym/World-v0``: their names never occur in training, and the card of the
environment fixes the mix of hops.
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
from searchgym.corpora.files import write_atomic
from searchgym.corpora.locks import lock_folder
from searchgym.corpora.worlds import build_world
from searchgym.envs.registration import find_env
from searchgym.envs.task import Task, load_task
from searchgym.errors import RunExistsError, UsageError
from searchgym.eval.intervals import bootstrap_ci
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.rollout.models import load_models
from searchgym.rollout.storage import read_episodes
from searchgym.rollout.tokens import TokenFormat
from searchgym.rollout.transformers.sampler import load_sampler
from searchgym.train.recipe.recipe import Recipe
from searchgym.train.run.assembly import train
from searchgym.train.run.folder import Row
from searchgym.train.tiny.exam import ReadingTest, by_hops

ENV: Final = "searchgym/World-v0"
FLOORS: Final = ("closed-book", "single-search")
PARTS: Final = {"before", "after", "train", "summary.json", *FLOORS}
"""Names of the files and folders that a demonstration writes, and that a repetition replaces."""

Say = Callable[[str], None]


def run_demo(
    recipe: Recipe,
    out: Path,
    say: Say = lambda text: None,
    report: Callable[[Row], None] | None = None,
    questions: int | None = None,
) -> dict[str, Any]:
    """Evaluates a recipe's model on held-out questions, trains it, and evaluates it again.

    Args:
        recipe: Recipe to train, on a generated world, with one model key.
        out: Output folder; an earlier demonstration in it is replaced.
        say: Called with a line of text at each stage.
        report: Called with each row of training metrics.
        questions: Number of held-out questions to ask, from the first on; all if None.

    Returns:
        Content of ``summary.json``: ``n``, ``em_before``, ``em_after``, ``seconds`` (of training) and more.

    Raises:
        RunExistsError: The folder holds other files, or is in use.
        UsageError: The recipe has several model keys.
    """
    if recipe.models:
        raise UsageError(
            f"{recipe.name} has several model keys, the demonstration trains only one: use `searchgym train`"
        )
    task, agent = load_task(find_env(ENV)), load_agent(recipe.agent)
    task = dataclasses.replace(task, questions=task.questions[:questions])
    with _locked_folder(out):
        say(f"evaluating {recipe.model} on {len(task.questions)} held-out questions ...")
        scores = {floor: evaluate(task, load_agent(floor), out / floor) for floor in FLOORS}
        scores["before"] = evaluate_model(task, agent, dict.fromkeys(agent.roles, recipe.model), out / "before")
        ceiling = reading_ceiling(task, recipe.model)
        say(f"training it by {recipe.name} ...")
        started = time.perf_counter()
        result = train(recipe, out / "train", report=report)
        seconds = time.perf_counter() - started
        say("evaluating it again ...")
        trained = dict.fromkeys(agent.roles, str(result.checkpoint))
        scores["after"] = evaluate_model(task, agent, trained, out / "after")
        summary = _summary(task, out, scores, ceiling) | {
            "seconds": round(seconds, 1),
            "recipe": recipe.name,
            "seed": recipe.seed,
            "steps": result.progress.step,
            "generated_tokens": result.progress.generated_tokens,
            "retokenisation_mismatch": sum(row.get("retokenisation_mismatch", 0.0) for row in result.rows),
            "curve": str(out / "train" / "curve.png"),
            "episodes": str(out / "train" / "episodes.jsonl"),
            "checkpoint": str(result.checkpoint),
        }
        with write_atomic(out / "summary.json") as file:
            file.write((json.dumps(summary, indent=2) + "\n").encode())
    return summary


def reading_ceiling(task: Task, model: str) -> dict[str, float]:
    """Returns EM by number of hops, and over ``"all"``, when the model is given the gold pages of each question.

    Args:
        task: Task over a generated world.
        model: Model folder or name.
    """
    assert task.card.world is not None
    sampler, tokenizer = load_sampler(model)
    form = TokenFormat(tokenizer, task.rules.protocol, chat=bool(tokenizer.chat_template))
    test = ReadingTest(dataclasses.replace(build_world(task.card.world), questions=task.questions), form)
    return by_hops(zip(test.task.questions, test.scores(sampler), strict=True))


def evaluate_model(task: Task, agent: LoadedAgent, models: Mapping[str, str], out: Path) -> dict[str, Any]:
    """Returns the scores of greedy episodes with a model per role; resumes an unfinished evaluation in `out`."""
    return evaluate(task, agent, out, load_models(models, task.rules.protocol), EvalOptions(resume=out.exists()))


def em_by_question(out: Path) -> dict[str, float]:
    """Returns the EM of an evaluation's episodes, by question id."""
    return {episode.question_id: episode.scores["em"] for episode in read_episodes(out / "episodes.jsonl")}


def _summary(task: Task, out: Path, scores: Mapping[str, Any], ceiling: Mapping[str, float]) -> dict[str, Any]:
    """Returns the evaluations side by side, with the 95 % interval of the paired gain in EM."""
    before, after = em_by_question(out / "before"), em_by_question(out / "after")
    summary: dict[str, Any] = {"n": len(before)}
    for name in ("before", "after"):
        result = scores[name]
        summary |= {f"em_{name}": result["em"], f"f1_{name}": result["f1"]}
        summary |= {f"title_recall_{name}": result["title_recall"][-1]}
        summary |= {f"searches_{name}": result["searches"], f"answered_{name}": result["answered"]}
    summary["gain"] = summary["em_after"] - summary["em_before"]
    summary["gain_ci95"] = bootstrap_ci([after[key] - before[key] for key in sorted(before)])
    summary["em_by_hops"] = {
        name: by_hops((task.by_id[key], value) for key, value in values.items())
        for name, values in (
            *((floor, em_by_question(out / floor)) for floor in FLOORS),
            ("before", before),
            ("after", after),
        )
    } | {"reading ceiling": dict(ceiling)}
    return summary


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
