"""Typed facts of a corpus: what pages say of their subjects, found by the patterns of a pack.

A fact is taken from its subject's own page alone. Where a page gives several objects, hedges, or contradicts another
page's years, the fact is dropped and counted: few wrong facts matter more than many right ones.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import regex

from searchgym.questions.graphs.links import Link, find_links
from searchgym.questions.graphs.packs import SECONDS, Pack, Relation
from searchgym.records import Passage
from searchgym.text import base_title, head_noun, norm, sentence_at, sentences, tidy

Progress = Callable[[int, int], None]
_YEAR: Final = re.compile(r"\b(\d{4})\b")
_BETWEEN: Final = regex.compile(r",?\s+(?:and|&)\s+|,\s+(?=\p{Lu})")
"""Matches what stands between two names of a list."""
_SLOW: Final = f"a pattern took more than {SECONDS} s"
"""Reason for leaving out what a pattern that backtracks without end was to find."""
_SIGNS: Final = 220
"""Number of characters in which the signs of a kind are looked for."""


class Found(NamedTuple):
    """A fact with the place where its page states it."""

    subject: int
    """Number of the passage that states the fact and is about its subject."""
    relation: str
    text: str
    """Object as the page writes it, its spacing mended."""
    target: int | None
    """Number of the object's own passage, None for a literal or an entity without a page."""
    start: int
    """Place of the sentence that states it."""
    end: int
    """Position behind that sentence."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a corpus, with what was read on the way."""

    found: tuple[Found, ...]
    """Facts, at most one per passage and relation."""
    kinds: tuple[str | None, ...]
    """Kind of each passage's subject, None if it has none of the pack."""
    called: tuple[str | None, ...]
    """Word that questions put before each passage's name; the empty string if none is needed, None if none is known."""
    links: tuple[Link, ...]
    """Links between passages."""
    refused: Mapping[str, int]
    """Number of facts that each rule refused."""
    refused_links: Mapping[str, int]
    """Number of mentions that each rule of links refused."""


def find_facts(passages: Sequence[Passage], pack: Pack, progress: Progress | None = None) -> Facts:
    """Finds the facts that a pack's patterns match.

    Args:
        passages: The corpus.
        pack: Patterns and rules.
        progress: Called with the numbers of passages read and of all.
    """
    refused: Counter[str] = Counter()
    kind_of = _Kinds(pack, refused).kind
    kinds = tuple(kind_of(passage.text) for passage in passages)
    links = find_links(passages, kinds, frozenset(pack.titles))
    reader = _Reader(passages, pack, kinds, links.links, refused)
    found: list[Found] = []
    for number in range(len(passages)):
        found += reader.read(number)
        if progress is not None and number % 100 == 99:
            progress(number + 1, len(passages))
    kept = tuple(_Checked(passages, pack, kinds, found, refused).facts())
    called = tuple(_called(passage.text, pack, kind) for passage, kind in zip(passages, kinds, strict=True))
    return Facts(kept, kinds, called, links.links, dict(refused.most_common()), links.refused)


class _Kinds:
    """Tells the kinds of pages."""

    def __init__(self, pack: Pack, refused: Counter[str]) -> None:
        self._refused = refused
        self._nouns = {noun: name for name, kind in pack.kinds.items() for noun in kind.nouns}
        self._signs = [
            (name, pack.compiled(sign, f"kinds.{name}.signs"))
            for name, kind in pack.kinds.items()
            for sign in kind.signs
        ]

    def kind(self, text: str) -> str | None:
        """Returns the kind of a page's subject, by its noun, else by signs."""
        noun = head_noun(text)
        for word in (noun, noun.rpartition("-")[2]):
            if word in self._nouns:
                return self._nouns[word]
        start = text[:_SIGNS]
        try:
            return next((name for name, sign in self._signs if sign.search(start, timeout=SECONDS)), None)
        except TimeoutError:
            self._refused[f"kind: {_SLOW}"] += 1
            return None


def _called(text: str, pack: Pack, kind: str | None) -> str | None:
    """Returns the word that questions put before a page's name."""
    if kind is None:
        return None
    words = pack.kinds[kind].called
    if not words:
        return ""
    said = re.search(r"\b(?:is|was)\s+(?:an?|the)\s+(.{0,140})", text[:400])
    return next((word for key, word in words.items() if said and re.search(rf"\b{re.escape(key)}\b", said[1])), None)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """The patterns of a relation."""

    patterns: tuple[regex.Pattern[str], ...]
    unless: tuple[regex.Pattern[str], ...]
    unless_passage: tuple[regex.Pattern[str], ...]


class _Reader:
    """Reads the facts of single pages."""

    def __init__(
        self,
        passages: Sequence[Passage],
        pack: Pack,
        kinds: Sequence[str | None],
        links: Sequence[Link],
        refused: Counter[str],
    ) -> None:
        self._passages, self._pack, self._kinds, self.refused = passages, pack, kinds, refused
        self._links: defaultdict[int, list[Link]] = defaultdict(list)
        for link in links:
            self._links[link.source].append(link)
        self._compiled = {
            name: _Compiled(
                *(
                    tuple(pack.compiled(text, f"relations.{name}.{key}") for text in getattr(relation, key))
                    for key in ("patterns", "unless", "unless_passage")
                )
            )
            for name, relation in pack.relations.items()
        }
        titles = "|".join(map(regex.escape, pack.titles))
        self._titles = regex.compile(rf"\s*(?:the\s)?(?:(?:{titles})\.?\s+)?") if titles else regex.compile(r"\s*")
        self._name = pack.compiled(pack.name_pattern, "name_pattern")
        self._before = pack.compiled(pack.hedge_before, "hedge_before") if pack.hedge_before else None
        self._after = pack.compiled(pack.hedge_after, "hedge_after") if pack.hedge_after else None
        self._sexes = {
            sex: regex.compile(rf"\b(?:{'|'.join(map(regex.escape, words))})\b") if words else None
            for sex, words in (("she", pack.she), ("he", pack.he))
        }

    def read(self, number: int) -> Iterator[Found]:
        """Yields the facts of a page."""
        if self._kinds[number] is None:
            return
        places = sentences(self._passages[number].text)
        for name, relation in self._pack.relations.items():
            if relation.subject != self._kinds[number]:
                continue
            try:
                found = list(dict.fromkeys(self._relation(number, name, relation, places)))
            except TimeoutError:
                self.refused[f"{name}: {_SLOW}"] += 1
                continue
            objects = {(fact.text, fact.target) for fact in found}
            if len(objects) > 1:
                self.refused["several objects"] += 1
            elif found:
                yield found[0]

    def _relation(
        self, number: int, name: str, relation: Relation, places: Sequence[tuple[int, int]]
    ) -> Iterator[Found]:
        """Yields the facts of one relation, one per pattern that matches."""
        text, compiled = self._passages[number].text, self._compiled[name]
        region = text[: places[0][1]] if relation.first_sentence else text[: relation.within]
        if any(pattern.search(text, timeout=SECONDS) for pattern in compiled.unless_passage):
            return
        for pattern in compiled.patterns:
            match = pattern.search(region, timeout=SECONDS)
            if match is None:
                continue
            sentence = sentence_at(places, match.start())
            lead = text[min(sentence[0], match.start()) : match.end()]
            if any(refusing.search(lead, timeout=SECONDS) for refusing in compiled.unless):
                self.refused[f"{name}: refused by its own rules"] += 1
            elif not self._own_sex(text, match[0], relation):
                self.refused[f"{name}: sex of the page's subject"] += 1
            elif relation.object == "entity":
                yield from self._entity(number, name, relation, match.end(), sentence)
            else:
                yield from self._literal(number, name, match, sentence)

    def _literal(self, number: int, name: str, match: regex.Match[str], sentence: tuple[int, int]) -> Iterator[Found]:
        """Yields the literal that a pattern matched, unless it is hedged."""
        text, (start, end) = self._passages[number].text, match.span("object")
        before, after = text[max(0, start - 14) : start], text[end : end + 10]
        hedged = (self._before is not None and self._before.search(before, timeout=SECONDS)) or (
            self._after is not None and self._after.match(after, timeout=SECONDS)
        )
        if hedged and self._pack.relations[name].object in ("date", "year"):
            self.refused[f"{name}: uncertain"] += 1
            return
        yield Found(number, name, tidy(match["object"]).strip(" ,;"), None, *sentence)

    def _entity(
        self, number: int, name: str, relation: Relation, start: int, sentence: tuple[int, int]
    ) -> Iterator[Found]:
        """Yields the entity whose name begins at a position; a list of names is none, but for the sex asked for."""
        text = self._passages[number].text[: max(sentence[1], start)]
        names = self._names(number, text, start)
        if not names:
            return
        if relation.sex:
            names = self._of_sex(text, start, names, relation.sex)
            if not names:
                self.refused[f"{name}: sex of the object is not told"] += 1
                return
        if len(names) > 1:
            self.refused["several objects"] += 1
            return
        place, end, target = names[0]
        shown = tidy(text[place:end]).strip(" ,;")
        if shown.endswith(("'s", "’s")) or text[end : end + 2] in ("'s", "’s") or text[end : end + 3] == "' s":
            self.refused["a possessive"] += 1
        elif target is None and len(shown.split()) < 2:
            self.refused["one word without a page"] += 1
        else:
            yield Found(number, name, shown, target, *sentence)

    def _names(self, number: int, text: str, start: int) -> list[tuple[int, int, int | None]]:
        """Returns the names of a list that begins at a position: (start, end, page), up to four."""
        found: list[tuple[int, int, int | None]] = []
        position = start
        while len(found) < 4:
            title = self._titles.match(text, position)
            begin = title.end() if title else position
            link = next((li for li in self._links[number] if position <= li.start <= begin + 1), None)
            if link is not None and link.end <= len(text):
                found.append((link.start, link.end, link.target))
            else:
                match = self._name.match(text, begin, timeout=SECONDS) or self._name.match(
                    text, position, timeout=SECONDS
                )
                if match is None:
                    break
                found.append((match.start(), match.end(), None))
            between = _BETWEEN.match(text, found[-1][1])
            if between is None:
                break
            position = between.end()
        return found

    # -- sexes -----------------------------------------------------------------------------------------------------

    def _own_sex(self, text: str, matched: str, relation: Relation) -> bool:
        """Returns whether the page's pronouns fit the words of a match, such as ``son``."""
        asked = {sex for word, sex in relation.own.items() if re.search(rf"\b{re.escape(word)}\b", matched)}
        if not asked:
            return True
        he, she = pronouns(text)
        return not (("he" in asked and she > he) or ("she" in asked and he > she))

    def _of_sex(
        self, text: str, start: int, names: list[tuple[int, int, int | None]], sex: str
    ) -> list[tuple[int, int, int | None]]:
        """Returns those of one or two names that have a sex; of two the other one's tells as well."""
        if len(names) > 2:
            return []
        position, told = start, []
        for place, end, target in names:
            told.append(self._sex(text[max(position, place - 25) : end], target))
            position = end
        if len(names) == 2 and told.count(None) == 1:
            other = {"he": "she", "she": "he"}[next(t for t in told if t is not None)]
            told = [t or other for t in told]
        return [name for name, t in zip(names, told, strict=True) if t == sex]

    def _sex(self, mention: str, target: int | None) -> str | None:
        """Returns the sex of somebody by title and, if there is a page, by its pronouns; None if that does not tell."""
        she, he = (bool(p and p.search(mention)) for p in (self._sexes["she"], self._sexes["he"]))
        if she != he:
            return "she" if she else "he"
        if target is None:
            return None
        page = self._passages[target]
        men, women = pronouns(page.text)
        for sex, pattern in self._sexes.items():
            hits = len(pattern.findall(page.title + "\n" + page.text[:200])) if pattern else 0
            men, women = men + hits * (sex == "he"), women + hits * (sex == "she")
        return "he" if men > women + 1 else "she" if women > men + 1 else None


def pronouns(text: str) -> tuple[int, int]:
    """Returns how often a text says he, his or him, and she, her or hers."""
    said = Counter(re.findall(r"\w+", text.lower()))
    return sum(said[w] for w in ("he", "his", "him")), sum(said[w] for w in ("she", "her", "hers"))


class _Checked:
    """Checks facts against each other."""

    def __init__(
        self,
        passages: Sequence[Passage],
        pack: Pack,
        kinds: Sequence[str | None],
        found: Sequence[Found],
        refused: Counter[str],
    ) -> None:
        self._passages, self._pack, self._kinds = passages, pack, kinds
        self._found, self._refused = found, refused
        self._years: dict[tuple[int, str], int] = {}
        for fact in found:
            year = _YEAR.search(fact.text)
            if pack.relations[fact.relation].object in ("date", "year") and year:
                self._years[fact.subject, fact.relation] = int(year[1])
        self._numbered = pack.compiled(pack.numbered, "numbered") if pack.numbered else None
        self._titles = {norm(base_title(passage.title)) for passage in passages}

    def facts(self) -> Iterator[Found]:
        """Yields the facts that no rule refuses; a link that is not certain becomes a name without a page."""
        for fact in self._found:
            reason = self._refusal(fact)
            if reason is not None:
                self._refused[reason] += 1
            else:
                yield fact

    def _refusal(self, fact: Found) -> str | None:
        relation = self._pack.relations[fact.relation]
        if fact.target is None:
            if relation.object == "entity" and norm(fact.text) in self._titles:
                return "a page's name without a link to it"  # may or may not be that entity
            return None
        if fact.target == fact.subject:
            return "itself"
        if relation.kind is not None and self._kinds[fact.target] != relation.kind:
            return f"{fact.relation}: object is no {relation.kind}"
        rules = [rule for rule in self._pack.plausible if rule.relation == fact.relation]
        told = [self._difference(fact, rule.earlier, rule.later) for rule in rules]
        for rule, years in zip(rules, told, strict=True):
            if years is not None and not rule.least <= years <= rule.most:
                return f"{fact.relation}: impossible years"
        title = self._passages[fact.target].title
        try:
            numbered = self._numbered is not None and self._numbered.search(title, timeout=SECONDS) is not None
        except TimeoutError:
            return f"{fact.relation}: {_SLOW}"
        if relation.certain and not numbered and all(years is None for years in told):
            return f"{fact.relation}: not confirmed by years"
        return None

    def _difference(self, fact: Found, earlier: str, later: str) -> int | None:
        """Returns the number of years between two ends of a fact, None if one of them is not known."""
        years = []
        for end in (earlier, later):
            who, _, relation = end.partition(".")
            number = fact.subject if who == "subject" else fact.target
            year = None if number is None else self._years.get((number, relation))
            if year is None:
                return None
            years.append(year)
        return years[1] - years[0]
