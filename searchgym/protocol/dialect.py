"""Dialects: spellings of tool calls by family of models, one YAML file each, and their detection in chat templates.

A new dialect with an existing notation (see `searchgym.protocol.notations`) needs one YAML file. Files in
``searchgym/protocol/dialects`` are selected by name, others by path.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from searchgym.errors import CardError, UnknownNameError
from searchgym.options import Options, read
from searchgym.options.cards import is_path
from searchgym.options.yaml import read_source

FOLDER: Final = Path(__file__).parent / "dialects"
"""Folder of the shipped dialects."""
AUTO: Final = "auto"
"""Name that selects the dialect by the model's chat template; see `detect`."""
DEFAULT: Final = "hermes"
"""Name of the default dialect."""
_BARE: Final = r"""(?:\[\s*+)?\{\s*+['"](?:name|type|function|arguments|parameters)['"]\s*:"""
"""Matches the beginning of a JSON call without an opening marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect(Options):
    """One way to spell tool calls: its markers, the notation between them, and how results are shown."""

    name: str
    summary: str
    """One sentence on its look, and the models that use it."""
    source: str
    """Public description, such as a URL."""
    notation: Literal["json", "xml", "python"]
    """Notation of the text between the markers; see `searchgym.protocol.notations`."""
    openings: tuple[str, ...]
    """Markers that open a call."""
    separator: str = ""
    """Marker between a tool's name and the JSON of its arguments, for dialects with the name outside the JSON."""
    optional_separator: bool = False
    """Whether the separator may be missing."""
    closing: str = ""
    """Marker after a call; empty if only the end of the turn follows. A call is complete without it."""
    stop: bool = True
    """Whether the closing marker is a stop string; False if it is the end-of-turn token or looks like an opening
    marker."""
    bare: bool = False
    """Whether JSON without an opening marker also counts as a call, if its first key is a key of calls."""
    arguments: str = "arguments"
    """Key of the arguments in JSON; both ``arguments`` and ``parameters`` are read."""
    call: str
    """Template of a call with the placeholders ``{name}`` and ``{arguments}``."""
    result: tuple[str, str]
    """Markers around retrieved text."""
    clues: tuple[tuple[str, ...], ...] = ()
    """Sets of texts; a chat template that contains all texts of any set uses this dialect."""

    def problems(self) -> Iterable[str]:
        """Yields a sentence for each contradiction between fields."""
        if not self.openings or "" in self.openings:
            yield "openings: name the markers that open a call, none of them empty"
        if any(field not in self.call for field in ("{name}", "{arguments}")):
            yield "call: {name} and {arguments} must stand in it"

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end a response after a call; none if the model ends its turn by a token."""
        return (self.closing,) if self.closing and self.stop else ()

    @property
    def marks(self) -> tuple[str, ...]:
        """Markers that an answer must not contain."""
        return (*self.openings, *self.stops)

    def show(self, name: str, arguments: str) -> str:
        """Writes a call from the tool's name and its arguments, already in the dialect's notation."""
        before, _, after = self.call.partition("{name}")
        return f"{before}{name}{after.replace('{arguments}', arguments, 1)}"


@functools.cache
def opening_pattern(dialect: Dialect) -> re.Pattern[str]:
    """Returns a pattern that matches every opening of a call in a dialect."""
    markers = "|".join(map(re.escape, sorted(dialect.openings, key=len, reverse=True)))
    return re.compile(f"(?P<marker>{markers})" + f"|{_BARE}" * dialect.bare)


@functools.cache
def list_dialects() -> tuple[str, ...]:
    """Returns the names of the shipped dialects."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


@functools.cache
def load_dialect(name: str) -> Dialect:
    """Loads a dialect by its name, or by the path of its YAML file.

    Raises:
        UnknownNameError: There is no such dialect; the most similar name is suggested.
        CardError: The file cannot be read as a dialect.
    """
    if name in list_dialects():
        path = FOLDER / f"{name}.yaml"
    elif is_path(name):
        path = Path(name)
    else:
        raise UnknownNameError("dialect", name, list_dialects())
    dialect = read(Dialect, *read_source(path))
    if path.stem != dialect.name:
        raise CardError(f"{path}: name is {dialect.name!r}: name the file as the dialect")
    return dialect


def _matches(template: str) -> dict[str, tuple[str, ...]]:
    """Returns the dialects with clues in a chat template, each with its largest matching set of clues."""
    matches: dict[str, tuple[str, ...]] = {}
    for name in list_dialects():
        sets = [clues for clues in load_dialect(name).clues if all(clue in template for clue in clues)]
        if sets:
            matches[name] = max(sets, key=len)
    return matches


def detect(template: str) -> tuple[str, str]:
    """Detects the dialect of a model from its chat template.

    The dialect with the most clues in the template wins; ties go to the one whose clue comes first.

    Args:
        template: Text of the chat template; empty for a model without one.

    Returns:
        (name, why): the dialect and the reason, as a clause.
    """
    matches = _matches(template)
    if not matches:
        return DEFAULT, f"the chat template shows no dialect, so calls are written as {DEFAULT}'s, the default"
    name = min(matches, key=lambda name: (-len(matches[name]), min(map(template.index, matches[name]))))
    return name, f"the chat template holds {' and '.join(matches[name])}, as those of {name} do"


def check(dialect: str, template: str) -> str:
    """Returns an error text if a chat template uses another dialect and not this one; otherwise an empty text."""
    matches = _matches(template)
    name, why = detect(template)
    if not matches or (dialect in matches and not set(matches[dialect]) < set(matches[name])):
        return ""
    return f"dialect {dialect!r} is not the model's: {why}; choose dialect {name!r} or {AUTO!r}"
