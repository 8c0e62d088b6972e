"""Packs: YAML files of patterns that find facts in a corpus, and of wordings that ask about them. Data, never code."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import regex

from searchgym.errors import CardError, did_you_mean
from searchgym.options import Options
from searchgym.options.cards import find_card, load_card

SECONDS: Final = 0.2
"""Seconds that one pattern may take on one passage; a pattern that backtracks without end is stopped then."""
LONGEST: Final = 50_000
"""Characters that a pattern may have with its pieces filled in and its counted repetitions written out."""
TOTAL: Final = 10 * LONGEST
"""Characters that all patterns of a pack may have together with their pieces filled in, and all pieces."""
GROUPS: Final = 2000
"""Brackets that a pattern may open: the time to compile it grows with their square."""
_ATOM: Final = re.compile(r"\\.|\[\]?(?:\\.|[^\]\\])*+(?:\]|\Z)|\{(?P<count>\d+)(?:,\d*)?\}|[()]", re.DOTALL)
"""Matches an escape, a set, a counted repetition or a bracket of a pattern."""
_MANY: Final = 10**12
"""Size from which on sizes are not told apart."""
_PIECE: Final = re.compile(r"\{([^{}]+)\}")
"""Matches the name of a piece in its braces, and counted repetitions."""
_ENDS: Final = ("subject", "object")


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
class Relation(Options):
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
    least: str = ""
    """Question which of ``{a}`` and ``{b}`` has the smaller object; with ``{kind}``, only things of one
    kind are compared."""
    greatest: str = ""
    """Question which of ``{a}`` and ``{b}`` has the larger object."""
    same: str = ""
    """Question whether ``{a}`` and ``{b}`` have the same object."""


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
class Bridge(Options):
    """A comparison of two pages by a property of what each leads to."""

    role: str
    """Relation of the first step."""
    value: str
    """Relation of the second step."""
    least: str = ""
    """Question which of ``{a}`` and ``{b}`` has the smaller value."""
    greatest: str = ""
    """Question which of ``{a}`` and ``{b}`` has the larger value."""
    same: str = ""
    """Question whether both have the same value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clues(Options):
    """A question with two clues, each of which fits several pages."""

    steps: list[str]
    """The relations of the two clues, whose subject is asked for."""
    ask: str
    """Question; ``{a}`` and ``{b}`` are the objects, ``{kind}`` the word for the kind of page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span(Options):
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
    relations: dict[str, Relation]
    plausible: list[Plausible] = field(default_factory=list)
    joined: list[Joined] = field(default_factory=list)
    never: list[list[str]] = field(default_factory=list)
    """Pairs of relations that never follow each other."""
    bridges: list[Bridge] = field(default_factory=list)
    clues: list[Clues] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
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
            total = _within(total, filled[name], f"pack {self.name}: pieces.{name}")
        object.__setattr__(self, "pieces", filled)

    def compiled(self, pattern: str, where: str) -> regex.Pattern[str]:
        """Returns a pattern with its pieces filled in.

        Raises:
            CardError: The pattern is broken; `where` says which one.
        """
        where = f"pack {self.name}: {where}"
        return compile_pattern(fill(pattern, self.pieces, where), where)


def fill(pattern: str, pieces: Mapping[str, str], where: str) -> str:
    """Returns a pattern in which ``{NAME}`` is replaced for every piece.

    Raises:
        CardError: The pattern would be too long, which is looked at before anything is filled in.
    """
    size = len(pattern) + sum(len(pieces.get(name, "")) for name in _PIECE.findall(pattern))
    if size > LONGEST:
        raise _too_long(pattern, size, where)
    return _PIECE.sub(lambda match: f"(?:{pieces[match[1]]})" if match[1] in pieces else match[0], pattern)


def compile_pattern(pattern: str, where: str) -> regex.Pattern[str]:
    """Returns a compiled pattern; a broken one is a CardError that says where it stands and what is wrong."""
    if (size := max(len(pattern), _expanded(pattern[:LONGEST]))) > LONGEST:
        raise _too_long(pattern, size, where)
    if pattern.count("(") > GROUPS:
        raise CardError(f"{where}: the pattern {pattern!r:.120} opens more than {GROUPS:,} brackets")
    try:
        return regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError) as error:
        raise CardError(f"{where}: the pattern {pattern!r:.120} is broken: {error}") from None


def _too_long(pattern: str, size: int, where: str) -> CardError:
    return CardError(f"{where}: the pattern {pattern!r:.120} stands for {size:,} characters, at most {LONGEST:,} may")


def _within(total: int, pattern: str, where: str) -> int:
    """Returns a number of characters with those of one more pattern; a CardError if they are too many for a pack."""
    total += len(pattern)
    if total > TOTAL:
        raise CardError(
            f"{where}: with their pieces filled in, the patterns so far have more than {TOTAL:,} characters"
        )
    return total


def _expanded(pattern: str) -> int:
    """Returns the length of a pattern with its counted repetitions written out, as the compiler does.

    A few characters, ``((a{1000}){1000}){1000}``, would take all memory.
    """
    sizes, last, end = [0], 0, 0
    for match in _ATOM.finditer(pattern):
        if match.start() > end:
            last = 1
            sizes[-1] += match.start() - end
        end = match.end()
        if match[0] == "(":
            sizes.append(0)
        elif match[0] == ")" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] += last
        elif match["count"]:
            times = max(int(match["count"][:12]), 1)
            sizes[-1] = min(sizes[-1] + last * (times - 1), _MANY)
            last = min(last * times, _MANY)
        else:
            last = 1
            sizes[-1] += 1
    return sum(sizes) + len(pattern) - end


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
        _check(pack)
    except CardError as error:
        raise CardError(f"{path}: {error}") from None
    return pack


def _check(pack: Pack) -> None:
    """Checks all patterns, wordings and names of a pack."""
    total = 0
    for pattern, where, needs_object in _patterns(pack):
        compiled = pack.compiled(pattern, where)
        total = _within(total, compiled.pattern, where)
        if needs_object and "object" not in compiled.groupindex:
            raise CardError(f"{where}: needs a group (?P<object>...), got {pattern!r:.120}")
    for name, relation in pack.relations.items():
        _check_relation(pack, name, relation)
    _check_rules(pack)


def _patterns(pack: Pack) -> Iterator[tuple[str, str, bool]]:
    """Yields every pattern of a pack, its place, and whether it must tell what it finds."""
    for piece in pack.pieces:
        yield f"{{{piece}}}", f"pieces.{piece}", False
    for name in ("name_pattern", "numbered", "hedge_before", "hedge_after"):
        yield getattr(pack, name), name, False
    for name, kind in pack.kinds.items():
        for number, pattern in enumerate(kind.signs):
            yield pattern, f"kinds.{name}.signs[{number}]", False
    for number, span in enumerate(pack.spans):
        yield span.pattern, f"spans[{number}]", True
    for name, relation in pack.relations.items():
        for key in ("patterns", "unless", "unless_passage"):
            for number, pattern in enumerate(getattr(relation, key)):
                needs_object = key == "patterns" and relation.object != "entity"
                yield pattern, f"relations.{name}.{key}[{number}]", needs_object


def _check_rules(pack: Pack) -> None:
    """Checks the rules and wordings of a pack that name several relations."""
    for number, rule in enumerate(pack.plausible):
        known(rule.relation, pack.relations, f"plausible[{number}].relation")
        for end in (rule.earlier, rule.later):
            who, _, of = end.partition(".")
            known(who, _ENDS, f"plausible[{number}]")
            known(of, pack.relations, f"plausible[{number}]")
    steps = [(j.steps, f"joined[{n}]") for n, j in enumerate(pack.joined)]
    steps += [(pair, f"never[{n}]") for n, pair in enumerate(pack.never)]
    steps += [([b.role, b.value], f"bridges[{n}]") for n, b in enumerate(pack.bridges)]
    steps += [(c.steps, f"clues[{n}]") for n, c in enumerate(pack.clues)]
    for pair, where in steps:
        if len(pair) != 2:
            raise CardError(f"{where}: give two relations, got {pair!r}")
        for relation_name in pair:
            known(relation_name, pack.relations, where)
    for n, joined in enumerate(pack.joined):
        _check_wording(joined, ("noun", "ask"), ("s",), f"joined[{n}]")
    for n, bridge in enumerate(pack.bridges):
        _check_wording(bridge, ("least", "greatest", "same"), ("a", "b", "kind"), f"bridges[{n}]")
    for n, clues in enumerate(pack.clues):
        _check_wording(clues, ("ask",), ("a", "b", "kind"), f"clues[{n}]")


def _check_relation(pack: Pack, name: str, relation: Relation) -> None:
    """Checks the kinds and wordings of a relation."""
    where = f"relations.{name}"
    known(relation.subject, pack.kinds, f"{where}.subject")
    if relation.kind is not None:
        known(relation.kind, pack.kinds, f"{where}.kind")
    _check_wording(relation, ("ask", "noun"), ("s",), where)
    _check_wording(relation, ("least", "greatest", "same"), ("a", "b", "kind"), where)


def _check_wording(record: Any, keys: tuple[str, ...], names: tuple[str, ...], where: str) -> None:
    """Checks that wordings name what they must, and nothing else."""
    fields = {f.name for f in dataclasses.fields(record)}
    for key in keys:
        text = getattr(record, key) if key in fields else ""
        if not text:
            continue
        found = set(regex.findall(r"\{(\w*)\}", text))
        if found - set(names) or not found:
            raise CardError(f"{where}.{key}: use {' and '.join(f'{{{name}}}' for name in names)}, got {text!r:.120}")


def known(name: str, names: Any, where: str) -> None:
    """Raises a CardError if a name is none of those that exist."""
    if name not in names:
        raise CardError(f"{where}: got {name!r}{did_you_mean(name, names)}")
