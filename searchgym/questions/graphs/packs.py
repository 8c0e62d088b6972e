"""Packs: YAML files with patterns that find facts in a corpus, and wordings of questions. Data, never code."""

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
    """Rules that recognise pages about one kind of thing, and the word for it in questions."""

    nouns: list[str]
    """Last words of the phrase after the first "is a": ``film``, ``sitcom``."""
    signs: list[str] = field(default_factory=list)
    """Patterns that identify the kind from the first 220 characters if the noun does not."""
    called: dict[str, str] = field(default_factory=dict)
    """Words of the first "is a" phrase, mapped to the word before the name in questions: ``documentary: film``. The
    first word that occurs counts; a page without one is not asked about. Empty: questions use only the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparable(Options):
    """Questions that compare two pages, ``{a}`` and ``{b}``; with ``{kind}``, only things of one kind are compared."""

    least: str = ""
    """Question that asks which page has the smaller value."""
    greatest: str = ""
    """Question that asks which page has the larger value."""
    same: str = ""
    """Question that asks whether both pages have the same value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationRule(Comparable):
    """A relation: patterns of its statements on pages, and wordings of its questions."""

    subject: str
    """Kind of the pages that state the relation."""
    object: Literal["entity", "date", "year", "text"]
    """Type of the object. ``entity``: a name that starts where the match ends; others: the group ``object``."""
    patterns: list[str]
    """Patterns, each applied to its first match; two different objects make the fact unusable."""
    kind: str | None = None
    """Kind that a linked object must have."""
    within: int = 500
    """Number of characters of the passage that are searched."""
    first_sentence: bool = False
    """Whether only the first sentence is searched."""
    unless: list[str] = field(default_factory=list)
    """Patterns that reject a match if they match its sentence up to the end of the match."""
    unless_passage: list[str] = field(default_factory=list)
    """Patterns that reject the passage if they match anywhere in it."""
    sex: Literal["", "he", "she"] = ""
    """Required sex of the object; of two names, the one with this sex is chosen."""
    own: dict[str, str] = field(default_factory=dict)
    """Words in the match, mapped to the sex that they require of the page's subject: ``son: he``."""
    certain: bool = False
    """Whether a link needs to be confirmed by a rule of `Pack.plausible`, or by a title that fits `Pack.numbered`."""
    ask: str = ""
    """Question for the object of ``{s}``; empty: no question asks for it."""
    noun: str = ""
    """Phrase for the object of ``{s}`` inside a longer question; empty: no chain continues from it."""
    last: bool = True
    """Whether a chain of two or more hops may end with this relation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plausible(Options):
    """A rule about two years of a linked fact: the subject's and the object's."""

    relation: str
    earlier: str
    """End and relation of the earlier year, such as ``object.born``."""
    later: str
    """End and relation of the later year."""
    least: int = 0
    """Minimum number of years between the two years."""
    most: int = 1000
    """Maximum number of years between the two years."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined(Options):
    """Two steps with a joint name, such as grandmother for the mother of the father."""

    steps: list[str]
    noun: str
    """Phrase for both steps from ``{s}``."""
    ask: str
    """Question for the object of both steps from ``{s}``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge(Comparable):
    """A comparison of two pages by a property of the entity that each leads to."""

    role: str
    """Relation of the first step."""
    value: str
    """Relation of the second step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clues(Options):
    """A question with two clues, each of which matches several pages."""

    steps: list[str]
    """Relations of the two clues; the question asks for their subject."""
    ask: str
    """Question; ``{a}`` and ``{b}`` are the objects, ``{kind}`` the word for the kind of page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRule(Options):
    """A part of sentences that question words can replace: "He studied in what place?"."""

    pattern: str
    """Pattern whose group ``object`` is the part."""
    ask: str
    """Question words that replace the part: ``what year``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack(Options):
    """Patterns and wordings that turn pages into facts and questions."""

    name: str
    summary: str
    pieces: dict[str, str] = field(default_factory=dict)
    """Pieces of patterns by name; ``{NAME}`` in a pattern or a later piece is replaced by the piece. In a `Pack`,
    earlier pieces are already filled in."""
    name_pattern: str = r"\p{Lu}\w+(?:\s+\p{Lu}\w+)*"
    """Pattern of the name of an entity that has no page."""
    titles: list[str] = field(default_factory=list)
    """Words that may precede a name without being part of it: ``King``, ``Dr``."""
    she: list[str] = field(default_factory=list)
    """Titles that mark a person as a woman: ``Queen``."""
    he: list[str] = field(default_factory=list)
    """Titles that mark a person as a man: ``King``."""
    hedge_before: str = ""
    """Pattern before a date or year that makes it uncertain: ``circa``."""
    hedge_after: str = ""
    """Pattern after a date or year that makes it uncertain."""
    numbered: str = ""
    """Pattern of unique titles: ``Louis XIV``."""
    kinds: dict[str, KindRule]
    relations: dict[str, RelationRule]
    plausible: list[Plausible] = field(default_factory=list)
    joined: list[Joined] = field(default_factory=list)
    never: list[list[str]] = field(default_factory=list)
    """Pairs of relations that never follow each other."""
    bridges: list[Bridge] = field(default_factory=list)
    clues: list[Clues] = field(default_factory=list)
    spans: list[SpanRule] = field(default_factory=list)
    """Parts of sentences that question words can replace; of two that overlap, the first rule applies."""
    apart: list[list[str]] = field(default_factory=list)
    """Groups of objects that differ only in spelling or overlap (British, English); they are never compared."""

    def __post_init__(self) -> None:
        """Fills earlier pieces into each piece.

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
            CardError: The pattern is not valid; `where` identifies it in the message.
        """
        where = f"pack {self.name}: {where}"
        return compile_pattern(fill(pattern, self.pieces, where), where)


def load_pack(name: str) -> Pack:
    """Reads a pack by its name or path.

    Raises:
        CardError: The file cannot be read, or has an unknown key, an invalid pattern or the name of an unknown relation
            or kind.
        UnknownNameError: The pack does not exist.
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
        CardError: The pack is not valid; the message names the place.
    """
    _check_patterns(pack)
    _check_names(pack)
    _check_wordings(pack)


def _check_patterns(pack: Pack) -> None:
    """Checks that all patterns of a pack compile, are not too long, and have the groups they need."""
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
    """Checks that all kinds and relations named in a pack exist."""
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
    """Checks that wordings contain exactly the required placeholders."""
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
