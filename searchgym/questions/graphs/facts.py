"""Typed facts of a corpus, extracted by the patterns of a pack: statements of pages about their subjects.

A fact is extracted only from the page of its subject. If a page states several objects, hedges, or contradicts another
page's years, the fact is dropped and counted: precision matters more than recall.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import regex

from searchgym.questions.graphs.links import Link, find_links
from searchgym.questions.graphs.packs import Pack, RelationRule
from searchgym.questions.graphs.patterns import SECONDS
from searchgym.questions.graphs.subjects import SLOW, Sexes, called_of, kinds_of, pronouns
from searchgym.records import Passage
from searchgym.text import base_title, norm, sentence_at, sentences, tidy

Progress = Callable[[int, int], None]
_YEAR: Final = re.compile(r"\b(\d{4})\b")
_BETWEEN: Final = regex.compile(r",?\s+(?:and|&)\s+|,\s+(?=\p{Lu})")
"""Matches the text between two names of a list."""


class PageFact(NamedTuple):
    """A fact with the position of the sentence that states it."""

    subject: int
    """Number of the passage that states the fact, which is about its subject."""
    relation: str
    text: str
    """Object as the page writes it, with normalised spacing."""
    target: int | None
    """Index of the passage about the fact's object; None if the object is a literal or an entity without a page."""
    start: int
    """Start of the sentence that states the fact, as a character offset in the passage."""
    end: int
    """End (exclusive) of the sentence that states the fact."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of a corpus, with the kinds, links and rejections found along with them."""

    facts: tuple[PageFact, ...]
    """Facts, at most one per passage and relation."""
    kinds: tuple[str | None, ...]
    """Kind of each passage's subject; None if it is of no kind that the pack defines."""
    called: tuple[str | None, ...]
    """Word that questions put before each passage's name; empty if none is needed, None if it is unknown."""
    links: tuple[Link, ...]
    """Links between passages."""
    refused: Mapping[str, int]
    """Number of refused facts, by rule."""
    refused_links: Mapping[str, int]
    """Number of refused mentions, by rule of links."""


def find_facts(passages: Sequence[Passage], pack: Pack, progress: Progress | None = None) -> Facts:
    """Returns the facts that a pack's patterns match in a corpus.

    Args:
        passages: The corpus.
        pack: Patterns and rules.
        progress: Called with the number of passages read and the total.
    """
    refused: Counter[str] = Counter()
    kinds = tuple(kinds_of(passages, pack, refused))
    links = find_links(passages, kinds, frozenset(pack.titles))
    reader = _Reader(passages, pack, kinds, links.links, refused)
    stated: list[PageFact] = []
    for number in range(len(passages)):
        stated += reader.read(number)
        if progress is not None and number % 100 == 99:
            progress(number + 1, len(passages))
    checks, accepted = _Checks(passages, pack, kinds, stated), []
    for fact in stated:
        reason = checks.refusal(fact)
        if reason is None:
            accepted.append(fact)
        else:
            refused[reason] += 1
    called = tuple(called_of(passage.text, pack, kind) for passage, kind in zip(passages, kinds, strict=True))
    return Facts(tuple(accepted), kinds, called, links.links, dict(refused.most_common()), links.refused)


class _Reader:
    """Reads the facts of single pages, and counts the refused ones by rule."""

    def __init__(
        self,
        passages: Sequence[Passage],
        pack: Pack,
        kinds: Sequence[str | None],
        links: Sequence[Link],
        refused: Counter[str],
    ) -> None:
        self._passages, self._pack, self._kinds, self._refused = passages, pack, kinds, refused
        self._links: defaultdict[int, list[Link]] = defaultdict(list)
        for link in links:
            self._links[link.source].append(link)
        self._patterns = {
            (name, key): [pack.compiled(text, f"relations.{name}.{key}") for text in getattr(relation, key)]
            for name, relation in pack.relations.items()
            for key in ("patterns", "unless", "unless_passage")
        }
        titles = "|".join(map(regex.escape, pack.titles))
        self._titles = regex.compile(rf"\s*(?:the\s)?(?:(?:{titles})\.?\s+)?") if titles else regex.compile(r"\s*")
        self._name = pack.compiled(pack.name_pattern, "name_pattern")
        self._before = pack.compiled(pack.hedge_before, "hedge_before") if pack.hedge_before else None
        self._after = pack.compiled(pack.hedge_after, "hedge_after") if pack.hedge_after else None
        self._sexes = Sexes(passages, pack)

    def read(self, number: int) -> Iterator[PageFact]:
        """Yields the facts of a page."""
        kind = self._kinds[number]
        if kind is None:
            return
        spans = sentences(self._passages[number].text)
        for name, relation in self._pack.relations.items():
            if relation.subject != kind:
                continue
            facts: dict[PageFact, None] = {}
            try:
                for stated in self._stated(number, name, relation, spans):
                    if isinstance(stated, str):
                        self._refused[stated] += 1
                    elif stated is not None:
                        facts[stated] = None
            except TimeoutError:
                self._refused[f"{name}: {SLOW}"] += 1
                continue
            if len({(fact.text, fact.target) for fact in facts}) > 1:
                self._refused["several objects"] += 1
            elif facts:
                yield next(iter(facts))

    def _stated(
        self, number: int, name: str, relation: RelationRule, spans: Sequence[tuple[int, int]]
    ) -> Iterator[PageFact | str | None]:
        """Yields the result of each matching pattern of a relation: a fact, the rule that refuses it, or None."""
        text = self._passages[number].text
        region = text[: spans[0][1]] if relation.first_sentence else text[: relation.within]
        if any(pattern.search(text, timeout=SECONDS) for pattern in self._patterns[name, "unless_passage"]):
            return
        for pattern in self._patterns[name, "patterns"]:
            match = pattern.search(region, timeout=SECONDS)
            if match is None:
                continue
            sentence = sentence_at(spans, match.start())
            lead = text[min(sentence[0], match.start()) : match.end()]
            sexes = {sex for word, sex in relation.own.items() if re.search(rf"\b{re.escape(word)}\b", match[0])}
            he, she = pronouns(text) if sexes else (0, 0)
            if any(refusing.search(lead, timeout=SECONDS) for refusing in self._patterns[name, "unless"]):
                yield f"{name}: refused by its own rules"
            elif ("he" in sexes and she > he) or ("she" in sexes and he > she):
                yield f"{name}: sex of the page's subject"
            elif relation.object == "entity":
                yield self._entity(number, name, relation, match.end(), sentence)
            elif relation.object in ("date", "year") and self._hedged(text, *match.span("object")):
                yield f"{name}: uncertain"
            else:
                yield PageFact(number, name, tidy(match["object"]).strip(" ,;"), None, *sentence)

    def _hedged(self, text: str, start: int, end: int) -> bool:
        """Returns whether the words around a date or year make it uncertain."""
        before, after = text[max(0, start - 14) : start], text[end : end + 10]
        return (self._before is not None and self._before.search(before, timeout=SECONDS) is not None) or (
            self._after is not None and self._after.match(after, timeout=SECONDS) is not None
        )

    def _entity(
        self, number: int, name: str, relation: RelationRule, start: int, sentence: tuple[int, int]
    ) -> PageFact | str | None:
        """Returns the entity whose name begins at a position; a list of names is refused unless the sex selects one."""
        text = self._passages[number].text[: max(sentence[1], start)]
        names = self._names(number, text, start)
        if not names:
            return None
        if relation.sex:
            names = self._sexes.of_names(text, start, names, relation.sex)
            if not names:
                return f"{name}: sex of the object is not told"
        if len(names) > 1:
            return "several objects"
        first, end, target = names[0]
        object_name = tidy(text[first:end]).strip(" ,;")
        if object_name.endswith(("'s", "’s")) or text[end : end + 2] in ("'s", "’s") or text[end : end + 3] == "' s":
            return "a possessive"
        if target is None and len(object_name.split()) < 2:
            return "one word without a page"
        return PageFact(number, name, object_name, target, *sentence)

    def _names(self, number: int, text: str, start: int) -> list[tuple[int, int, int | None]]:
        """Returns the names of a list that begins at a position: (start, end, page), up to four."""
        names: list[tuple[int, int, int | None]] = []
        position = start
        while len(names) < 4:
            title = self._titles.match(text, position)
            begin = title.end() if title else position
            link = next((li for li in self._links[number] if position <= li.start <= begin + 1), None)
            if link is not None and link.end <= len(text):
                names.append((link.start, link.end, link.target))
            else:
                match = self._name.match(text, begin, timeout=SECONDS) or self._name.match(
                    text, position, timeout=SECONDS
                )
                if match is None:
                    break
                names.append((match.start(), match.end(), None))
            between = _BETWEEN.match(text, names[-1][1])
            if between is None:
                break
            position = between.end()
        return names


class _Checks:
    """Consistency checks of facts against each other and against the pack's rules.

    Args:
        passages: The corpus.
        pack: Pack with the rules.
        kinds: Kind of each passage's subject.
        facts: All facts.
    """

    def __init__(
        self, passages: Sequence[Passage], pack: Pack, kinds: Sequence[str | None], facts: Sequence[PageFact]
    ) -> None:
        self._passages, self._pack, self._kinds = passages, pack, kinds
        self._years: dict[tuple[int, str], int] = {}
        for fact in facts:
            year = _YEAR.search(fact.text)
            if pack.relations[fact.relation].object in ("date", "year") and year:
                self._years[fact.subject, fact.relation] = int(year[1])
        self._numbered = pack.compiled(pack.numbered, "numbered") if pack.numbered else None
        self._titles = {norm(base_title(passage.title)) for passage in passages}

    def refusal(self, fact: PageFact) -> str | None:
        """Returns the rule that refuses a fact, or None."""
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
        differences = [self._difference(fact, rule.earlier, rule.later) for rule in rules]
        for rule, years in zip(rules, differences, strict=True):
            if years is not None and not rule.least <= years <= rule.most:
                return f"{fact.relation}: impossible years"
        title = self._passages[fact.target].title
        try:
            numbered = self._numbered is not None and self._numbered.search(title, timeout=SECONDS) is not None
        except TimeoutError:
            return f"{fact.relation}: {SLOW}"
        if relation.certain and not numbered and all(years is None for years in differences):
            return f"{fact.relation}: not confirmed by years"
        return None

    def _difference(self, fact: PageFact, earlier: str, later: str) -> int | None:
        """Returns the years between two dated ends of a fact; None if one date is unknown."""
        years = []
        for end in (earlier, later):
            who, _, relation = end.partition(".")
            number = fact.subject if who == "subject" else fact.target
            year = None if number is None else self._years.get((number, relation))
            if year is None:
                return None
            years.append(year)
        return years[1] - years[0]
