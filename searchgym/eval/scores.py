"""Scores of a run: micro-averages of its episodes over question ids, with bootstrap intervals.

What each metric is: ``docs/evaluation.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from searchgym import scoring
from searchgym.envs.task import Task
from searchgym.eval.breakdown import explain, invalid_actions
from searchgym.eval.intervals import bootstrap_ci
from searchgym.records import Episode, Question, title_key

Scores = dict[str, Any]
"""Scores by lower-case metric name: floats, lists of floats, None where a metric does not apply, and mappings that
explain them."""


def score_episodes(task: Task, episodes: Sequence[Episode]) -> Scores:
    """Scores one episode per question of a task.

    Returns:
        ``n``, the official scorer's metrics (``em``, ``f1``, ... None where the agent produced nothing to score), means
        of what the episodes cost, and ``title_recall``: the share of gold titles among all hits up to turn 1, 2, ...,
        averaged over the questions that name gold titles. ``NAME_ci95`` is the 95 % bootstrap interval of a mean.
        Also what explains them; see `explain`.

    Raises:
        ScoringError: Missing, duplicate or unknown question ids.
    """
    scoring.check_ids([episode.question_id for episode in episodes], task.questions)
    ordered = sorted(episodes, key=lambda episode: episode.question_id)
    scorer = task.card.scorer
    rows = {
        e.question_id: scoring.score_question(task.by_id[e.question_id], e.answer, scorer, task.aliases)
        for e in ordered
    }
    scores: Scores = {"n": len(ordered), **scoring.aggregate(rows, scorer)}
    for name in ("em", "f1"):
        values = [row[name] or 0.0 for row in rows.values() if name in row]
        if values:
            scores[f"{name}_ci95"] = bootstrap_ci(values)
    for name, means in _columns(task, ordered).items():
        scores[name] = None if means is None else float(np.mean(means))
        if means is not None:
            scores[f"{name}_ci95"] = bootstrap_ci(means)
    scores["retriever_errors"] = sum(e.stop_reason == "retriever_error" for e in ordered)
    scores["full_contexts"] = sum(e.stop_reason == "context" for e in ordered)
    curves = title_recall(ordered, task.by_id, task.rules.max_turns)
    scores["title_recall"] = None if curves is None else [float(value) for value in curves.mean(axis=0)]
    if curves is not None:
        scores["title_recall_ci95"] = [bootstrap_ci(column) for column in curves.T]
    return scores | explain(ordered, rows, task.by_id, task.rules.protocol)


def _columns(task: Task, episodes: Sequence[Episode]) -> dict[str, list[float] | None]:
    """Returns one value per episode for each metric of this project, or None if no episode has what it needs."""
    golds = [task.by_id[e.question_id].golds for e in episodes]
    texts = [None if e.answer is None else e.answer.text for e in episodes]
    return {
        "cover_em": [0.0 if t is None else scoring.cover_match(t, g) for t, g in zip(texts, golds, strict=True)],
        "reward": [e.reward for e in episodes],
        "answered": [float(e.stop_reason == "answer") for e in episodes],
        "turns": [float(e.turns) for e in episodes],
        "searches": [float(len(e.searches)) for e in episodes],
        "invalid_actions": [float(invalid_actions(e)) for e in episodes],
        "observation_words": [float(e.observation_words) for e in episodes],
        "response_tokens": (
            [float(sum(call.end - call.start for call in e.calls)) for e in episodes]
            if any(e.calls for e in episodes)
            else None
        ),
    }


def title_recall(
    episodes: Sequence[Episode], questions: Mapping[str, Question], turns: int
) -> npt.NDArray[np.float64] | None:
    """Returns the share of gold titles found up to each turn.

    Returns:
        (episodes whose question names gold titles, turns) float64, or None if there are none.
    """
    curves = []
    for episode in episodes:
        titles = questions[episode.question_id].gold_titles
        if titles:
            gold = {title_key(title) for title in titles}
            first = dict.fromkeys(gold, turns + 1)
            for searched in episode.searches:
                for hit in searched.hits:
                    key = title_key(hit.passage.title)
                    if key in gold:
                        first[key] = min(first[key], searched.turn)
            curves.append([sum(f <= turn for f in first.values()) / len(gold) for turn in range(1, turns + 1)])
    return np.array(curves) if curves else None
