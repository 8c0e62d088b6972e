"""A writer without a model, for tests and small trainings, which copies a question's paragraphs."""

from __future__ import annotations

import random
from collections.abc import Sequence

from searchgym.rollout.simulated.writers import Wanted
from searchgym.text import cut_words, words


class ParagraphWriter:
    """Writer whose useful pages are a question's paragraphs, sorted by the number of words shared with the query.

    Noisy pages are sampled from paragraphs without gold evidence. Questions without paragraphs get no pages; questions
    of generated worlds, HotpotQA, 2WikiMultihopQA and MuSiQue have paragraphs.
    """

    def write(self, requests: Sequence[Wanted]) -> list[list[str]]:
        """Returns the pages for each query."""
        return [self._pages(one) for one in requests]

    def _pages(self, one: Wanted) -> list[str]:
        paragraphs = one.question.paragraphs if one.question is not None else None
        if not paragraphs:
            return []
        if one.useful:
            query_words = {word.text.lower() for word in words(one.query)}
            candidates = [(query_words & {w.text.lower() for w in words(f"{p.title} {p.text}")}, p) for p in paragraphs]
            chosen = [p for shared, p in sorted(candidates, key=lambda pair: -len(pair[0])) if shared]
        else:
            chosen = [p for p in paragraphs if not p.supporting]
            random.Random(one.seed).shuffle(chosen)
        return [cut_words(paragraph.text.strip(), 2 * one.words) for paragraph in chosen[: one.pages]]
