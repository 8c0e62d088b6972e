"""Finds spans of a passage that a question may hide: links, dates, numbers, names and quoted titles.

Links come from `searchgym.questions.graphs`. Names and numbers match the patterns of the pack's `spans`, which also
turn sentences into questions (`searchgym.questions.sentences`). A span is a whole name that shares no word with the
page's title. If it occurs several times in the shown text, all occurrences are hidden.

Each span records the other pages that state it by a strict rule (see `SpanFinder`). These are the pages that supply the
answer if the page with the span cannot be found.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from searchgym.questions.graphs.facts import Facts
from searchgym.questions.graphs.graph import MONTHS
from searchgym.questions.graphs.links import Link
from searchgym.questions.graphs.packs import Pack
from searchgym.questions.sentences import is_whole, parts_of
from searchgym.records import Passage, Triple, title_key
from searchgym.scoring import normalise_answer
from searchgym.text import base_title, count_words, cut_words, holds, norm, sentences, words

SPAN_SEPARATOR: Final = ";"
"""Separator between the spans of an answer; a span that contains it cannot be hidden."""
WORDS: Final = 120
"""Maximum number of words of a window: about the length of the passages that search agents read."""
CHARACTERS: Final = 1200
"""Maximum number of characters of a window, which bounds texts without spaces."""
LEAST_WORDS: Final = 12
"""Minimum number of words of a window: with less context, a hidden span cannot be identified."""
QUOTING: Final = 5
"""Maximum number of pages that quote a strictly stated title: a title quoted more often (a magazine's charts) is no
evidence that two pages speak of the same work."""
_MAX_SPAN_WORDS: Final = 8
"""Maximum number of words of a span."""
_MONTH: Final = "|".join(MONTHS)
_DATE: Final = re.compile(rf"\b(?:\d{{1,2}}\s+(?:{_MONTH}),?\s+\d{{4}}|(?:{_MONTH})\s+\d{{1,2}},?\s+\d{{4}})\b")
_QUOTED: Final = re.compile(r'["“]\s?([^\W\d_a-z][^"“”\n]{2,60}?)["”]')
_ENDS: Final = " ,.;:"
"""Spaces and punctuation that are not part of a quoted title."""
_NUMBER: Final = re.compile(r"[\d,.]*\d[\d,.]*")
Place = tuple[int, int]
"""Half-open range (start, end) of character offsets in the passage's text."""


class HiddenSpan(NamedTuple):
    """A part of a passage that can be hidden."""

    occurrences: tuple[Place, ...]
    """Positions of the span in its window, in order."""
    kind: str
    """``link``, ``date``, ``year``, ``number``, ``title`` (in quotes) or ``name``."""
    supports: tuple[int, ...] = ()
    """Numbers of the other passages that state the span strictly; see `SpanFinder`."""


class Candidate(NamedTuple):
    """A part of a text that may become a span if no rule refuses it."""

    start: int
    end: int
    kind: str
    target: int | None = None
    """Number of the passage that a link leads to; None if the candidate is not a link."""


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive sentences of a passage that are shown with some spans hidden."""

    page: int
    """Number of the passage."""
    start: int
    end: int
    spans: tuple[HiddenSpan, ...]
    """Spans of the window, in order; none overlap."""


# -- finding spans -------------------------------------------------------------------------------------------------


class SpanFinder:
    """Finds the windows of a corpus's passages with their spans, and the other passages that state each span strictly.

    Two pages that link to each other state how they are related. A page that links to the source and quotes the same
    title, quoted by few pages, speaks of the same work. A looser rule, by which any page that names the source and
    contains the span counts, is right for only two thirds of these pages (`docs/do/masked_spans.md`).

    Args:
        passages: The corpus.
        facts: Links and facts of the corpus.
        pack: Pack that the facts were found with; it needs `Pack.spans`.
        words: Number of leading words of a passage to read, the most that an observation shows.
    """

    def __init__(self, passages: Sequence[Passage], facts: Facts, pack: Pack, words: int) -> None:
        self.passages, self._words = passages, words
        self.refused: Counter[str] = Counter()
        """Number of refused passages, windows and candidates, by rule."""
        self._patterns = [(pack.compiled(s.pattern, f"spans[{n}]"), s.ask) for n, s in enumerate(pack.spans)]
        self._links: defaultdict[int, list[Link]] = defaultdict(list)
        for link in facts.links:
            self._links[link.source].append(link)
        self._to: defaultdict[int, set[int]] = defaultdict(set)
        for link in facts.links:
            self._to[link.target].add(link.source)
        self._quoting: defaultdict[str, set[int]] = defaultdict(set)
        for number, passage in enumerate(passages):
            for match in _QUOTED.finditer(passage.text):
                self._quoting[norm(match[1])].add(number)

    def windows(self, page: int) -> list[Window]:
        """Returns the windows of a passage that have at least one span; none overlap."""
        passage = self.passages[page]
        text, windows = cut_words(passage.text, self._words), []
        for start, end in windows_of(text):
            if count_words(text[start:end]) < LEAST_WORDS and end - start < LEAST_WORDS * 5:
                self.refused["windows too short"] += 1
                continue
            candidates = self._candidates(page, text, start, end)
            spans = [
                span._replace(supports=self._supports(page, text[candidate.start : candidate.end], candidate))
                for candidate, span in spans_among(candidates, text, (start, end), passage.title, self.refused)
            ]
            if spans:
                windows.append(Window(page, start, end, tuple(sorted(spans))))
        if not windows:
            self.refused["passages without a span"] += 1
        return windows

    def _supports(self, page: int, span: str, candidate: Candidate) -> tuple[int, ...]:
        """Returns the passages that state a span of a page strictly, without parts and copies of the page."""
        stating: set[int] = set()
        if candidate.kind == "link" and candidate.target in self._to[page]:
            stating = {candidate.target}
        elif candidate.kind == "title" and len(self._quoting[norm(span)]) <= QUOTING:
            stating = self._quoting[norm(span)] & self._to[page]
        text, title = self.passages[page].text.strip(), title_key(self.passages[page].title)
        supports = []
        for number in sorted(stating):
            other = self.passages[number]
            same_page = (title and title == title_key(other.title)) or text == other.text.strip()
            if not same_page and holds(f"{other.title}\n{other.text}", span):
                supports.append(number)
        return tuple(supports)

    def _candidates(self, page: int, text: str, start: int, end: int) -> Iterator[Candidate]:
        """Yields candidates for spans, the most reliable kinds first, since of two that overlap the first is used."""
        for link in self._links.get(page, ()):
            if start <= link.start and link.end <= end:
                yield Candidate(link.start, link.end, "link", link.target)
        for match in _DATE.finditer(text, start, end):
            yield Candidate(*match.span(), "date")
        for match in _QUOTED.finditer(text, start, end):
            quoted = match[1]
            left = len(quoted) - len(quoted.lstrip(_ENDS))
            yield Candidate(match.start(1) + left, match.start(1) + len(quoted.rstrip(_ENDS)), "title")
        title = base_title(self.passages[page].title)
        for first, last in sentences(text[start:end]):
            for begin, stop, _ in parts_of(text[start + first : start + last], self._patterns, title):
                span = start + first + begin, start + first + stop
                yield Candidate(*span, kind_of(text[slice(*span)]))


def spans_among(
    candidates: Iterable[Candidate], text: str, window: Place, title: str, refused: Counter[str]
) -> Iterator[tuple[Candidate, HiddenSpan]]:
    """Yields the candidates that become spans, with the spans; of two that overlap the first is used.

    Args:
        candidates: Candidates, the most reliable first.
        text: Text of the passage.
        window: Range of the window in the text.
        title: Title of the passage.
        refused: Counter of refused candidates by rule; updated.
    """
    used: list[Place] = []

    def overlaps(occurrence: Place) -> bool:
        return any(occurrence[0] < end and start < occurrence[1] for start, end in used)

    for candidate in candidates:
        if overlaps((candidate.start, candidate.end)):
            continue
        span = span_of(text, window, title, candidate)
        if isinstance(span, str):
            refused[f"spans: {span}"] += 1
        elif not any(map(overlaps, span.occurrences)):
            used += span.occurrences
            yield candidate, span


def windows_of(text: str) -> Iterator[tuple[int, int]]:
    """Yields the ranges of consecutive sentences that fill a window; a sentence longer than a window is skipped."""
    begun: tuple[int, int] | None = None
    for start, end in sentences(text):
        if not _fits(text[start:end]):
            if begun is not None:
                yield begun
            begun = None
        elif begun is not None and _fits(text[begun[0] : end]):
            begun = begun[0], end
        else:
            if begun is not None:
                yield begun
            begun = (start, end) if end > start else None
    if begun is not None:
        yield begun


def _fits(text: str) -> bool:
    return len(text) <= CHARACTERS and count_words(text) <= WORDS


def kind_of(text: str) -> str:
    """Returns the kind of a span, judged by its characters: ``date``, ``year``, ``number`` or ``name``."""
    if _DATE.fullmatch(text):
        return "date"
    if _NUMBER.fullmatch(text.strip()):
        return "year" if re.fullmatch(r"[12]\d{3}", text.strip()) else "number"
    return "name"


def span_of(text: str, window: Place, title: str, candidate: Candidate) -> HiddenSpan | str:
    """Returns the span of a candidate with all its occurrences, or the rule that refuses it.

    Args:
        text: Text of the passage.
        window: Range of the window in the text.
        title: Title of the passage.
        candidate: The candidate.
    """
    span, digits = text[candidate.start : candidate.end], candidate.kind in ("date", "year", "number")
    normed = norm(span)
    if not normed or len(normed.split()) > _MAX_SPAN_WORDS or not normalise_answer(span):
        return "no word, or more than eight"
    if SPAN_SEPARATOR in span:
        return "holds a semicolon"
    if not digits and set(normed.split()) & set(norm(title).split()):
        return "shares a word with the title"
    occurrences = tuple(
        (window[0] + start, window[0] + end) for start, end in occurrences_of(text[slice(*window)], normed)
    )
    if (candidate.start, candidate.end) not in occurrences:
        return "not whole words"
    if len(occurrences) > 1 and digits:
        return "a number that stands twice"
    if len(occurrences) > 1 and not all(is_whole(text, *occurrence) for occurrence in occurrences):
        return "inside a longer name"
    return HiddenSpan(occurrences, candidate.kind)


def occurrences_of(text: str, name: str) -> list[Place]:
    """Returns the ranges of a text in which a name, normalised by `norm`, occurs as consecutive words."""
    needle, tokens = name.split(), words(text)
    normed = [norm(word.text) for word in tokens]
    return [
        (tokens[n].start, tokens[n + len(needle) - 1].end)
        for n in range(len(normed) - len(needle) + 1)
        if normed[n] == needle[0] and normed[n : n + len(needle)] == needle
    ]


# -- spans of known facts ------------------------------------------------------------------------------------------


def windows_by_triples(passages: Sequence[Passage], triples: Iterable[Triple]) -> list[Window]:
    """Returns the windows of pages whose facts are known, such as a generated world's; the objects are the spans.

    The page of an object states the span strictly if it has the same fact in the other direction (a marriage).

    Args:
        passages: The corpus.
        triples: Facts; their subjects are titles.
    """
    facts = dict.fromkeys(triples)
    numbers = {passage.title: n for n, passage in enumerate(passages)}
    of_page: defaultdict[int, list[Triple]] = defaultdict(list)
    for fact in facts:
        if fact.subject in numbers:
            of_page[numbers[fact.subject]].append(fact)
    windows = []
    for page, passage in enumerate(passages):
        for start, end in windows_of(passage.text):
            candidates: dict[Candidate, bool] = {}  # whether the page of the object states the fact, too
            for fact in of_page[page]:
                match = re.search(rf"(?<!\w){re.escape(fact.object)}(?!\w)", passage.text[start:end])
                target = numbers.get(fact.object)
                if match is not None:
                    kind = kind_of(fact.object) if target is None else "link"
                    candidate = Candidate(start + match.start(), start + match.end(), kind, target)
                    candidates.setdefault(candidate, Triple(fact.object, fact.relation, fact.subject) in facts)
            spans = [
                span._replace(supports=(hidden.target,) if hidden.target is not None and candidates[hidden] else ())
                for hidden, span in spans_among(candidates, passage.text, (start, end), passage.title, Counter())
            ]
            if spans:
                windows.append(Window(page, start, end, tuple(sorted(spans))))
    return windows
