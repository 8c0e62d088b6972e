"""Descriptions of options for people: the name, type, default and meaning of each field of a class."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Union

import yaml
from annotated_types import Ge, Gt, Interval, Le, Lt

from searchgym.options.kinds import find_kind, kinds
from searchgym.options.read import Kind, Named, plain

WORDS: Final = {int: "integer", float: "number", str: "text", bool: "true or false", type(None): "null", Any: "any"}
"""Python's types in YAML's words."""
BOUNDS: Final = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))


@dataclass(frozen=True, slots=True)
class OptionDescription:
    """Description of one option, for the generated reference and the command line."""

    name: str
    """Dotted name, such as ``optimizer.lr``."""
    type: str
    """Accepted values, in YAML's words: ``integer >= 1``."""
    default: str
    """Default as YAML; ``required`` if there is none."""
    kind: str
    """Kinds that have the option, such as ``deepspeed``; empty if all have it."""
    text: str
    """Meaning of the option, in one sentence."""


def described(cls: Any, prefix: str = "") -> Iterator[OptionDescription]:
    """Yields descriptions of the options of a class, including those of its sections and of each shipped kind.

    Args:
        cls: A dataclass of options.
        prefix: Beginning of the dotted name of every option.
    """
    texts, hints = field_texts(cls), typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        name, hint = prefix + field.name, hints[field.name]
        inner = [each for each in _leaves(hint) if isinstance(each, type) and dataclasses.is_dataclass(each)]
        bases = [each for each in inner if issubclass(each, Kind)]
        if inner and not bases and typing.get_origin(hint) is not dict:
            if type(None) in typing.get_args(hint):
                yield OptionDescription(name, "its options or null", default_text(field), "", texts.get(field.name, ""))
            yield from described(inner[0], f"{name}.")
            continue
        yield OptionDescription(name, type_text(hint), default_text(field), "", texts.get(field.name, ""))
        if bases and typing.get_origin(hint) is not Named:
            yield from _of_kinds(bases[0], f"{name}.")
        elif inner and not bases:
            yield from described(inner[0], f"{name}.NAME.")


def _of_kinds(base: type[Kind], prefix: str) -> Iterator[OptionDescription]:
    """Yields the options of every kind of a base; an option that several kinds share is yielded once."""
    names = list(kinds(base))
    having: dict[OptionDescription, list[str]] = {}
    for name in names:
        for option in described(find_kind(base, name), prefix):
            having.setdefault(option, []).append(name)
    for option, some in having.items():
        yield dataclasses.replace(option, kind=option.kind if some == names else ", ".join(some))


def summary(cls: type) -> str:
    """Returns the first sentence of a class's docstring."""
    return first_sentence(inspect.getdoc(cls) or "")


def first_sentence(text: str) -> str:
    """Returns the first sentence of a docstring as plain text in one line."""
    line = " ".join(text.split("\n\n")[0].split()).replace("`", "")
    end = next((at for at in range(len(line)) if line.startswith(". ", at) and line[at + 2 :][:1].isupper()), None)
    return line if end is None else line[: end + 1]


def field_texts(cls: type) -> dict[str, str]:
    """Returns the first sentence of the docstring under each field of a dataclass, including inherited fields."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        body = typing.cast(ast.ClassDef, tree).body
        for node, after in itertools.pairwise(body):
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                texts[ast.unparse(node.target)] = first_sentence(inspect.cleandoc(str(after.value.value)))
    return texts


def default_text(field: dataclasses.Field[Any]) -> str:
    """Returns the default of a field as YAML in one line; for a kind, only its name."""
    if field.default is not dataclasses.MISSING:
        value = plain(field.default)
    elif field.default_factory is not dataclasses.MISSING:
        value = plain(field.default_factory())
    else:
        return "required"
    if isinstance(value, dict) and "kind" in value:
        return str(value["kind"])
    if isinstance(value, dict) and value:  # kinds by name
        value = list(value)
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()


def type_text(hint: Any) -> str:
    """Returns a type in YAML's words, such as ``list of integer``."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return " ".join([type_text(inner[0]), *map(_bounds, inner[1:])]).strip()
    if origin in (Union, types.UnionType):
        return " or ".join(map(type_text, inner))
    if origin is Literal:
        return " or ".join(map(str, inner))
    if origin is list:
        return f"list of {type_text(inner[0])}"
    if origin is tuple:
        return f"[{', '.join('...' if each is ... else type_text(each) for each in inner)}]"
    if isinstance(hint, type) and issubclass(hint, Kind):
        return "kind " + " or ".join(kinds(hint))
    return (
        "mapping" if origin in (dict, Named) or hint is dict else WORDS.get(hint, getattr(hint, "__name__", str(hint)))
    )


def _bounds(mark: Any) -> str:
    """Returns the bounds in an annotation as text, such as ``>= 1``; empty if it holds none."""
    if not isinstance(mark, (Ge, Gt, Le, Lt, Interval)):
        return ""
    values = [(sign, getattr(mark, name, None)) for name, sign in BOUNDS]
    return " and ".join(f"{sign} {value}" for sign, value in values if value is not None)


def _leaves(hint: Any) -> Iterator[Any]:
    """Yields the innermost types of a hint, such as ``int`` and ``str`` of ``dict[str, int]``."""
    inner = typing.get_args(hint)
    if not inner:
        yield hint
    for each in inner:
        yield from _leaves(each)
