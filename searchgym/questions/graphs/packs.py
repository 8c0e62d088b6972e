"""Packs: YAML files with patterns that find facts in a corpus, and templates of questions about them; never code."""

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
    """Rule that recognises pages about one kind of thing, with the words that questions use for it."""

    nouns: list[str]
    """Last words of the phrase after the first "is a": ``film``, ``sitcom``."""
    signs: list[str] = field(default_factory=list)
    """Patterns that recognise the kind from the first 220 characters if the noun does not."""
    called: dict[str, str] = field(default_factory=dict)
    """Maps words of the first "is a" phrase to the word that questions put before the name: ``documentary: film``. The
    first word that occurs counts; a page with none is not asked about. Empty: questions use only the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparable(Options):
    """Templates of questions that compare the subjects ``{a}`` and ``{b}`` of two pages.

    A template with ``{kind}`` is used only if both subjects are of the same kind.
    """

    least: str = ""
    """Template that asks which page has the smaller value; empty: not asked."""
    greatest: str = ""
    """Template that asks which page has the larger value; empty: not asked."""
    same: str = ""
    """Template that asks whether both pages have the same value; empty: not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationRule(Comparable):
    """A relation: the patterns that find its facts, and the templates that ask for them."""

    subject: str
    """Kind of the pages that state the relation."""
    object: Literal["entity", "date", "year", "text"]
    """``entity``: the object is a name that begins where the match ends; else it is the pattern's group ``object``."""
    patterns: list[str]
    """Patterns, each of which uses its first match; two different objects make the fact unusable."""
    kind: str | None = None
    """Required kind of a linked object; None: any."""
    within: int = 500
    """Number of leading characters of the passage to search."""
    first_sentence: bool = False
    """Whether only the first sentence is searched."""
    unless: list[str] = field(default_factory=list)
    """Patterns that reject a match if they occur in its sentence up to the end of the match."""
    unless_passage: list[str] = field(default_factory=list)
    """Patterns that reject the whole passage if they occur anywhere in it."""
    sex: Literal["", "he", "she"] = ""
    """Required sex of the object; of two names, the one with this sex is used. Empty: any."""
    own: dict[str, str] = field(default_factory=dict)
    """Maps words in the match to the required sex of the page's subject: ``son: he``."""
    certain: bool = False
    """Whether a linked object must be confirmed by a rule of `Pack.plausible`, or by a title matching
    `Pack.numbered`."""
    ask: str = ""
    """Question for the object of ``{s}``; empty: not asked."""
    noun: str = ""
    """Phrase for the object of ``{s}`` inside a longer question; empty: no chain continues from it."""
    last: bool = True
    """Whether a chain of two or more hops may end with this relation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plausible(Options):
    """A rule on the distance between two years of a linked fact, of its subject or object."""

    relation: str
    earlier: str
    """End and relation of the earlier year, such as ``object.born``."""
    later: str
    """End and relation of the later year."""
    least: int = 0
    """Minimum number of years between them."""
    most: int = 1000
    """Maximum number of years between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined(Options):
    """A joint wording for two steps, such as grandmother for the mother of the father."""

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
    """Two clues to a page, from which questions with two clues and veiled questions are made."""

    steps: list[str]
    """Relations of the two clues; the question asks for their common subject."""
    ask: str = ""
    """Question template; ``{a}`` and ``{b}`` are the objects, ``{kind}`` the word for the kind of page. Default: none,
    the clues only describe pages."""
    noun: str = ""
    """Description of the page that can replace its name, with the same placeholders. Default: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRule(Options):
    """A part of sentences that a question phrase can replace: "He studied in what place?"."""

    pattern: str
    """Pattern whose group ``object`` matches the part."""
    ask: str
    """Question phrase that replaces the part: ``what year``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack(Options):
    """Patterns and wordings that turn pages into facts and questions."""

    name: str
    summary: str
    pieces: dict[str, str] = field(default_factory=dict)
    """Pieces of patterns by name; ``{NAME}`` in a pattern or a later piece is replaced by the piece. In a loaded `Pack`
    each piece has the earlier ones filled in."""
    name_pattern: str = r"\p{Lu}\w+(?:\s+\p{Lu}\w+)*"
    """Pattern of the name of an entity that has no page."""
    titles: list[str] = field(default_factory=list)
    """Words that may precede a name without being part of it: ``King``, ``Dr``."""
    she: list[str] = field(default_factory=list)
    """Titles of women: ``Queen``."""
    he: list[str] = field(default_factory=list)
    """Titles of men: ``King``."""
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
    """Parts of sentences that a question phrase can replace; of two that overlap, the earlier rule counts."""
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
            CardError: The pattern is invalid; the message begins with `where`.
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
        CardError: A pattern, wording or name is invalid; the message names its place.
    """
    _check_patterns(pack)
    _check_names(pack)
    _check_wordings(pack)


def _check_patterns(pack: Pack) -> None:
    """Checks that all patterns of a pack compile, are not too long, and have the groups that they need."""
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
    """Checks that wordings use exactly the required placeholders."""
    one, two = ("s",), ("a", "b", "kind")
    records: list[tuple[Options, dict[str, tuple[str, ...]], str]] = []
    for name, relation in pack.relations.items():
        slots = {"ask": one, "noun": one, "least": two, "greatest": two, "same": two}
        records.append((relation, slots, f"relations.{name}"))
    records += [(join, {"noun": one, "ask": one}, f"joined[{n}]") for n, join in enumerate(pack.joined)]
    records += [(b, {"least": two, "greatest": two, "same": two}, f"bridges[{n}]") for n, b in enumerate(pack.bridges)]
    records += [(clues, {"ask": two, "noun": two}, f"clues[{n}]") for n, clues in enumerate(pack.clues)]
    for record, slots, where in records:
        for key, names in slots.items():
            text = getattr(record, key)
            used = set(regex.findall(r"\{(\w*)\}", text))
            if text and (used - set(names) or not used):
                raise CardError(
                    f"{where}.{key}: use {' and '.join(f'{{{name}}}' for name in names)}, got {text!r:.120}"
                )
