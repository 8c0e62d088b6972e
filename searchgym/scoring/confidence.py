"""What an answer states about itself: that it abstains, several candidates, or how likely it is right."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from searchgym.errors import ScoringError
from searchgym.scoring.answers import exact_match, normalise_answer

BINS: Final = 10
"""Number of equal-width bins of the expected calibration error."""
_SUBJECT: Final = r"(?:(?:sorry|unfortunately) )?(?:(?:i|we) )"
_OF_IT: Final = r"(?: (?:answer|it|this|that|question|answer to (?:this|that)(?: question)?))?"
_ABSTAINS: Final = re.compile(
    rf"{_SUBJECT}(?:do not|dont|did not|didnt) (?:know|find){_OF_IT}"
    rf"|{_SUBJECT}(?:can not|cannot|cant|could not|couldnt|am unable to|am not able to)"
    rf" (?:answer|say|tell|find|determine|know){_OF_IT}"
    rf"|{_SUBJECT}(?:am|are) (?:not sure|unsure)|{_SUBJECT}have no (?:idea|answer|information)"
    r"|(?:(?:answer|it) is )?(?:unknown|not known|unclear|unanswerable|not answerable|not given|not available)"
    r"|(?:(?:answer|it) )?(?:can not|cannot|could not) be (?:determined|answered|found)"
    r"|idk|dont know|do not know|not sure|no idea|no answer|noanswer|na|insufficient information"
    r"|(?:there is )?(?:not enough|no) (?:information|evidence)"
)
"""Matches a normalised answer that consists of an abstention alone; ``I do not know, perhaps Rome`` is a guess."""


PART_SEPARATOR: Final = ";"
"""Separator of the parts of an answer with several parts; line ends separate them too."""
_CONFIDENCE: Final = re.compile(
    r"(.*?)\(\s*(?:([+-]?(?:\d*\.\d+|\d)|nan|inf)|([+-]?\d*\.?\d+) ?%)\s*\)", re.IGNORECASE | re.DOTALL
)
"""Matches a candidate with its confidence, ``Ada Park (0.6)`` or ``Ada Park (60 %)``; a year in brackets is none."""


class Candidate(NamedTuple):
    """One of the candidates that an answer states."""

    text: str
    """The candidate, without its confidence."""
    confidence: float | None
    """Stated probability that it is right; None if none is stated. Not checked: it may be NaN or above 1."""


def parts_of(answer: str) -> list[str]:
    """Splits an answer into its parts at semicolons and line ends; drops empty ones."""
    return [part.strip() for line in answer.splitlines() for part in line.split(PART_SEPARATOR) if part.strip()]


def candidates_of(answer: str) -> list[Candidate]:
    """Returns the candidates of an answer such as ``Ada Park (0.6); Bo Lind (0.3)``, in order.

    Candidates are separated by semicolons or line ends. A digit, a decimal number or a percentage in brackets at the
    end of a candidate is its confidence.
    """
    candidates = list[Candidate]()
    for part in parts_of(answer):
        match = _CONFIDENCE.fullmatch(part)
        confidence = None if match is None else float(match[2]) if match[2] else float(match[3]) / 100
        candidates.append(Candidate(match[1].strip() if match else part, confidence))
    return candidates


def brier_reward(candidates: Sequence[Candidate], right: Sequence[bool]) -> float:
    """Returns ``1 - mean_i (y_i - p_i)^2`` over an answer's candidates, with y_i = 1 for a right one; 0 if not valid.

    Valid are at least one candidate, no two with the same normalised text, each with a confidence in [0, 1], and
    confidences that sum to at most 1. The expected value is largest if each confidence is the probability that its
    candidate is right.

    Source: Reaching Beyond the Mode, its released reward (``brier`` of RLCR with several answers).
    """
    stated = [candidate.confidence for candidate in candidates]
    confidences = [value for value in stated if value is not None and 0 <= value <= 1]  # NaN is not
    distinct = {normalise_answer(candidate.text) for candidate in candidates}
    if not candidates or not len(confidences) == len(distinct) == len(candidates) or math.fsum(confidences) > 1 + 1e-6:
        return 0.0
    return 1 - math.fsum((y - p) ** 2 for y, p in zip(right, confidences, strict=True)) / len(confidences)


def candidate_scores(answers: Sequence[str], golds: Sequence[Sequence[str]]) -> dict[str, float | None] | None:
    """Scores answers that state several candidates with confidences; None if none states a confidence.

    Args:
        answers: Text of each answer; empty if there is none.
        golds: All accepted answers to each question.

    Returns:
        ``n`` answers; the shares with a right ``first`` candidate, with a right candidate of highest confidence
        (``likeliest``), and with ``any`` right one; the mean ``candidates`` of an answer; ``brier``, the mean of
        `brier_reward`; ``expected_calibration_error`` over all candidates with a confidence in [0, 1].
    """
    rows = [candidates_of(answer) for answer in answers]
    if not any(candidate.confidence is not None for row in rows for candidate in row):
        return None
    right = [[exact_match(c.text, names) > 0 for c in row] for row, names in zip(rows, golds, strict=True)]
    likeliest = [max(range(len(row)), key=lambda i, row=row: row[i].confidence or 0.0, default=None) for row in rows]  # type: ignore[misc]
    stated = [
        (c.confidence, good)
        for row, goods in zip(rows, right, strict=True)
        for c, good in zip(row, goods, strict=True)
        if c.confidence is not None and 0 <= c.confidence <= 1
    ]
    count = len(answers)
    return {
        "n": count,
        "first": sum(goods[0] for goods in right if goods) / count,
        "likeliest": sum(goods[i] for goods, i in zip(right, likeliest, strict=True) if i is not None) / count,
        "any": sum(map(any, right)) / count,
        "candidates": sum(map(len, rows)) / count,
        "brier": math.fsum(brier_reward(row, goods) for row, goods in zip(rows, right, strict=True)) / count,
        "expected_calibration_error": expected_calibration_error(*zip(*stated, strict=True)) if stated else None,
    }


def abstains(answer: str) -> bool:
    """Returns whether an answer only says that it gives none: ``I don't know.``, ``unknown``, ``N/A``, or no words.

    English phrases are recognised. They count as no answer even where a gold answer is spelled like one.
    """
    text = normalise_answer(answer.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))
    return not re.search(r"\w", text) or _ABSTAINS.fullmatch(text) is not None


def check_confidence(value: object, where: str) -> None:
    """Checks a stated confidence.

    Args:
        value: The confidence, or None if the answer states none.
        where: What states it, for the message.

    Raises:
        ScoringError: It is no number in [0, 1].
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ScoringError(f"{where}: confidence: expected a number from 0 to 1, got {value!r:.40}")


def expected_calibration_error(confidences: Sequence[float], right: Sequence[bool]) -> float:
    """Returns the expected calibration error over equal-width bins, ``sum_b n_b / n |accuracy_b - confidence_b|``.

    Source: Naeini, Cooper and Hauskrecht, 2015, in the form of Guo et al., 2017 (arXiv 1706.04599, equation 3). A
    confidence on the border of two bins belongs to the upper one.

    Args:
        confidences: (n,) stated probabilities in [0, 1], n > 0.
        right: (n,) whether each answer is right.
    """
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for confidence, is_right in zip(confidences, right, strict=True):
        bins[min(int(round(BINS * confidence, 9)), BINS - 1)].append((confidence, is_right))
    total = 0.0
    for members in filter(None, bins):
        accuracy = sum(is_right for _, is_right in members) / len(members)
        mean = math.fsum(confidence for confidence, _ in members) / len(members)
        total += len(members) / len(confidences) * abs(accuracy - mean)
    return total
