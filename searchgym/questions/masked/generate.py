"""Generates masked spans from a corpus: reads spans, splits pages, draws, and keeps what an oracle's searches show."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from searchgym.errors import DataError, UsageError
from searchgym.protocol import get_protocol
from searchgym.questions.graphs.facts import find_facts
from searchgym.questions.graphs.packs import load_pack
from searchgym.questions.graphs.triples import read_triples
from searchgym.questions.masked.draw import MOST_MASKS, Draft, answer_of, draw
from searchgym.questions.masked.hiding import Hidden, HidingRetriever
from searchgym.questions.masked.spans import Reader, Span, Window, windows_by_triples
from searchgym.questions.masked.spec import MaskedSpec
from searchgym.questions.source import SPLITS, HeldOut, split_pages
from searchgym.questions.subset import by_hash
from searchgym.records import Hit, Passage, Question, SupportingFact, Triple, title_key
from searchgym.retrieval.retriever import Retriever
from searchgym.text import cut_words, holds, norm, sentences

VERSION: Final = 2
"""Version of the rules; another one gives other tasks."""
SHARES: Final = (0.8, 0.1, 0.1)
"""Shares of pages and tasks for train, validation and test."""
_BATCH: Final = 128
"""Number of drafts that are searched for at once."""
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the environment shows, on which it depends whether a task can be solved."""

    top_k: int = 3
    words: int = 500
    """Words of retrieved text per turn."""
    searches: int = 4
    """Searches per episode."""


@dataclass(slots=True)
class MaskedSet:
    """Masked spans of a corpus, with the counts of what was refused."""

    questions: dict[str, list[Question]] = field(default_factory=dict)
    """Tasks by split."""
    counts: Counter[str] = field(default_factory=Counter)
    """Windows, spans by kind, drafts, and what each rule refused."""


def generate(
    passages: Sequence[Passage],
    spec: MaskedSpec,
    rules: Rules,
    retriever: Retriever,
    held_out: HeldOut | None = None,
    progress: Progress = lambda what, done, whole: None,
    known: Sequence[Window] | None = None,
) -> MaskedSet:
    """Generates masked spans; the same corpus and the same parameters give the same tasks.

    Args:
        passages: The corpus.
        spec: What to generate.
        rules: What the environment shows.
        retriever: Retriever over the corpus.
        held_out: Pages and names that belong to evaluation questions: in no task, and in no hit.
        progress: Called with progress reports.
        known: Windows with their spans, of a corpus whose facts are known. Default: they are found by the spec.

    Raises:
        DataError: The corpus gives no task; the message says what the rules took.
    """
    check_spec(spec)
    made, out = MaskedSet(), held_out or HeldOut()
    found = _windows(passages, spec, rules, made.counts, progress) if known is None else known
    windows = [window for window in found if window.page not in out.pages]
    usable = [w for w in (_usable(window, passages, spec, out) for window in windows) if w.spans]
    made.counts["windows"] = len(usable)
    made.counts.update(f"{span.kind} spans" for window in usable for span in window.spans)
    pages = _pages(passages, usable)
    maker = _Maker(passages, spec, rules, retriever, out, made.counts)
    for split, share in zip(SPLITS, SHARES, strict=True):
        own, lacking = _within(usable, pages[split], spec, made.counts), 0
        made.questions[split] = []
        for masks in sorted(set(spec.masks), reverse=True):
            wanted = round(spec.n * share / len(set(spec.masks))) + lacking
            tasks = list(maker.questions(own, split, masks, wanted))
            lacking = wanted - len(tasks)
            made.questions[split] += tasks
            progress(f"{split}: {masks} masks", len(tasks), wanted)
        made.questions[split] = by_hash(made.questions[split])  # else all of the first are of the most masks
    if not any(made.questions.values()):
        told = ", ".join(f"{name} {count}" for name, count in made.counts.most_common(8))
        raise DataError(
            f"gives no masked spans (source: {spec.source}): {len(passages)} passages; {told or 'no spans'}"
        )
    return made


def check_spec(spec: MaskedSpec) -> None:
    """Checks the parameters.

    Raises:
        UsageError: A number is out of range.
    """
    if spec.n < 1:
        raise UsageError(f"masked: n must be at least 1, got {spec.n}")
    if not spec.masks or not all(1 <= masks <= MOST_MASKS for masks in spec.masks):
        raise UsageError(f"masked: masks are numbers from 1 to {MOST_MASKS}, got {spec.masks}")


def _windows(
    passages: Sequence[Passage], spec: MaskedSpec, rules: Rules, counts: Counter[str], progress: Progress
) -> list[Window]:
    """Returns the windows of a corpus: by the triples of a file, else by links and a pack."""
    if spec.triples is not None:
        return windows_by_triples(passages, (Triple(*fact) for fact in read_triples(spec.triples).triples()))
    pack = load_pack(spec.pack)
    facts = find_facts(passages, pack, lambda done, whole: progress("reading links", done, whole))
    reader = Reader(passages, facts, pack, rules.words)
    windows = [window for page in range(len(passages)) for window in reader.windows(page)]
    counts.update(reader.refused)
    return windows


def _usable(window: Window, passages: Sequence[Passage], spec: MaskedSpec, out: HeldOut) -> Window:
    """Returns a window with the spans that may be hidden: where the source is, those that others state strictly."""
    spans: list[Span] = []
    for span in window.spans:
        supports = tuple(page for page in span.supports if page not in out.pages)
        said = norm(passages[window.page].text[slice(*span.places[0])])
        if said not in out.names and (supports or spec.source == "kept"):
            spans.append(span._replace(supports=supports))
    return Window(window.page, window.start, window.end, tuple(spans))


def _pages(passages: Sequence[Passage], windows: Sequence[Window]) -> dict[str, frozenset[int]]:
    """Returns the passages of each split: no page, with its parts and copies, is in two; see `split_pages`."""
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
    """Returns the windows on some pages, with what of these states their spans: another split's pages state none."""
    found: list[Window] = []
    for window in windows:
        if window.page not in pages:
            continue
        spans = [span._replace(supports=tuple(filter(pages.__contains__, span.supports))) for span in window.spans]
        kept = tuple(span for span in spans if span.supports or spec.source == "kept")
        if len(kept) < len(spans):
            counts["spans that only another split's pages state"] += len(spans) - len(kept)
        if kept:
            found.append(Window(window.page, window.start, window.end, kept))
    return found


class _Maker:
    """Makes the tasks of a set."""

    def __init__(
        self,
        passages: Sequence[Passage],
        spec: MaskedSpec,
        rules: Rules,
        retriever: Retriever,
        out: HeldOut,
        counts: Counter[str],
    ) -> None:
        self._passages, self._spec, self._rules, self._counts = passages, spec, rules, counts
        self._retriever, self._out, self._seen = retriever, out, set[str]()
        self._number = {passage.id: number for number, passage in enumerate(passages)}
        self._titles: defaultdict[str, list[str]] = defaultdict(list)
        self._texts: defaultdict[str, list[str]] = defaultdict(list)
        for passage in passages:
            self._titles[title_key(passage.title)].append(passage.id)
            self._texts[passage.text.strip()].append(passage.id)

    def questions(self, windows: Sequence[Window], split: str, masks: int, wanted: int) -> Iterator[Question]:
        """Yields up to `wanted` tasks of a split with a number of masks."""
        spec = self._spec
        rng = random.Random(f"{VERSION} {spec.seed} {split} {spec.source} {masks}")
        drafts, made = draw(self._passages, windows, masks, rng), 0
        while made < wanted and (batch := self._new(drafts)):
            for draft, found in zip(batch, self._found(batch), strict=True):
                if made < wanted and found is not None:
                    yield self._question(draft, *found, split, made)
                    made += 1

    def _new(self, drafts: Iterator[Draft]) -> list[Draft]:
        """Returns the next drafts, without those whose text is a copy of another's."""
        batch: list[Draft] = []
        for draft in drafts:
            self._counts["drafts"] += 1
            if draft.text in self._seen:
                self._counts["drafts: the same text"] += 1
                continue
            self._seen.add(draft.text)
            batch.append(draft)
            if len(batch) == _BATCH:
                break
        return batch

    def _found(self, batch: Sequence[Draft]) -> list[tuple[list[str], list[int]] | None]:
        """Returns an oracle's queries and the page that shows each span; None where some span is not shown.

        The queries are asked in turn; one is kept if its hits show a span that none before did.
        """
        hidden = {str(n): self.hidden(draft) for n, draft in enumerate(batch)}
        retriever = HidingRetriever(self._retriever, hidden, self._out.names)
        queries: list[list[str]] = [[] for _ in batch]
        pages: list[dict[int, int]] = [{} for _ in batch]
        for turn in range(max(len(draft.queries) for draft in batch)):
            asked = [
                n
                for n, draft in enumerate(batch)
                if turn < len(draft.queries)
                and len(pages[n]) < len(draft.spans)
                and len(queries[n]) < self._rules.searches
            ]
            texts = [batch[n].queries[turn] for n in asked]
            found = retriever.search_for([str(n) for n in asked], texts, self._rules.top_k) if asked else []
            for n, query, hits in zip(asked, texts, found, strict=True):
                new = self._shown(batch[n], hits, pages[n])
                if new:
                    pages[n] |= new
                    queries[n].append(query)
        results: list[tuple[list[str], list[int]] | None] = []
        for draft, own, shown in zip(batch, queries, pages, strict=True):
            solved = len(shown) == len(draft.spans)
            self._counts["drafts that an oracle solves" if solved else "drafts: a span is not found"] += 1
            results.append((own, [shown[n] for n in range(len(draft.spans))]) if solved else None)
        return results

    def _shown(self, draft: Draft, hits: Sequence[Hit], before: dict[int, int]) -> dict[int, int]:
        """Returns the spans, by their numbers, that hits show for the first time, with the page that shows each."""
        shown = get_protocol("tags").observation([hits], self._rules.words)
        own, kept, new = self._page(draft), self._spec.source == "kept", {}
        for n, (span, answer) in enumerate(zip(draft.spans, draft.answers, strict=True)):
            there = [
                page
                for hit in hits
                if (page := self._number[hit.passage.id]) in span.supports or (kept and own.has(hit.passage))
            ]
            if n not in before and there and holds(shown, answer):
                new[n] = there[0]
        return new

    def hidden(self, draft: Draft) -> Hidden:
        """Returns the page that a draft must not find."""
        return Hidden() if self._spec.source == "kept" else self._page(draft)

    def _page(self, draft: Draft) -> Hidden:
        """Returns the page of a draft: its passage with all parts and copies."""
        passage = self._passages[draft.window.page]
        title = title_key(passage.title)
        ids = {*self._texts[passage.text.strip()], *(self._titles[title] if title else ())}
        return Hidden(frozenset(ids), title)

    def _question(self, draft: Draft, queries: list[str], pages: list[int], split: str, number: int) -> Question:
        facts = {
            SupportingFact(self._passages[page].title, self._sentence(page, answer)): None
            for page, answer in zip(pages, draft.answers, strict=True)
            if self._passages[page].title
        }
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
            hidden = self.hidden(draft)
            metadata["hidden"] = {"ids": sorted(hidden.ids), "title": hidden.title}
        return Question(
            f"{split}-{source}-{masks}-{number:05d}",
            draft.text,
            (answer_of(draft.answers),),
            kind=f"masked-{masks}",
            supporting_facts=tuple(facts) or None,
            metadata=metadata,
        )

    def _sentence(self, page: int, answer: str) -> int:
        """Returns the number of the first sentence of a passage, as far as it is shown, that has an answer."""
        text = cut_words(self._passages[page].text, self._rules.words)
        places = sentences(text)
        return next((n for n, (start, end) in enumerate(places) if holds(text[start:end], answer)), 0)
