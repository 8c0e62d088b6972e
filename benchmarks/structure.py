"""The structure of a package: files and lines by room, floors, imports between rooms, circles, sizes of functions.

    python benchmarks/structure.py [PACKAGE]

A room is a package folder. Its ``__init__.py`` and ``__main__.py`` stand apart, since they hand on what is inside. All
imports count: in functions and under ``TYPE_CHECKING`` too. The floor of a room is the longest chain of
rooms below it; rooms that import each other, round any number of corners, share one. A package and one inside it may
import each other: such pairs are not listed.
"""

from __future__ import annotations

import argparse
import ast
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from searchgym.cli.output import emit, emit_rows

Edges = Mapping[str, Iterable[str]]


def modules(package: Path) -> dict[str, Path]:
    """Returns the file of each module of a package, by its dotted name."""
    found = {}
    for file in sorted(package.rglob("*.py")):
        parts = [package.name, *file.relative_to(package).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports(module: str, file: Path, known: Mapping[str, Path]) -> Iterator[tuple[int, str]]:
    """Yields (line, module) for each import of one of the known modules; an unknown one of their package too."""
    parents = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    top = module.split(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [(alias.name, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = parents[: len(parents) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            names = [(f"{base}.{alias.name}", base) for alias in node.names]
        else:
            continue
        for name, base in names:
            target = name if name in known else base
            if target.split(".")[0] == top and target != module:
                yield node.lineno, target


def graph(package: Path) -> dict[str, set[str]]:
    """Returns the modules that each module of a package imports."""
    known = modules(package)
    return {name: {target for _, target in imports(name, file, known)} & known.keys() for name, file in known.items()}


def full_name(module: str, known: Mapping[str, Path]) -> str:
    """Returns the dotted name of a module's file: a package's own is ``PACKAGE.__init__``."""
    return f"{module}.__init__" if known[module].name == "__init__.py" else module


def room_of(module: str, known: Mapping[str, Path]) -> str:
    """Returns the package that a module stands in; ``__init__`` and ``__main__`` of a package stand alone."""
    name = full_name(module, known)
    return name if name.endswith("__") else name.rpartition(".")[0]


def rooms(edges: Edges, known: Mapping[str, Path]) -> dict[str, set[str]]:
    """Returns the rooms that each room imports from."""
    found: dict[str, set[str]] = {room_of(name, known): set() for name in known}
    for name, targets in edges.items():
        own = room_of(name, known)
        found[own] |= {room_of(target, known) for target in targets} - {own}
    return found


def reachable(edges: Edges) -> dict[str, set[str]]:
    """Returns everything that each node leads to, itself if there is a way back."""
    found = {}
    for node in edges:
        seen: set[str] = set()
        todo = list(edges[node])
        while todo:
            if (target := todo.pop()) not in seen:
                seen.add(target)
                todo += edges.get(target, ())
        found[node] = seen
    return found


def circles(edges: Edges) -> list[list[str]]:
    """Returns the groups of nodes of which each leads to each other: the strongly connected components of several."""
    far = reachable(edges)
    groups = {tuple(sorted(m for m in far[node] if node in far.get(m, ()))) for node in far if node in far[node]}
    return sorted(list(group) for group in groups if len(group) > 1)


def mutual(edges: Edges) -> list[tuple[str, str]]:
    """Returns the pairs of packages that import each other, but not a package and one inside it."""
    pairs = {(min(a, b), max(a, b)) for a, targets in edges.items() for b in targets if a in edges.get(b, ())}
    return sorted((a, b) for a, b in pairs if not b.startswith(f"{a}."))


def floors(edges: Edges) -> dict[str, int]:
    """Returns the floor of each node: 0 for those that import no other."""
    far = reachable(edges)
    return {node: _height(node, far, {}) for node in edges}


def _height(node: str, far: Mapping[str, set[str]], known: dict[str, int]) -> int:
    """Returns the longest chain below a node, where nodes in one circle are one."""
    if node not in known:
        below = [target for target in far[node] if node not in far[target]]
        known[node] = max((_height(target, far, known) + 1 for target in below), default=0)
    return known[node]


def function_lines(file: Path) -> Iterator[int]:
    """Yields the lines of each function of a file, decorators and docstring included."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
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


def measure(package: Path) -> dict[str, Any]:
    """Returns every number of a package."""
    known, edges = modules(package), graph(package)
    between = rooms(edges, known)
    height = floors(between)
    files = Counter(room_of(name, known) for name in known)
    lines: Counter[str] = Counter()
    for name, file in known.items():
        lines[room_of(name, known)] += line_count(file)
    return {
        "rooms": [
            {"room": room, "floor": height[room], "files": files[room], "lines": lines[room]}
            for room in sorted(between, key=lambda room: (height[room], room))
            if between[room] or not room.endswith("__")
        ],
        "sizes": [
            {"of": "files"} | spread(map(line_count, known.values())),
            {"of": "functions"} | spread(n for file in known.values() for n in function_lines(file)),
        ],
        "floors": max(height.values()) + 1,
        "edges_between_rooms": sum(map(len, between.values())),
        "edges_between_modules": sum(map(len, edges.values())),
        "circles_of_modules": circles(edges),
        "packages_that_import_each_other": mutual(between),
    }


def main() -> None:
    """Prints the tables, or one object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", nargs="?", type=Path, default=Path("searchgym"), help="folder of a package")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    found = measure(args.package.resolve())
    if args.json:
        emit(found, True)
        return
    emit_rows(found.pop("rooms"), False, "rooms", "rooms")
    emit_rows(found.pop("sizes"), False, "sizes", "lines per file and per function")
    lists = {"circle of modules": found.pop("circles_of_modules")}
    lists["packages that import each other"] = found.pop("packages_that_import_each_other")
    emit({name.replace("_", " "): count for name, count in found.items()}, False, "imports")
    rows = [{"in a knot": name, "size": len(knot), "of": knot} for name, knots in lists.items() for knot in knots]
    emit_rows([row | {"of": "\n".join(row["of"])} for row in rows], False, "knots", "knots" if rows else "no knots")


if __name__ == "__main__":
    main()
