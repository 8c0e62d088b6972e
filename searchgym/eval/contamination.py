"""Evaluation questions that are exact or near copies of training questions.

Questions about different entities often differ only in a name and are no copies. Therefore words are weighted by their
rarity: the similarity of two questions is the total weight of their common words divided by the total weight of all
their words (weighted Jaccard), where a word in n of N questions has the weight 1 + log(N / n).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from searchgym.records import Question
from searchgym.scoring import normalise_answer

NEAR_DUPLICATE: Final = 0.8
"""Minimum similarity of a near copy."""
QUESTION_WORDS: Final = frozenset({"when", "where", "why", "how"})
"""Words that change the meaning of a question; near copies have the same ones."""


@dataclass(frozen=True, slots=True)
class Copy:
    """An evaluation question with an equal or similar training question."""

    id: str
    """Id of the evaluation question."""
    kind: Literal["exact", "near"]
    """``exact`` if the questions are equal after normalisation, else ``near``."""
    similarity: float
    """Weighted Jaccard similarity; 1 for an exact copy."""
    text: str
    """Text of the evaluation question."""
    training: str
    """Text of the training question, for a near copy the most similar one."""


def find_copies(
    training: Iterable[str] | None,
    evaluation: Sequence[Question],
    least: float = NEAR_DUPLICATE,
    alike: Callable[[Question, str], bool] | None = None,
) -> list[Copy]:
    """Returns the evaluation questions that are copies of training questions, in their order.

    Args:
        training: Texts of training questions. None: the other evaluation questions, for duplicates in a set.
        evaluation: Evaluation questions.
        least: Minimum similarity of a near copy, in (0, 1].
        alike: Tells whether a question may be a near copy of a training text. Default: of any.
    """
    texts = [question.text for question in evaluation] if training is None else list(training)
    trained = {normalise_answer(text): text for text in texts}
    times = Counter(map(normalise_answer, texts))
    words = {text: frozenset(text.split()) for text in trained}
    normalised = {question.id: normalise_answer(question.text) for question in evaluation}
    counts = Counter(word for text in (*trained, *normalised.values()) for word in set(text.split()))
    weight = {word: 1.0 + math.log((len(trained) + len(normalised)) / count) for word, count in counts.items()}
    having: defaultdict[str, list[str]] = defaultdict(list)
    for text, terms in words.items():
        for word in terms:
            having[word].append(text)
    copies = []
    for question in evaluation:
        text = normalised[question.id]
        if times[text] > (training is None):
            copies.append(Copy(question.id, "exact", 1.0, question.text, trained[text]))
            continue
        # A near copy lacks at most the share 1 - `least` of the question's weight. So it has at least one of the
        # rarest words that together exceed this share.
        terms, covered, candidates = frozenset(text.split()), 0.0, set[str]()
        whole = sum(weight[word] for word in terms)
        for word in sorted(terms, key=lambda word: (-weight[word], word)):
            candidates.update(having.get(word, ()))
            covered += weight[word]
            if covered > (1.0 - least) * whole:
                break
        similar: list[tuple[float, str]] = []
        for other in candidates:
            if other != text and terms & QUESTION_WORDS == words[other] & QUESTION_WORDS:
                shared = sum(weight[word] for word in terms & words[other])
                similarity = shared / (shared + sum(weight[word] for word in terms ^ words[other]))
                if similarity >= least and (alike is None or alike(question, trained[other])):
                    similar.append((-similarity, other))
        if similar:
            similarity, nearest = min(similar)
            copies.append(Copy(question.id, "near", -similarity, question.text, trained[nearest]))
    return copies


def measure_contamination(
    training: Iterable[str], evaluation: Sequence[Question], em: Mapping[str, float]
) -> dict[str, Any]:
    """Compares the EM on copies of training questions with the EM on the other questions.

    Args:
        training: Texts of training questions.
        evaluation: Evaluation questions.
        em: EM by question id; questions that the scorer leaves out may be missing.

    Returns:
        ``training`` (number of training questions), ``exact`` and ``near`` (numbers of copies), ``em_copies`` and
        ``em_others`` (EM on copies and on other questions, None without such questions), and ``copies`` (the first 20).
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
