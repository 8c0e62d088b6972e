"""The floors of the package: a module imports from its own floor and from those below, never from above."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import searchgym

FLOORS = [
    {"errors", "records", "protocol", "scoring", "cards", "demo"},
    {"corpora"},
    {"envs"},
    {"searchgym"},  # the package's own __init__ registers the environments
    {"agents"},
    {"rollout"},
    {"train", "eval", "serving", "testing"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, floor in enumerate(FLOORS) for name in floor}


def imported(tree: ast.AST, package: list[str]) -> Iterator[tuple[int, str]]:
    """Yields (line, name) for each import of SearchGym's own, lazy ones and those for types too.

    The name is what stands below ``searchgym``: ``"envs"`` for ``from searchgym.envs.core import Core``.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parent = package[: len(package) - node.level + 1] if node.level else []
            base = [*parent, *(node.module.split(".") if node.module else [])]
            names = [".".join([*base, alias.name]) for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "searchgym" and len(parts) > 1 and not parts[1].startswith("__"):
                yield node.lineno, parts[1]


def violations(package: Path) -> list[str]:
    """Returns one line for every import that points upwards, or sideways to a neighbour above the ground floor."""
    found = []
    for file in sorted(package.rglob("*.py")):
        inner = [*file.relative_to(package).with_suffix("").parts]
        source = "searchgym" if inner == ["__init__"] else inner[0]
        for line, target in imported(ast.parse(file.read_text(encoding="utf-8")), ["searchgym", *inner[:-1]]):
            where = f"{'/'.join(inner)}.py:{line}"
            if unknown := {source, target} - LEVEL.keys():
                found.append(f"{where}: {unknown} has no floor yet: give it one in this test")
            elif LEVEL[target] > LEVEL[source] or (LEVEL[target] == LEVEL[source] > 0 and target != source):
                found.append(f"{where}: {source} imports {target}")
    return found


def test_no_module_imports_from_above() -> None:
    assert violations(Path(searchgym.__file__).parent) == []


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("corpora/bm25.py", "from searchgym.envs.core import Core"),
        ("corpora/bm25.py", "from searchgym import envs"),
        ("corpora/deep/bm25.py", "from ...envs import core"),
        ("records.py", "from . import envs"),
        ("envs/core.py", "import searchgym.agents.base as base"),
        ("rollout/engine.py", "def late():\n    from searchgym.cli import main"),
        ("train/loop.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from searchgym.eval import runner"),
        ("__init__.py", "from searchgym.agents import base"),
        ("newcomer.py", "from searchgym import records"),
    ],
)
def test_a_planted_import_from_above_is_found(file: str, code: str, tmp_path: Path) -> None:
    planted = tmp_path / file
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(code, encoding="utf-8")
    (line,) = violations(tmp_path)
    assert line.startswith(f"{file}:{code.count(chr(10)) + 1}")


def test_downward_imports_are_fine(tmp_path: Path) -> None:
    (tmp_path / "envs").mkdir()
    lines = [
        "import json",
        "from searchgym import __version__, records",
        "from ..corpora import bm25",
        "from . import core",
    ]
    (tmp_path / "envs" / "vector.py").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "cards.py").write_text("from searchgym.errors import CardError", encoding="utf-8")
    assert violations(tmp_path) == []
