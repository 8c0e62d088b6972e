"""Training questions among evaluation questions: equal after normalisation, or nearly so.

Questions about other entities often differ in a name alone, which is no copy, so that words count by their rarity: the
similarity of two questions is the weight of the words that they share over the weight of the words that either has
(weighted Jaccard), where a word of n among N questions weighs 1 + log(N / n).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from searchgym.records import Question
from searchgym.scoring import normalise_answer

NEAR_DUPLICATE: Final = 0.8
"""Least similarity of a near copy."""
ASKED: Final = frozenset({"when", "where", "why", "how"})
"""Words that decide what is asked of an entity; near copies have the same ones."""


@dataclass(frozen=True, slots=True)
class Copy:
    """An evaluation question that a training question equals, or nearly so."""

    id: str
    """Id of the evaluation question."""
    kind: Literal["exact", "near"]
    """Whether the two are equal after normalisation."""
    similarity: float
    """Weighted Jaccard similarity, 1 if they are equal."""
    text: str
    """The evaluation question."""
    training: str
    """The training question."""


def find_copies(training: Iterable[str], evaluation: Sequence[Question], least: float = NEAR_DUPLICATE) -> list[Copy]:
    """Returns the evaluation questions that occur among training questions, in their order.

    Args:
        training: Texts of training questions.
        evaluation: Evaluation questions.
        least: Least similarity of a near copy, in (0, 1].
    """
    trained = {normalise_answer(text): text for text in training}
    words = {text: frozenset(text.split()) for text in trained}
    asked = {question.id: normalise_answer(question.text) for question in evaluation}
    counts = Counter(word for text in (*trained, *asked.values()) for word in set(text.split()))
    weight = {word: 1.0 + math.log((len(trained) + len(asked)) / count) for word, count in counts.items()}
    having: defaultdict[str, list[str]] = defaultdict(list)
    for text, own in words.items():
        for word in own:
            having[word].append(text)
    copies = []
    for question in evaluation:
        text = asked[question.id]
        if text in trained:
            copies.append(Copy(question.id, "exact", 1.0, question.text, trained[text]))
            continue
        # A near copy lacks at most the share 1 - `least` of the question's weight: of rarest words that weigh more
        # together it has one at least.
        own, covered, candidates = frozenset(text.split()), 0.0, set[str]()
        whole = sum(weight[word] for word in own)
        for word in sorted(own, key=lambda word: (-weight[word], word)):
            candidates.update(having.get(word, ()))
            covered += weight[word]
            if covered > (1.0 - least) * whole:
                break
        alike: list[tuple[float, str]] = []
        for other in candidates:
            if own & ASKED == words[other] & ASKED:
                shared = sum(weight[word] for word in own & words[other])
                similarity = shared / (shared + sum(weight[word] for word in own ^ words[other]))
                alike += [(-similarity, other)] if similarity >= least else []
        if alike:
            similarity, nearest = min(alike)
            copies.append(Copy(question.id, "near", -similarity, question.text, trained[nearest]))
    return copies


def measure_contamination(
    training: Iterable[str], evaluation: Sequence[Question], em: Mapping[str, float]
) -> dict[str, Any]:
    """Returns what copies of training questions do to a score.

    Args:
        training: Texts of training questions.
        evaluation: Evaluation questions.
        em: EM by question id; questions that the scorer leaves out may be missing.

    Returns:
        ``training`` (number of training questions), ``exact`` and ``near`` (numbers of copies), ``em_copies`` and
        ``em_others`` (EM on them and on the other questions, None where there are none), and ``copies``: the first
        20 of them.
    """
    texts = list(training)
    copies = find_copies(texts, evaluation)
    ids = {copy.id for copy in copies}

    def mean(values: list[float]) -> float | None:
        return math.fsum(values) / len(values) if values else None

    return {
        "training": len(texts),
        "exact": sum(copy.kind == "exact" for copy in copies),
        "near": sum(copy.kind == "near" for copy in copies),
        "em_copies": mean([value for id, value in em.items() if id in ids]),
        "em_others": mean([value for id, value in em.items() if id not in ids]),
        "copies": [
            {"id": copy.id, "kind": copy.kind, "similarity": round(copy.similarity, 3), "training": copy.training}
            for copy in copies[:20]
        ],
    }
