"""Generates masked spans from a corpus: finds spans, splits pages, draws, and keeps tasks that an oracle can solve."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from searchgym.errors import DataError
from searchgym.protocol import get_protocol
from searchgym.questions.graphs.facts import find_facts
from searchgym.questions.graphs.packs import load_pack
from searchgym.questions.graphs.triples import read_triples
from searchgym.questions.masked.draw import MaskedDraft, answer_of, draw
from searchgym.questions.masked.hiding import Hidden, HidingRetriever
from searchgym.questions.masked.spans import SpanFinder, Window, windows_by_triples
from searchgym.questions.masked.spec import MaskedSpec
from searchgym.questions.source import HeldOut, split_pages
from searchgym.questions.spec import SPLITS
from searchgym.questions.subset import by_hash
from searchgym.records import Hit, Passage, Question, SupportingFact, Triple, title_key
from searchgym.retrieval.cards import Progress, quiet
from searchgym.retrieval.retriever import Retriever
from searchgym.text import cut_words, holds, norm, sentences

VERSION: Final = 2
"""Version of the rules, incremented whenever they generate different tasks."""
SHARES: Final = (0.8, 0.1, 0.1)
"""Shares of pages and tasks for train, validation and test."""
_BATCH: Final = 128
"""Number of drafts searched in one batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLimits:
    """Limits of the environment that decide whether a task can be solved."""

    top_k: int = 3
    words: int = 500
    """Maximum number of words of retrieved text per turn."""
    searches: int = 4
    """Maximum number of searches per episode."""


@dataclass(slots=True)
class MaskedSet:
    """Masked spans of a corpus, with counts of accepted and refused items."""

    questions: dict[str, list[Question]] = field(default_factory=dict)
    """Tasks by split."""
    counts: Counter[str] = field(default_factory=Counter)
    """Counts of windows, spans by kind, drafts, and refusals by rule."""


def generate(
    passages: Sequence[Passage],
    spec: MaskedSpec,
    limits: SearchLimits,
    retriever: Retriever,
    held_out: HeldOut | None = None,
    progress: Progress = quiet,
    fixed: Sequence[Window] | None = None,
) -> MaskedSet:
    """Generates masked spans; the same corpus and the same parameters give the same tasks.

    Args:
        passages: The corpus.
        spec: Parameters of the tasks.
        limits: Limits of the environment.
        retriever: Retriever over the corpus.
        held_out: Pages and names reserved for evaluation questions; they appear in no task and in no hit.
        progress: Called with progress reports.
        fixed: Windows with their spans, for a corpus whose facts are known. Default: windows found as `spec` defines.

    Raises:
        DataError: The corpus gives no task; the message counts the refusals by rule.
    """
    result, out = MaskedSet(), held_out or HeldOut()
    allowed, usable = frozenset(range(len(passages))) - out.pages, []
    for window in _windows(passages, spec, limits, result.counts, progress) if fixed is None else fixed:
        text = passages[window.page].text
        spans = tuple(span for span in window.spans if norm(text[slice(*span.occurrences[0])]) not in out.names)
        stated = _stated(replace(window, spans=spans), allowed, spec)
        if window.page in allowed and stated.spans:
            usable.append(stated)
    result.counts["windows"] = len(usable)
    result.counts.update(f"{span.kind} spans" for window in usable for span in window.spans)
    pages = _pages(passages, usable)
    maker = _TaskMaker(passages, spec, limits, retriever, out, result.counts)
    for split, share in zip(SPLITS, SHARES, strict=True):
        windows, lacking = _within(usable, pages[split], spec, result.counts), 0
        result.questions[split] = []
        for masks in sorted(set(spec.masks), reverse=True):
            count = round(spec.n * share / len(set(spec.masks))) + lacking
            tasks = list(maker.questions(windows, split, masks, count))
            lacking = count - len(tasks)
            result.questions[split] += tasks
            progress(f"{split}: {masks} masks", len(tasks), count)
        result.questions[split] = by_hash(result.questions[split])  # otherwise the first tasks all have the most masks
    if not any(result.questions.values()):
        reasons = ", ".join(f"{name} {count}" for name, count in result.counts.most_common(8))
        raise DataError(
            f"gives no masked spans (source: {spec.source}): {len(passages)} passages; {reasons or 'no spans'}"
        )
    return result


def _windows(
    passages: Sequence[Passage], spec: MaskedSpec, limits: SearchLimits, counts: Counter[str], progress: Progress
) -> list[Window]:
    """Returns the windows of a corpus, found by a file of triples if the spec names one, else by links and a pack."""
    if spec.triples is not None:
        return windows_by_triples(passages, (Triple(*fact) for fact in read_triples(spec.triples).triples()))
    pack = load_pack(spec.pack)
    facts = find_facts(passages, pack, lambda done, whole: progress("reading links", done, whole))
    finder = SpanFinder(passages, facts, pack, limits.words)
    windows = [window for page in range(len(passages)) for window in finder.windows(page)]
    counts.update(finder.refused)
    return windows


def _stated(window: Window, pages: frozenset[int], spec: MaskedSpec) -> Window:
    """Returns a window with the spans that may be hidden: for hidden sources, only those that other pages state."""
    spans = [span._replace(supports=tuple(filter(pages.__contains__, span.supports))) for span in window.spans]
    return replace(window, spans=tuple(span for span in spans if span.supports or spec.source == "kept"))


def _pages(passages: Sequence[Passage], windows: Sequence[Window]) -> dict[str, frozenset[int]]:
    """Returns the passages of each split; a page with its parts and copies is in one split only; see `split_pages`."""
    edges = [(window.page, other) for window in windows for span in window.spans for other in span.supports]
    first: dict[tuple[str, str], int] = {}
    copies = [
        (first.setdefault(key, number), number)
        for number, passage in enumerate(passages)
        for key in (("title", title_key(passage.title)), ("text", passage.text.strip()))
        if key[1]
    ]
    return split_pages(len(passages), edges, SHARES, copies)


def _within(windows: Sequence[Window], pages: frozenset[int], spec: MaskedSpec, counts: Counter[str]) -> list[Window]:
    """Returns the windows on some pages; for hidden sources, only pages of the same split may state a span."""
    usable: list[Window] = []
    for window in windows:
        if window.page not in pages:
            continue
        stated = _stated(window, pages, spec)
        if lost := len(window.spans) - len(stated.spans):
            counts["spans that only another split's pages state"] += lost
        if stated.spans:
            usable.append(stated)
    return usable


class _TaskMaker:
    """Makes the tasks of a set."""

    def __init__(
        self,
        passages: Sequence[Passage],
        spec: MaskedSpec,
        limits: SearchLimits,
        retriever: Retriever,
        out: HeldOut,
        counts: Counter[str],
    ) -> None:
        self._passages, self._spec, self._limits, self._counts = passages, spec, limits, counts
        self._retriever, self._out, self._seen = retriever, out, set[str]()
        self._number = {passage.id: number for number, passage in enumerate(passages)}
        self._titles: defaultdict[str, list[str]] = defaultdict(list)
        self._texts: defaultdict[str, list[str]] = defaultdict(list)
        for passage in passages:
            self._titles[title_key(passage.title)].append(passage.id)
            self._texts[passage.text.strip()].append(passage.id)

    def questions(self, windows: Sequence[Window], split: str, masks: int, limit: int) -> Iterator[Question]:
        """Yields up to `limit` tasks of a split with `masks` masks each."""
        rng = random.Random(f"{VERSION} {self._spec.seed} {split} {self._spec.source} {masks}")
        drafts, count = self._new(draw(self._passages, windows, masks, rng)), 0
        while count < limit and (batch := list(itertools.islice(drafts, _BATCH))):
            for draft, (queries, pages) in zip(batch, self._searched(batch), strict=True):
                solved = len(pages) == len(draft.spans)
                self._counts["drafts that an oracle solves" if solved else "drafts: a span is not found"] += 1
                if count < limit and solved:
                    yield self._question(draft, queries, [pages[n] for n in range(len(pages))], split, count)
                    count += 1

    def _new(self, drafts: Iterator[MaskedDraft]) -> Iterator[MaskedDraft]:
        """Yields drafts without those that repeat an earlier text."""
        for draft in drafts:
            self._counts["drafts"] += 1
            if draft.text in self._seen:
                self._counts["drafts: the same text"] += 1
            else:
                self._seen.add(draft.text)
                yield draft

    def _searched(self, batch: Sequence[MaskedDraft]) -> list[tuple[list[str], dict[int, int]]]:
        """Returns, for each draft, an oracle's queries and a mapping from the number of each found span to its page.

        The queries are sent in turn; a query is kept if its hits show a span that no earlier one did.
        """
        hidden = {str(n): Hidden() if self._spec.source == "kept" else self._page(d) for n, d in enumerate(batch)}
        retriever = HidingRetriever(self._retriever, hidden, self._out.names)
        searched: list[tuple[list[str], dict[int, int]]] = [([], {}) for _ in batch]
        for turn in range(max(len(draft.queries) for draft in batch)):
            asking = [
                n
                for n, (draft, (queries, pages)) in enumerate(zip(batch, searched, strict=True))
                if turn < len(draft.queries) and len(pages) < len(draft.spans) and len(queries) < self._limits.searches
            ]
            texts = [batch[n].queries[turn] for n in asking]
            results = retriever.search_for([str(n) for n in asking], texts, self._limits.top_k) if asking else []
            for n, query, hits in zip(asking, texts, results, strict=True):
                queries, pages = searched[n]
                new = self._shown(batch[n], hits, pages)
                if new:
                    pages |= new
                    queries.append(query)
        return searched

    def _shown(self, draft: MaskedDraft, hits: Sequence[Hit], before: dict[int, int]) -> dict[int, int]:
        """Returns the page that shows each span found in hits for the first time, by span number."""
        observation = get_protocol("tags").observation([hits], self._limits.words)
        source, keeps_source, new = self._page(draft), self._spec.source == "kept", {}
        for n, (span, answer) in enumerate(zip(draft.spans, draft.answers, strict=True)):
            stating = [
                page
                for hit in hits
                if (page := self._number[hit.passage.id]) in span.supports or (keeps_source and source.has(hit.passage))
            ]
            if n not in before and stating and holds(observation, answer):
                new[n] = stating[0]
        return new

    def _page(self, draft: MaskedDraft) -> Hidden:
        """Returns the page of a draft: its passage with all parts and copies."""
        passage = self._passages[draft.window.page]
        title = title_key(passage.title)
        ids = {*self._texts[passage.text.strip()], *(self._titles[title] if title else ())}
        return Hidden(frozenset(ids), title)

    def _question(self, draft: MaskedDraft, queries: list[str], pages: list[int], split: str, number: int) -> Question:
        """Returns the task of a draft, with the oracle's queries and the supporting sentences."""
        facts: dict[SupportingFact, None] = {}
        for page, answer in zip(pages, draft.answers, strict=True):
            text = cut_words(self._passages[page].text, self._limits.words)
            stating = (n for n, (start, end) in enumerate(sentences(text)) if holds(text[start:end], answer))
            if self._passages[page].title:
                facts[SupportingFact(self._passages[page].title, next(stating, 0))] = None
        masks, source = len(draft.spans), self._spec.source
        metadata: dict[str, Any] = {
            "masks": masks,
            "source": source,
            "page": self._passages[draft.window.page].title,
            "hops": len(set(pages)),
            "split": split,
            "kinds": [span.kind for span in draft.spans],
            "queries": queries,
        }
        if source == "hidden":
            hidden = self._page(draft)
            metadata["hidden"] = {"ids": sorted(hidden.ids), "title": hidden.title}
        return Question(
            f"{split}-{source}-{masks}-{number:05d}",
            draft.text,
            (answer_of(draft.answers),),
            kind=f"masked-{masks}",
            supporting_facts=tuple(facts) or None,
            metadata=metadata,
        )
