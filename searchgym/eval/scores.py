"""Scores of a run: micro-averages of its episodes over question ids, with bootstrap intervals.

With several attempts at each question every number is first averaged over the attempts (Avg@k), and the intervals are
still over questions. What each metric is: ``docs/evaluation.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from searchgym import scoring
from searchgym.envs.reward import wordless_gold
from searchgym.envs.task import Task
from searchgym.errors import ScoringError
from searchgym.eval.awareness import awareness
from searchgym.eval.breakdown import explain, invalid_actions
from searchgym.eval.evidence import Golds, by_title, find_golds, found_of, recall_by_turn, searched_on, stopped_early
from searchgym.eval.intervals import bootstrap_ci
from searchgym.records import Answer, Episode, Question, hops_of, simulated_share
from searchgym.scoring import Scores as Row

Scores = dict[str, Any]
"""Scores by lower-case metric name: floats, lists of floats, None where a metric does not apply, and mappings that
explain them."""
OFFICIAL: Final = ("em", "f1")
"""Official scores that have an interval and a value for every question."""


@dataclass(frozen=True)
class Scored:
    """Episodes of a task with their official scores, before anything is averaged."""

    task: Task
    samples: int
    """Number of attempts at each question."""
    episodes: Sequence[Episode]
    """The episodes by question id, then by attempt."""
    rows: Mapping[tuple[str, int], Row]
    """Question id and attempt to the official scores."""
    golds: Golds

    def means(self, values: Sequence[float]) -> list[float]:
        """Returns the mean over the attempts for each question, in order of ids; `values` has one per episode."""
        return [float(mean) for mean in np.asarray(values, np.float64).reshape(-1, self.samples).mean(axis=1)]

    def official(self, name: str) -> list[float] | None:
        """Returns an official score by question, averaged over attempts; None if no question has it."""
        if not any(name in row for row in self.rows.values()):
            return None
        kept = [e for e in self.episodes if name in self.rows[e.question_id, e.attempt]]  # MuSiQue leaves some out
        return self.means([self.rows[e.question_id, e.attempt][name] or 0.0 for e in kept])


def score_episodes(task: Task, episodes: Sequence[Episode], samples: int = 1) -> Scores:
    """Scores the episodes of a task: a number of attempts at each of its questions.

    Args:
        task: Environment and questions.
        episodes: One episode per question and attempt, in any order.
        samples: Number of attempts at each question.

    Returns:
        ``n``, the official scorer's metrics (``em``, ``f1``, ... None where the agent produced nothing to score), means
        of what the episodes cost, and ``title_recall``: the share of gold titles among all hits up to turn 1, 2, ...,
        averaged over the questions that name gold titles. ``NAME_ci95`` is the 95 % bootstrap interval of a mean.
        Also what explains them; see `explain`.

    Raises:
        ScoringError: Missing, duplicate or unknown question ids, or attempts other than 0 to `samples` - 1.
    """
    return summarise(score_each(task, episodes, samples))


def score_each(task: Task, episodes: Sequence[Episode], samples: int = 1) -> Scored:
    """Returns the episodes of a task with the official scores of each; arguments and errors as `score_episodes`."""
    if strange := next((e for e in episodes if not 0 <= e.attempt < samples), None):
        raise ScoringError(f"question {strange.question_id!r}: attempt {strange.attempt} of {samples} (from 0)")
    for attempt in range(samples):
        scoring.check_ids([e.question_id for e in episodes if e.attempt == attempt], task.questions)
    ordered = sorted(episodes, key=lambda episode: (episode.question_id, episode.attempt))
    rows = {
        (e.question_id, e.attempt): scoring.score_question(
            task.by_id[e.question_id], e.answer, task.card.scorer, task.aliases
        )
        for e in ordered
    }
    return Scored(task, samples, ordered, rows, find_golds(task.questions, ordered))


def summarise(scored: Scored) -> Scores:
    """Returns the scores of a run, as `score_episodes` does."""
    task, ordered = scored.task, scored.episodes
    scores: Scores = {"n": len(task.questions), **_official(scored)}
    if twins := sum(question.answerable is False for question in task.questions):
        scores["answerable"] = scores["n"] - twins
    if wordless := sum(wordless_gold(question) is not None for question in task.questions):
        scores["golds_without_words"] = wordless
    for name in OFFICIAL:
        if (values := scored.official(name)) is not None:
            scores[f"{name}_ci95"] = bootstrap_ci(values)
    for name, by_question in (*_columns(scored).items(), *_pass_at(scored)):
        scores[name] = None if by_question is None else _mean(name, by_question)
        if by_question is not None:
            scores[f"{name}_ci95"] = bootstrap_ci(by_question)
    if (found := awareness(ordered, task.by_id)) is not None:
        scores["awareness"] = found
    scores["retriever_errors"] = sum(e.stop_reason == "retriever_error" for e in ordered)
    scores["full_contexts"] = sum(e.stop_reason == "context" for e in ordered)
    passages = scored.golds if any(g.text is not None for own in scored.golds.values() for g in own) else {}
    for name, golds in (("title_recall", by_title(scored.golds)), ("passage_recall", passages)):
        curves = recall_by_turn(ordered, golds, task.rules.max_turns)
        if curves is not None:
            curves = curves.reshape(-1, scored.samples, curves.shape[1]).mean(axis=1)
        scores[name] = None if curves is None else [float(value) for value in curves.mean(axis=0)]
        if curves is not None:
            scores[f"{name}_ci95"] = [bootstrap_ci(column) for column in curves.T]
    right = [e for e in ordered if scored.rows[e.question_id, e.attempt].get("em") and e.question_id in scored.golds]
    unfounded = sum(found_of(e, scored.golds[e.question_id]) == "none" for e in right)
    scores["right_without_evidence"] = unfounded / len(right) if right else None
    return scores | explain(ordered, scored.rows, task.by_id, task.rules.protocol, scored.golds)


def _mean(name: str, values: Sequence[float]) -> float:
    """Returns the mean of a metric over questions.

    Raises:
        ScoringError: It is not finite, as of rewards of 1e308 in a file from elsewhere: JSON has no such number.
    """
    with np.errstate(over="ignore"):
        mean = float(np.mean(values))
    if not math.isfinite(mean):
        raise ScoringError(
            f"{name}: the mean over {len(values)} questions is {mean}: a value is too large to be counted"
        )
    return mean


def _official(scored: Scored) -> Row:
    """Returns the official scorer's metrics: of each attempt over all questions, averaged over the attempts."""
    sets = [
        scoring.aggregate({id: row for (id, n), row in scored.rows.items() if n == attempt}, scored.task.card.scorer)
        for attempt in range(scored.samples)
    ]
    if scored.samples == 1:
        return sets[0]
    means = {name: [own[name] for own in sets] for name in sets[0]}
    return {
        name: None if all(v is None for v in values) else math.fsum(v or 0.0 for v in values) / len(values)
        for name, values in means.items()
    }


def _pass_at(scored: Scored) -> Iterator[tuple[str, list[float]]]:
    """Yields pass@k for k = 2, 4, ... and the number of attempts: the chance that one of k attempts is right.

    The unbiased estimate of Chen et al. 2021 (arXiv 2107.03374, equation 1): 1 - C(n - c, k) / C(n, k).
    """
    n, right = scored.samples, scored.official("em")
    if n == 1 or right is None:
        return
    for k in sorted({2**power for power in range(1, n.bit_length())} | {n}):
        counts = [round(mean * n) for mean in right]
        yield f"pass@{k}", [1.0 - math.comb(n - c, k) / math.comb(n, k) for c in counts]


def _columns(scored: Scored) -> dict[str, list[float] | None]:
    """Returns one value per question for each metric of this project, or None if no episode has what it needs."""
    task, episodes = scored.task, scored.episodes
    asked = [(e.answer, task.by_id[e.question_id]) for e in episodes]
    columns: dict[str, list[float]] = {
        "cover_em": [_covers(answer, question) for answer, question in asked if question.answerable is not False],
        "reward": [e.reward for e in episodes],
        "answered": [float(e.stop_reason == "answer") for e in episodes],
        "turns": [float(e.turns) for e in episodes],
        "searches": [float(len(e.searches)) for e in episodes],
        "invalid_actions": [float(invalid_actions(e)) for e in episodes],
        "observation_words": [float(e.observation_words) for e in episodes],
    }
    if task.rules.pages is not None:
        columns["opens"] = [float(len(e.opens)) for e in episodes]
    written = [simulated_share(e.searches) for e in episodes]
    if any(written):
        columns["simulated"] = written
    if any(e.calls for e in episodes):
        columns["response_tokens"] = [float(sum(call.end - call.start for call in e.calls)) for e in episodes]
        columns["read_tokens"] = [float(sum(call.start for call in e.calls)) for e in episodes]
    if scored.golds:
        known = [(e, own) for e in episodes if (own := scored.golds.get(e.question_id))]
        columns["gold_found"] = [float(found_of(e, own) == "all") for e, own in known]
        columns["over_search"] = [float(searched_on(e, own)) for e, own in known]
        columns["under_search"] = [float(stopped_early(e, own, task.rules.max_turns)) for e, own in known]
    names = [*columns, "response_tokens", "read_tokens", "gold_found", "over_search", "under_search"]
    return {name: scored.means(columns[name]) if columns.get(name) else None for name in dict.fromkeys(names)}


def _covers(answer: Answer | None, question: Question) -> float:
    """Returns 1 if an answer contains a gold answer that has words, else 0."""
    return 0.0 if answer is None else scoring.cover_match(answer.text, scoring.golds_with_words(question.golds))


def question_rows(scored: Scored) -> Iterator[dict[str, Any]]:
    """Yields one row per question, in order of ids: what every mean of the scores is made of, for comparisons.

    A question that a score does not apply to, such as one without an answer, lacks its key.
    """
    for id, attempts in _by_question(scored).items():
        question = scored.task.by_id[id]
        rows = [scored.rows[id, e.attempt] for e in attempts]
        yield {
            "id": id,
            "question": question.text,
            "golds": question.golds,
            "hops": hops_of(question),
            "type": question.kind,
            **{name: math.fsum(row[name] or 0.0 for row in rows) / len(rows) for name in OFFICIAL if name in rows[0]},
            "searches": sum(len(e.searches) for e in attempts) / len(attempts),
            "answers": [None if e.answer is None else e.answer.text for e in attempts],
            "evidence": [found_of(e, scored.golds[id]) for e in attempts] if id in scored.golds else None,
        }


def _by_question(scored: Scored) -> dict[str, list[Episode]]:
    """Returns the episodes of each question, in order of ids."""
    found: dict[str, list[Episode]] = {}
    for episode in scored.episodes:
        found.setdefault(episode.question_id, []).append(episode)
    return found
