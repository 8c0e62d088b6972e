"""Safe YAML reader for cards, recipes and the front matter of documents, with limits on size and depth.

A few hundred bytes of YAML with nested aliases can expand to gigabytes, so anchors and aliases are refused, as are long
texts, deep nesting and repeated keys.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from searchgym.errors import CardError
from searchgym.reading import read_bytes

MAX_CHARS: Final = 1 << 18
"""Maximum length of a YAML text, in characters, and of a YAML file, in bytes."""
MAX_DEPTH: Final = 50
"""Maximum depth of nested lists and mappings."""
MAX_DIGITS: Final = 1000
"""Maximum length of a number, in characters."""
_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class _Loader(yaml.SafeLoader):
    """YAML loader that refuses anchors, aliases, deep nesting, very long numbers and repeated keys."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = cast(Any, self).peek_event()
        if event.anchor is not None:
            raise ComposerError(
                None, None, "anchors (&) and aliases (*) are refused: write the value out", event.start_mark
            )
        if self._depth > MAX_DEPTH:
            raise ComposerError(None, None, f"more than {MAX_DEPTH} nested levels", event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """Returns the tag of a node; ``12:30:45`` is text, as in YAML 1.2, not a base-60 number as in YAML 1.1."""
        tag = str(cast(Any, super()).resolve(kind, value, implicit))
        return "tag:yaml.org,2002:str" if tag in _NUMBERS and ":" in value else tag

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        text = super().construct_scalar(node)
        if node.tag in _NUMBERS and ":" in text:
            raise ConstructorError(None, None, f"{text!r:.40} is not a number", node.start_mark)
        if node.tag in _NUMBERS and len(text) > MAX_DIGITS:
            reason = f"Exceeds the limit of {MAX_DIGITS:,} digits of a number: {text!r:.40}"
            raise ConstructorError(None, None, reason, node.start_mark)
        return text

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=deep)
            if not isinstance(name, Hashable):  # refused below
                continue
            if name in seen:
                raise ConstructorError(None, None, f"key {name!r:.80} occurs twice", node.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


# Makes ``1e-4`` a number, as in YAML 1.2; under YAML 1.1, which PyYAML implements, it would be text.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


class Source(NamedTuple):
    """Origin of plain data, for error messages: a file with the line of each key, or a description."""

    name: str
    lines: Mapping[tuple[Any, ...], int | str] = {}
    """Path of keys to the line number in the file, or to the text of the override that set the value."""

    def at(self, path: tuple[Any, ...]) -> str:
        """Returns ``FILE:LINE`` of a value, or of the innermost enclosing section with a known line."""
        line = next((self.lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in self.lines), None)
        return line if isinstance(line, str) else self.name if line is None else f"{self.name}:{line}"


def parse_yaml(text: str, where: str) -> Any:
    """Parses a YAML text to plain data; see `parse_source`."""
    return parse_source(text, where)[0]


def parse_source(text: str, where: str) -> tuple[Any, Source]:
    """Parses a YAML text to plain data, and the line of each key.

    Args:
        text: The text.
        where: File or other origin of the text, for error messages.

    Raises:
        CardError: The text is not YAML, too long, too deep, or has an anchor, an alias or a repeated key.
    """
    if len(text) > MAX_CHARS:
        raise CardError(f"{where}: cannot be read as YAML: more than {MAX_CHARS:,} characters")
    try:
        loader: Any = _Loader(text)  # safe: a SafeLoader
        node = loader.get_single_node()
        data = None if node is None else loader.construct_document(node)
        return data, Source(where, {} if node is None else dict(_lines(loader, node, (), node)))
    # the other types come from invalid dates, characters, numbers and truth values, some of which PyYAML does not check
    except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as error:
        raise CardError(f"{where}: cannot be read as YAML: {error}") from error


def _lines(loader: Any, node: Any, path: tuple[Any, ...], key: Any) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yields the path of each value below a node with the line of its key."""
    yield path, key.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from _lines(loader, value, (*path, loader.construct_object(name)), name)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield from _lines(loader, value, (*path, number), value)


def read_yaml(path: Path) -> Any:
    """Reads a YAML file as plain data; see `read_source`."""
    return read_source(path)[0]


def read_source(path: Path) -> tuple[Any, Source]:
    """Reads a YAML file; see `parse_source` for the result.

    Raises:
        CardError: The file cannot be read, or its text is not accepted.
    """
    try:
        return parse_source(read_small(path), str(path))
    except (OSError, ValueError) as error:
        raise CardError(f"{path}: cannot be read as YAML: {error}") from error


def read_small(path: Path) -> str:
    """Returns the text of a hand-written file of at most `MAX_CHARS` bytes, without a byte order mark.

    Raises:
        OSError: The file cannot be read, or is a pipe or a device.
        ValueError: The file has more than `MAX_CHARS` bytes, or is not UTF-8.
    """
    return read_bytes(path, MAX_CHARS).decode("utf-8-sig")
