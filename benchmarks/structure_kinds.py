"""Places to edit to add one more of a kind, counted mechanically for a sample member of each kind.

A place is a top-level definition of the package, or a field or method of a class in it, in which the member is named:
its registered name as a whole string, or one of its words (functions, classes, options) as an identifier, as a string
or as a part of a dotted one. Not counted are the member's own files, imports (they follow from the places), local
variables, and text in docstrings, comments and messages. A class that is itself one of the words is one place with all
that it holds. A member without a file of its own has its definitions counted, since they are written in shared files.
After a redesign, correct the table: a member whose registered name and words occur nowhere has no count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from structure_code import Function, Trees


class Member(NamedTuple):
    """A sample member of a kind."""

    kind: str
    name: str
    """Name that cards, recipes or commands use; empty if it has none."""
    words: tuple[str, ...] = ()
    """Names of its functions, classes and options."""
    files: tuple[str, ...] = ()
    """Patterns of the files that are its own, matched from the right (``masking/*.py``)."""
    elsewhere: tuple[str, ...] = ()
    """Patterns of files in which the name and the words mean something else."""


MEMBERS = (
    Member(
        "credit term",
        "waypoint",
        (
            "waypoint",
            "_waypoint",
            "Waypoint",
            "waypoint_lambda",
            "waypoint_rules",
            "waypoint_names",
            "waypoint_answered",
        ),
        ("credit/waypoints.py", "credit/waypoint.py", "terms/waypoint.py"),
    ),
    Member(
        "credit term",
        "tournament",
        ("tournaments", "tournament_rounds", "Tournament"),
        ("credit/tournament.py", "terms/tournament.py", "judging/tournament.py"),
    ),
    Member(
        "estimator",
        "stratified",
        ("stratified", "Stratified"),
        ("algorithms/stratified.py", "estimators/stratified.py"),
    ),
    Member("retriever", "hybrid", ("HybridCard", "Hybrid"), ("wrappers/fusion.py", "kinds/hybrid.py")),
    Member("retriever", "noise", ("NoiseCard", "Noise"), ("wrappers/noise.py", "kinds/noise.py"), ("curriculum/*.py",)),
    Member(
        "question source",
        "masked",
        ("masked", "MaskedSpec", "_with_masked", "MaskedQuestions"),
        ("masking/*.py", "sources/masked.py"),
    ),
    Member("reward", "coverage", ("reward_coverage", "Coverage"), ("rewards/coverage.py",)),
    Member(
        "judge",
        "rules",
        ("RuleJudge", "RULES"),
        ("judging/rules.py", "judging/kinds/rules.py"),
        ("masking/*.py", "waypoint.py", "waypoints.py"),  # rules of masks, and of what counts as reached
    ),
    Member(
        "judge",
        "",
        ("ModelJudge", "PromptedJudge"),
        ("judging/models/judge.py", "judging/kinds/model.py", "rollout/judge.py"),
    ),
    Member("curriculum", "pass-rate", ("pass_rate", "PassRate"), ("curriculum/kinds/pass_rate.py",)),
    Member("proposer", "uniform", ("UniformProposer",), ("selfplay/kinds/uniform.py",)),
    Member("method", "rejection", ("Rejection",), ("train/methods/rejection.py",)),
)
"""Sample members, with their words at 36d9b21; after a change of names, add the new ones."""


class Definition(NamedTuple):
    """A top-level function or name of a file, or a field or method of a class, and what it names."""

    file: str
    name: str
    identifiers: frozenset[str]
    strings: frozenset[str]


def matches(file: str, patterns: Iterable[str]) -> bool:
    """Returns whether a path fits one of some patterns."""
    return any(PurePosixPath(file).match(pattern) for pattern in patterns)


def definitions(trees: Trees) -> list[Definition]:
    """Returns the definitions of a package; imports and docstrings are none."""
    return [
        Definition(file, name, *named_in(parts)) for file, tree in trees.items() for name, parts in split(tree.body)
    ]


def split(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Sequence[ast.AST]]]:
    """Yields (name, trees) for each definition of a module's or class's body.

    A class yields one for its bases and decorators under its name, then one for each field and method.
    """
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield prefix + statement.name, [*statement.bases, *statement.keywords, *statement.decorator_list]
            yield from split(statement.body, f"{prefix}{statement.name}.")
        elif isinstance(statement, (ast.If, ast.Try)):
            yield from split([*statement.body, *statement.orelse], prefix)
        elif isinstance(statement, Function):
            yield prefix + statement.name, [statement]
        elif isinstance(statement, ast.Assign):
            yield prefix + ", ".join(map(ast.unparse, statement.targets)), [statement]
        elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
            yield prefix + ast.unparse(statement.target), [statement]
        elif not isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield f"{prefix}line {statement.lineno}", [statement]


def named_in(parts: Sequence[ast.AST]) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the identifiers of a definition, but for the local variables of a function, and its strings."""
    names, attributes, local, strings = set[str](), set[str](), set[str](), set[str]()
    for node in (inner for part in parts for inner in ast.walk(part)):
        if isinstance(node, ast.Name):
            assigned = isinstance(node.ctx, ast.Store) and isinstance(parts[0], Function)
            (local if assigned else names).add(node.id)
        elif isinstance(node, ast.arg):
            local.add(node.arg)
        elif isinstance(node, ast.Attribute):
            attributes.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            attributes.add(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.add(node.value)
    return frozenset(names - local | attributes), frozenset(strings)


def is_place(definition: Definition, member: Member) -> bool:
    """Returns whether a definition names a member, or is one of its words."""
    first, _, rest = definition.name.partition(".")
    if rest and first in member.words:
        return False
    parts = {part for text in definition.strings for part in text.split(".")}
    words = definition.identifiers | parts | {definition.name.rpartition(".")[2]}
    return (bool(member.name) and member.name in definition.strings) or not words.isdisjoint(member.words)


def kind_rows(trees: Trees, members: Iterable[Member] = MEMBERS) -> list[dict[str, Any]]:
    """Returns a row for each sample member: its own files and the places in other files.

    ``places`` is None if the package has neither: then it does not know the member by these names.
    """
    rows, everything = [], definitions(trees)
    for member in members:
        files = [file for file in trees if matches(file, member.files)]
        skipped = {*files, *(file for file in trees if matches(file, member.elsewhere))}
        places = [d for d in everything if d.file not in skipped and is_place(d, member)]
        rows.append(
            {
                "kind": member.kind,
                "member": member.name or member.words[0],
                "own_files": len(files),
                "places": len(places) if files or places else None,
                "files": len({place.file for place in places}),
                "where": [f"{place.file}: {place.name}" for place in places],
            }
        )
    return rows
