"""A writer without a model, for tests and small trainings: it copies the paragraphs that come with a question."""

from __future__ import annotations

import random
from collections.abc import Sequence

from searchgym.rollout.simulated.writers import Wanted
from searchgym.text import cut_words, words


class ParagraphWriter:
    """Writer whose useful pages are a question's paragraphs, those that share most words with the query first.

    Noisy pages are drawn from its paragraphs without gold evidence. It writes nothing for a question that brings no
    paragraphs; those of generated worlds, HotpotQA, 2WikiMultihopQA and MuSiQue bring some.
    """

    def write(self, wanted: Sequence[Wanted]) -> list[list[str]]:
        """Returns the pages for each query."""
        return [self._pages(one) for one in wanted]

    def _pages(self, one: Wanted) -> list[str]:
        paragraphs = one.question.paragraphs if one.question is not None else None
        if not paragraphs:
            return []
        if one.useful:
            asked = {word.text.lower() for word in words(one.query)}
            known = [(asked & {w.text.lower() for w in words(f"{p.title} {p.text}")}, p) for p in paragraphs]
            chosen = [p for shared, p in sorted(known, key=lambda pair: -len(pair[0])) if shared]
        else:
            chosen = [p for p in paragraphs if not p.supporting]
            random.Random(one.seed).shuffle(chosen)
        return [cut_words(paragraph.text.strip(), 2 * one.words) for paragraph in chosen[: one.pages]]
