"""The options of a recipe, read from its dataclasses and files without importing the package.

The options are the annotated fields of the class `ROOT` and of the classes that its fields are annotated with. A field
of any other type, a list or mapping of such classes too, is one option, and so is a kind: a class with ``kinds_in``.
Bases are followed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from structure_code import Trees, module_of

ROOT = "Recipe"
"""Class whose fields are the options of a recipe."""
Class = tuple[str, ast.ClassDef]
"""File and definition of a class."""


def find_class(trees: Trees, file: str, name: str) -> Class | None:
    """Returns the class that a name means in a file; None if the package defines no such class, or it is not clear."""
    known = [
        (other, node)
        for other, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    if len(known) > 1:
        sources = {f".{node.module}" for node in ast.walk(trees[file]) if isinstance(node, ast.ImportFrom)}
        beside = [(other, node) for other, node in known if other == file]
        known = beside or [
            (other, node) for other, node in known if any(s.endswith(f".{module_of(other)}") for s in sources)
        ]
    return known[0] if len(known) == 1 else None


def fields(trees: Trees, of: Class) -> Iterator[tuple[str, ast.AnnAssign]]:
    """Yields (file, field) for the public annotated fields of a class; those of its bases come first."""
    file, definition = of
    for base in definition.bases:
        if isinstance(base, ast.Name) and (above := find_class(trees, file, base.id)):
            yield from fields(trees, above)
    for statement in definition.body:
        if not isinstance(statement, ast.AnnAssign) or "ClassVar" in ast.unparse(statement.annotation):
            continue
        if not ast.unparse(statement.target).startswith("_"):
            yield file, statement


def section_of(trees: Trees, file: str, annotation: ast.expr) -> Class | None:
    """Returns the class with fields that an annotation names, alone or beside None; None for any other annotation."""
    text = ast.unparse(annotation).strip("'\"").removesuffix("| None").strip()
    text = match[1] if (match := re.fullmatch(r"(?:\w+\.)?Annotated\[(\w+),.*\]", text)) else text
    section = find_class(trees, file, text) if text.isidentifier() else None
    kind = section is not None and "kinds_in" in map(assigned, section[1].body)
    return section if section and not kind and any(fields(trees, section)) else None


def assigned(statement: ast.stmt) -> str:
    """Returns the name that an annotated assignment assigns; empty for any other statement."""
    return ast.unparse(statement.target) if isinstance(statement, ast.AnnAssign) else ""


def default_of(value: ast.expr | None) -> ast.expr | None:
    """Returns the expression of a field's default; of ``field(default_factory=lambda: x)`` it is ``x``."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2].lower() == "field":
        given = [word.value for word in value.keywords if word.arg in ("default", "default_factory")]
        value = next(iter([*given, *value.args]), None)
    return value.body if isinstance(value, ast.Lambda) else value


def options(trees: Trees, of: Class, prefix: str = "", given: Mapping[str, ast.expr] | None = None) -> dict[str, Any]:
    """Returns the default of each option below a class, by the option's dotted name.

    Args:
        trees: The package.
        of: Class whose options are listed.
        prefix: Prefix of the dotted names.
        given: Values that replace the defaults of the class, by the name of the field.
    """
    found: dict[str, Any] = {}
    for file, statement in fields(trees, of):
        name = ast.unparse(statement.target)
        default = (given or {}).get(name) or default_of(statement.value)
        section = section_of(trees, file, statement.annotation)
        if section is None:
            found[prefix + name] = value_of(default)
        else:
            words = default.keywords if isinstance(default, ast.Call) else []
            inner = {word.arg: word.value for word in words if word.arg}
            found |= options(trees, section, f"{prefix}{name}.", inner)
    return found


def value_of(expression: ast.expr | None) -> Any:
    """Returns the value of a default; the text of one that is not a literal, None for none."""
    if expression is None:
        return None
    text = ast.unparse(expression)
    try:
        return {"list": [], "dict": {}}[text] if text in ("list", "dict") else ast.literal_eval(expression)
    except ValueError:
        return text


def settings(data: Mapping[str, Any], known: Iterable[str], prefix: str = "") -> dict[str, Any]:
    """Returns the options that a recipe sets, by their dotted names.

    Raises:
        ValueError: It sets something that is no option.
    """
    found: dict[str, Any] = {}
    for key, value in data.items():
        if prefix + key in known:
            found[prefix + key] = value
        elif isinstance(value, dict) and any(name.startswith(f"{prefix}{key}.") for name in known):
            found |= settings(value, known, f"{prefix}{key}.")
        else:
            raise ValueError(f"{prefix}{key} is no option of {ROOT}")
    return found


def comparable(value: Any) -> str:
    """Returns a text that is equal for equal values of an option: 1, 1.0 and "1" are equal."""
    if isinstance(value, dict):
        return str({str(key): comparable(inner) for key, inner in value.items()})
    if isinstance(value, (list, tuple)):
        return str([comparable(inner) for inner in value])
    try:
        return str(value if isinstance(value, bool) else float(value))
    except (TypeError, ValueError):
        return str(value)


def words_of(folder: Path) -> set[str]:
    """Returns every word in the Python files of a folder."""
    return {word for file in folder.rglob("*.py") for word in re.findall(r"\w+", file.read_text(encoding="utf-8"))}


def option_counts(trees: Trees, recipes: Path, tests: Path) -> dict[str, list[str]]:
    """Returns the names of all options, and of those that nothing varies.

    Args:
        trees: The package.
        recipes: Folder of the shipped recipes; those in folders below it are not read.
        tests: Folder of the tests.

    Returns:
        The names by what they are: recipes that were read; options; those whose value is the same in all recipes, set
        or by default; those that no recipe sets; and of these, those that no test sets either: their last name is no
        word in the Python files of the tests. The last is a lower bound, since a name such as ``every`` is one anyway.
    """
    root = find_class(trees, "", ROOT)
    defaults = options(trees, root) if root else {}
    files = sorted(recipes.glob("*.yaml"))
    shipped = [settings(yaml.safe_load(file.read_text(encoding="utf-8")), defaults) for file in files]
    unset = [key for key in defaults if not any(key in recipe for recipe in shipped)]
    tested = words_of(tests)
    return {
        "recipes": [file.name for file in files],
        "options": list(defaults),
        "options with one value in all recipes": [
            key
            for key, default in defaults.items()
            if len({comparable(recipe.get(key, default)) for recipe in shipped}) < 2
        ],
        "options in no recipe": unset,
        "options in no recipe or test": [key for key in unset if key.rpartition(".")[2] not in tested],
    }
