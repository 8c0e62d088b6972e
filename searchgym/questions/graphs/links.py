"""Untyped links of a corpus: a passage mentions the title of another one, or links to its file in Markdown.

Titles are matched as words, the longest first, case-sensitively and without trailing brackets. Most wrong
links come from titles that are ordinary words, from namesakes and from names inside longer names; rules reject them,
and every rejection is counted. See docs/trust/questions.md for the precision by reading and the effect of each rule.
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
"""Marks that separate a name from the surrounding text, including those of Markdown."""
_SEVERAL_NAMES: Final = re.compile(r"\bmay (?:also )?refer to\b|\bdisambiguation\b")
_YEAR: Final = re.compile(r"\b(1[0-9]{3}|20[0-2][0-9])\b")
_MADE_BY: Final = re.compile(
    r"\b(?:directed|written|produced|performed|composed|created|starring)(?: and \w+)?(?: by)?\s+$"
)
_MARKDOWN: Final = re.compile(r"\[([^\[\]\n]++)\]\(([^)\s#\[]++)(?:#[^)\s\[]*+)?\)")
"""Pattern of a Markdown link in source text, with groups for its text and file. No match extends beyond
the next bracket, so that the time is linear."""
_MOST_WORDS: Final = 30
"""Maximum number of words of a title that is searched for in texts."""
_LIFE: Final = 220
"""Number of characters at the start of a passage in which the years of its subject are searched."""
_NEAR: Final = 50
"""Number of characters around a name in which the words from its brackets are searched."""
_LATER, _EARLIER = 60, 250
"""Maximum years by which a person may be later than a page that mentions them (plans, families), or earlier."""


class Link(NamedTuple):
    """A mention of one passage in another."""

    source: int
    """Number of the passage that contains the mention."""
    target: int
    """Number of the mentioned passage."""
    start: int
    """Position of the name in the source's text."""
    end: int
    """End position (exclusive) of the name."""


@dataclass(frozen=True, slots=True)
class Links:
    """The links of a corpus: for each pair of passages, the first one in the text."""

    links: tuple[Link, ...]
    """Links in order of position."""
    refused: Mapping[str, int]
    """Number of mentions rejected by each rule."""


@dataclass(frozen=True, slots=True)
class _Mention:
    """A title in a text, with the context used by the rules."""

    text: str
    target: Passage
    words: Sequence[Word]
    """Words of the mention."""
    before: Word | None
    """Word that touches the mention on the left."""
    after: Word | None
    """Word that touches the mention on the right."""
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
        """Whether the mention is enclosed in quotation marks or Markdown marks."""
        before, after = self.text[: self.start].rstrip()[-1:], self.text[self.end :].lstrip()[:1]
        return bool(before and after) and before in _QUOTES and after in _QUOTES


def find_links(
    passages: Sequence[Passage], kinds: Sequence[str | None] | None = None, honorifics: frozenset[str] = frozenset()
) -> Links:
    """Finds the mentions of titles in other passages.

    Args:
        passages: The corpus.
        kinds: Kind of each passage's subject by a pack, for the rules about people and works. Default: unknown.
        honorifics: Words such as ``King`` that may be adjacent to a name without being part of it.
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
    """Yields stored links of passages, and Markdown links to passages whose ids are file paths."""
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
    """Returns the word at a position if only a space or hyphen separates it from the mention."""
    if not 0 <= position < len(words):
        return None
    left, right = sorted((words[position], words[beside]), key=lambda word: word.start)
    return words[position] if text[left.end : right.start] in (" ", "-", "- ", " -", "  ", ". ") else None


def _refusal(mention: _Mention, honorifics: frozenset[str], ordinary: Collection[str]) -> str | None:
    """Returns the rule that rejects a mention, or None if it is a link.

    Args:
        mention: The mention.
        honorifics: Words that may be adjacent to a name without being part of it.
        ordinary: Words that also occur in lower case in this corpus.
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
    """Returns whether an adjacent capitalised word makes the mention part of a longer name."""
    if mention.after is not None and mention.after.text[0].isupper() and mention.text[mention.end] != ".":
        return True
    word = mention.before
    if word is None or not word.text[0].isupper() or word.text in honorifics:
        return False
    if mention.text[word.end : mention.start].startswith("."):
        return len(word.text) == 1  # an initial; any other full stop ends a sentence
    return word.text.lower() not in ordinary


def _another_year(mention: _Mention) -> bool:
    """Returns whether the year in brackets after a work differs from that of its page."""
    near = re.match(r'["“”\s]*\(\s*(\d{4})\b', mention.text[mention.end : mention.end + 12])
    if near is None:
        return False
    titled = re.search(r"\((?:[^()]*\b)?(\d{4})\b[^()]*\)\s*$", mention.target.title)
    if titled is not None:
        return titled[1] != near[1]
    year = _YEAR.search(mention.target.text[:160])
    return mention.kind == "work" and year is not None and abs(int(year[1]) - int(near[1])) > 1


def _another_bearer(mention: _Mention) -> bool:
    """Returns whether no word or year from the brackets in a title occurs near the mention.

    Brackets in a title mean that several things have the name. People are distinguished by the rules about years, since
    texts seldom repeat a word such as ``(actor)``.
    """
    brackets = re.search(r"\(([^()]*)\)\s*$", mention.target.title)
    if brackets is None:
        return False
    near = mention.text[max(0, mention.start - _NEAR) : mention.end + _NEAR].lower()
    return not any(re.search(rf"\b{re.escape(word)}", near) for word in re.findall(r"\w{3,}", brackets[1].lower()))


def _said_to_be_a_work(mention: _Mention) -> bool:
    """Returns whether a year in brackets after a short title or a word before it identifies it as a work."""
    dated = re.match(r"\s*\(\s*\d{4}", mention.text[mention.end : mention.end + 8])
    before = mention.text[: mention.start][-12:]
    return bool(dated or re.search(r"\b(?:films?|novel|song|album|series)\s+$", before))
