"""Spans that can be hidden: links, dates, numbers, names and quoted titles of a passage, and the pages that state them.

Links come from `searchgym.questions.graphs`, names and numbers from the pack's `spans`, by which sentences become
questions too (`searchgym.questions.in_place`). A span is a whole name that shares no word with the page's title; where
it stands several times, all of its places are hidden. For each one the pages are noted that state it *strictly*: where
the source is hidden, nothing else may answer.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from searchgym.questions.graphs.facts import Facts
from searchgym.questions.graphs.graph import MONTHS
from searchgym.questions.graphs.packs import Pack
from searchgym.questions.in_place import is_whole, parts_of
from searchgym.records import Passage, Triple, title_key
from searchgym.scoring import normalise_answer
from searchgym.text import base_title, count_words, cut_words, holds, norm, sentences, words

SEPARATOR: Final = ";"
"""Stands between the spans of an answer; a span that holds it cannot be hidden."""
WORDS: Final = 120
"""Most words of a window: about the length of the passages that search agents read."""
CHARACTERS: Final = 1200
"""Most characters of a window: texts without blanks have few words."""
LEAST_WORDS: Final = 12
"""Fewest words of a window: less around a span does not tell what is hidden."""
QUOTING: Final = 5
"""Most pages that quote a title which is stated strictly: others (a magazine's charts) stand beside anything."""
_LONGEST: Final = 8
"""Most words of a span."""
_MONTH: Final = "|".join(MONTHS)
_DATE: Final = re.compile(rf"\b(?:\d{{1,2}}\s+(?:{_MONTH}),?\s+\d{{4}}|(?:{_MONTH})\s+\d{{1,2}},?\s+\d{{4}})\b")
_QUOTED: Final = re.compile(r'["“]\s?([^\W\d_a-z][^"“”\n]{2,60}?)["”]')
_NUMBER: Final = re.compile(r"[\d,.]*\d[\d,.]*")


Place = tuple[int, int]
"""Positions of a part's first character and behind its last one in the passage's text."""


class Span(NamedTuple):
    """A part of a passage that can be hidden."""

    places: tuple[Place, ...]
    """Where it stands in its window, in order."""
    kind: str
    """``link``, ``date``, ``year``, ``number``, ``title`` (in quotes) or ``name``."""
    supports: tuple[int, ...] = ()
    """Numbers of the other passages that state it strictly; see `Supports`."""


class Candidate(NamedTuple):
    """A part of a text that may turn out to be a span."""

    start: int
    end: int
    kind: str
    target: int | None = None
    """Number of the passage that a link leads to."""


@dataclass(frozen=True, slots=True)
class Window:
    """Sentences of a passage that are shown with some of their spans hidden."""

    page: int
    """Number of the passage."""
    start: int
    end: int
    spans: tuple[Span, ...]
    """Its spans, in their order; none overlap."""


# -- finding spans -------------------------------------------------------------------------------------------------


class Reader:
    """Finds the windows of a corpus's passages with their spans.

    Args:
        passages: The corpus.
        facts: Its links and facts.
        pack: Pack that found them, with `Pack.spans`.
        words: Number of words at the start of a passage that are read: an observation shows no more.
    """

    def __init__(self, passages: Sequence[Passage], facts: Facts, pack: Pack, words: int) -> None:
        self.passages, self._words = passages, words
        self.refused: Counter[str] = Counter()
        """Number of spans, windows and passages that each rule refused."""
        self._patterns = [(pack.compiled(s.pattern, f"spans[{n}]"), s.ask) for n, s in enumerate(pack.spans)]
        self._links: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for link in facts.links:
            self._links[link.source].append((link.start, link.end, link.target))
        self._supports = Supports(passages, facts)

    def windows(self, page: int) -> list[Window]:
        """Returns the windows of a passage that have a span; none overlap."""
        text = cut_words(self.passages[page].text, self._words)
        found = [self._window(page, text, start, end) for start, end in windows_of(text)]
        kept = [window for window in found if window is not None and window.spans]
        if not kept:
            self.refused["passages without a span"] += 1
        return kept

    def _window(self, page: int, text: str, start: int, end: int) -> Window | None:
        if count_words(text[start:end]) < LEAST_WORDS and end - start < LEAST_WORDS * 5:
            self.refused["windows too short"] += 1
            return None
        spans: list[Span] = []
        taken: list[Place] = []
        title = self.passages[page].title
        for found in self._candidates(page, text, start, end):
            if _overlap((found.start, found.end), taken):
                continue
            made = span_of(text, (start, end), title, found)
            if isinstance(made, Span) and not any(_overlap(place, taken) for place in made.places):
                spans.append(made._replace(supports=self._supports.of(page, text[found.start : found.end], found)))
                taken += made.places
            elif not isinstance(made, Span):
                self.refused[f"spans: {made}"] += 1
        return Window(page, start, end, tuple(sorted(spans)))

    def _candidates(self, page: int, text: str, start: int, end: int) -> Iterator[Candidate]:
        """Yields what may be hidden, the surest kinds first: of two that overlap the first is taken."""
        for first, last, target in self._links.get(page, ()):
            if start <= first and last <= end:
                yield Candidate(first, last, "link", target)
        for match in _DATE.finditer(text, start, end):
            yield Candidate(*match.span(), "date")
        for match in _QUOTED.finditer(text, start, end):
            yield Candidate(*_stripped(text, *match.span(1)), "title")
        title = base_title(self.passages[page].title)
        for first, last in sentences(text[start:end]):
            for begin, stop, _ in parts_of(text[start + first : start + last], self._patterns, title):
                place = start + first + begin, start + first + stop
                yield Candidate(*place, kind_of(text[slice(*place)]))


def _overlap(place: Place, others: Iterable[Place]) -> bool:
    return any(place[0] < end and start < place[1] for start, end in others)


def windows_of(text: str) -> Iterator[tuple[int, int]]:
    """Yields the places of consecutive sentences that fill a window; a sentence that is longer than one is skipped."""
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


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """Returns a place without blanks and punctuation at its ends."""
    said = text[start:end]
    left = len(said) - len(said.lstrip(" ,.;:"))
    return start + left, start + len(said.rstrip(" ,.;:"))


def kind_of(text: str) -> str:
    """Returns the kind of a span by its letters and digits."""
    if _DATE.fullmatch(text):
        return "date"
    if _NUMBER.fullmatch(text.strip()):
        return "year" if re.fullmatch(r"[12]\d{3}", text.strip()) else "number"
    return "name"


def span_of(text: str, window: Place, title: str, found: Candidate) -> Span | str:
    """Returns the span of a candidate with all of its places, or the rule that refuses to hide it.

    Args:
        text: Text of the passage.
        window: Place of the window.
        title: Title of the passage.
        found: The candidate.
    """
    span, digits = text[found.start : found.end], found.kind in ("date", "year", "number")
    said = norm(span)
    if not said or len(said.split()) > _LONGEST or not normalise_answer(span):
        return "no word, or more than eight"
    if SEPARATOR in span:
        return "holds a semicolon"
    if not digits and set(said.split()) & set(norm(title).split()):
        return "shares a word with the title"
    places = tuple((window[0] + start, window[0] + end) for start, end in places_of(text[slice(*window)], said))
    if (found.start, found.end) not in places:
        return "not whole words"
    if len(places) > 1 and digits:
        return "a number that stands twice"
    if len(places) > 1 and not all(is_whole(text, *place) for place in places):
        return "inside a longer name"
    return Span(places, found.kind)


def places_of(text: str, name: str) -> list[Place]:
    """Returns where a name, as `norm` writes it, stands in a text as consecutive words."""
    wanted, found = name.split(), words(text)
    said = [norm(word.text) for word in found]
    return [
        (found[n].start, found[n + len(wanted) - 1].end)
        for n in range(len(said) - len(wanted) + 1)
        if said[n] == wanted[0] and said[n : n + len(wanted)] == wanted
    ]


# -- strict support ------------------------------------------------------------------------------------------------


class Supports:
    """Tells which other passages state a span strictly, so that it can be found where its own page is hidden.

    Two pages that link to each other state what each is to the other, and a page that links to the source and gives the
    same title in quotes, which few pages quote, speaks of the same work. Names that stand on any page that names the
    source are stated by only two thirds of these (`docs/masked_spans.md`).

    Args:
        passages: The corpus.
        facts: Its links.
    """

    def __init__(self, passages: Sequence[Passage], facts: Facts) -> None:
        self._passages = passages
        self._to: defaultdict[int, set[int]] = defaultdict(set)
        for link in facts.links:
            self._to[link.target].add(link.source)
        self._quoting: defaultdict[str, set[int]] = defaultdict(set)
        for number, passage in enumerate(passages):
            for match in _QUOTED.finditer(passage.text):
                self._quoting[norm(match[1])].add(number)

    def of(self, page: int, span: str, found: Candidate) -> tuple[int, ...]:
        """Returns the passages that state a span of a page strictly, in their order."""
        candidates: set[int] = set()
        if found.kind == "link" and found.target in self._to[page]:
            candidates = {found.target}
        elif found.kind == "title" and len(self._quoting[norm(span)]) <= QUOTING:
            candidates = self._quoting[norm(span)] & self._to[page]
        own = self._passages[page]
        return tuple(
            other
            for other in sorted(candidates)
            if not same_page(own, self._passages[other])
            and holds(f"{self._passages[other].title}\n{self._passages[other].text}", span)
        )


def same_page(one: Passage, other: Passage) -> bool:
    """Returns whether two passages are parts of one page, or copies of each other."""
    title = title_key(one.title)
    return (bool(title) and title == title_key(other.title)) or one.text.strip() == other.text.strip()


# -- spans that are known ------------------------------------------------------------------------------------------


def windows_by_triples(passages: Sequence[Passage], triples: Iterable[Triple]) -> list[Window]:
    """Returns the windows of pages whose facts are known, such as a generated world's: their spans are the objects.

    A span is stated strictly by the page of its object if that has the same fact the other way round (a marriage).

    Args:
        passages: The corpus.
        triples: Facts; their subjects are titles.
    """
    facts = list(dict.fromkeys(triples))
    known, number = set(facts), {passage.title: n for n, passage in enumerate(passages)}
    of_page: defaultdict[int, list[Triple]] = defaultdict(list)
    for fact in facts:
        if fact.subject in number:
            of_page[number[fact.subject]].append(fact)
    windows = []
    for page, passage in enumerate(passages):
        for start, end in windows_of(passage.text):
            spans: list[Span] = []
            for fact in of_page[page]:
                match = re.search(rf"(?<!\w){re.escape(fact.object)}(?!\w)", passage.text[start:end])
                linked = number.get(fact.object)
                kind = kind_of(fact.object) if linked is None else "link"
                if match is None:
                    continue
                found = Candidate(start + match.start(), start + match.end(), kind, linked)
                made = span_of(passage.text, (start, end), passage.title, found)
                taken = [place for span in spans for place in span.places]
                if isinstance(made, Span) and not any(_overlap(place, taken) for place in made.places):
                    back = linked is not None and Triple(fact.object, fact.relation, fact.subject) in known
                    spans.append(made._replace(supports=(linked,) if linked is not None and back else ()))
            if spans:
                windows.append(Window(page, start, end, tuple(sorted(spans))))
    return windows
