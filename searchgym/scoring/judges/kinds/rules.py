"""Judge ``rules``: checks whether required names occur together in one sentence. Deterministic."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from typing_extensions import override

from searchgym.errors import UsageError
from searchgym.scoring.judges.judge import Criterion, Judge
from searchgym.text import holds, norm, sentences

MOST_WORDS: Final = 40
"""Maximum number of words of a sentence that counts; a longer one could list all names and so contain every pair."""
MOST_CLAIMS: Final = 3
"""Maximum number of different sentences that contain all groups of a criterion but at most one; an answer with more is
guessing values and meets nothing."""
HEDGES: Final = frozenset(
    norm(
        "not never no nor neither nobody cannot false untrue wrong unknown unclear or either perhaps maybe possibly "
        "probably allegedly might if whether"
    ).split()
)
"""Words that negate or weaken a statement."""
_SHORT_NOT: Final = re.compile(r"n['’]t\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleJudge(Judge):
    """Judge by word matching: reliable when it rejects an answer, weak evidence when it accepts one.

    A criterion's statement counts as true if one sentence of at most `MOST_WORDS` words, without a word of `HEDGES`,
    contains a name of each group of `Criterion.says` as consecutive words. A hedge word inside a name ("Neither Shore")
    does not count as one. With three groups or more, such as subject, relation and value, at most `MOST_CLAIMS`
    different sentences may contain all groups but one: an answer that guesses values meets nothing. Pronouns are not
    resolved, paraphrases are not recognised, and one sentence that lists several values passes.
    """

    in_process: ClassVar = True

    @override
    def verify(self, question: str, answer: str, pages: Sequence[str]) -> bool:
        return any(holds(page, answer) for page in pages)

    @override
    def meets(self, question: str, answer: str, criteria: Sequence[Criterion]) -> list[bool]:
        for criterion in criteria:
            if not criterion.says:
                raise UsageError(f"criterion {criterion.text!r:.60} has no says: rules cannot judge it, a model can")
        parts = [line[start:end] for line in answer.splitlines() for start, end in sentences(line)]
        texts = {f" {norm(part)} " for part in parts}
        return [
            any(_states(part, criterion.says) for part in parts) and not _tries_out(texts, criterion.says)
            for criterion in criteria
        ]

    @override
    def better(self, question: str, answers: tuple[str, str], criteria: Sequence[Criterion]) -> int | None:
        weights = []
        for answer in answers:
            met = self.meets(question, answer, criteria)
            weights.append(sum(c.weight for c, true in zip(criteria, met, strict=True) if true != c.negated))
        return None if weights[0] == weights[1] else int(weights[1] > weights[0])


def _tries_out(texts: Collection[str], says: Sequence[Sequence[str]]) -> bool:
    """Returns whether an answer's normalised sentences try too many values for one criterion; see `MOST_CLAIMS`."""
    if len(says) < 3:
        return False
    groups = [[f" {norm(name)} " for name in names] for names in says]
    lacking = [sum(not any(name in text for name in names) for names in groups) for text in texts]
    return sum(number <= 1 for number in lacking) > MOST_CLAIMS


def _states(sentence: str, says: Sequence[Sequence[str]]) -> bool:
    """Returns whether a sentence makes a criterion's statement; see `RuleJudge`."""
    text = f" {norm(sentence)} "
    if len(text.split()) > MOST_WORDS or _SHORT_NOT.search(sentence):
        return False
    rest = text
    for names in says:
        hits = [name for name in map(norm, names) if name and f" {name} " in text]
        if not hits:
            return False
        for name in sorted(hits, key=len, reverse=True):
            rest = rest.replace(f" {name} ", " ")
    return HEDGES.isdisjoint(rest.split())
