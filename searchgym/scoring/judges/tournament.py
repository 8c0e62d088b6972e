"""Tournaments of answers: a judge compares pairs, and an answer's score is based on its wins."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from searchgym.errors import NoVerdictError, SwayedError
from searchgym.scoring.judges.judge import Checked, Criterion, unfit


class Standing(NamedTuple):
    """Result of the tournaments among a group of answers."""

    scores: list[float | None]
    """One score in [0, 1] per answer; None if the judge was asked about the answer but never gave a verdict on it."""
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

    In each of `rounds` tournaments the answers are shuffled into pairs; the better of a pair gets a point and advances,
    until one is left. An answer without a partner advances without a point. With s the points of an answer, its score
    is ``(s - min s) / (max s - min s)``, and 0.5 for all if their points are equal. An unfit answer, and one that sways
    the judge, does not take part and scores 0. Equal texts are never compared: one of them, chosen at random, advances
    without a point.

    Source: Tournament-GRPO (its repository; K = 4 tournaments among groups of 8, pairs, a model with a rubric as
    judge). Deviation: if the judge gives no verdict, neither gets a point and a random one of the two advances (theirs:
    a random winner).
    """
    sound, queried, judged = list[int](), set[int](), set[int]()
    for index, answer in enumerate(answers):
        if unfit(answer):
            continue
        try:
            judge.meets(question, answer, ())
            sound.append(index)
        except SwayedError:
            continue
        except NoVerdictError:
            queried.add(index)
    points, decided = dict.fromkeys(sound, 0), 0
    for _ in range(rounds):
        alive: list[int] = rng.permutation(sound).tolist()
        while len(alive) > 1:
            winners = alive[len(alive) - len(alive) % 2 :]
            for one, other in zip(alive[::2], alive[1::2], strict=False):
                winner = one if rng.random() < 0.5 else other
                won: int | None = None
                if answers[one].strip() != answers[other].strip():
                    queried |= {one, other}
                    with contextlib.suppress(NoVerdictError):
                        won = judge.better(question, (answers[one], answers[other]), criteria)
                        decided += 1
                        judged |= {one, other}
                if won is not None:
                    winner = other if won else one
                    points[winner] += 1
                winners.append(winner)
            alive = winners
    least, most = min(points.values(), default=0), max(points.values(), default=0)
    spread = most - least
    scores = [
        0.0 if index not in points else 0.5 if not spread else (points[index] - least) / spread
        for index in range(len(answers))
    ]
    silent = queried - judged
    return Standing([None if index in silent else score for index, score in enumerate(scores)], decided)
