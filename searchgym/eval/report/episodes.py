"""Episodes of a run, read one by one: their mean scores, and a sample to read."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from searchgym.eval.report.blocks import ShownEpisode, ShownHit, ShownStep, number
from searchgym.eval.rows import call_rows, turns_of
from searchgym.eval.scores import bootstrap_ci
from searchgym.records import Episode

MAX_TEXT: Final = 3000
"""Maximum number of characters of one output or query that a page shows."""
LONGEST_HIT: Final = 600
"""Maximum number of characters of a hit's text that a page shows."""
MOST_STEPS: Final = 60
"""Maximum number of outputs and searches of one episode that a page shows."""
MOST_HITS: Final = 10
"""Maximum number of hits of one search that a page shows."""

COSTS: Final = {"searches": "searches", "response_tokens": "tokens written", "read_tokens": "tokens read"}
"""Costs in the scores of an evaluation, by key, with their labels on a page."""

QuestionTexts = Mapping[str, tuple[str, Sequence[str]]]
"""Question id to the question's text and its gold answers."""


@dataclass
class Tally:
    """Counts of episodes and sums of their scores and costs, by question."""

    episodes: int = 0
    env: str = ""
    """Environment of the first episode."""
    agent: str = ""
    """Agent of the first episode."""
    endings: Counter[str] = field(default_factory=Counter)
    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Question id to the values of its episodes by name of the score."""

    def add(self, episode: Episode) -> None:
        """Counts one episode."""
        if not self.episodes:
            self.env, self.agent = episode.env, episode.agent
        self.episodes += 1
        self.endings[str(episode.stop_reason or "unfinished")] += 1
        scores = self.values.setdefault(episode.question_id, {})
        for name, value in costs_of(episode).items():
            scores.setdefault(name, []).append(value)
        for name in ("em", "f1"):
            if (score := score_of(episode, name)) is not None:
                scores.setdefault(name, []).append(score)

    def scores(self) -> dict[str, Any]:
        """Returns means over questions of the means over attempts, with 95 % bootstrap intervals, as `NAME_ci95`."""
        scores: dict[str, Any] = {"n": len(self.values)}
        for name in ("em", "f1", "searches", "response_tokens", "read_tokens"):
            means = [math.fsum(v[name]) / len(v[name]) for _, v in sorted(self.values.items()) if name in v]
            if means:
                scores |= {name: math.fsum(means) / len(means), f"{name}_ci95": bootstrap_ci(means)}
        return scores


def costs_of(episode: Episode) -> dict[str, float]:
    """Returns the costs of an episode, defined as in the scores of an evaluation; tokens only if it called a model."""
    costs = {"searches": float(len(episode.searches))}
    if episode.calls:
        costs["response_tokens"] = float(episode.generated_tokens())
        costs["read_tokens"] = float(sum(call.start for call in episode.calls))
    return costs


def score_of(episode: Episode, name: str) -> float | None:
    """Returns a score of an episode; None if it has none, or one that is not finite."""
    value = episode.scores.get(name)
    return float(value) if value is not None and math.isfinite(value) else None


class EpisodeSample:
    """Sample of episodes, about half of them right. It depends on the ids alone, not on the order of the episodes.

    It holds the episodes with the smallest SHA-256 of their ids; in a training, only those of its last step.

    Args:
        size: Number of episodes.
    """

    def __init__(self, size: int) -> None:
        self.size, self._step, self._count = size, -1, 0
        self._kept: dict[bool, list[tuple[int, int, Episode]]] = {True: [], False: []}

    def add(self, episode: Episode) -> None:
        """Adds one episode to those that the sample is taken from."""
        step = step_of(episode.id)
        if step < self._step or not self.size:
            return
        if step > self._step:
            self._step, self._kept = step, {True: [], False: []}
        self._count += 1
        order = int.from_bytes(hashlib.sha256(episode.id.encode("utf-8", "replace")).digest())
        heap = self._kept[score_of(episode, "em") == 1.0]
        entry = (-order, self._count, replace(episode, contexts=[]))
        if len(heap) < self.size:
            heapq.heappush(heap, entry)
        elif entry > heap[0]:
            heapq.heapreplace(heap, entry)

    def chosen(self) -> list[Episode]:
        """Returns the sample: the wrong episodes, then the right ones."""
        right, wrong = ([e for *_, e in sorted(self._kept[kind], reverse=True)] for kind in (True, False))
        some = min(len(right), max(self.size // 2, self.size - len(wrong)))
        return [*wrong[: self.size - some], *right[:some]]


def step_of(id: str) -> int:
    """Returns the step of a training in which an episode was sampled; 0 outside training."""
    _, at, step = id.rpartition("@")
    return int(step) if at and step.isdecimal() and len(step) < 10 else 0


def shown_episode(episode: Episode, questions: QuestionTexts) -> ShownEpisode:
    """Returns an episode for display; a long text is cut and followed by the number of characters left out."""
    question, golds = questions.get(episode.question_id, (f"question {episode.question_id}", ()))
    score = score_of(episode, "em")
    facts = [("ended by", str(episode.stop_reason or "nothing: unfinished")), ("reward", number(episode.reward))]
    facts += [("F1", number(score_of(episode, "f1"))), ("turns", str(episode.turns))]
    facts += [(COSTS[name], f"{value:.0f}") for name, value in costs_of(episode).items()]
    facts += [("error", cut(episode.error, MAX_TEXT))] if episode.error else []
    steps = _steps(episode)
    if len(steps) > MOST_STEPS:
        rest = ShownStep(f"{len(steps) - MOST_STEPS:,} more outputs and searches", "")
        steps = [*steps[:MOST_STEPS], rest]
    answer = None if episode.answer is None else cut(episode.answer.text, MAX_TEXT)
    golds = [cut(gold, LONGEST_HIT) for gold in golds[:MOST_HITS]]
    facts = [(name, value) for name, value in facts if value]
    return ShownEpisode(
        episode.id, cut(question, MAX_TEXT), golds, answer, None if score is None else score == 1, facts, steps
    )


def _steps(episode: Episode) -> list[ShownStep]:
    """Returns the outputs, searches and looks at pages of an episode by turn, outputs first."""
    steps: list[ShownStep] = []
    for turn, calls, tools in turns_of(episode, call_rows(episode)):
        for index, row in calls:
            call = episode.calls[index]
            label = f"turn {turn} · {row.role} of {row.model_key}{' (a trial answer)' if call.prefix else ''}"
            label += f"{'' if row.legal else ', not legal'}{', cut off' if call.cut else ''}"
            steps.append(ShownStep(cut(label, LONGEST_HIT), cut(row.text, MAX_TEXT)))
        for tool in tools:
            if tool.hits is None:
                page = tool.page or f"{tool.query}: no page"
                steps.append(ShownStep(f"turn {turn} · page", cut(page, MAX_TEXT)))
                continue
            hits = []
            for hit in tool.hits[:MOST_HITS]:
                title, text = (cut(part, LONGEST_HIT) for part in (hit.passage.title, hit.passage.text))
                hits.append(ShownHit(title or "(no title)", number(hit.score), text))
            label = f"turn {turn} · search, {len(tool.hits)} hit{'s' * (len(tool.hits) != 1)}"
            steps.append(ShownStep(label, cut(tool.query, MAX_TEXT), hits))
    return steps


def cut(text: str, most: int) -> str:
    """Returns a text of at most `most` characters, and how many were left out."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"
