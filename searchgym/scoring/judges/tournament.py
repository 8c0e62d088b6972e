"""Tournaments of answers: pairs are compared by a judge, and an answer scores by the comparisons that it wins."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from searchgym.errors import NoVerdictError, SwayedError
from searchgym.scoring.judges.judge import Checked, Criterion, unfit


class Standing(NamedTuple):
    """Outcome of the tournaments of a group."""

    scores: list[float | None]
    """One score in [0, 1] per answer; None for one that the judge was asked about, and gave no verdict on at all."""
    decided: int
    """Number of matches in which the judge gave a verdict."""


def tournament(
    judge: Checked,
    question: str,
    answers: Sequence[str],
    criteria: Sequence[Criterion],
    rounds: int,
    rng: np.random.Generator,
) -> Standing:
    """Plays knock-out tournaments among answers to one question.

    In each of `rounds` tournaments the answers are shuffled into pairs; the better of a pair gets a point and goes on,
    until one is left. An answer without a partner goes on without a point. With s the points of an answer, its score is
    ``(s - min s) / (max s - min s)``, and 0.5 for all if their points are equal. A missing answer, and one that sways
    the judge, takes no part and scores 0. Equal texts are never compared: one of them, drawn, goes on without a point.

    Source: Tournament-GRPO (its repository; K = 4 tournaments among groups of 8, pairs, a model with a rubric as
    judge). Deviation: where the judge gives no verdict there nobody wins a point and one of the two, drawn, goes on
    (theirs: a random winner).
    """
    sound, asked, judged = list[int](), set[int](), set[int]()
    for place, answer in enumerate(answers):
        if unfit(answer):
            continue
        try:
            judge.meets(question, answer, ())
            sound.append(place)
        except SwayedError:
            continue
        except NoVerdictError:
            asked.add(place)
    points, decided = dict.fromkeys(sound, 0), 0
    for _ in range(rounds):
        alive: list[int] = rng.permutation(sound).tolist()
        while len(alive) > 1:
            winners = alive[len(alive) - len(alive) % 2 :]
            for one, other in zip(alive[::2], alive[1::2], strict=False):
                drawn = one if rng.random() < 0.5 else other
                won: int | None = None
                if answers[one].strip() != answers[other].strip():
                    asked |= {one, other}
                    with contextlib.suppress(NoVerdictError):
                        won = judge.better(question, (answers[one], answers[other]), criteria)
                        decided += 1
                        judged |= {one, other}
                if won is not None:
                    drawn = other if won else one
                    points[drawn] += 1
                winners.append(drawn)
            alive = winners
    least, most = min(points.values(), default=0), max(points.values(), default=0)
    spread = most - least
    scores = [
        0.0 if place not in points else 0.5 if not spread else (points[place] - least) / spread
        for place in range(len(answers))
    ]
    silent = asked - judged
    return Standing([None if place in silent else score for place, score in enumerate(scores)], decided)
