"""What `benchmarks/structure.py` counts, worked by hand on small packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # of pages, scripts and the machinery of tests, which a change of code seldom breaks

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
from structure import (  # noqa: E402
    arrows_back_up,
    as_edges,
    between_packages,
    circles,
    graph,
    lists,
    measure,
    modules,
    package_heights,
    rooms,
)
from structure_code import (  # noqa: E402
    code_lines,
    documented,
    helpers,
    imports_constant,
    parse,
    shared_class_names,
    size_counts,
    spells,
    used_once,
)
from structure_kinds import MEMBERS, Member, kind_rows  # noqa: E402
from structure_options import comparable, find_class, option_counts, options, settings  # noqa: E402


def plant(folder: Path, files: dict[str, str]) -> Path:
    """Writes files into a folder, the package's below ``p``, and returns the package."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / "p"


CODE = '''"""A module,
of two lines."""

A = 1
"""A constant."""
# a comment


class B:
    """A class."""

    x: int = 0
    """A field."""

    def f(self):
        """A method."""
        self.y = 2  # code
        "a string that is code"
        return """text

# still text
"""
'''


def test_lines_of_code() -> None:
    assert code_lines(CODE) == 8  # A, class, x, def, y, the string, return, the quotes that end it
    assert code_lines("") == 0


def test_sizes(tmp_path: Path) -> None:
    files = {"p/__init__.py": "", "p/a.py": "x = 1\n" * 301, "p/b/c.py": "y = 1\n" * 300, "p/b/d/e.py": "# z\n"}
    assert list(size_counts(plant(tmp_path, files)).values()) == [1, 2, 1, 4, 1, 602, 601]


def test_arrows_back_up(tmp_path: Path) -> None:
    """``a`` and ``b`` import each other, and ``b``'s highest room lies above ``a``'s; ``c`` is in no circle."""
    files = {
        "p/__init__.py": "from p.c import z",
        "p/a/low.py": "",
        "p/a/high.py": "from p.b import low",
        "p/b/low.py": "",
        "p/b/top/high.py": "from p.a import high, low",
        "p/c/z.py": "from p.b.top import high\nfrom p import loose",
        "p/loose.py": "",
    }
    package = plant(tmp_path, files)
    known, edges = modules(package), graph(package)
    arrows = between_packages(edges, known)
    assert arrows == {("a", "b"): 1, ("b", "a"): 2, ("c", "b"): 1, ("c", "loose"): 1}
    heights = package_heights(rooms(edges, known))
    assert heights == {"a": 1, "b": 2, "c": 3}  # p.b 0, p.a 1, p.b.top 2, p.c 3
    assert arrows_back_up(arrows, heights) == [("a", "b")]


def test_no_circle_is_left_without_the_arrows_back_up() -> None:
    arrows = {("a", "b"), ("b", "c"), ("c", "a"), ("c", "b"), ("d", "a")}
    heights = {"a": 5, "b": 1, "c": 1, "d": 0}
    up = arrows_back_up(arrows, heights)
    assert up == [("b", "c"), ("c", "a")]  # d -> a is in no circle, although a lies higher
    assert circles(as_edges(arrows)) != []
    assert circles(as_edges(arrows - set(up))) == []


HELPERS = '''
def _once():
    """Two lines of docstring
    do not count."""
    a = 1
    return a

def _twice(): return _once()

def _recursive(n): return _recursive(n - 1)

class A:
    def __init__(self): self._method = self._method()
    def _handed_on(self): return 1
    def public(self): return _twice(), _twice(), map(self._handed_on, [])
'''


def test_helpers_used_in_one_place() -> None:
    found = helpers({"a.py": parse(HELPERS)})
    uses = {helper.name: helper.uses for helper in found}
    assert uses == {"_once": 1, "_twice": 2, "_recursive": 1, "_handed_on": 1}
    assert {helper.name: (helper.body, helper.lines) for helper in used_once(found)} == {
        "_once": (2, 5),
        "_handed_on": (1, 1),
    }


def test_class_names_and_docstrings() -> None:
    trees = {
        "a.py": parse(
            '"""A."""\nclass One:\n    class Two:\n        "Two."\n    def f(self):\n        def g(): pass\n'
        ),
        "b/a.py": parse(
            "class Two:\n"
            '    """Two."""\n'
            "    @override\n    def f(self): pass\n"
            "    def _g(self): pass\n"
            "if True:\n    def h():\n        'H.'\n"
        ),
        "_private.py": parse(""),
        "b/__init__.py": parse(""),
    }
    assert shared_class_names(trees) == {"Two": ["a.py", "b/a.py"]}
    assert dict(documented(trees)) == {
        "a.py": True,
        "a.py: One": False,
        "a.py: One: Two": True,
        "a.py: One: f": False,
        "b/a.py": False,
        "b/a.py: Two": True,
        "b/a.py: h": True,
        "b/__init__.py": False,
    }


def test_files_that_spell_a_name() -> None:
    trees = {
        "a/b.py": parse('RUN: Final = "run.json"'),
        "c.py": parse('"""About run.json."""\nx = folder / "train/run.json"'),
        "d.py": parse('RERUN = "rerun.json"'),
        "e.py": parse("def late():\n    from p.a.b import RUN"),
        "f.py": parse("from p.b import RUN"),
        "g.py": parse("from p.aa.b import RUN"),
    }
    assert spells(trees, "run.json") == ["a/b.py", "c.py"]
    assert imports_constant(trees, "run.json") == ["e.py"]


RECIPE = """
from p.sections import Optimizer, Kind

class Base:
    seed: int = 0

class Recipe(Base):
    LIMIT: ClassVar[int] = 3
    _hidden: int = 1
    steps: int
    kind: Kind = "plain"
    optimizer: Optimizer = field(default_factory=lambda: Optimizer(lr=0.1))
    second: Optimizer | None = field(default_factory=Optimizer)
    stages: list[Optimizer] = field(default_factory=list)
"""
SECTIONS = """
Kind = Literal["plain", "other"]

class Optimizer:
    lr: float = 1e-3
    betas: Annotated[list, "two"] = field(default_factory=lambda: [0.9, 0.99])
    name: str = NAME

    def step(self): pass
"""
DEFAULTS = {
    "seed": 0,
    "steps": None,
    "kind": "plain",
    "stages": [],
    "optimizer.lr": 0.1,
    "optimizer.betas": [0.9, 0.99],
    "optimizer.name": "NAME",
    "second.lr": 1e-3,
    "second.betas": [0.9, 0.99],
    "second.name": "NAME",
}


def test_options_and_their_defaults() -> None:
    trees = {"recipe.py": parse(RECIPE), "sections.py": parse(SECTIONS), "other.py": parse("class Optimizer: x: int")}
    root = find_class(trees, "", "Recipe")
    assert root is not None
    assert options(trees, root) == DEFAULTS


def test_options_that_nothing_varies(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "train/a.yaml": "steps: 1\noptimizer: {lr: 1e-1}\nsecond: {lr: 1}",
            "train/b.yaml": "steps: 2\nkind: plain",
            "train/deeper/c.yaml": "no: recipe",
            "tests/test_a.py": "recipe.seed = 3; run(stages=[])",
            "tests/recorded.yaml": "name: x",
        },
    )
    trees = {"recipe.py": parse(RECIPE), "sections.py": parse(SECTIONS)}
    counted = option_counts(trees, tmp_path / "train", tmp_path / "tests")
    fixed = ["optimizer.betas", "optimizer.name", "second.betas", "second.name"]
    assert list(map(sorted, counted.values())) == [
        ["a.yaml", "b.yaml"],
        sorted(DEFAULTS),
        sorted([*fixed, "kind", "optimizer.lr", "seed", "stages"]),  # kind and optimizer.lr are set to their defaults
        sorted([*fixed, "seed", "stages"]),
        fixed,
    ]
    with pytest.raises(ValueError, match=r"optimizer\.lrate is no option of Recipe"):
        settings({"optimizer": {"lrate": 1}}, DEFAULTS)


def test_equal_values_of_options() -> None:
    assert comparable([1, "1e-3", None, True]) == comparable((1.0, 0.001, None, True))
    assert comparable({1: "a"}) == comparable({"1": "a"})
    assert len({comparable(value) for value in (1, True, None, "None?", [1], {})}) == 6


KINDS = '''
from p.terms.bonus import Bonus

TERMS = {"bonus": Bonus, "other": None}
"""The bonus is one."""
LEAST = {"credit.bonus_share": 0}
if True:
    Name = Literal["bonus", "other"]

class Options:
    """Options of the bonus."""

    other: int = 1
    bonus_share: float = 0.5
    term: str = "bonus"

    def check(self):
        if self.bonus_share < 0:
            raise ValueError("bonus is wrong")

    def total(self, bonus):
        bonus_share = bonus
        return bonus_share

class BonusCard(Options):
    kind: Literal["bonus"]

register(Bonus)
'''


def test_places_of_a_member_of_a_kind() -> None:
    trees = {
        "tables.py": parse(KINDS),
        "terms/bonus.py": parse("class Bonus: pass\n"),
        "sales.py": parse('x = "bonus"'),
    }
    bonus = Member("term", "bonus", ("Bonus", "bonus_share", "BonusCard"), ("terms/bonus.py",), ("sales.py",))
    moved = Member("term", "malus", ("Malus",), ("terms/malus.py",))
    alone = Member("term", "", ("Bonus",), ("terms/*.py", "tables.py"))
    rows = kind_rows(trees, (bonus, moved, alone))
    places = ["TERMS", "LEAST", "Name", "Options.bonus_share", "Options.term", "Options.check", "BonusCard", "line 28"]
    assert rows[0]["where"] == [f"tables.py: {name}" for name in places]
    assert [(row["member"], row["own_files"], row["places"], row["files"]) for row in rows] == [
        ("bonus", 1, 8, 1),
        ("malus", 0, None, 0),
        ("Bonus", 2, 0, 0),
    ]


def test_a_kind_in_one_file_has_no_places_elsewhere() -> None:
    trees = {
        "credit/waypoint.py": parse('@term("waypoint")\nclass Waypoint:\n    waypoint_rules: list = []\n'),
        "credit/find.py": parse("def find(name):\n    return import_module(name)\n"),
    }
    rows = {row["member"]: row["places"] for row in kind_rows(trees)}
    assert rows.pop("waypoint") == 0
    assert set(rows.values()) == {None}
    assert {member.kind for member in MEMBERS} == {
        *("credit term", "estimator", "retriever", "question source", "reward", "judge"),
        *("curriculum", "proposer", "method"),
    }


def test_everything_of_a_package(tmp_path: Path) -> None:
    files = {"p/__init__.py": "", "p/a/x.py": "from p.b import y\nclass A: pass\n", "p/b/y.py": "class A: pass\n"}
    files |= {"p/b/z.py": 'from p.a import x\nRUN = "run.json"\ndef _f(): pass\n_f()\n', "train/r.yaml": "s: 1"}
    files |= {"p/recipe.py": "class Recipe:\n    s: int\n    t: int = 0\n"}
    found = measure(plant(tmp_path, files))
    counts = found["counts"]
    expected = {"arrows between packages": 2, "arrows back up": 1, "circles of packages": 1, "circles of modules": 0}
    expected |= {"options": 2, "options in no recipe": 1, "private functions used in one place": 1}
    assert {name: counts[name] for name in expected} == expected
    assert [tuple(row.values()) for row in lists(found)] == [
        ("arrow back up", "a -> b"),
        ("circle of packages", "a, b"),
        ("rooms that import each other", "p.a, p.b"),
        ("option in no recipe or test", "t"),
        ("spells run.json", "b/z.py"),
        ("class name", "A: a/x.py, b/y.py"),
    ]
