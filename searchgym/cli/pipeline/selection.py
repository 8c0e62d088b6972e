"""Selection of training questions by how often a model answers them: neither always right nor always wrong.

Groups of equal rewards teach a group estimator nothing, so questions are kept whose measured pass rate lies in a
window. The rate of a question that was picked by it is biased towards the window; it is therefore measured a second
time, on new attempts, and must lie in the window again. Questions that offer their answer are left out before: a coin
that is tossed between two names has just the pass rate that is looked for, and searching teaches nothing about it.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from searchgym.agents.base import LoadedAgent
from searchgym.corpora.files import iter_jsonl, sha256_file, write_atomic
from searchgym.corpora.questions import write_questions
from searchgym.envs.task import Task
from searchgym.errors import NothingLeftError, RunExistsError, UsageError
from searchgym.eval.run_folder import QUESTIONS, holds_run
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.options import Options
from searchgym.questions.shortcuts import hops_of, names_answer
from searchgym.questions.subset import by_hash, draw_subset
from searchgym.records import Question, title_key
from searchgym.retrieval.cards import Progress, quiet
from searchgym.retrieval.retriever import retrieve
from searchgym.rollout.models import Model

SELECTED: Final = "questions.jsonl"
"""File of the selected questions."""
REPORT: Final = "selection.json"
"""File that tells how they were selected."""
ROUNDS: Final = ("first", "second")
"""Folders of the two measurements."""
BATCH: Final = 256
"""Questions that are searched for at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(Options):
    """How questions are selected."""

    pool: int = 600
    """Number of questions that are measured."""
    attempts: int = 8
    """Attempts at each question in one measurement."""
    low: float = 1 / 8
    """Least pass rate."""
    high: float = 6 / 8
    """Highest pass rate."""
    multi_hop: float = 0.8
    """Share of questions of several hops among those measured and, by leaving others out, among those selected."""
    fill: bool = False
    """Whether the other kind takes the place of one that is too few. If not, all are fewer, in the share asked for."""
    temperature: float = 1.0
    """Sampling temperature of the attempts."""
    seed: int = 0
    """Random seed; in a pipeline, it is added to the pipeline's seed."""

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            UsageError: A value is out of range.
        """
        if not 0 <= self.low <= self.high <= 1:
            raise UsageError(f"a window of pass rates needs 0 <= low <= high <= 1, got {self.low} to {self.high}")
        if not 0 <= self.multi_hop <= 1 or min(self.pool, self.attempts) < 1 or self.temperature <= 0:
            raise UsageError(
                f"a selection needs pool, attempts and temperature above 0, multi_hop in [0, 1], got {self}"
            )


def candidates(task: Task, apart: Iterable[Question] = ()) -> tuple[list[Question], dict[str, int]]:
    """Returns the questions of a task that can teach searching, and how many were left out by reason.

    Left out are questions that offer their answer (comparisons, yes or no), questions without gold titles, and those of
    several hops whose own text finds their second page among the hits of one search.

    Args:
        task: Questions, and what they are searched in.
        apart: Questions with which none may share a gold page, such as those of another split.
    """
    taken = {title_key(title) for question in apart for title in question.gold_titles or ()}
    left: dict[str, int] = {}
    named = [question for question in task.questions if question.gold_titles]
    hits = _own_hits(task, named)
    kept = []
    for question, titles in zip(named, hits, strict=True):
        gold = list(dict.fromkeys(title_key(title) for title in question.gold_titles or ()))
        if question.answerable is False:
            reason = "has no answer"
        elif names_answer(question):
            reason = "offers its answer"
        elif taken.intersection(gold):
            reason = "its pages are taken"
        elif len(gold) > 1 and gold[1] in titles:
            reason = "its text finds the second page"
        else:
            kept.append(question)
            continue
        left[reason] = left.get(reason, 0) + 1
    if len(named) < len(task.questions):
        left["names no gold pages"] = len(task.questions) - len(named)
    return kept, left


def _own_hits(task: Task, questions: Sequence[Question]) -> list[set[str]]:
    """Returns the titles that a search for each question's own text finds."""
    rules, titles = task.rules, list[set[str]]()
    for start in range(0, len(questions), BATCH):
        batch = questions[start : start + BATCH]
        ids, texts = [question.id for question in batch], [question.text for question in batch]
        for hits in retrieve(task.retriever, ids, texts, rules.top_k, rules.deadline):
            titles.append({title_key(hit.passage.title) for hit in hits})
    return titles


def pool_of(questions: Sequence[Question], how: Selection) -> list[Question]:
    """Returns the questions to measure: drawn by the seed, with the share of several hops that is asked for.

    Where one kind is too few see `Selection.fill`; where there is none of one kind, the other is taken.
    """
    return _in_proportion(by_hash(questions, how.seed), how, how.pool)


def _in_proportion(order: Sequence[Question], how: Selection, most: int) -> list[Question]:
    """Returns at most `most` questions, of which a share is of several hops; each kind of either keeps its part."""
    several = [question for question in order if hops_of(question) > 1]
    single = [question for question in order if hops_of(question) <= 1]
    share = how.multi_hop if several and single else float(bool(several))
    if how.fill:
        whole = min(most, len(order))
        take = min(len(several), max(round(whole * share), whole - len(single)))
    else:
        whole = min(
            most,
            int(len(several) / share + 1e-9) if share else most,
            int(len(single) / (1 - share) + 1e-9) if share < 1 else most,
        )
        take = round(whole * share)
    parts = draw_subset(several, take, how.seed), draw_subset(single, whole - take, how.seed)
    chosen = {question.id for part in parts for question in part}
    return [question for question in order if question.id in chosen]


def select(
    task: Task,
    agent: LoadedAgent,
    models: Mapping[str, Model],
    out: Path,
    how: Selection,
    progress: Progress = quiet,
    concurrency: int = 64,
    apart: Iterable[Question] = (),
) -> dict[str, Any]:
    """Selects training questions and writes them to a folder; a run that was stopped goes on.

    Selected questions have both measurements in their metadata, as ``pass_rates``. Both chose them and are biased
    towards the window; unbiased is the report's ``pass_rate_again``, the second rate of all that the first one chose.

    Args:
        task: Questions to choose among, with the rules under which they will be asked in training.
        agent: Who answers.
        models: Model behind each role.
        out: Folder of measurements and results.
        how: How they are selected.
        progress: Called with (text, done, whole).
        concurrency: Number of episodes that run at once.
        apart: See `candidates`.

    Returns:
        The report that is written beside the questions.

    Raises:
        NothingLeftError: No question is a candidate, or none is selected.
    """
    pool, left = drawn(task, how, apart)
    rates: list[dict[str, float]] = []
    kept = pool
    for number, name in enumerate(ROUNDS):
        rates.append(_measured(task.asking(kept), agent, models, out / name, how, number, progress, concurrency))
        kept = [question for question in kept if how.low <= rates[-1][question.id] <= how.high]
        if not kept:
            raise NothingLeftError(
                f"{name} measurement: no question's pass rate is in {how.low:g} to {how.high:g}; their mean is "
                f"{sum(rates[-1].values()) / len(rates[-1]):.2f}: widen the window, measure more questions, or take "
                "a model that knows more"
            )
    marked = [
        dataclasses.replace(q, metadata={**q.metadata, "pass_rates": [rates[0][q.id], rates[1][q.id]]}) for q in kept
    ]
    chosen = _in_proportion(marked, how, len(marked))
    return _written(chosen, out, _report(task, how, left, pool, rates, marked, chosen))


def check_selection_out(out: Path, measured: bool) -> None:
    """Refuses a folder that holds anything but a measured selection to go on with.

    Raises:
        RunExistsError: The folder holds something else.
    """
    goes_on = measured and (out / ROUNDS[0]).is_dir()
    if out.is_dir() and any(out.iterdir()) and not goes_on:
        raise RunExistsError(f"{out} is not empty and holds no selection to go on with: choose another --out")


def drawn(task: Task, how: Selection, apart: Iterable[Question]) -> tuple[list[Question], dict[str, int]]:
    """Returns the pool of a task's candidates, and how many questions were left out by reason.

    Raises:
        NothingLeftError: The pool is empty.
    """
    fit, left = candidates(task, apart)
    pool = pool_of(fit, how)
    if not pool:
        raise NothingLeftError(f"none of {len(task.questions)} questions can be taken ({_counts(left)})")
    return pool, left


def write_pool(task: Task, out: Path, how: Selection, apart: Iterable[Question] = ()) -> dict[str, Any]:
    """Writes the pool of a task's candidates unmeasured, as for validation; returns the report written beside it.

    Raises:
        NothingLeftError: The pool is empty.
    """
    pool, left = drawn(task, how, apart)
    numbers = Counter(map(hops_of, pool))
    rows = {str(hops): {"selected": numbers[hops]} for hops in sorted(numbers)}
    report: dict[str, Any] = {"pool": how.pool, "multi_hop": how.multi_hop, "seed": how.seed, "top_k": task.rules.top_k}
    report |= {"asked": len(task.questions), "left_out": left, "by_hops": rows, "questions": len(pool)}
    return _written(pool, out, report)


def _written(questions: Sequence[Question], out: Path, report: dict[str, Any]) -> dict[str, Any]:
    """Writes questions and their report to a folder; returns the report with the file's hash."""
    out.mkdir(parents=True, exist_ok=True)
    write_questions(out / SELECTED, questions)
    report = report | {"sha256": sha256_file(out / SELECTED)}
    with write_atomic(out / REPORT) as file:
        file.write((json.dumps(report, indent=1) + "\n").encode())
    return report


def _measured(
    task: Task,
    agent: LoadedAgent,
    models: Mapping[str, Model],
    out: Path,
    how: Selection,
    number: int,
    progress: Progress,
    concurrency: int,
) -> dict[str, float]:
    """Returns the pass rate of each question in one measurement."""
    options = EvalOptions(
        how.temperature, 2 * how.seed + number, concurrency, resume=holds_run(out), samples=how.attempts
    )
    text = f"{ROUNDS[number]} measurement, attempts"
    evaluate(task, agent, out, models, options, progress=lambda done, whole: progress(text, done, whole))
    return {str(row["id"]): float(row["em"]) for _, row in iter_jsonl(out / QUESTIONS)}


def _report(
    task: Task,
    how: Selection,
    left: Mapping[str, int],
    pool: Sequence[Question],
    rates: Sequence[Mapping[str, float]],
    kept: Sequence[Question],
    chosen: Sequence[Question],
) -> dict[str, Any]:
    """Returns what was measured and selected, as plain data."""
    window = {**dataclasses.asdict(how), "top_k": task.rules.top_k, "max_turns": task.rules.max_turns}
    window["max_observation_words"] = task.rules.max_observation_words
    again = [rates[1][question.id] for question in pool if question.id in rates[1]]
    return {
        **window,
        "asked": len(task.questions),
        "left_out": dict(left),
        "by_hops": {
            str(hops): {
                "measured": len(own := [q for q in pool if hops_of(q) == hops]),
                "pass_rate": round(sum(rates[0][q.id] for q in own) / len(own), 4),
                "never": sum(rates[0][q.id] == 0 for q in own),
                "always": sum(rates[0][q.id] == 1 for q in own),
                "in_window": sum(q.id in rates[1] for q in own),
                "in_window_again": sum(hops_of(q) == hops for q in kept),
                "selected": sum(hops_of(q) == hops for q in chosen),
            }
            for hops in sorted({hops_of(q) for q in pool})
        },
        "pass_rate_again": round(sum(again) / len(again), 4),
        "questions": len(chosen),
    }


def _counts(left: Mapping[str, int]) -> str:
    return ", ".join(f"{reason}: {number}" for reason, number in left.items()) or "there is none"
