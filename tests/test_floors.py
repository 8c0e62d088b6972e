"""The floors of the package: a module imports from its own entry and from floors below, not from above or beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import searchgym

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
from structure import circles, graph, imports, modules, mutual, room_of, rooms  # noqa: E402

PACKAGE = Path(searchgym.__file__).parent
BASE = {"_lazy", "errors", "http_client", "named", "packages", "reading", "records", "text", "threads", "version"}
"""Modules below the packages, which import no package."""
FLOORS = [
    BASE,
    {"options"},
    {"protocol"},
    {"scoring"},
    {"corpora"},
    {"retrieval"},
    {"questions"},
    {"envs"},
    {"__init__", "agents"},  # the package's own registers the environments
    {"rollout"},
    {"train"},
    {"eval"},
    {"testing"},
    {"serving"},
    {"adapters"},
    {"cli"},
    {"__main__"},
]
"""Packages and modules directly below ``searchgym``, from the bottom up: one floor for each package."""
LEVEL = {entry: level for level, floor in enumerate(FLOORS) for entry in floor}
APART = [{"adapters", "eval"}, {"adapters", "serving"}, {"eval", "serving"}, {"serving", "train"}]
"""Packages of which neither imports the other, whatever their floors."""
MOST = 12
"""Files of a room, its ``__init__`` not counted: more cannot be taken in at a glance."""
CATALOGUES = {"searchgym.train.credit.terms"}
"""Rooms with one file for each kind of one base, all of one shape, which are found by name and may be many."""


def violations(package: Path) -> list[str]:
    """Returns one line for every import that points upwards or sideways, and for every entry without a floor."""
    known, found = modules(package), []
    for module, file in known.items():
        entry = entry_of(module)
        if entry not in LEVEL:
            found.append(f"{file.relative_to(package)}: {entry} has no floor yet: give it one in this test")
            continue
        for line, target in imports(module, file, known):
            other = entry_of(target)
            beside = other == entry or {entry, other} <= BASE
            if not beside and (LEVEL.get(other, 99) >= LEVEL[entry] or {entry, other} in APART):
                found.append(f"{file.relative_to(package)}:{line}: {entry} imports {other}")
    return found


def entry_of(module: str) -> str:
    """Returns the package or module directly below ``searchgym`` that a module belongs to."""
    return "__init__" if module == "searchgym" else module.split(".")[1]


def crowded(package: Path) -> list[str]:
    """Returns the rooms with too many files."""
    known = modules(package)
    names = [room_of(module, known) for module in known]
    return sorted({room for room in names if names.count(room) > MOST})


def test_no_module_imports_from_above() -> None:
    assert violations(PACKAGE) == []


def test_every_entry_is_there() -> None:
    assert {entry_of(module) for module in modules(PACKAGE)} == LEVEL.keys()


def test_no_circles() -> None:
    known, edges = modules(PACKAGE), graph(PACKAGE)
    assert circles(edges) == []
    assert mutual(rooms(edges, known)) == []


def test_no_room_is_crowded() -> None:
    assert set(crowded(PACKAGE)) == CATALOGUES


def plant(package: Path, files: dict[str, str]) -> Path:
    """Writes the files of a package and returns its folder."""
    for name, code in files.items():
        file = package / "searchgym" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code, encoding="utf-8")
    return package / "searchgym"


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("corpora/passages.py", "from searchgym.envs.core import Core"),
        ("corpora/passages.py", "from searchgym import envs"),
        ("corpora/passages.py", "from searchgym.retrieval import cards"),
        ("retrieval/kinds/bm25.py", "from searchgym.questions.sources import world"),
        ("retrieval/deep/bm25.py", "from ...envs import core"),
        ("records.py", "from . import envs"),
        ("records.py", "import searchgym.options.cards"),
        ("envs/core.py", "import searchgym.agents.base as base"),
        ("corpora/__init__.py", "from searchgym.envs import core"),
        ("rollout/sampler.py", "from searchgym.train.recipe import keys"),
        ("rollout/engine.py", "def late():\n    from searchgym.cli import main"),
        (
            "train/loop/trainer.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from searchgym.eval import runner",
        ),
        ("scoring/judges/judge.py", "from searchgym.retrieval import retriever"),
        ("eval/runner.py", "from searchgym.serving import server"),
        ("__init__.py", "from searchgym.rollout import engine"),
    ],
)
def test_a_planted_import_from_above_is_found(file: str, code: str, tmp_path: Path) -> None:
    (line,) = violations(plant(tmp_path, {file: code}))
    assert line.startswith(f"{file}:{code.count(chr(10)) + 1}: ")


def test_a_module_without_a_floor_is_found(tmp_path: Path) -> None:
    (line,) = violations(plant(tmp_path, {"newcomer.py": "from searchgym import records"}))
    assert line.startswith("newcomer.py: newcomer has no floor yet")


def test_downward_imports_are_fine(tmp_path: Path) -> None:
    lines = [
        "import json",
        "from searchgym import records",
        "from ..corpora import passages",
        "from . import core",
    ]
    files = {"__init__.py": "", "records.py": "", "corpora/passages.py": "", "envs/core.py": ""}
    files |= {"envs/vector.py": "\n".join(lines), "options/cards.py": "from searchgym.errors import CardError"}
    assert violations(plant(tmp_path, files)) == []


def test_planted_circles_and_crowds_are_found(tmp_path: Path) -> None:
    package = plant(
        tmp_path,
        {
            "envs/a.py": "def late():\n    from searchgym.agents import b",
            "agents/b.py": "from searchgym.envs.c import d",
            "envs/c.py": "from searchgym.envs import a",
            "cli/x.py": "from searchgym.cli.doctor import y",
            "cli/doctor/y.py": "from searchgym.cli import z",
            "cli/z.py": "",
        },
    )
    edges = graph(package)
    assert circles(edges) == [["searchgym.agents.b", "searchgym.envs.a", "searchgym.envs.c"]]
    assert mutual(rooms(edges, modules(package))) == [("searchgym.agents", "searchgym.envs")]
    assert crowded(plant(tmp_path, {f"cli/m{n}.py": "" for n in range(MOST - 2)})) == []
    assert crowded(plant(tmp_path, {"cli/m.py": ""})) == ["searchgym.cli"]
