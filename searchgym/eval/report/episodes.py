"""Episodes of a run, read one by one: what they score together, and a sample of them to read."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from searchgym.errors import DataError
from searchgym.eval.intervals import bootstrap_ci
from searchgym.eval.report.blocks import Found, Shown, Step, number
from searchgym.records import Episode, Searched
from searchgym.rollout.storage import read_episodes

LONGEST: Final = 3000
"""Maximum number of characters of one output or query that a page shows."""
LONGEST_HIT: Final = 600
"""Maximum number of characters of a hit's text that a page shows."""
MOST_STEPS: Final = 60
"""Maximum number of outputs and searches of one episode that a page shows."""
MOST_HITS: Final = 10
"""Maximum number of hits of one search that a page shows."""

COSTS: Final = {"searches": "searches", "response_tokens": "tokens written", "read_tokens": "tokens read"}
"""Name of a cost in the scores of an evaluation to its name on a page."""

Asked = Mapping[str, tuple[str, Sequence[str]]]
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
        own = self.values.setdefault(episode.question_id, {})
        for name, value in costs_of(episode).items():
            own.setdefault(name, []).append(value)
        for name in ("em", "f1"):
            if (score := score_of(episode, name)) is not None:
                own.setdefault(name, []).append(score)

    def scores(self) -> dict[str, Any]:
        """Returns means over questions of the means over attempts, with 95 % bootstrap intervals, as `NAME_ci95`."""
        found: dict[str, Any] = {"n": len(self.values)}
        for name in ("em", "f1", "searches", "response_tokens", "read_tokens"):
            means = [math.fsum(v[name]) / len(v[name]) for _, v in sorted(self.values.items()) if name in v]
            if means:
                found |= {name: math.fsum(means) / len(means), f"{name}_ci95": bootstrap_ci(means)}
        return found


def costs_of(episode: Episode) -> dict[str, float]:
    """Returns what an episode cost; tokens only if a model was asked. Definitions as in the scores of an evaluation."""
    costs = {"searches": float(len(episode.searches))}
    if episode.calls:
        costs["response_tokens"] = float(sum(call.end - call.start for call in episode.calls))
        costs["read_tokens"] = float(sum(call.start for call in episode.calls))
    return costs


def score_of(episode: Episode, name: str) -> float | None:
    """Returns a score of an episode; None if it has none, or one that is not finite."""
    value = episode.scores.get(name)
    return float(value) if value is not None and math.isfinite(value) else None


class Sample:
    """Sample of episodes, about half of them right, that depends on their ids alone and not on their order.

    Episodes with the smallest SHA-256 of their ids are kept; of a training, only those of the last step that wrote any.

    Args:
        size: Number of episodes.
    """

    def __init__(self, size: int) -> None:
        self.size, self._step, self._count = size, -1, 0
        self._kept: dict[bool, list[tuple[int, int, Episode]]] = {True: [], False: []}

    def add(self, episode: Episode) -> None:
        """Looks at one episode."""
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


def whole_episodes(path: Path, notes: list[str]) -> Iterator[Episode]:
    """Reads episodes without their tokens; a half-written last line is left out and noted.

    Raises:
        DataError: Another line is not an episode.
    """
    if not path.is_file() or not path.stat().st_size:
        notes.append("it has no episodes")
        return
    try:
        yield from read_episodes(path, tokens=False)
    except DataError as error:
        if ends_in_newline(path):
            raise
        notes.append(f"the last line of {path.name} is half written and was left out (line {error.line})")


def ends_in_newline(path: Path) -> bool:
    """Tells whether a file of lines was written to its end."""
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def shown(episode: Episode, asked: Asked) -> Shown:
    """Returns an episode as a reader sees it; long texts are cut, and say by how much."""
    question, golds = asked.get(episode.question_id, (f"question {episode.question_id}", ()))
    score = score_of(episode, "em")
    facts = [("ended by", str(episode.stop_reason or "nothing: unfinished")), ("reward", number(episode.reward))]
    facts += [("F1", number(score_of(episode, "f1"))), ("turns", str(episode.turns))]
    facts += [(COSTS[name], f"{value:.0f}") for name, value in costs_of(episode).items()]
    facts += [("error", cut(episode.error, LONGEST))] if episode.error else []
    steps = _steps(episode)
    if len(steps) > MOST_STEPS:
        rest = Step(f"{len(steps) - MOST_STEPS:,} more outputs and searches", "")
        steps = [*steps[:MOST_STEPS], rest]
    answer = None if episode.answer is None else cut(episode.answer.text, LONGEST)
    golds = [cut(gold, LONGEST_HIT) for gold in golds[:MOST_HITS]]
    facts = [(name, value) for name, value in facts if value]
    return Shown(episode.id, cut(question, LONGEST), golds, answer, None if score is None else score == 1, facts, steps)


def _steps(episode: Episode) -> list[Step]:
    """Returns the outputs, searches and looks at pages of an episode by turn, outputs first."""
    steps: list[tuple[int, int, Step]] = []
    for call in episode.calls:
        told = "".join(f", {text}" for text, is_so in (("not legal", not call.legal), ("cut off", call.cut)) if is_so)
        trial = " (a trial answer)" if call.prefix else ""
        label = f"turn {call.turn} · {call.role} of {call.model_key}{trial}{told}"
        steps.append((call.turn, 0, Step(cut(label, LONGEST_HIT), cut(call.text, LONGEST))))
    for searched in episode.searches:
        label = f"turn {searched.turn} · search, {len(searched.hits)} hit{'s' * (len(searched.hits) != 1)}"
        steps.append((searched.turn, 1, Step(label, cut(searched.query, LONGEST), _hits(searched))))
    for look in episode.opens:
        shown = f"{look.title}, part {look.part} of {look.parts}" if look.part else f"{look.target}: no page"
        steps.append((look.turn, 1, Step(f"turn {look.turn} · page", cut(shown, LONGEST))))
    return [step for *_, step in sorted(steps, key=lambda entry: entry[:2])]


def _hits(searched: Searched) -> list[Found]:
    """Returns the hits of a search."""
    return [
        Found(
            cut(hit.passage.title, LONGEST_HIT) or "(no title)", number(hit.score), cut(hit.passage.text, LONGEST_HIT)
        )
        for hit in searched.hits[:MOST_HITS]
    ]


def cut(text: str, most: int) -> str:
    """Returns a text of at most `most` characters, and how many were left out."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"
