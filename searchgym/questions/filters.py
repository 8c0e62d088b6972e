"""Filters that every draft of a question passes, in a fixed order; each rejection is counted under its rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from searchgym.questions.draw import Draft
from searchgym.questions.graphs.graph import evaluate
from searchgym.questions.source import Source
from searchgym.records import Hit
from searchgym.retrieval.retriever import Retriever
from searchgym.text import WORD, holds, norm, tidy

DEPTH: Final = 20
"""Number of hits among which gold pages are looked for."""
ANSWER_SHARE: Final = 0.02
"""Maximum share of a stratum's questions with the same answer (but at least two questions)."""
CLOZE: Final = ("cloze", "cloze-chain")
"""Shapes that copy sentences, in which single words of a name give it away."""


@dataclass(frozen=True, slots=True)
class Searched:
    """A draft with what searches find of its gold pages."""

    draft: Draft
    raw: tuple[int | None, ...]
    """Rank (from 1) of each gold page when the question's text is the query; None below `DEPTH`."""
    asked: tuple[int | None, ...]
    """Rank of each gold page when the name of its subject is the query."""

    def all_within(self, k: int, asked: bool = False) -> bool:
        """Returns whether all gold pages are among the first k hits of the text, or each of its own name's."""
        return all(rank is not None and rank <= k for rank in (self.asked if asked else self.raw))


class Wording:
    """The filters that need no search: one answer, and nothing of it in the question."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.rules: Mapping[str, Callable[[Draft], bool]] = {
            "not one answer": self._not_one,
            "answer in the question": self._answer_named,
            "words of the answer in the question": self._answer_words,
            "waypoint in the question": self._waypoint_named,
            "a rare word of a hidden name in the question": self._rare_words,
            "answer is on the path": self._on_the_path,
            "answer is not on its page": self._not_on_page,
            "one page states all of it": self._one_page,
        }

    def refusal(self, draft: Draft) -> str | None:
        """Returns the first rule that refuses a draft, None if there is none."""
        return next((name for name, rule in self.rules.items() if rule(draft)), None)

    def _not_one(self, draft: Draft) -> bool:
        if draft.form is None:
            return False
        try:
            return len(evaluate(self._source.graph, draft.form)) != 1
        except ValueError:  # a literal that is no date
            return True

    def _answer_named(self, draft: Draft) -> bool:
        return not draft.named and holds(draft.text, draft.answer)

    def _answer_words(self, draft: Draft) -> bool:
        return not draft.named and set(norm(draft.answer).split()) <= set(norm(draft.text).split())

    def _waypoint_named(self, draft: Draft) -> bool:
        return any(holds(draft.text, name) for name in draft.waypoints + draft.names)

    def _rare_words(self, draft: Draft) -> bool:
        if draft.shape not in CLOZE:
            return False
        shown = set(WORD.findall(draft.text))
        hidden = [word for name in (draft.answer, *draft.waypoints) for word in WORD.findall(name)]
        return any(
            len(w) > 2 and w[0].isupper() and w in shown and w.lower() not in self._source.ordinary for w in hidden
        )

    def _on_the_path(self, draft: Draft) -> bool:
        names = (self._source.name(page) for page in draft.pages)
        return not draft.named and draft.shape != "intersection" and any(norm(n) == norm(draft.answer) for n in names)

    def _not_on_page(self, draft: Draft) -> bool:
        if draft.named or draft.shape == "intersection":
            return False
        page = self._source.passages[draft.pages[-1]]
        return not holds(tidy(page.text), draft.answer)

    def _one_page(self, draft: Draft) -> bool:
        if draft.named or draft.hops < 2:
            return False
        names = [*(self._source.name(page) for page in draft.pages), draft.answer]
        pages = (self._source.passages[page] for page in draft.pages)
        return any(all(holds(tidy(f"{p.title} {p.text}"), name) for name in names) for p in pages)


class Searches:
    """The filters that search: one search must not give a question away, and sub-queries must find its pages.

    Args:
        source: What questions are drawn from.
        retriever: Retriever over all pages of the source.
        top_k: Number of hits per search in the environment.
    """

    def __init__(self, source: Source, retriever: Retriever, top_k: int) -> None:
        self._source, self._retriever, self.top_k = source, retriever, top_k

    def search(self, drafts: Sequence[Draft]) -> list[Searched]:
        """Searches for the texts of drafts and for the names of their gold pages."""
        source = self._source
        names = [(draft, page) for draft in drafts for page in draft.pages]
        hits = self._retriever.search([d.text for d in drafts] + [source.name(page) for _, page in names], DEPTH)
        found = iter(hits[len(drafts) :])
        searched = []
        for draft, own in zip(drafts, hits, strict=False):
            ids = [source.passages[page].id for page in draft.pages]
            asked = tuple(_rank(next(found), id) for id in ids)
            searched.append(Searched(draft, tuple(_rank(own, id) for id in ids), asked))
        return searched

    def refusal(self, searched: Searched) -> str | None:
        """Returns the rule that refuses a draft, None if there is none."""
        if searched.draft.hops > 1 and searched.all_within(self.top_k):
            return "one search finds all its pages"
        if not searched.all_within(self.top_k, asked=True):
            return "names do not find its pages"
        return None


def _rank(hits: Sequence[Hit], id: str) -> int | None:
    return next((rank for rank, hit in enumerate(hits, start=1) if hit.passage.id == id), None)


class Balance:
    """The filters that look at the questions so far: frequent answers, and sides of comparisons."""

    def __init__(self, wanted: int) -> None:
        self._most = max(2, int(ANSWER_SHARE * wanted))
        self._answers: Counter[str] = Counter()
        self._sides: Counter[tuple[str, str]] = Counter()

    def refusal(self, draft: Draft) -> str | None:
        """Returns the rule that refuses a draft, None if there is none; counts a draft that is not refused."""
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
    """Returns the side of a comparison's answer and the other one."""
    if draft.answer in ("yes", "no"):
        return draft.answer, {"yes": "no", "no": "yes"}[draft.answer]
    first = draft.text.rfind(f"{draft.answer} or ") >= 0
    return ("first", "second") if first else ("second", "first")
