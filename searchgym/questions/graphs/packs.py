"""Packs: YAML files of patterns that find facts in a corpus, and of wordings that ask about them. Data, never code."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

import regex

from searchgym.errors import CardError, did_you_mean
from searchgym.options import Options
from searchgym.options.cards import find_card, load_card
from searchgym.questions.graphs.patterns import compile_pattern, fill, within_total


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRule(Options):
    """How to tell that a page is about a kind of thing, and what questions call it."""

    nouns: list[str]
    """Last words of the phrase behind the first "is a": ``film``, ``sitcom``."""
    signs: list[str] = field(default_factory=list)
    """Patterns that tell the kind by the first 220 characters where the noun does not."""
    called: dict[str, str] = field(default_factory=dict)
    """Words of the first "is a" phrase to the word that questions put before the name: ``documentary: film``. The first
    that occurs counts; a page with none is not asked about. Empty: questions give the name alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparable(Options):
    """Questions that compare two pages, ``{a}`` and ``{b}``; with ``{kind}``, only things of one kind are compared."""

    least: str = ""
    """Question which of them has the smaller value."""
    greatest: str = ""
    """Question which of them has the larger value."""
    same: str = ""
    """Question whether they have the same value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationRule(Comparable):
    """A relation: where pages state it and how questions ask for it."""

    subject: str
    """Kind of the pages that state it."""
    object: Literal["entity", "date", "year", "text"]
    """``entity``: a name, which begins where a pattern's match ends; else the pattern's group ``object``."""
    patterns: list[str]
    """Patterns, of which each finds the first place; two different objects make the fact unusable."""
    kind: str | None = None
    """Kind that a linked object must have."""
    within: int = 500
    """Number of characters of the passage that are searched."""
    first_sentence: bool = False
    """Whether only the first sentence is searched."""
    unless: list[str] = field(default_factory=list)
    """Patterns that refuse a place if they match the sentence up to the end of the match."""
    unless_passage: list[str] = field(default_factory=list)
    """Patterns that refuse the passage if they match anywhere in it."""
    sex: Literal["", "he", "she"] = ""
    """Sex that the object must have; of two names, the one that has it is taken."""
    own: dict[str, str] = field(default_factory=dict)
    """Words in the match to the sex that the page's own subject must then have: ``son: he``."""
    certain: bool = False
    """Whether a link needs to be confirmed by a rule of `Pack.plausible`, or by a title that fits `Pack.numbered`."""
    ask: str = ""
    """Question for the object of ``{s}``; empty: it is not asked for."""
    noun: str = ""
    """Phrase for the object of ``{s}`` inside a longer question; empty: a chain does not go on from it."""
    last: bool = True
    """Whether a chain of two or more hops may end with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plausible(Options):
    """A rule about two years of a linked fact: the subject's and the object's."""

    relation: str
    earlier: str
    """End and relation of the earlier year, such as ``object.born``."""
    later: str
    """End and relation of the later year."""
    least: int = 0
    """Least number of years between them."""
    most: int = 1000
    """Largest number of years between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined(Options):
    """Two steps that have a word of their own, such as the mother of the father."""

    steps: list[str]
    noun: str
    """Phrase for both steps from ``{s}``."""
    ask: str
    """Question for the object of both steps from ``{s}``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge(Comparable):
    """A comparison of two pages by a property of what each leads to."""

    role: str
    """Relation of the first step."""
    value: str
    """Relation of the second step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clues(Options):
    """A question with two clues, each of which fits several pages."""

    steps: list[str]
    """The relations of the two clues, whose subject is asked for."""
    ask: str
    """Question; ``{a}`` and ``{b}`` are the objects, ``{kind}`` the word for the kind of page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRule(Options):
    """A part of sentences that a question can ask for in its place: "He studied in what place?"."""

    pattern: str
    """Pattern whose group ``object`` is the part."""
    ask: str
    """Words that take its place: ``what year``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack(Options):
    """Everything that turns pages of a kind into facts and questions."""

    name: str
    summary: str
    pieces: dict[str, str] = field(default_factory=dict)
    """Pieces of patterns by name; ``{NAME}`` in a pattern or a later piece is replaced by the piece. In a `Pack` the
    earlier ones are filled in."""
    name_pattern: str = r"\p{Lu}\w+(?:\s+\p{Lu}\w+)*"
    """Pattern of the name of an entity that has no page."""
    titles: list[str] = field(default_factory=list)
    """Words that may stand before a name without being a part of it: ``King``, ``Dr``."""
    she: list[str] = field(default_factory=list)
    """Words that tell that their bearer is a woman: ``Queen``."""
    he: list[str] = field(default_factory=list)
    """Words that tell that their bearer is a man: ``King``."""
    hedge_before: str = ""
    """Pattern before a date or year that makes it uncertain: ``circa``."""
    hedge_after: str = ""
    """Pattern behind a date or year that makes it uncertain."""
    numbered: str = ""
    """Pattern of titles that only one entity has: ``Louis XIV``."""
    kinds: dict[str, KindRule]
    relations: dict[str, RelationRule]
    plausible: list[Plausible] = field(default_factory=list)
    joined: list[Joined] = field(default_factory=list)
    never: list[list[str]] = field(default_factory=list)
    """Pairs of relations that never follow each other."""
    bridges: list[Bridge] = field(default_factory=list)
    clues: list[Clues] = field(default_factory=list)
    spans: list[SpanRule] = field(default_factory=list)
    """Parts of sentences that are asked for in their place; of two that overlap, the rule that stands first counts."""
    apart: list[list[str]] = field(default_factory=list)
    """Groups of objects that differ in spelling only or overlap (British, English): they are never compared."""

    def __post_init__(self) -> None:
        """Fills the earlier pieces into each piece.

        Raises:
            CardError: A piece, or all of them together, would be too long.
        """
        filled: dict[str, str] = {}
        total = 0
        for name, piece in self.pieces.items():
            filled[name] = fill(piece, filled, f"pack {self.name}: pieces.{name}")
            total = within_total(total, filled[name], f"pack {self.name}: pieces.{name}")
        object.__setattr__(self, "pieces", filled)

    def compiled(self, pattern: str, where: str) -> regex.Pattern[str]:
        """Returns a pattern with its pieces filled in.

        Raises:
            CardError: The pattern is broken; `where` says which one.
        """
        where = f"pack {self.name}: {where}"
        return compile_pattern(fill(pattern, self.pieces, where), where)


def load_pack(name: str) -> Pack:
    """Reads a pack by its name or path.

    Raises:
        CardError: The file cannot be read, or has an unknown key, a broken pattern or the name of an unknown relation
            or kind.
        UnknownNameError: No such pack.
    """
    path = find_card("packs", name)
    pack = load_card(Pack, path)
    try:
        check_pack(pack)
    except CardError as error:
        raise CardError(f"{path}: {error}") from None
    return pack


def check_pack(pack: Pack) -> None:
    """Checks all patterns, wordings and names of a pack.

    Raises:
        CardError: Something is wrong; the message says where.
    """
    _check_patterns(pack)
    _check_names(pack)
    _check_wordings(pack)


def _check_patterns(pack: Pack) -> None:
    """Checks that all patterns of a pack compile, that they are not too long, and that they tell what they find."""
    patterns = [(f"{{{piece}}}", f"pieces.{piece}", False) for piece in pack.pieces]
    patterns += [
        (getattr(pack, key), key, False) for key in ("name_pattern", "numbered", "hedge_before", "hedge_after")
    ]
    for name, kind in pack.kinds.items():
        patterns += [(pattern, f"kinds.{name}.signs[{n}]", False) for n, pattern in enumerate(kind.signs)]
    patterns += [(span.pattern, f"spans[{n}]", True) for n, span in enumerate(pack.spans)]
    for name, relation in pack.relations.items():
        for key in ("patterns", "unless", "unless_passage"):
            finds = key == "patterns" and relation.object != "entity"
            patterns += [(text, f"relations.{name}.{key}[{n}]", finds) for n, text in enumerate(getattr(relation, key))]
    total = 0
    for pattern, where, finds in patterns:
        compiled = pack.compiled(pattern, where)
        total = within_total(total, compiled.pattern, where)
        if finds and "object" not in compiled.groupindex:
            raise CardError(f"{where}: needs a group (?P<object>...), got {pattern!r:.120}")


def _check_names(pack: Pack) -> None:
    """Checks that all kinds and relations that a pack names exist."""
    names: list[tuple[str, Collection[str], str]] = [
        (relation.subject, pack.kinds, f"relations.{name}.subject") for name, relation in pack.relations.items()
    ]
    names += [
        (r.kind, pack.kinds, f"relations.{name}.kind") for name, r in pack.relations.items() if r.kind is not None
    ]
    for number, rule in enumerate(pack.plausible):
        names.append((rule.relation, pack.relations, f"plausible[{number}].relation"))
        for end in (rule.earlier, rule.later):
            who, _, of = end.partition(".")
            names += [
                (who, ("subject", "object"), f"plausible[{number}]"),
                (of, pack.relations, f"plausible[{number}]"),
            ]
    steps = [(join.steps, f"joined[{n}]") for n, join in enumerate(pack.joined)]
    steps += [(pair, f"never[{n}]") for n, pair in enumerate(pack.never)]
    steps += [([bridge.role, bridge.value], f"bridges[{n}]") for n, bridge in enumerate(pack.bridges)]
    steps += [(clues.steps, f"clues[{n}]") for n, clues in enumerate(pack.clues)]
    for pair, where in steps:
        if len(pair) != 2:
            raise CardError(f"{where}: give two relations, got {pair!r}")
        names += [(name, pack.relations, where) for name in pair]
    for name, names_allowed, where in names:
        if name not in names_allowed:
            raise CardError(f"{where}: got {name!r}{did_you_mean(name, names_allowed)}")


def _check_wordings(pack: Pack) -> None:
    """Checks that wordings name what they must, and nothing else."""
    one, two = ("s",), ("a", "b", "kind")
    records: list[tuple[Options, dict[str, tuple[str, ...]], str]] = []
    for name, relation in pack.relations.items():
        slots = {"ask": one, "noun": one, "least": two, "greatest": two, "same": two}
        records.append((relation, slots, f"relations.{name}"))
    records += [(join, {"noun": one, "ask": one}, f"joined[{n}]") for n, join in enumerate(pack.joined)]
    records += [(b, {"least": two, "greatest": two, "same": two}, f"bridges[{n}]") for n, b in enumerate(pack.bridges)]
    records += [(clues, {"ask": two}, f"clues[{n}]") for n, clues in enumerate(pack.clues)]
    for record, slots, where in records:
        for key, names in slots.items():
            text = getattr(record, key)
            used = set(regex.findall(r"\{(\w*)\}", text))
            if text and (used - set(names) or not used):
                raise CardError(
                    f"{where}.{key}: use {' and '.join(f'{{{name}}}' for name in names)}, got {text!r:.120}"
                )
