"""Dialects: how the models of a family spell tool calls, one YAML file each, and which one a chat template shows.

A dialect of a known notation (see `searchgym.protocol.calls`) is one file: in ``searchgym/protocol/dialects`` it is
found by its name, anywhere else by its path.
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
"""Folder of the dialects that ship."""
AUTO: Final = "auto"
"""Name that stands for the dialect of the model's chat template; see `detect`."""
DEFAULT: Final = "hermes"
"""Dialect where nothing else is asked for."""
_BARE: Final = r"""(?:\[\s*+)?\{\s*+['"](?:name|type|function|arguments|parameters)['"]\s*:"""
"""Pattern of the beginning of a call in JSON that no marker opens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect(Options):
    """One way to spell tool calls: its markers, the notation between them, and how results are shown."""

    name: str
    summary: str
    """What it looks like, and which models write it."""
    source: str
    """Where it is described in public."""
    notation: Literal["json", "xml", "python"]
    """What stands between the markers; see `searchgym.protocol.calls`."""
    openings: tuple[str, ...]
    """Markers that open a call."""
    separator: str = ""
    """Marker between a tool's name and the JSON of its arguments, where the name may stand outside the JSON."""
    optional_separator: bool = False
    """Whether the separator may be missing."""
    closing: str = ""
    """Marker after a call; empty where only the end of the turn comes after it. A call is complete without."""
    stop: bool = True
    """Whether the closing marker ends a response as a stop string; false where it is a token that ends the turn, or
    looks like an opening one."""
    bare: bool = False
    """Whether JSON without a marker is a call, too, if its first key is one of a call's."""
    arguments: str = "arguments"
    """Key of the arguments in JSON; the reader takes ``arguments`` and ``parameters`` alike."""
    call: str
    """Text of a call; ``{name}`` and ``{arguments}`` in it stand for the tool and its arguments."""
    result: tuple[str, str]
    """Markers around retrieved text."""
    clues: tuple[tuple[str, ...], ...] = ()
    """Sets of texts: a chat template that holds all texts of a set is one of this dialect."""

    def problems(self) -> Iterable[str]:
        """Yields a sentence for each contradiction between fields."""
        if not self.openings or "" in self.openings:
            yield "openings: name the markers that open a call, none of them empty"
        if any(place not in self.call for place in ("{name}", "{arguments}")):
            yield "call: {name} and {arguments} must stand in it"

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end a response after a call; none where the model ends its turn itself."""
        return (self.closing,) if self.closing and self.stop else ()

    @property
    def marks(self) -> tuple[str, ...]:
        """Markers that no answer may hold."""
        return (*self.openings, *self.stops)

    def show(self, name: str, arguments: str) -> str:
        """Returns the text of a call, given the tool's name and its arguments in the dialect's notation."""
        before, _, after = self.call.partition("{name}")
        return f"{before}{name}{after.replace('{arguments}', arguments, 1)}"


@functools.cache
def opening_pattern(dialect: Dialect) -> re.Pattern[str]:
    """Returns the pattern of everything that opens a call in a dialect."""
    markers = "|".join(map(re.escape, sorted(dialect.openings, key=len, reverse=True)))
    return re.compile(f"(?P<marker>{markers})" + f"|{_BARE}" * dialect.bare)


@functools.cache
def list_dialects() -> tuple[str, ...]:
    """Returns the names of the dialects that ship."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


@functools.cache
def load_dialect(name: str) -> Dialect:
    """Returns a dialect by its name, or by the path of its YAML file.

    Raises:
        UnknownNameError: There is no such dialect; the nearest is suggested.
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


def _shown(template: str) -> dict[str, tuple[str, ...]]:
    """Returns the dialects that a chat template shows, each with its largest set of clues there."""
    shown: dict[str, tuple[str, ...]] = {}
    for name in list_dialects():
        sets = [clues for clues in load_dialect(name).clues if all(clue in template for clue in clues)]
        if sets:
            shown[name] = max(sets, key=len)
    return shown


def detect(template: str) -> tuple[str, str]:
    """Reads the dialect of a model off its chat template.

    The dialect with the most clues in the template is taken; of two with equally many, the one that it names first.

    Args:
        template: Text of the chat template; empty for a model without one.

    Returns:
        (name, why): the dialect, and the reason in one sentence.
    """
    shown = _shown(template)
    if not shown:
        return DEFAULT, f"the chat template shows no dialect, so calls are written as {DEFAULT}'s, the default"
    name = min(shown, key=lambda name: (-len(shown[name]), min(map(template.index, shown[name]))))
    return name, f"the chat template holds {' and '.join(shown[name])}, as those of {name} do"


def check(dialect: str, template: str) -> str:
    """Returns why a chat template contradicts a dialect: it shows another one, and not this; empty if it does not."""
    shown = _shown(template)
    name, why = detect(template)
    if not shown or (dialect in shown and not set(shown[dialect]) < set(shown[name])):
        return ""
    return f"dialect {dialect!r} is not the model's: {why}; choose dialect {name!r} or {AUTO!r}"
