"""Untyped links of a corpus: a passage contains another one's title, or a Markdown link to its file.

Titles are matched word by word, longest first and case-sensitive, without brackets at the end. Most wrong links come
from titles that are ordinary words, from namesakes and from names inside longer names; rules refuse them, and every
refusal is counted. docs/trust/questions.md has the precision, checked by reading, and the effect of each rule.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from searchgym.records import Passage
from searchgym.text import Word, base_title, words

_QUOTES: Final = '"“”„«»‘`*_[]'
"""Quotation marks and Markdown marks that set a name apart from the surrounding text."""
_SEVERAL_NAMES: Final = re.compile(r"\bmay (?:also )?refer to\b|\bdisambiguation\b")
_YEAR: Final = re.compile(r"\b(1[0-9]{3}|20[0-2][0-9])\b")
_MADE_BY: Final = re.compile(
    r"\b(?:directed|written|produced|performed|composed|created|starring)(?: and \w+)?(?: by)?\s+$"
)
_MARKDOWN: Final = re.compile(r"\[([^\[\]\n]++)\]\(([^)\s#\[]++)(?:#[^)\s\[]*+)?\)")
"""Matches a Markdown link in source text: the link text and the file. No match extends beyond the next bracket, so
matching takes linear time."""
_MOST_WORDS: Final = 30
"""Maximum number of words of a title to search for."""
_LIFE: Final = 220
"""Number of leading characters of a passage in which the years of its subject are read."""
_NEAR: Final = 50
"""Number of characters before and after a name that are searched for the words in its brackets."""
_LATER, _EARLIER = 60, 250
"""Years by which a person may be later than the page that names them (plans, families), or earlier (history)."""


class Link(NamedTuple):
    """A mention in one passage that refers to another."""

    source: int
    """Number of the passage that contains the mention."""
    target: int
    """Number of the mentioned passage."""
    start: int
    """Start of the name, as a character offset in the source's text."""
    end: int
    """End (exclusive) of the name."""


@dataclass(frozen=True, slots=True)
class Links:
    """Links of a corpus: one per ordered pair of passages, the first in the text."""

    links: tuple[Link, ...]
    """Links: explicit ones first, then mentions in the order of the corpus."""
    refused: Mapping[str, int]
    """Number of refused mentions, by rule."""


@dataclass(frozen=True, slots=True)
class _Mention:
    """A title in a text, with the context that the rules use."""

    text: str
    target: Passage
    words: Sequence[Word]
    """Words of the mention."""
    before: Word | None
    """Word directly before the mention; None if there is none."""
    after: Word | None
    """Word directly after the mention; None if there is none."""
    kind: str | None
    """Kind of the target's subject according to the pack: ``person``, ``work``."""

    @property
    def start(self) -> int:
        return self.words[0].start

    @property
    def end(self) -> int:
        return self.words[-1].end

    @property
    def quoted(self) -> bool:
        """Whether quotation marks or Markdown marks surround the mention."""
        before, after = self.text[: self.start].rstrip()[-1:], self.text[self.end :].lstrip()[:1]
        return bool(before and after) and before in _QUOTES and after in _QUOTES


def find_links(
    passages: Sequence[Passage], kinds: Sequence[str | None] | None = None, honorifics: frozenset[str] = frozenset()
) -> Links:
    """Returns the links between passages, from explicit links and from mentions of titles.

    Args:
        passages: The corpus.
        kinds: Kind of each passage's subject according to a pack, for the rules about people and works. Default:
            unknown.
        honorifics: Words such as ``King`` that may precede a name without being part of it.
    """
    kinds = [None] * len(passages) if kinds is None else kinds
    names: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, passage in enumerate(passages):
        names[tuple(word.text for word in words(base_title(passage.title)))].append(number)
    lengths: defaultdict[str, set[int]] = defaultdict(set)
    for name in names:
        if 0 < len(name) <= _MOST_WORDS:
            lengths[name[0]].add(len(name))
    texts = [words(passage.text) for passage in passages]
    small = Counter(word.text for text in texts for word in text if word.text.islower())
    least = min(5, len(passages) // 100)
    ordinary = {word for word, times in small.items() if times > least}
    links: dict[tuple[int, int], Link] = {}
    for link in _written(passages):
        links.setdefault((link.source, link.target), link)
    refused: Counter[str] = Counter()
    for source, (passage, text) in enumerate(zip(passages, texts, strict=True)):
        for first, length, targets in _mentions(text, names, lengths):
            if source in targets:
                continue
            if len(targets) > 1:
                refused["several pages with this title"] += 1
                continue
            target = targets[0]
            mention = _Mention(
                passage.text,
                passages[target],
                text[first : first + length],
                _touching(passage.text, text, first - 1, first),
                _touching(passage.text, text, first + length, first + length - 1),
                kinds[target],
            )
            reason = _refusal(mention, honorifics, ordinary) or ("repeated" if (source, target) in links else None)
            if reason is None:
                links[source, target] = Link(source, target, mention.start, mention.end)
            else:
                refused[reason] += 1
    return Links(tuple(links.values()), dict(refused.most_common()))


def _written(passages: Sequence[Passage]) -> Iterator[Link]:
    """Yields explicit links: those stored with passages, and Markdown links to passages whose ids are file paths."""
    numbers = {passage.id: number for number, passage in enumerate(passages)}
    for source, passage in enumerate(passages):
        for start, end, name in passage.links:
            target = numbers.get(name)
            if target is not None and target != source:
                yield Link(source, target, start, end)
        for match in _MARKDOWN.finditer(passage.text):
            target = numbers.get(posixpath.normpath(posixpath.join(posixpath.dirname(passage.id), match[2])))
            if target is not None and target != source:
                yield Link(source, target, *match.span(1))


def _mentions(
    text: Sequence[Word], names: Mapping[tuple[str, ...], list[int]], lengths: Mapping[str, set[int]]
) -> list[tuple[int, int, list[int]]]:
    """Returns (first word, number of words, pages) for each title in a text; the longest title wins."""
    mentions, position = [], 0
    while position < len(text):
        for length in sorted(lengths.get(text[position].text, ()), reverse=True):
            targets = names.get(tuple(word.text for word in text[position : position + length]))
            if targets and position + length <= len(text):
                mentions.append((position, length, targets))
                position += length
                break
        else:
            position += 1
    return mentions


def _touching(text: str, words: Sequence[Word], position: int, beside: int) -> Word | None:
    """Returns the word at a position if only spaces, a hyphen or a full stop separate it from the mention."""
    if not 0 <= position < len(words):
        return None
    left, right = sorted((words[position], words[beside]), key=lambda word: word.start)
    return words[position] if text[left.end : right.start] in (" ", "-", "- ", " -", "  ", ". ") else None


def _refusal(mention: _Mention, honorifics: frozenset[str], ordinary: Collection[str]) -> str | None:
    """Returns the rule that refuses a mention, or None if it is a link.

    Args:
        mention: The mention.
        honorifics: Words that may precede a name without being part of it.
        ordinary: Words that this corpus also uses in lowercase.
    """
    target, quoted, work = mention.target, mention.quoted, mention.kind == "work"
    if len(mention.words) == 1 and not quoted:
        return "one word without quotes"
    if _SEVERAL_NAMES.search(f"{target.title}\n{target.text[:200]}"):
        return "page of several names"
    if not quoted and all(word.text[0].islower() or word.text[0].isdigit() for word in mention.words):
        return "no name"  # an ordinary phrase, a year or a number
    if not quoted and _inside_a_name(mention, honorifics, ordinary):
        return "inside a longer name"
    if _another_year(mention):
        return "another year"
    if work and _MADE_BY.search(mention.text[max(0, mention.start - 30) : mention.start]):
        return "a work made it"  # a work does not direct, write or compose
    if mention.kind != "person" and _another_bearer(mention):
        return "another bearer of the name"
    if work and not quoted and len(mention.words) <= 2 and not _said_to_be_a_work(mention):
        return "short title of a work"  # as often a phrase as a title
    years, others = ([int(year) for year in _YEAR.findall(text[:_LIFE])] for text in (mention.text, target.text))
    apart = years and others and (min(others) - max(years) > _LATER or min(years) - max(others) > _EARLIER)
    return "another age" if mention.kind == "person" and apart else None  # a person of another time is a namesake


def _inside_a_name(mention: _Mention, honorifics: frozenset[str], ordinary: Collection[str]) -> bool:
    """Returns whether a capitalised word next to the mention makes it part of a longer name."""
    if mention.after is not None and mention.after.text[0].isupper() and mention.text[mention.end] != ".":
        return True
    word = mention.before
    if word is None or not word.text[0].isupper() or word.text in honorifics:
        return False
    if mention.text[word.end : mention.start].startswith("."):
        return len(word.text) == 1  # an initial; any other full stop ends a sentence
    return word.text.lower() not in ordinary


def _another_year(mention: _Mention) -> bool:
    """Returns whether a year in brackets after the mention differs from the year of the page."""
    near = re.match(r'["“”\s]*\(\s*(\d{4})\b', mention.text[mention.end : mention.end + 12])
    if near is None:
        return False
    titled = re.search(r"\((?:[^()]*\b)?(\d{4})\b[^()]*\)\s*$", mention.target.title)
    if titled is not None:
        return titled[1] != near[1]
    year = _YEAR.search(mention.target.text[:160])
    return mention.kind == "work" and year is not None and abs(int(year[1]) - int(near[1])) > 1


def _another_bearer(mention: _Mention) -> bool:
    """Returns whether the title has brackets, and the text near the mention has no word or year from them.

    Brackets mark a name that several entities share. For people the rules about years apply instead, since texts seldom
    repeat ``(actor)``.
    """
    brackets = re.search(r"\(([^()]*)\)\s*$", mention.target.title)
    if brackets is None:
        return False
    near = mention.text[max(0, mention.start - _NEAR) : mention.end + _NEAR].lower()
    return not any(re.search(rf"\b{re.escape(word)}", near) for word in re.findall(r"\w{3,}", brackets[1].lower()))


def _said_to_be_a_work(mention: _Mention) -> bool:
    """Returns whether a year in brackets or the word before it confirms that a short title names a work."""
    dated = re.match(r"\s*\(\s*\d{4}", mention.text[mention.end : mention.end + 8])
    before = mention.text[: mention.start][-12:]
    return bool(dated or re.search(r"\b(?:films?|novel|song|album|series)\s+$", before))
