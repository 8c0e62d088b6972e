"""The ``demo`` command's work: train a small model that searches badly, and score it before and after.

The held-out questions are those of ``searchgym/World-v0``: their names never occur in training, and the card of the
environment fixes the mix of hops.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from searchgym.agents.base import LoadedAgent, load_agent
from searchgym.cli.output import table, tell
from searchgym.corpora.files import write_atomic
from searchgym.corpora.folders import lock_folder
from searchgym.envs.registration import find_env
from searchgym.envs.task import Task, load_task
from searchgym.errors import RunExistsError, UsageError
from searchgym.eval.report.write import write_report
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.eval.scores import Scores, bootstrap_ci
from searchgym.questions.worlds import build_world
from searchgym.records import Question
from searchgym.rollout.foreign.template_options import template_format
from searchgym.rollout.models import Loading, load_models
from searchgym.rollout.storage import read_episodes
from searchgym.rollout.transformers.sampler import load_sampler
from searchgym.train.demonstrations.worlds import ReadingTest
from searchgym.train.loop.assembly import train
from searchgym.train.loop.folder import Row
from searchgym.train.recipe.recipe import Recipe

ENV: Final = "searchgym/World-v0"
SCRIPTED: Final = ("closed-book", "single-search", "evidence-oracle")
"""Agents without a model that answer the same questions: two lower bounds and the upper bound of the retriever."""
REPORT: Final = "report.html"
PARTS: Final = {"before", "after", "train", "summary.json", REPORT, *SCRIPTED}
"""Names of the files and folders that a demonstration writes, and that a repetition replaces."""
COMPARISONS: Final = "comparisons"
OTHERS: Final = "others"
"""Names of groups of questions: those that compare two things, which can be guessed, and all others."""

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
        questions: Number of held-out questions to ask, drawn by kind; all if None.

    Returns:
        Content of ``summary.json``: ``n``, ``em_before``, ``em_after``, ``seconds`` (of training), ``seconds_in_all``
        and more.

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
        say(f"evaluating {recipe.model} on {len(task.questions)} held-out questions ...")
        scores = {name: evaluate(task, load_agent(name), out / name) for name in SCRIPTED}
        scores["before"] = evaluate_model(
            task, agent, dict.fromkeys(agent.roles, recipe.model), out / "before", recipe.template
        )
        reading = reading_ceiling(task, recipe.model, recipe.template)
        say(f"training it by {recipe.name} ...")
        started = time.perf_counter()
        result = train(recipe, out / "train", report=report)
        seconds = time.perf_counter() - started
        say("evaluating it again ...")
        trained = dict.fromkeys(agent.roles, str(result.checkpoint))
        scores["after"] = evaluate_model(task, agent, trained, out / "after", recipe.template)
        summary = _summary(task, out, scores, reading) | {
            "seconds": round(seconds, 1),
            "seconds_in_all": round(time.perf_counter() - began, 1),
            "recipe": recipe.name,
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
        say("writing its report ...")
        write_report([out / name for name in ("before", "after", *SCRIPTED, "train")], out / REPORT)
    return summary


def reading_ceiling(task: Task, model: str, template: Mapping[str, Any] = {}) -> dict[str, float]:
    """Returns EM by question id when the model is given the gold pages; questions that read a page twice are left out.

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
    task: Task, agent: LoadedAgent, models: Mapping[str, str], out: Path, template: Mapping[str, Any] = {}
) -> Scores:
    """Returns the scores of greedy episodes with a model per role; resumes an unfinished evaluation in `out`."""
    loaded = load_models(models, task.rules.protocol, Loading(template=template))
    return evaluate(task, agent, out, loaded, EvalOptions(resume=out.exists()))


def em_by_question(out: Path) -> dict[str, float]:
    """Returns the EM of an evaluation's episodes, by question id."""
    return {episode.question_id: episode.scores["em"] for episode in read_episodes(out / "episodes.jsonl")}


def _summary(task: Task, out: Path, scores: Mapping[str, Any], reading: Mapping[str, float]) -> dict[str, Any]:
    """Returns the evaluations side by side, with the 95 % interval of the paired gain in EM."""
    em = {name: em_by_question(out / name) for name in (*SCRIPTED, "before", "after")}
    before, after = em["before"], em["after"]
    summary: dict[str, Any] = {"n": len(before)}
    for name in ("before", "after"):
        result = scores[name]
        summary |= {f"em_{name}": result["em"], f"f1_{name}": result["f1"]}
        summary |= {f"title_recall_{name}": result["title_recall"][-1]}
        summary |= {f"searches_{name}": result["searches"], f"answered_{name}": result["answered"]}
    summary["gain"] = summary["em_after"] - summary["em_before"]
    summary["gain_ci95"] = bootstrap_ci([after[key] - before[key] for key in sorted(before)])
    summary["em"] = em_by_group(task.questions, em | {"gold pages": reading})
    return summary


def em_by_group(
    questions: Iterable[Question], em: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float | None]]:
    """Returns the mean EM of each evaluation by group of questions, with the number of ``questions``.

    The groups are numbers of hops and, where only some questions of a number compare, ``"4 comparisons"`` and
    ``"4 others"``; the last group is ``"all"``.

    Args:
        questions: Questions of a generated world.
        em: EM by question id, by name of the evaluation; one may leave questions out.
    """
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for question in questions:
        hops, compares = str(question.metadata["hops"]), (question.kind or "").endswith("comparison")
        for name in (hops, f"{hops} {COMPARISONS if compares else OTHERS}", "all"):
            groups[name].append(question.id)
    mixed = {name.split()[0] for name in groups if name.endswith(COMPARISONS)}
    mixed &= {name.split()[0] for name in groups if name.endswith(OTHERS)}
    kept = sorted(name for name in groups if " " not in name or name.split()[0] in mixed)
    means: dict[str, dict[str, float | None]] = {}
    for group in kept:
        means[group] = {"questions": len(groups[group])}
        for name, values in em.items():
            found = [values[id] for id in groups[group] if id in values]
            means[group][name] = round(sum(found) / len(found), 4) if found else None
    return means


# -- printing ------------------------------------------------------------------------------------------------------


def print_summary(summary: Mapping[str, Any], out: Path) -> None:
    """Prints what a demonstration found: EM by number of hops, what explains it, the time, and what to do next."""
    em = summary["em"]
    renamed = {"single-search": "single search", "gold pages": "gold pages given", "evidence-oracle": "all pages found"}
    names = "questions", "closed-book", "single-search", "before", "after", "gold pages", "evidence-oracle"
    columns = {name: renamed.get(name, name) for name in names}
    rows = []
    for group, values in em.items():
        label = f"  {group.split()[1]}" if " " in group else group if group == "all" else f"{group} hops"
        figures = [values[name] for name in columns]
        rows.append([label, *("n/a" if n is None else str(n) if isinstance(n, int) else f"{n:.3f}" for n in figures)])
    table(("EM", *columns.values()), rows, f"{summary['recipe']}: {summary['n']} held-out questions")
    called, model = Path(sys.argv[0]), shlex.quote(summary["checkpoint"])
    program = str(called) if called.name == "searchgym" else f"{sys.executable} -m searchgym"
    low, high = summary["gain_ci95"]
    minutes, seconds = divmod(round(summary["seconds_in_all"]), 60)
    lines = [
        f"gain in EM: {summary['gain']:.3f} (95 % interval {low:.3f} to {high:.3f}); "
        f"searches per question {summary['searches_before']:.2f} before, {summary['searches_after']:.2f} after",
        "ceilings: 'gold pages given' is what the untrained model reads from the right pages; 'all pages found' is a",
        "  scripted agent that searches for the right titles with the same retriever and answers if it finds them all",
        *_explanations(em),
        f"time: {minutes} min {seconds} s, {summary['seconds']:.0f} s of them training",
        f"curve: {summary['curve']}",
        "what to do next:",
        f"  {program} show {shlex.quote(str(out / 'after'))} --model {model}",
        f"  {program} eval Demo --agent {summary['agent']} --model {model}",
        f"  {program} train {summary['recipe']} steps=60 --out runs/longer",
        f"report: {summary['report']} (curves, tables and episodes to read; open it in a browser)",
    ]
    tell("\n".join(lines))


def _explanations(em: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yields how an agent that never searches scores: in comparisons it says yes, or the first of two names."""
    for group in (name for name in em if f"{name} {COMPARISONS}" in em):
        compared, others, both = em[f"{group} {COMPARISONS}"], em[f"{group} {OTHERS}"], em[group]
        if both["closed-book"] > both["after"]:
            better, trained = both["closed-book"], both["after"]
            yield f"at {group} hops closed-book ({better:.3f}) beats the trained model ({trained:.3f}):"
            yield (
                f"  {compared['questions']} of {both['questions']} questions compare; saying yes, or the first of two "
                f"names, is right in {compared['closed-book']:.3f} of them (trained: {compared['after']:.3f});"
            )
            yield f"  of the others closed-book gets {others['closed-book']:.3f} (trained: {others['after']:.3f})"


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
