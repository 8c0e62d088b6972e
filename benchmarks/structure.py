"""The structure of a package: sizes, imports, options of a recipe, names, and places to edit for one more of a kind.

    python benchmarks/structure.py [PACKAGE]

It parses the package and imports none of it, so that it measures the package of any commit. Recipes and tests are read
from ``train/`` and ``tests/`` beside the package. `structure_code`, `structure_options` and `structure_kinds` tell
what their numbers mean; the sample members of kinds are in a table at the top of `structure_kinds`.

A room is a package folder. Its ``__init__.py`` and ``__main__.py`` stand apart, since they hand on what is inside. All
imports count: in functions and under ``TYPE_CHECKING`` too. The floor of a room is the longest chain of
rooms below it; rooms that import each other, round any number of corners, share one. A package and one inside it may
import each other: such pairs are not listed.

Arrows are imports between the packages (and single modules) directly below the package, and point downwards. Arrows
back up are those against that order, see `arrows_back_up`.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from structure_code import (
    RECORD,
    function_lines,
    line_count,
    name_counts,
    nodes,
    parse,
    shared_class_names,
    size_counts,
    spells,
    spread,
)
from structure_kinds import kind_rows
from structure_options import option_counts

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
    for node in nodes(parse(file.read_text(encoding="utf-8"))):
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
    """Returns the dotted name of a module's file; the name of a package's file is ``PACKAGE.__init__``."""
    return f"{module}.__init__" if known[module].name == "__init__.py" else module


def room_of(module: str, known: Mapping[str, Path]) -> str:
    """Returns the package that contains a module; ``__init__`` and ``__main__`` of a package are rooms themselves."""
    name = full_name(module, known)
    return name if name.endswith("__") else name.rpartition(".")[0]


def rooms(edges: Edges, known: Mapping[str, Path]) -> dict[str, set[str]]:
    """Returns the rooms that each room imports from."""
    found: dict[str, set[str]] = {room_of(name, known): set() for name in known}
    for name, targets in edges.items():
        own = room_of(name, known)
        found[own] |= {room_of(target, known) for target in targets} - {own}
    return found


def between_packages(edges: Edges, known: Mapping[str, Path]) -> Counter[tuple[str, str]]:
    """Returns the number of imports for each arrow between the packages and modules directly below the package.

    Its own ``__init__`` and ``__main__`` are left out, since they hand on what is inside.
    """
    arrows: Counter[tuple[str, str]] = Counter()
    for name, targets in edges.items():
        for target in targets:
            ends = [full_name(module, known).split(".")[1] for module in (name, target)]
            if ends[0] != ends[1] and not any(end.endswith("__") for end in ends):
                arrows[ends[0], ends[1]] += 1
    return arrows


def package_heights(between: Edges) -> dict[str, int]:
    """Returns the floor of the highest room of each package directly below the package, from its rooms' imports."""
    heights: dict[str, int] = {}
    for room, floor in floors(between).items():
        if "." in room and not room.endswith("__"):
            package = room.split(".")[1]
            heights[package] = max(floor, heights.get(package, 0))
    return heights


def arrows_back_up(arrows: Iterable[tuple[str, str]], heights: Mapping[str, int]) -> list[tuple[str, str]]:
    """Returns the arrows in circles of packages that point to a higher package.

    A package stands as high as its highest room. Only packages in a circle, two that import each other for example,
    have arrows back up; without these there is no circle. Of equally high packages the first by name stands lower.
    """
    arrows = set(arrows)
    order = {package: (heights.get(package, 0), package) for arrow in arrows for package in arrow}
    groups = [set(circle) for circle in circles(as_edges(arrows))]
    return sorted((a, b) for a, b in arrows if order[a] < order[b] and any({a, b} <= group for group in groups))


def as_edges(arrows: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Returns the targets of arrows by their sources."""
    edges: dict[str, set[str]] = {}
    for start, end in arrows:
        edges.setdefault(start, set()).add(end)
        edges.setdefault(end, set())
    return edges


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


def import_counts(edges: Mapping[str, set[str]], known: Mapping[str, Path]) -> tuple[dict[str, int], list[str]]:
    """Returns numbers of floors and arrows, and the arrows back up."""
    between = rooms(edges, known)
    arrows = between_packages(edges, known)
    up = arrows_back_up(arrows, package_heights(between))
    counts = {
        "floors of rooms": max(floors(between).values()) + 1,
        "floors of packages, those of a circle on one": max(floors(as_edges(arrows)).values(), default=0) + 1,
        "imports between modules": sum(map(len, edges.values())),
        "arrows between rooms": sum(map(len, between.values())),
        "arrows between packages": len(arrows),
        "arrows back up": len(up),
        "circles of modules": len(circles(edges)),
        "circles of packages": len(circles(as_edges(arrows))),
    }
    return counts, [f"{start} -> {end}" for start, end in up]


def measure(package: Path) -> dict[str, Any]:
    """Returns every number of a package."""
    known, edges = modules(package), graph(package)
    between = rooms(edges, known)
    trees = {file.relative_to(package).as_posix(): parse(file.read_text(encoding="utf-8")) for file in known.values()}
    options = option_counts(trees, package.parent / "train", package.parent / "tests")
    imported, up = import_counts(edges, known)
    return {
        "rooms": room_rows(edges, known),
        "sizes": [
            {"of": "files"} | spread(map(line_count, known.values())),
            {"of": "functions"} | spread(n for file in known.values() for n in function_lines(file)),
        ],
        "counts": size_counts(package)
        | imported
        | {name: len(names) for name, names in options.items()}
        | name_counts(trees),
        "kinds": kind_rows(trees),
        "arrows_back_up": up,
        "circles_of_modules": circles(edges),
        "circles_of_packages": circles(as_edges(between_packages(edges, known))),
        "packages_that_import_each_other": mutual(between),
        "options": options,
        "class_names": shared_class_names(trees),
        "files_that_spell_the_record": spells(trees, RECORD),
    }


def room_rows(edges: Edges, known: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Returns a row for each room, the lowest floor first; files that hand on and import nothing are left out."""
    between = rooms(edges, known)
    height = floors(between)
    files = Counter(room_of(name, known) for name in known)
    lines: Counter[str] = Counter()
    for name, file in known.items():
        lines[room_of(name, known)] += line_count(file)
    return [
        {"room": room, "floor": height[room], "files": files[room], "lines": lines[room]}
        for room in sorted(between, key=lambda room: (height[room], room))
        if between[room] or not room.endswith("__")
    ]


def lists(found: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns the rows of the table of names: what each number of a measured package counts, where that is few."""
    named = [("arrow back up", arrow) for arrow in found["arrows_back_up"]]
    named += [("circle of packages", ", ".join(circle)) for circle in found["circles_of_packages"]]
    named += [("circle of modules", ", ".join(circle)) for circle in found["circles_of_modules"]]
    named += [("rooms that import each other", ", ".join(pair)) for pair in found["packages_that_import_each_other"]]
    named += [("option in no recipe or test", name) for name in found["options"]["options in no recipe or test"]]
    named += [(f"spells {RECORD}", file) for file in found["files_that_spell_the_record"]]
    named += [("class name", f"{name}: {', '.join(files)}") for name, files in found["class_names"].items()]
    for row in found["kinds"]:
        named += [(f"place of {row['kind']} {row['member']}", place) for place in row["where"]]
    return [{"what": what, "name": name} for what, name in named]


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
    emit(found["counts"], False, "counts")
    kinds = [{key: value for key, value in row.items() if key != "where"} for row in found["kinds"]]
    emit_rows(kinds, False, "kinds", "places to edit, outside its own files, for one more of a kind")
    emit_rows(found["sizes"], False, "sizes", "lines per file and per function")
    emit_rows(found["rooms"], False, "rooms", "rooms")
    emit_rows(lists(found), False, "names", "names")


if __name__ == "__main__":
    main()
