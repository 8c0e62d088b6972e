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
from functools import partial
from pathlib import Path
from typing import Any, Final

from searchgym.agents.base import LoadedAgent
from searchgym.cli.pipeline.selection_options import Selection
from searchgym.corpora.files import iter_jsonl, sha256_file, write_atomic
from searchgym.corpora.questions import write_questions
from searchgym.envs.task import Task
from searchgym.errors import NothingLeftError
from searchgym.eval.run_folder import QUESTIONS, holds_run
from searchgym.eval.runner import EvalOptions, evaluate
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


def candidates(task: Task, apart: Iterable[Question] = ()) -> tuple[list[Question], dict[str, int]]:
    """Returns the questions of a task that can teach searching, and how many were left out by reason.

    Left out are questions that offer their answer (comparisons, yes or no), questions without gold titles, and those of
    several hops whose own text finds their second page among the hits of one search.

    Args:
        task: Questions, and what they are searched in.
        apart: Questions with which none may share a gold page, such as those of another split.
    """
    apart_titles = {title_key(title) for question in apart for title in question.gold_titles or ()}
    named, rules = [question for question in task.questions if question.gold_titles], task.rules
    hits: list[set[str]] = []
    for start in range(0, len(named), BATCH):
        ids, texts = zip(*((question.id, question.text) for question in named[start : start + BATCH]), strict=True)
        results = retrieve(task.retriever, ids, texts, rules.top_k, rules.deadline)
        hits += [{title_key(hit.passage.title) for hit in result} for result in results]
    chosen, left = list[Question](), dict[str, int]()
    for question, titles in zip(named, hits, strict=True):
        gold = list(dict.fromkeys(title_key(title) for title in question.gold_titles or ()))
        if question.answerable is False:
            reason = "has no answer"
        elif names_answer(question):
            reason = "offers its answer"
        elif apart_titles.intersection(gold):
            reason = "its pages are taken"
        elif len(gold) > 1 and gold[1] in titles:
            reason = "its text finds the second page"
        else:
            chosen.append(question)
            continue
        left[reason] = left.get(reason, 0) + 1
    if len(named) < len(task.questions):
        left["names no gold pages"] = len(task.questions) - len(named)
    return chosen, left


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
    whole = min(most, len(order))
    if how.fill:
        take = min(len(several), max(round(whole * share), whole - len(single)))
    else:
        whole = min(most, int(len(several) / share + 1e-9)) if share else most
        whole = min(whole, int(len(single) / (1 - share) + 1e-9)) if share < 1 else whole
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
    pool, report = _pool(task, how, apart)
    rates: list[dict[str, float]] = []
    in_window = pool
    for number, name in enumerate(ROUNDS):
        folder, text = out / name, f"{name} measurement, attempts"
        seed, resume = 2 * how.seed + number, holds_run(folder)
        options = EvalOptions(how.temperature, seed, concurrency, resume=resume, samples=how.attempts)
        evaluate(task.asking(in_window), agent, folder, models, options, progress=partial(progress, text))
        rates.append({str(row["id"]): float(row["em"]) for _, row in iter_jsonl(folder / QUESTIONS)})
        in_window = [question for question in in_window if how.low <= rates[-1][question.id] <= how.high]
        if not in_window:
            raise NothingLeftError(
                f"{name} measurement: no question's pass rate is in {how.low:g} to {how.high:g}; their mean is "
                f"{sum(rates[-1].values()) / len(rates[-1]):.2f}: widen the window, measure more questions, or take "
                "a model that knows more"
            )
    first, second = rates
    marked = [
        dataclasses.replace(q, metadata={**q.metadata, "pass_rates": [first[q.id], second[q.id]]}) for q in in_window
    ]
    chosen = _in_proportion(marked, how, len(marked))
    by_hops: dict[int, list[Question]] = {}
    for question in pool:
        by_hops.setdefault(hops_of(question), []).append(question)
    report["by_hops"] = {
        str(hops): {
            "measured": len(by_hops[hops]),
            "pass_rate": round(sum(first[q.id] for q in by_hops[hops]) / len(by_hops[hops]), 4),
            "never": sum(first[q.id] == 0 for q in by_hops[hops]),
            "always": sum(first[q.id] == 1 for q in by_hops[hops]),
            "in_window": sum(q.id in second for q in by_hops[hops]),
            "in_window_again": sum(hops_of(q) == hops for q in in_window),
            "selected": sum(hops_of(q) == hops for q in chosen),
        }
        for hops in sorted(by_hops)
    }
    again = [second[question.id] for question in pool if question.id in second]
    rules = {"max_turns": task.rules.max_turns, "max_observation_words": task.rules.max_observation_words}
    report = dataclasses.asdict(how) | {"top_k": task.rules.top_k} | rules | report
    report["pass_rate_again"] = round(sum(again) / len(again), 4)
    return _written(chosen, out, report)


def write_pool(task: Task, out: Path, how: Selection, apart: Iterable[Question] = ()) -> dict[str, Any]:
    """Writes the pool of a task's candidates unmeasured, as for validation; returns the report written beside it.

    Raises:
        NothingLeftError: The pool is empty.
    """
    pool, report = _pool(task, how, apart)
    numbers = Counter(map(hops_of, pool))
    report["by_hops"] = {str(hops): {"selected": numbers[hops]} for hops in sorted(numbers)}
    settings = {"pool": how.pool, "multi_hop": how.multi_hop, "seed": how.seed, "top_k": task.rules.top_k}
    return _written(pool, out, settings | report)


def _pool(task: Task, how: Selection, apart: Iterable[Question]) -> tuple[list[Question], dict[str, Any]]:
    """Returns the pool of a task's candidates, and the report on how many questions were left out by reason.

    Raises:
        NothingLeftError: The pool is empty.
    """
    fit, left = candidates(task, apart)
    if pool := pool_of(fit, how):
        return pool, {"asked": len(task.questions), "left_out": left}
    reasons = ", ".join(f"{reason}: {number}" for reason, number in left.items()) or "there is none"
    raise NothingLeftError(f"none of {len(task.questions)} questions can be taken ({reasons})")


def _written(questions: Sequence[Question], out: Path, report: dict[str, Any]) -> dict[str, Any]:
    """Writes questions and their report to a folder; returns the report with their number and the file's hash."""
    out.mkdir(parents=True, exist_ok=True)
    write_questions(out / SELECTED, questions)
    report |= {"questions": len(questions), "sha256": sha256_file(out / SELECTED)}
    with write_atomic(out / REPORT) as file:
        file.write((json.dumps(report, indent=1) + "\n").encode())
    return report
