"""Graphs of triples from files, as arrays: Wikidata5M, 2WikiMultihopQA's evidences, and any three-column file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from searchgym.corpora.files import MAX_LINE, FilePath
from searchgym.errors import DataError, DataMissingError

Ints = npt.NDArray[np.int32]
_BLOCK: Final = 1 << 24
"""Number of bytes read at once."""
_NAME: Final = 4096
"""Maximum number of characters of a name."""


class _Side(NamedTuple):
    """Edges sorted by node and relation."""

    first: npt.NDArray[np.int64]
    """Offset of the first edge of each node, and at the end the number of edges; int64 [nodes + 1]."""
    relations: Ints
    """Relation of each edge; int32 [edges]."""
    ends: Ints
    """Node at the other end of each edge; int32 [edges]."""


class TripleGraph:
    """Graph of facts stored as sorted integer arrays in both directions, so that millions fit into memory.

    Repeated facts are stored once; loops, whose subject is their object, are left out.

    Args:
        names: Node name to number.
        relations: Relation name to number.
        triples: Numbers of subject, relation and object of each fact; int32 [facts, 3].
    """

    def __init__(self, names: Mapping[str, int], relations: Mapping[str, int], triples: Ints) -> None:
        self._numbers, self._relation_numbers = names, relations
        self.names: list[str] = list(names)
        self.relations: list[str] = list(relations)
        distinct = triples[triples[:, 0] != triples[:, 2]]
        subjects, order = self._sorted(distinct[:, 0], distinct[:, 1], distinct[:, 2])
        self._forward = subjects
        distinct = distinct[order]
        self._backward, _ = self._sorted(distinct[:, 2], distinct[:, 1], distinct[:, 0])

    def _sorted(self, nodes: Ints, relations: Ints, ends: Ints) -> tuple[_Side, npt.NDArray[np.int64]]:
        """Returns the distinct edges sorted by node, relation and end, and their indices in the input."""
        order = np.lexsort((ends, relations, nodes))
        if len(order):
            a, b, c = nodes[order], relations[order], ends[order]
            new = np.ones(len(order), bool)
            new[1:] = (a[1:] != a[:-1]) | (b[1:] != b[:-1]) | (c[1:] != c[:-1])
            order = order[new]
        first = np.searchsorted(nodes[order], np.arange(len(self.names) + 1))
        return _Side(first, relations[order].copy(), ends[order].copy()), order

    def __len__(self) -> int:
        """Number of facts."""
        return len(self._forward.ends)

    def objects(self, subject: str, relation: str) -> Sequence[str]:
        """Returns the objects of a subject's relation."""
        return self._ends(self._forward, subject, relation)

    def subjects(self, value: str, relation: str) -> Sequence[str]:
        """Returns the subjects that have an object by a relation."""
        return self._ends(self._backward, value, relation)

    def _ends(self, side: _Side, name: str, relation: str) -> list[str]:
        node, number = self._numbers.get(name), self._relation_numbers.get(relation)
        if node is None or number is None:
            return []
        first, last = side.first[node], side.first[node + 1]
        inside = side.relations[first:last]
        low, high = np.searchsorted(inside, [number, number + 1])
        return [self.names[end] for end in side.ends[first + low : first + high]]

    def triples(self) -> Iterator[tuple[str, str, str]]:
        """Yields all facts, by subject and relation."""
        side = self._forward
        for node, name in enumerate(self.names):
            for index in range(side.first[node], side.first[node + 1]):
                yield name, self.relations[side.relations[index]], self.names[side.ends[index]]

    def walk(self, rng: Random, hops: int) -> tuple[str, list[str], str] | None:
        """Draws a chain of facts over different nodes, in which each fact is the only one of its subject and relation.

        Returns:
            Start, relations and end; None if the walk reached a node without such a fact.
        """
        side = self._forward
        start = node = rng.randrange(len(self.names))
        steps, seen = [], {node}
        for _ in range(hops):
            first, last = int(side.first[node]), int(side.first[node + 1])
            if first == last:
                return None
            index = rng.randrange(first, last)
            relation, end = int(side.relations[index]), int(side.ends[index])
            single = (index == first or side.relations[index - 1] != relation) and (
                index + 1 == last or side.relations[index + 1] != relation
            )
            if not single or end in seen:
                return None
            steps.append(self.relations[relation])
            seen.add(end)
            node = end
        return self.names[start], steps, self.names[node]


def read_triples(
    path: FilePath,
    entities: FilePath | None = None,
    relations: FilePath | None = None,
) -> TripleGraph:
    """Reads triples from a file of three tab-separated columns: subject, relation, object.

    Args:
        path: File of triples, such as ``wikidata5m_transductive_train.txt`` or a world's ``triples.tsv``.
        entities: File of names: id, then a name (and aliases, which are not read), such as ``wikidata5m_entity.txt``.
            An id without a name stays as it is; if two ids share a name, the second gets its id in brackets.
        relations: File of relation names in the same format.

    Raises:
        DataMissingError: A file does not exist.
        DataError: A line does not have three columns, or a line of a file of names has no name; the message names file
            and line.
    """
    names: dict[str, int] = {}
    kinds: dict[str, int] = {}
    blocks: list[Ints] = []
    for number, lines in _blocks(path):
        rows = np.empty((len(lines), 3), np.int32)
        for offset, line in enumerate(lines):
            parts = line.split("\t")
            if len(parts) != 3 or not all(parts) or len(line) > 3 * _NAME:
                raise DataError(
                    f"needs subject, relation and object with tabs between them, got {line!r:.80}",
                    path,
                    number + offset,
                )
            rows[offset, 0] = names.setdefault(parts[0], len(names))
            rows[offset, 1] = kinds.setdefault(parts[1], len(kinds))
            rows[offset, 2] = names.setdefault(parts[2], len(names))
        blocks.append(rows)
    if not blocks:
        raise DataError("holds no triples", path)
    return TripleGraph(
        _named(names, None if entities is None else read_names(entities)),
        _named(kinds, None if relations is None else read_names(relations)),
        np.concatenate(blocks),
    )


def read_names(path: FilePath) -> dict[str, str]:
    """Reads the first name of each id from lines of tab-separated id and names.

    Raises:
        DataMissingError: The file does not exist.
        DataError: A line has no name; the message names file and line.
    """
    names: dict[str, str] = {}
    for number, lines in _blocks(path):
        for offset, line in enumerate(lines):
            id, tab, rest = line.partition("\t")
            if not tab or not id or not rest:
                raise DataError(
                    f"needs an id and a name with a tab between them, got {line!r:.80}", path, number + offset
                )
            names.setdefault(id, rest.partition("\t")[0])
    return names


def _named(numbers: Mapping[str, int], names: Mapping[str, str] | None) -> dict[str, int]:
    """Returns numbers by name instead of id; a repeated name gets its id in brackets."""
    if names is None:
        return dict(numbers)
    named: dict[str, int] = {}
    for id, number in numbers.items():
        name = names.get(id, id)
        named[f"{name} ({id})" if name in named else name] = number
    return named


def _blocks(path: FilePath) -> Iterator[tuple[int, list[str]]]:
    """Yields blocks of lines with the number of their first line; empty lines at the end are dropped."""
    file = Path(path)
    if not file.is_file():
        raise DataMissingError("no such file: check the path", path)
    number, rest = 1, b""
    with file.open("rb") as stream:
        while True:
            piece = stream.read(_BLOCK)
            whole, _, tail = (rest + piece).rpartition(b"\n") if piece else (rest, b"", b"")
            rest = tail
            if len(rest) > MAX_LINE:
                raise DataError(f"a line of more than {MAX_LINE:,} bytes: get or make the file again", path, number)
            if whole:
                try:
                    text = whole.decode("utf-8-sig" if number == 1 else "utf-8").replace("\r\n", "\n")
                except UnicodeDecodeError as error:
                    raise DataError(f"not UTF-8 ({error.reason}): convert the file to UTF-8", path) from None
                lines = text.rstrip("\n").split("\n")
                yield number, lines
                number += len(lines)
            if not piece:
                return
