"""The interface of formats: which fields of a framework's batch are read, and how they become samples."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from searchgym.errors import DataError
from searchgym.options import Kind
from searchgym.testing.dumps.files import Batch
from searchgym.testing.dumps.sample import DumpedSample

NEAR = 0.75
"""Minimum similarity of an unknown field's name to one that is read, from which it counts as another version's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpFormat(Kind):
    """Reads the batches of one framework, pinned to one version of its fields."""

    kinds_in: ClassVar = "searchgym.testing.dumps.formats"
    noun: ClassVar = "format"
    version: ClassVar[str]
    """Package and version whose fields are read."""
    required: ClassVar[tuple[str, ...]]
    """Fields that every batch has; the first has one row for each sample."""
    optional: ClassVar[tuple[str, ...]] = ()
    """Fields that are read if they are there."""
    added: ClassVar[tuple[str, ...]] = ()
    """Fields that the framework's batch lacks, and that the author of a dump may add."""
    ignored: ClassVar[tuple[str, ...]] = ()
    """Fields of the framework that are not read."""
    estimators: ClassVar[Mapping[str, str]]
    """The framework's names of estimators, and the names of `searchgym.testing.dumps.advantages.ESTIMATORS`."""
    epsilon: ClassVar[float] = 1e-6
    """Number that the framework adds to the deviation of rewards."""

    def samples(self, batch: Batch) -> list[DumpedSample]:
        """Returns the samples of a batch.

        Raises:
            DataError: A field is missing, of another version, or not of the expected shape.
        """
        self._check_names(batch)
        try:
            return list(self.rows(batch))
        except (TypeError, ValueError, IndexError, AttributeError, KeyError) as error:
            raise DataError(
                f"fields of another shape than those of {self.version}: {error}", batch.path, batch.line
            ) from None

    def rows(self, batch: Batch) -> Iterator[DumpedSample]:
        """Yields the samples of a batch whose fields have the right names."""
        raise NotImplementedError

    def unread(self, batch: Batch) -> list[str]:
        """Returns the names of a batch's fields that are not read."""
        return sorted(batch.fields.keys() - {*self.required, *self.optional, *self.added})

    def _check_names(self, batch: Batch) -> None:
        """Refuses a batch that lacks a field, or has one whose name is nearly that of a field that is read."""
        present, read = batch.fields.keys(), {*self.required, *self.optional, *self.added}
        unknown = sorted(present - read - set(self.ignored))
        problems = []
        for name in [name for name in self.required if name not in present]:
            near = difflib.get_close_matches(name, unknown, 1, 0.5)
            problems.append(f"no field {name!r}" + (f", but {near[0]!r}" if near else ""))
        for name in unknown:
            near = difflib.get_close_matches(name, read - present, 1, NEAR)
            if near and not any(repr(name) in problem for problem in problems):
                problems.append(f"unknown field {name!r}, near {near[0]!r}")
        if problems:
            missing = [name for name in self.required if name not in present]
            listed = f"; the dump has {', '.join(sorted(present)[:12]) or 'no field'}" if missing else ""
            message = f"not the fields of {self.version}: {'; '.join(problems[:4])}{listed}"
            raise DataError(message, batch.path, batch.line)


def rows_of(batch: Batch, first: str) -> Iterator[tuple[int, str]]:
    """Yields (index, name) of each row of a batch of columns, which `first` counts."""
    for index in range(len(batch.fields[first])):
        yield index, f"{batch.name}, row {index + 1}" if batch.name else f"row {index + 1}"


def cell(batch: Batch, name: str, index: int) -> Any:
    """Returns a row's value of a column; None if the batch lacks the column or the value."""
    column = batch.fields.get(name)
    return None if column is None else column[index]


def number(batch: Batch, *names: str) -> float | None:
    """Returns the first of several fields as one number; None if the batch has none of them."""
    for name in names:
        if batch.fields.get(name) is not None:
            return float(np.asarray(batch.fields[name]).reshape(-1)[0])
    return None


def after(prompt: int, values: Any, blank: float = np.nan) -> Any:
    """Returns numbers of a response with `prompt` blanks before them; None if there are none."""
    if values is None:
        return None
    row = [blank if value is None else float(value) for value in values]
    return np.concatenate([np.full(prompt, blank), np.asarray(row, np.float64)])


def total(rewards: Sequence[float] | float | None) -> float | None:
    """Returns the sum of a row's rewards, which may be one number; None if there are none."""
    return None if rewards is None else float(np.asarray(rewards, np.float64).sum())
