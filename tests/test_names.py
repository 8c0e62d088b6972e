"""Identifiers of the package are the field's terms: past participles such as ``found`` say nothing about a value."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import searchgym

PACKAGE = Path(searchgym.__file__).parent
VAGUE = {
    "asked", "drawn", "found", "given", "heard", "held", "kept", "known", "made",
    "meant", "own", "place", "places", "said", "shown", "taken", "told", "wanted",
}  # fmt: skip
"""Words that name no value: write what it is (``problems``, ``hits``, ``expected``, ``index``, ``message``)."""
CLEAN = ("**/*.py",)
"""Globs of the files that must be free of them: the whole package."""
ON_DISK = {
    "asked": "questions/generate.py",
    "drawn": "questions/generate.py",
    "found": "rollout/foreign/model_check.py",
    "known": "train/credit/terms/decision.py",
    "own": "questions/graphs/packs.py",
    "place": "records.py",
    "wanted": "questions/generate.py",
}
"""Names in files on disk (recipes, packs, episodes, reports), and the file that defines each; others may pass them as
keywords."""


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Yields (line, name, whether it is a keyword) of all that code defines or passes by name; reads are left out."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name, False
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name, False
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name, False
            case ast.keyword(arg=str(name)):
                yield node.lineno, name, True


def vague(text: str, file: str = "") -> list[tuple[int, str]]:
    hits = [(line, name, keyword) for line, name, keyword in identifiers(ast.parse(text)) if name in VAGUE]
    return [
        (line, name) for line, name, keyword in hits if not (name in ON_DISK and (keyword or file == ON_DISK[name]))
    ]


@pytest.mark.parametrize("room", CLEAN)
def test_identifiers_are_no_vague_participles(room):
    files = sorted(PACKAGE.glob(room))
    lines = [
        f"{file.relative_to(PACKAGE)}:{line}: {name}"
        for file in files
        for line, name in vague(file.read_text(encoding="utf-8"), file.relative_to(PACKAGE).as_posix())
    ]
    assert files and not lines, "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        "found = 1", "def own(): pass", "def f(*, given): pass", "f(kept=1)", "self.made = 1", "import x as told",
        "for place in y: pass", "x = [0 for held in y]", "lambda shown: 0", "class A:\n    asked: int = 0",
        "if known := 1: pass", "with x as drawn: pass", "try: pass\nexcept E as said: pass",
    ],
)  # fmt: skip
def test_each_way_to_define_a_name_is_seen(text):
    assert len(vague(text)) == 1


@pytest.mark.parametrize(("name", "file"), ON_DISK.items())
def test_a_name_on_disk_is_exempt_where_it_is_defined(name, file):
    text = (PACKAGE / file).read_text(encoding="utf-8")
    assert name in {found for _, found in vague(text)} and name not in {found for _, found in vague(text, file)}


def test_a_planted_fault_is_refused_and_reads_are_not():
    file = PACKAGE / "eval" / "rows.py"
    text = file.read_text(encoding="utf-8")
    assert not vague(text)
    assert vague(text.replace("rows = []", "found = []", 1)) != []
    assert vague("x = opened.place + options['found']") == []
