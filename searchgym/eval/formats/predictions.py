"""Predictions for questions, in the one form that every official format is written from and read into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from searchgym.records import Answer, Passage

PREDICTION_FORMATS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "hotpotqa": ("answer", "sp"),
        "2wiki": ("answer", "sp", "evidence"),
        "musique": ("id", "predicted_answer", "predicted_support_idxs", "predicted_answerable"),
        "kilt": ("id", "input", "output"),
        "flashrag": ("id", "question", "golden_answers", "output"),
    }
)
"""Name of a format to the keys that its document, or each of its rows, has."""

KEPT: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "hotpotqa": frozenset({"supporting_facts"}),
        "2wiki": frozenset({"supporting_facts", "evidences"}),
        "musique": frozenset({"paragraphs", "answerable"}),
        "kilt": frozenset({"pages"}),
        "flashrag": frozenset({"pages"}),
    }
)
"""Name of a format to what it has a place for beside the answer's text: fields of `Answer`, and the pages."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What was predicted for one question."""

    id: str
    """Id of the question."""
    answer: Answer | None
    """The answer with what the agent stated beside it; None if it gave none."""
    pages: tuple[Passage, ...] = ()
    """Passages that its searches returned, each once, in the order in which they were first returned."""


def kept(prediction: Prediction, format: str) -> Prediction:
    """Returns a prediction without what a format has no place for."""
    keep = KEPT[format]
    answer = prediction.answer
    if answer is not None:
        answer = Answer(answer.text, **{name: getattr(answer, name) for name in keep - {"pages"}})
    return Prediction(prediction.id, answer, prediction.pages if "pages" in keep else ())
