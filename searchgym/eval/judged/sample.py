"""The calibration sample: answers with right labels, on which every judge of a run is judged itself."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from searchgym.corpora.files import dump_line, iter_jsonl
from searchgym.corpora.folders import bundled_file
from searchgym.errors import CardError, DataError
from searchgym.options import Options, read
from searchgym.records import Question

SHIPPED: Final = "eval/judged/sample.jsonl"
"""The sample that ships with the package, relative to it: invented and generic facts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationItem(Options):
    """One answer with its label; unknown keys are refused."""

    id: str = ""
    """Id, unique in the sample. Default: the number of its line."""
    question: str
    golds: tuple[str, ...]
    """Gold answers, at least one."""
    answer: str
    right: bool
    """Label: whether the answer is right."""
    kind: str = ""
    """Sort of answer, such as ``near_miss``; it has no effect."""

    def as_question(self) -> Question:
        """Returns the question of the item, whose only criterion is that an answer gives a gold answer."""
        return Question(self.id, self.question, self.golds)


def read_sample(path: Path | None = None) -> list[CalibrationItem]:
    """Reads a calibration sample, a file of JSON lines with the fields of `CalibrationItem`.

    Args:
        path: The file. Default: the sample that ships with the package.

    Raises:
        DataMissingError: There is no such file.
        DataError: A line is no item, or has the id of an earlier one; the message names file and line.
    """
    path = bundled_file(SHIPPED) if path is None else path
    items: dict[str, CalibrationItem] = {}
    for line, row in iter_jsonl(path):
        try:
            item = read(CalibrationItem, row, "calibration")
        except CardError as error:
            raise DataError(str(error).replace("calibration: ", ""), path, line) from None
        if not item.question.strip():
            raise DataError("question: expected text, got a blank", path, line)
        if not item.golds or not all(gold.strip() for gold in item.golds):
            raise DataError(f"golds: expected gold answers with words, got {list(item.golds)!r:.60}", path, line)
        item = dataclasses.replace(item, id=item.id or f"line {line}")
        if item.id in items:
            raise DataError(f"id {item.id!r:.60} stands twice: give each item another one", path, line)
        items[item.id] = item
    return list(items.values())


def sample_sha256(items: Sequence[CalibrationItem]) -> str:
    """Returns the SHA-256 of the items of a sample, without their kinds, which do not affect a verdict."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(dump_line([item.id, item.question, item.golds, item.answer, item.right]))
    return digest.hexdigest()
