"""Runs a parser of model output over the conformance set of dialects and counts the texts that it reads correctly.

The folder needs the standard library only: copy ``runner.py`` and the JSON files into another project. Each file holds
the cases of one dialect. A case has

* ``id``, unique in all files, and ``kind``, one of `KINDS` except ``prefix``;
* ``text``: the output of a model, with the special tokens of its template, without those at the end of the prompt;
* ``expect``: the right result, in the form that `Parse` returns; the reason of a refusal is not compared;
* ``complete_at``, in some cases: the length, in code points, of the shortest prefix from which a parser may read the
  action. Every prefix of such a text is a test, too: a shorter one must be refused, and one of at least this length
  must be refused or give the right action;
* ``note``, in some cases: why the result is right where the dialect's documentation leaves it open.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

DIALECTS: Final = ("tags", "hermes", "qwen3_coder", "llama3", "mistral", "gemma", "gpt_oss")
"""Names of the dialects, each with a JSON file in this folder."""
KINDS: Final = ("plain", "form", "nested", "hostile", "wrong", "cut", "thought", "page", "prefix")
"""Kinds of cases, in this order: the usual text; accepted variants; queries that contain markers or brackets; texts
made to mislead; faulty calls; truncated texts; thoughts; text copied from pages; every prefix of a text."""

Parse = Callable[[str, str], Mapping[str, Any]]
"""A parser under test: called with a dialect and a text, it returns ``{"search": [query, ...]}``, ``{"answer": text}``
or ``{"refused": reason}``, where the reason is a text or True. Any exception counts as a failure."""


@dataclass(frozen=True, slots=True)
class DialectCase:
    """One text and the right result for it; the module's docstring describes the fields."""

    dialect: str
    id: str
    kind: str
    text: str
    expect: Mapping[str, Any]
    note: str = ""
    complete_at: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """One text that a parser read wrongly."""

    case: DialectCase
    text: str
    """Text of the case, or the prefix of it that was read wrongly."""
    got: str
    """Result of the parser, or its error."""


@dataclass(frozen=True, slots=True)
class DialectTable:
    """Counts of texts by dialect and kind, and every failure."""

    passed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of texts that were read correctly, by (dialect, kind)."""
    total: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of texts, by (dialect, kind)."""
    failures: list[Failure] = field(default_factory=list)

    def row(self, dialect: str) -> list[str]:
        """Returns the cells of a dialect: ``passed/total`` for each of `KINDS`, or ``-`` without texts."""
        keys = [(dialect, kind) for kind in KINDS]
        return [f"{self.passed[key]}/{self.total[key]}" if self.total[key] else "-" for key in keys]

    def __str__(self) -> str:
        """Returns the table as text, at most 80 columns wide."""
        dialects = dict.fromkeys(dialect for dialect, _ in self.total)
        return lines([("dialect", *KINDS), *((dialect, *self.row(dialect)) for dialect in dialects)])


def lines(rows: Sequence[Sequence[str]]) -> str:
    """Formats rows of cells as lines: the first column is aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        " ".join([row[0].ljust(widths[0]), *(cell.rjust(n) for cell, n in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )


def load(dialect: str) -> list[DialectCase]:
    """Reads the cases of a dialect from its file in the folder of this module."""
    file = Path(__file__).parent / f"{dialect}.json"
    return [DialectCase(dialect, **case) for case in json.loads(file.read_text(encoding="utf-8"))["cases"]]


def run(parse: Parse, dialects: Sequence[str] = DIALECTS) -> DialectTable:
    """Runs a parser over all cases of some dialects, and over every prefix of the cases with `complete_at`.

    Args:
        parse: The parser, see `Parse`.
        dialects: Names of `DIALECTS`.

    Returns:
        The counts and the failures, in the order of the files.
    """
    table = DialectTable()
    for case in (case for dialect in dialects for case in load(dialect)):
        for kind, text, accepted in _texts(case):
            key = case.dialect, kind
            got = _result(parse, case.dialect, text)
            table.total[key] += 1
            if any(_same(got, expected) for expected in accepted):
                table.passed[key] += 1
            else:
                table.failures.append(Failure(case, text, got if isinstance(got, str) else repr(dict(got))))
    return table


def _texts(case: DialectCase) -> Iterator[tuple[str, str, list[Mapping[str, Any]]]]:
    """Yields (kind, text, accepted results) of a case and of its prefixes."""
    yield case.kind, case.text, [case.expect]
    if case.complete_at is not None:
        refusal: Mapping[str, Any] = {"refused": True}
        for end in range(len(case.text)):
            yield "prefix", case.text[:end], [refusal, case.expect] if end >= case.complete_at else [refusal]


def _result(parse: Parse, dialect: str, text: str) -> Mapping[str, Any] | str:
    """Returns the parser's result for a text; if that is an error or no mapping, a line that describes it."""
    try:
        result: object = parse(dialect, text)
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    return result if isinstance(result, Mapping) else f"returned {result!r}, not a mapping"


def _same(got: Mapping[str, Any] | str, expected: Mapping[str, Any]) -> bool:
    """Checks whether a result is the expected one; the reasons of refusals may differ."""
    if isinstance(got, str) or got.keys() != expected.keys():
        return False
    return bool(got["refused"]) if "refused" in got else got == expected
