"""Untyped links of a corpus: a passage names another one's title, or links to its file as Markdown does.

Titles are matched as words, the longest first and with their case, without the brackets at their ends. Most wrong
links come from titles that are ordinary words, from namesakes and from names inside longer names; rules refuse them,
and every refusal is counted. Precision by reading and what each rule does stand in docs/questions.md.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from searchgym.records import Passage
from searchgym.text import Word, base_title, words

_QUOTES: Final = '"“”„«»‘`*_[]'
"""Marks that set a name apart from the text around it, Markdown's too."""
_SEVERAL_NAMES: Final = re.compile(r"\bmay (?:also )?refer to\b|\bdisambiguation\b")
_YEAR: Final = re.compile(r"\b(1[0-9]{3}|20[0-2][0-9])\b")
_MADE_BY: Final = re.compile(
    r"\b(?:directed|written|produced|performed|composed|created|starring)(?: and \w+)?(?: by)?\s+$"
)
_MARKDOWN: Final = re.compile(r"\[([^\[\]\n]++)\]\(([^)\s#\[]++)(?:#[^)\s\[]*+)?\)")
"""Matches a link of Markdown in a text that is not rendered: its text and its file. No match goes
beyond the next bracket, so that the time is linear."""
_MOST_WORDS: Final = 30
"""Words that a title has at most that texts are searched for."""
_LIFE: Final = 220
"""Number of characters at the start of a passage that tell when its subject lived."""
_NEAR: Final = 50
"""Number of characters around a name in which the words of its brackets are looked for."""
_LATER, _EARLIER = 60, 250
"""Years by which somebody may be younger than a page that names him (plans, families), or older (history)."""


class Link(NamedTuple):
    """A place where a passage names another one."""

    source: int
    """Number of the passage that names the other."""
    target: int
    """Number of the passage that is named."""
    start: int
    """Position of the name in the source's text."""
    end: int
    """Position behind the name."""


@dataclass(frozen=True, slots=True)
class Links:
    """The links of a corpus: one per pair of passages, the first that stands in the text."""

    links: tuple[Link, ...]
    """Links in the order of their places."""
    refused: Mapping[str, int]
    """Number of mentions that each rule refused."""


@dataclass(frozen=True, slots=True)
class _Mention:
    """A title in a text, with what the rules look at."""

    text: str
    target: Passage
    found: Sequence[Word]
    """Words of the mention."""
    before: Word | None
    """Word that touches the mention on the left."""
    after: Word | None
    """Word that touches the mention on the right."""
    quoted: bool
    """Whether quotation marks or marks of Markdown stand around it."""
    kind: str | None
    """Kind of the target's subject by the pack: ``person``, ``work``."""
    plain: Callable[[str], bool]
    """Tells whether a word is also an ordinary one, in small letters, in this corpus."""

    @property
    def start(self) -> int:
        return self.found[0].start

    @property
    def end(self) -> int:
        return self.found[-1].end


def find_links(
    passages: Sequence[Passage], kinds: Sequence[str | None] | None = None, honorifics: frozenset[str] = frozenset()
) -> Links:
    """Finds where passages name each other's titles.

    Args:
        passages: The corpus.
        kinds: Kind of each passage's subject by a pack, for the rules about people and works. Default: not known.
        honorifics: Words such as ``King`` that may touch a name without being a part of it.
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
    ordinary = min(5, len(passages) // 100)
    links: dict[tuple[int, int], Link] = {}
    for link in _written(passages):
        links.setdefault((link.source, link.target), link)
    refused: Counter[str] = Counter()
    for source, (passage, text) in enumerate(zip(passages, texts, strict=True)):
        for place, length, targets in _mentions(text, names, lengths):
            if source in targets:
                continue
            found = text[place : place + length]
            if len(targets) > 1:
                refused["several pages with this title"] += 1
                continue
            target = targets[0]
            mention = _Mention(
                passage.text,
                passages[target],
                found,
                _touching(passage.text, text, place - 1, place),
                _touching(passage.text, text, place + length, place + length - 1),
                _quoted(passage.text, found),
                kinds[target],
                lambda word: small[word.lower()] > ordinary,
            )
            reason = _refusal(mention, honorifics) or ("repeated" if (source, target) in links else None)
            if reason is None:
                links[source, target] = Link(source, target, mention.start, mention.end)
            else:
                refused[reason] += 1
    return Links(tuple(links.values()), dict(refused.most_common()))


def _written(passages: Sequence[Passage]) -> Iterator[Link]:
    """Yields the links that passages have, and those in Markdown, to the passages whose ids are the paths of files."""
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
    found, place = [], 0
    while place < len(text):
        for length in sorted(lengths.get(text[place].text, ()), reverse=True):
            targets = names.get(tuple(word.text for word in text[place : place + length]))
            if targets and place + length <= len(text):
                found.append((place, length, targets))
                place += length
                break
        else:
            place += 1
    return found


def _touching(text: str, found: Sequence[Word], place: int, beside: int) -> Word | None:
    """Returns the word at a place if only a space or hyphen stands between it and the mention."""
    if not 0 <= place < len(found):
        return None
    left, right = sorted((found[place], found[beside]), key=lambda word: word.start)
    return found[place] if text[left.end : right.start] in (" ", "-", "- ", " -", "  ", ". ") else None


def _quoted(text: str, found: Sequence[Word]) -> bool:
    before, after = text[: found[0].start].rstrip(), text[found[-1].end :].lstrip()
    return before[-1:] in _QUOTES and after[:1] in _QUOTES and bool(before and after)


def _refusal(mention: _Mention, honorifics: frozenset[str]) -> str | None:
    """Returns the name of the rule that refuses a mention, None if it is a link."""
    for name, rule in _RULES.items():
        if rule(mention, honorifics):
            return name
    return None


def _one_word(mention: _Mention, _: frozenset[str]) -> bool:
    return len(mention.found) == 1 and not mention.quoted


def _several_names(mention: _Mention, _: frozenset[str]) -> bool:
    return bool(_SEVERAL_NAMES.search(mention.target.title + "\n" + mention.target.text[:200]))


def _no_name(mention: _Mention, _: frozenset[str]) -> bool:
    """A title all in small letters or of digits is an ordinary phrase, a year or a number."""
    return all(word.text[0].islower() or word.text[0].isdigit() for word in mention.found) and not mention.quoted


def _inside_a_name(mention: _Mention, honorifics: frozenset[str]) -> bool:
    """A capitalised word that touches the mention makes it a part of a longer name."""
    if mention.quoted:
        return False
    if mention.after is not None and mention.after.text[0].isupper() and mention.text[mention.end] != ".":
        return True
    word = mention.before
    if word is None or not word.text[0].isupper() or word.text in honorifics:
        return False
    if mention.text[word.end : mention.start].startswith("."):
        return len(word.text) == 1  # an initial; any other full stop ends a sentence
    return not mention.plain(word.text)


def _another_year(mention: _Mention, _: frozenset[str]) -> bool:
    """The year in brackets behind a work must be that of the page."""
    near = re.match(r'["“”\s]*\(\s*(\d{4})\b', mention.text[mention.end : mention.end + 12])
    if near is None:
        return False
    titled = re.search(r"\((?:[^()]*\b)?(\d{4})\b[^()]*\)\s*$", mention.target.title)
    if titled is not None:
        return titled[1] != near[1]
    said = _YEAR.search(mention.target.text[:160])
    return mention.kind == "work" and said is not None and abs(int(said[1]) - int(near[1])) > 1


def _work_made_it(mention: _Mention, _: frozenset[str]) -> bool:
    """A work does not direct, write or compose."""
    return mention.kind == "work" and bool(_MADE_BY.search(mention.text[max(0, mention.start - 30) : mention.start]))


def _another_of_the_name(mention: _Mention, _: frozenset[str]) -> bool:
    """Brackets in a title tell that the name has several bearers: a word or year of theirs must stand near.

    People are told apart by the rules about years: ``(actor)`` is seldom said.
    """
    brackets = re.search(r"\(([^()]*)\)\s*$", mention.target.title)
    if brackets is None or mention.kind == "person":
        return False
    near = mention.text[max(0, mention.start - _NEAR) : mention.end + _NEAR].lower()
    return not any(re.search(rf"\b{re.escape(word)}", near) for word in re.findall(r"\w{3,}", brackets[1].lower()))


def _short_work(mention: _Mention, _: frozenset[str]) -> bool:
    """A work's title of two words is a phrase as often as a title, unless something says that it is one."""
    if mention.kind != "work" or mention.quoted or len(mention.found) > 2:
        return False
    if re.match(r"\s*\(\s*\d{4}", mention.text[mention.end : mention.end + 8]):
        return False
    return not re.search(r"\b(?:films?|novel|song|album|series)\s+$", mention.text[: mention.start][-12:])


def _another_age(mention: _Mention, _: frozenset[str]) -> bool:
    """Somebody who lived at quite another time is a namesake."""
    own, other = _span(mention.text), _span(mention.target.text)
    if mention.kind != "person" or own is None or other is None:
        return False
    return other[0] - own[1] > _LATER or own[0] - other[1] > _EARLIER


def _span(text: str) -> tuple[int, int] | None:
    """Returns the first and last year at the start of a text."""
    years = [int(year) for year in _YEAR.findall(text[:_LIFE])]
    return (min(years), max(years)) if years else None


_RULES: Final[Mapping[str, Callable[[_Mention, frozenset[str]], bool]]] = {
    "one word without quotes": _one_word,
    "page of several names": _several_names,
    "no name": _no_name,
    "inside a longer name": _inside_a_name,
    "another year": _another_year,
    "a work made it": _work_made_it,
    "another bearer of the name": _another_of_the_name,
    "short title of a work": _short_work,
    "another age": _another_age,
}
"""Rules that refuse mentions, in the order in which they are asked."""
