"""Counts over the syntax trees of a package: lines of code, helpers with one caller, class names, docstrings.

A package is given as its files by their path below the package's folder (``train/run/trainer.py``).
"""

from __future__ import annotations

import ast
import functools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

Trees = Mapping[str, ast.Module]
"""Syntax tree of each file, by its path below the package."""
RECORD = "run.json"
"""File that marks a run folder."""
LONG = 300
"""Lines above which a file counts as long."""
SHORT = 4
"""Maximum lines of a short function."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.Module | ast.ClassDef | Function


@functools.cache
def parse(text: str) -> ast.Module:
    """Returns the syntax tree of a file's text; equal texts share one tree, which nobody may change."""
    return ast.parse(text)


@functools.cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Returns every node of a file's tree."""
    return tuple(ast.walk(tree))


def is_text(statement: ast.stmt) -> bool:
    """Returns whether a statement is a string alone, as a docstring is."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def docstring_lines(tree: ast.Module) -> set[int]:
    """Returns the numbers of the lines of docstrings.

    Docstrings are strings alone in the body of a module or class (a field's too), and at the top of a function.
    """
    lines: set[int] = set()
    for node in nodes(tree):
        if isinstance(node, Scope):
            body = node.body[:1] if isinstance(node, Function) else node.body
            for statement in filter(is_text, body):
                lines.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return lines


def code_lines(text: str) -> int:
    """Returns the number of lines of a file that are neither blank nor comments nor in docstrings."""
    documentation = docstring_lines(parse(text))
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in documentation
        for number, line in enumerate(text.splitlines(), start=1)
    )


def function_lines(file: Path) -> Iterator[int]:
    """Yields the lines of each function of a file, decorators and docstring included."""
    for node in nodes(parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield (node.end_lineno or first) - first + 1


def line_count(file: Path) -> int:
    """Returns the lines of a file."""
    return len(file.read_text(encoding="utf-8").splitlines())


def spread(values: Iterable[int]) -> dict[str, float]:
    """Returns count, median, 95th percentile and maximum."""
    ordered = sorted(values)
    p95 = ordered[max(0, -(-len(ordered) * 95 // 100) - 1)]
    return {"n": len(ordered), "median": statistics.median(ordered), "p95": p95, "max": ordered[-1]}


def size_counts(package: Path) -> dict[str, int]:
    """Returns numbers of packages, files and lines; a package is a folder with Python files below the package."""
    texts = [file.read_text(encoding="utf-8") for file in package.rglob("*.py")]
    folders = {file.parent for file in package.rglob("*.py")} - {package}
    lines = [len(text.splitlines()) for text in texts]
    return {
        "packages directly below": sum(folder.parent == package for folder in folders),
        "packages at any depth": len(folders),
        "modules directly below": sum(file.stem[-2:] != "__" for file in package.glob("*.py")),
        "files": len(texts),
        f"files over {LONG} lines": sum(n > LONG for n in lines),
        "lines": sum(lines),
        "lines of code without blanks, comments and docstrings": sum(map(code_lines, texts)),
    }


class Helper(NamedTuple):
    """A private function or method."""

    file: str
    name: str
    uses: int
    """Number of times that its file uses its name: nearly always calls."""
    recursive: bool
    """Whether one of these is in its own body."""
    body: int
    """Number of lines of its body, without signature and docstring."""
    lines: int
    """Number of its lines, signature and docstring included, decorators not."""


def references(node: ast.AST) -> Counter[str]:
    """Returns how often each name or attribute is used in a tree."""
    names: Counter[str] = Counter()
    for inner in nodes(node) if isinstance(node, ast.Module) else ast.walk(node):
        if isinstance(inner, ast.Name):
            names[inner.id] += 1
        elif isinstance(inner, ast.Attribute):
            names[inner.attr] += 1
    return names


def body_lines(function: Function) -> int:
    """Returns the number of lines of a function's body, without its docstring."""
    body = function.body[1:] if is_text(function.body[0]) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def helpers(trees: Trees) -> list[Helper]:
    """Returns the private functions and methods, nested ones too; names such as ``__init__`` are not private.

    Uses are counted by name, so that two methods of one name in a file share theirs.
    """
    found = []
    for file, tree in trees.items():
        used = references(tree)
        for node in nodes(tree):
            if isinstance(node, Function) and node.name.startswith("_") and not node.name.startswith("__"):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                recursive = node.name in references(node)
                found.append(Helper(file, node.name, used[node.name], recursive, body_lines(node), lines))
    return found


def used_once(functions: Iterable[Helper]) -> list[Helper]:
    """Returns the functions with a single use outside themselves, which could be inlined."""
    return [function for function in functions if function.uses == 1 and not function.recursive]


def shared_class_names(trees: Trees) -> dict[str, list[str]]:
    """Returns the class names that two or more files define, with these files."""
    files: dict[str, set[str]] = defaultdict(set)
    for file, tree in trees.items():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef):
                files[node.name].add(file)
    return {name: sorted(several) for name, several in sorted(files.items()) if len(several) > 1}


def documented(trees: Trees) -> Iterator[tuple[str, bool]]:
    """Yields (name, has a docstring) for each public module, class, function and method.

    Functions in functions are not public. Methods marked ``@override`` or ``@overload`` are left out: their docstring
    is that of the method that they stand for.
    """
    for file, tree in trees.items():
        if not file.rpartition("/")[2].startswith("_") or file.endswith("__.py"):
            yield file, ast.get_docstring(tree) is not None
        yield from _documented_in(tree.body, file)


def _documented_in(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, bool]]:
    """Yields (name, has a docstring) for the public classes and functions of a module's or class's body."""
    for statement in body:
        if isinstance(statement, (ast.If, ast.Try)):
            yield from _documented_in([*statement.body, *statement.orelse], prefix)
        if not isinstance(statement, ast.ClassDef | Function) or statement.name.startswith("_"):
            continue
        marks = {ast.unparse(mark).rpartition(".")[2] for mark in statement.decorator_list}
        name = f"{prefix}: {statement.name}"
        if not marks & {"override", "overload"}:
            yield name, ast.get_docstring(statement) is not None
        if isinstance(statement, ast.ClassDef):
            yield from _documented_in(statement.body, name)


def spells(trees: Trees, text: str) -> list[str]:
    """Returns the files with a string constant that is a text, or a path that ends in it."""
    return sorted(
        file
        for file, tree in trees.items()
        if any(isinstance(node, ast.Constant) and _names(node.value, text) for node in nodes(tree))
    )


def _names(value: object, text: str) -> bool:
    """Returns whether a constant is a text, or a path that ends in it."""
    return isinstance(value, str) and (value == text or value.endswith(f"/{text}"))


def imports_constant(trees: Trees, text: str) -> list[str]:
    """Returns the files that import a constant of the package that holds a text."""
    constants = [(f".{module_of(file)}", name) for file, tree in trees.items() for name in _constants(tree, text)]
    found = set()
    for file, tree in trees.items():
        for node in nodes(tree):
            if isinstance(node, ast.ImportFrom):
                names = {name for module, name in constants if f".{node.module}".endswith(module)}
                found |= {file} if names & {alias.name for alias in node.names} else set()
    return sorted(found)


def _constants(tree: ast.Module, text: str) -> Iterator[str]:
    """Yields the names of a module's constants that hold a text."""
    for statement in tree.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and isinstance(statement.value, ast.Constant):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if statement.value.value == text:
                yield from map(ast.unparse, targets)


def module_of(file: str) -> str:
    """Returns the dotted name of a file below its package."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def name_counts(trees: Trees) -> dict[str, int]:
    """Returns the numbers of helpers, class names, docstrings and files that name `RECORD`."""
    private = helpers(trees)
    once = used_once(private)
    public = [has for _, has in documented(trees)]
    return {
        "private functions and methods": len(private),
        "private functions used in one place": len(once),
        f"of these, body of at most {SHORT} lines": sum(function.body <= SHORT for function in once),
        f"of these, at most {SHORT} lines with signature and docstring": sum(f.lines <= SHORT for f in once),
        "class names in two or more files": len(shared_class_names(trees)),
        "public modules, classes, functions and methods": len(public),
        "of these, with a docstring": sum(public),
        f"files that spell {RECORD}": len(spells(trees, RECORD)),
        f"files that import a constant for {RECORD}": len(imports_constant(trees, RECORD)),
    }
