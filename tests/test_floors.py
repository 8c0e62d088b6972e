"""The floors of the package: a module imports from its own entry and from floors below, not from above or beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import searchgym

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
from structure import circles, full_name, graph, imports, modules, mutual, room_of, rooms  # noqa: E402

PACKAGE = Path(searchgym.__file__).parent
FLOORS = [
    {"_lazy", "errors", "reading", "threads", "version"},
    {"http_client", "named", "packages"},
    {"options"},
    {"options.__init__"},
    {"cards", "records"},
    {"model_cards", "protocol", "scoring"},
    {"scoring.__init__"},
    {"corpora"},
    {"corpora.retrieval"},
    {"corpora.retrieval.remote"},
    {"corpora.retrieval.kinds"},
    {"corpora.retrieval.bm25"},
    {"corpora.retrieval.dense", "corpora.retrieval.lucene"},
    {"corpora.retrieval.index"},
    {"graphs.graph"},
    {"graphs"},
    {"judging"},
    {"corpora.retrieval.foreign", "corpora.worlds.schema"},
    {"corpora.worlds.language"},
    {"corpora.worlds.phrases"},
    {"corpora.worlds"},
    {"corpora.worlds.__init__"},
    {"questions"},
    {"browsing", "masking", "open_answers"},
    {"envs"},
    {"curriculum.stages", "selfplay.arms", "selfplay.source"},
    {"selfplay.kind"},
    {"curriculum", "selfplay"},
    {"curriculum.kinds", "selfplay.kinds"},
    {"__init__"},  # the package's own registers the environments
    {"agents"},
    {"teams"},
    {"rollout"},
    {"rollout.transfer"},
    {"rollout.transformers"},
    {"rollout.vllm"},
    {"rollout.models"},
    {"rollout.engine"},
    {"merging", "rollout.judge"},
    {"train.algorithms.samples"},
    {"train.algorithms.estimator", "train.algorithms.loss_options"},
    {"train.algorithms.groups"},
    {"train.algorithms.advantages"},
    {"train.algorithms.comparing"},
    {"train.algorithms.estimators"},
    {"train.credit"},  # recipes name its terms
    {"adapters", "eval", "serving", "testing", "train.bridges", "train.interrupts", "train.memory", "train.recipe"},
    {"train.methods"},
    {"eval.suites"},
    {"eval.formats", "eval.leaderboard"},
    {"report"},
    {"train.algorithms"},
    {"simulated"},
    {"train.learner"},
    {"train.distributed"},
    {"train.demonstrations", "train.launch"},
    {"train.run", "train.tiny"},
    {"train.inspect", "train.selfcheck"},
    {"practice", "viewing"},
    {"cli.output"},
    {"cli.doctor", "cli.training"},
    {"cli"},
    {"cli.evaluation"},
    {"cli.practice"},
    {"cli.__init__"},
    {"__main__"},
]
"""Entries from the bottom up: packages and modules below ``searchgym``, of which the longest that fits a module is its
own. The ``__init__`` of a package is an entry of its own; one that is not named here hands on names of its children,
and no module imports it."""
LEVEL = {entry: level for level, floor in enumerate(FLOORS) for entry in floor}
APART = [{"adapters", "eval"}, {"adapters", "serving"}, {"adapters", "train"}]
APART += [{"eval", "serving"}, {"eval", "train"}, {"serving", "train"}]
"""Packages of which neither imports the other, whatever their floors."""
MOST = 12
"""Files of a room, its ``__init__`` not counted: more cannot be taken in at a glance."""
CATALOGUES = {"searchgym.train.credit.terms"}
"""Rooms with one file for each kind of one base, all of one shape, which are found by name and may be many."""


def entry_of(name: str) -> str | None:
    """Returns the entry of a module by its name below ``searchgym``, None if it has none."""
    while name not in LEVEL:
        if name.endswith("__init__") or "." not in name:
            return None
        name = name.rpartition(".")[0]
    return name


def violations(package: Path) -> list[str]:
    """Returns one line for every import that points upwards or sideways, and for every module without a floor."""
    known, found = modules(package), []
    for module, file in known.items():
        inner = full_name(module, known).removeprefix("searchgym.")
        own = entry_of(inner)
        hands_on = own is None and inner.endswith(".__init__")
        if own is None and not hands_on:
            found.append(f"{file.relative_to(package)}: {inner} has no floor yet: give it one in this test")
            continue
        for line, target in imports(module, file, known):
            name = full_name(target, known) if target in known else target
            name = name.removeprefix("searchgym.") if name != "searchgym" else "__init__"
            other = entry_of(name)
            if hands_on:
                allowed = target.startswith(f"{module}.") or name == "_lazy"
            else:
                allowed = other is not None and (other == own or LEVEL[other] < LEVEL[own or ""])
                allowed = allowed and {inner.split(".")[0], name.split(".")[0]} not in APART
            if not allowed:
                found.append(f"{file.relative_to(package)}:{line}: {own or inner} imports {other or name}")
    return found


def crowded(package: Path) -> list[str]:
    """Returns the rooms with too many files."""
    known = modules(package)
    names = [room_of(module, known) for module in known]
    return sorted({room for room in names if names.count(room) > MOST})


def test_no_module_imports_from_above() -> None:
    assert violations(PACKAGE) == []


def test_every_entry_is_there() -> None:
    known = modules(PACKAGE)
    names = {full_name(module, known).removeprefix("searchgym.") for module in known}
    assert {entry_of(name) for name in names} - {None} == LEVEL.keys()


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
        ("corpora/passages.py", "from searchgym.corpora.retrieval import cards"),
        ("corpora/retrieval/kinds/bm25.py", "from searchgym.corpora.retrieval.bm25 import backend"),
        ("corpora/retrieval/deep/bm25.py", "from ....envs import core"),
        ("records.py", "from . import envs"),
        ("records.py", "import searchgym.cards"),
        ("envs/core.py", "import searchgym.agents.base as base"),
        ("envs/__init__.py", "from searchgym.corpora import passages"),
        ("rollout/sampler.py", "from searchgym.rollout.models import Model"),
        ("rollout/engine.py", "def late():\n    from searchgym.cli import main"),
        (
            "train/run/loop.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from searchgym.eval import runner",
        ),
        ("train/run/loop.py", "from searchgym.train.inspect import plan"),
        ("eval/runner.py", "from searchgym.train.recipe import keys"),
        ("__init__.py", "from searchgym.agents import base"),
    ],
)
def test_a_planted_import_from_above_is_found(file: str, code: str, tmp_path: Path) -> None:
    (line,) = violations(plant(tmp_path, {file: code}))
    assert line.startswith(f"{file}:{code.count(chr(10)) + 1}: ")


def test_a_hand_on_file_is_not_imported(tmp_path: Path) -> None:
    files = {"rollout/__init__.py": "from searchgym.rollout import engine", "rollout/engine.py": ""}
    package = plant(tmp_path, files | {"eval/runner.py": "from searchgym.rollout import Engine"})
    assert violations(package) == ["eval/runner.py:1: eval imports rollout.__init__"]


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
    files |= {"envs/vector.py": "\n".join(lines), "cards.py": "from searchgym.errors import CardError"}
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
