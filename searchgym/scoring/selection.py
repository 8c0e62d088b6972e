"""Selection of one answer among several samples of the same question, without looking at the gold answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from searchgym.records import Episode
from searchgym.scoring.answers import normalise_answer
from searchgym.scoring.confidence import abstains

VALUE: Final = "value"
"""Note of an episode with its value by a value model."""


class Sampled(NamedTuple):
    """One sample of a question, as far as a selection looks at it."""

    answer: str
    """Text of the answer; empty if there is none."""
    tokens: int
    """Number of tokens that models generated for it."""
    confidence: float | None = None
    """Stated probability that the answer is right; None if none is stated."""
    value: float | None = None
    """Value that a value model gives the episode; None without one."""

    @classmethod
    def of(cls, episode: Episode) -> Sampled:
        """Returns what selections look at of an episode."""
        answer = episode.answer
        text, confidence = ("", None) if answer is None else (answer.text, answer.confidence)
        return cls(text, episode.generated_tokens(), confidence, episode.notes.get(VALUE))


def vote(samples: Sequence[Sampled], weighted: bool = False) -> int:
    """Returns the index of the sample that a vote selects: the first one with the most frequent normalised answer.

    Abstentions and samples without an answer do not vote; if no sample has an answer, the first is selected. Of answers
    with equal votes, the one that was given first wins.

    Source: self-consistency, arXiv 2203.11171; the majority with stated confidences is that of SRLM, arXiv 2603.15653,
    by notes. Deviation from SRLM: of the samples with the selected answer it takes the one with the largest product of
    log-confidence and length, which changes nothing for exact match.

    Args:
        samples: Samples of one question, at least one.
        weighted: Whether a vote counts as much as the sample's stated confidence, 0 without one.
    """
    votes: dict[str, list[float]] = {}
    first: dict[str, int] = {}
    for index, sample in enumerate(samples):
        text = normalise_answer(sample.answer)
        if text and not abstains(sample.answer):
            votes.setdefault(text, []).append((sample.confidence or 0.0) if weighted else 1.0)
            first.setdefault(text, index)
    return first[max(votes, key=lambda text: math.fsum(votes[text]))] if votes else 0


def shortest(samples: Sequence[Sampled]) -> int:
    """Returns the index of the answered sample with the fewest generated tokens; 0 if none has an answer."""
    answered = [index for index, sample in enumerate(samples) if normalise_answer(sample.answer)]
    return min(answered, key=lambda index: samples[index].tokens, default=0)


def selected(samples: Sequence[Sampled]) -> dict[str, int]:
    """Returns the index of the sample that each selection takes, by its name.

    ``vote`` and ``shortest`` always; ``confident``, the sample with the largest stated confidence, and
    ``weighted_vote`` if all samples state a confidence; ``value``, the one with the largest value, if all have one.
    """
    chosen = {"vote": vote(samples), "shortest": shortest(samples)}
    stated = [sample.confidence for sample in samples]
    if all(value is not None for value in stated):
        chosen["confident"] = max(range(len(samples)), key=lambda index: stated[index] or 0.0)
        chosen["weighted_vote"] = vote(samples, weighted=True)
    values = [sample.value for sample in samples]
    if all(value is not None for value in values):
        chosen["value"] = max(range(len(samples)), key=lambda index: values[index] or 0.0)
    return chosen
