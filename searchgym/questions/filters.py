"""Filters that every draft of a question passes, in a fixed order; rejections are counted by rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from searchgym.questions.graphs.graph import Form, evaluate
from searchgym.questions.shapes.draft import Draft
from searchgym.questions.source import FactBase
from searchgym.questions.spec import CLOZE
from searchgym.records import Hit
from searchgym.retrieval.retriever import Retriever
from searchgym.text import WORD, holds, norm, tidy

DEPTH: Final = 20
"""Number of hits that are checked for gold pages."""
ANSWER_SHARE: Final = 0.02
"""Maximum share of a stratum's questions with the same answer (but at least two questions)."""
RANKS: Final = (3, 5, 20)
"""Cutoffs k at which drafts with all gold pages in the first k hits are counted."""


@dataclass(frozen=True, slots=True)
class SearchedDraft:
    """A draft with the search ranks of its gold pages."""

    draft: Draft
    raw: tuple[int | None, ...]
    """Rank (from 1) of each gold page when the question's text is the query; None below `DEPTH`."""
    by_name: tuple[int | None, ...]
    """Rank of each gold page for the query that should find it; see `queries_of`."""

    def all_within(self, k: int, by_name: bool = False) -> bool:
        """Returns whether the first k hits for the text have all gold pages, or those for each name have its page."""
        return all(rank is not None and rank <= k for rank in (self.by_name if by_name else self.raw))


class Wording:
    """Filters that need no search: a question has exactly one answer and does not reveal it."""

    def __init__(self, source: FactBase) -> None:
        self._source = source

    def refusal(self, draft: Draft) -> str | None:
        """Returns the first rule that refuses a draft, or None."""
        asks_end = not draft.named and draft.shape != "intersection"
        if draft.form is not None and not self._one_answer(draft.form):
            return "not one answer"
        if not draft.named and holds(draft.text, draft.answer):
            return "answer in the question"
        if not draft.named and set(norm(draft.answer).split()) <= set(norm(draft.text).split()):
            return "words of the answer in the question"
        if any(holds(draft.text, name) for name in draft.waypoints + draft.names):
            return "waypoint in the question"
        if draft.shape in CLOZE and self._rare_words(draft):
            return "a rare word of a hidden name in the question"
        names = [self._source.name(page) for page in draft.pages]
        pages = [self._source.passages[page] for page in draft.pages]
        if asks_end and any(norm(name) == norm(draft.answer) for name in names):
            return "answer is on the path"
        if asks_end and not holds(tidy(pages[-1].text), draft.answer):
            return "answer is not on its page"
        if draft.named or draft.hops < 2:
            return None
        needed = [*names, draft.answer]
        if any(all(holds(tidy(f"{page.title} {page.text}"), name) for name in needed) for page in pages):
            return "one page states all of it"
        return None

    def _one_answer(self, form: Form) -> bool:
        """Returns whether the form has exactly one answer in the graph."""
        try:
            return len(evaluate(self._source.graph, form)) == 1
        except ValueError:  # a literal that is not a date
            return False

    def _rare_words(self, draft: Draft) -> bool:
        """Returns whether the text of a cloze contains a word of a hidden name that is not an ordinary word."""
        visible = set(WORD.findall(draft.text))
        hidden = [word for name in (draft.answer, *draft.waypoints) for word in WORD.findall(name)]
        return any(
            len(w) > 2 and w[0].isupper() and w in visible and w.lower() not in self._source.ordinary for w in hidden
        )


class Searches:
    """Filters that search: one search must not find all pages, and searches for the names must find them.

    Args:
        source: Corpus and facts that questions are drawn from.
        retriever: Retriever over all pages of the source.
        top_k: Number of hits per search in the environment.
    """

    def __init__(self, source: FactBase, retriever: Retriever, top_k: int) -> None:
        self._source, self._retriever, self.top_k = source, retriever, top_k

    def search(self, drafts: Sequence[Draft]) -> list[SearchedDraft]:
        """Searches for the texts of drafts and for the names of their gold pages."""
        source = self._source
        queries = [query for draft in drafts for query in queries_of(source, draft)]
        hits = self._retriever.search([d.text for d in drafts] + queries, DEPTH)
        of_names = iter(hits[len(drafts) :])
        searched = []
        for draft, of_text in zip(drafts, hits, strict=False):
            ids = [source.passages[page].id for page in draft.pages]
            by_name = tuple(_rank(next(of_names), id) for id in ids)
            searched.append(SearchedDraft(draft, tuple(_rank(of_text, id) for id in ids), by_name))
        return searched

    def refusal(self, searched: SearchedDraft) -> str | None:
        """Returns the rule that refuses a draft, or None."""
        if searched.draft.hops > 1 and searched.all_within(self.top_k):
            return "one search finds all its pages"
        if not searched.all_within(self.top_k, by_name=True):
            return "names do not find its pages"
        return None


def queries_of(source: FactBase, draft: Draft) -> list[str]:
    """Returns the query that should find each gold page of a draft: by default the name of its subject."""
    return list(draft.queries) or [source.name(page) for page in draft.pages]


def _rank(hits: Sequence[Hit], id: str) -> int | None:
    return next((rank for rank, hit in enumerate(hits, start=1) if hit.passage.id == id), None)


class Balance:
    """Filters that depend on the questions accepted so far: frequent answers, and sides of comparisons."""

    def __init__(self, count: int) -> None:
        self._most = max(2, int(ANSWER_SHARE * count))
        self._answers: Counter[str] = Counter()
        self._sides: Counter[tuple[str, str]] = Counter()

    def refusal(self, draft: Draft) -> str | None:
        """Returns the rule that refuses a draft; otherwise counts the draft and returns None."""
        if draft.named:
            side, other = _sides(draft)
            group = " ".join(draft.relations)
            if self._sides[group, side] > self._sides[group, other]:
                return "one side of comparisons is ahead"
            self._sides[group, side] += 1
            return None
        if self._answers[norm(draft.answer)] >= self._most:
            return "answer is frequent already"
        self._answers[norm(draft.answer)] += 1
        return None


def _sides(draft: Draft) -> tuple[str, str]:
    """Returns the side of a comparison's answer, and the other side."""
    if draft.answer in ("yes", "no"):
        return draft.answer, {"yes": "no", "no": "yes"}[draft.answer]
    first = draft.text.rfind(f"{draft.answer} or ") >= 0
    return ("first", "second") if first else ("second", "first")
