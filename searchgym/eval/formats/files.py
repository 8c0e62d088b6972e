"""Writes and reads files of predictions in the official formats, with ids checked against the questions.

Files are pure ASCII with escapes, since the official scripts open them in the locale's encoding.
"""

from __future__ import annotations

import difflib
import itertools
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

from searchgym.corpora.fields import Row
from searchgym.corpora.files import MAX_DOCUMENT, FilePath, iter_jsonl, read_json, write_atomic
from searchgym.corpora.rows import Rows, parse_rows, sniff
from searchgym.errors import BadLines, DataError, UnknownNameError, UsageError
from searchgym.eval.formats.documents import document_of, of_document
from searchgym.eval.formats.lines import READERS, WRITERS, kilt_row
from searchgym.eval.formats.predictions import PREDICTION_FORMATS, Prediction
from searchgym.records import Question
from searchgym.scoring import UNANSWERABLE_SUFFIX, check_ids

CLOSE: Final = 0.8
"""Least similarity of a key to a key of a format by which the nearest format is named."""


# -- writing -------------------------------------------------------------------------------------------------------


def write_predictions(
    path: FilePath,
    predictions: Sequence[Prediction],
    questions: Sequence[Question],
    format: str,
    wikipedia_ids: bool = False,
) -> None:
    """Writes predictions in an official format, in the order of the questions; the file appears when it is complete.

    Args:
        path: The file; compressed if its name ends in ``.gz``, which the official scripts do not read.
        predictions: One for each question.
        questions: The questions, in the order of the official file: MuSiQue's script demands it.
        format: A key of `PREDICTION_FORMATS`.
        wikipedia_ids: For KILT only: whether the ids of passages are those of Wikipedia pages; see `kilt_row`.

    Raises:
        UnknownNameError: There is no such format.
        UsageError: `wikipedia_ids` with another format, or `path` cannot be written.
        ScoringError: The predictions do not match the questions one to one.
    """
    check_format(format)
    if wikipedia_ids and format != "kilt":
        raise UsageError(f"only KILT's format has ids of Wikipedia pages, not {format}: leave out wikipedia_ids")
    check_ids([prediction.id for prediction in predictions], questions)
    own = {prediction.id: prediction for prediction in predictions}
    ordered = [own[question.id] for question in questions]
    values: Iterator[Any]
    if format in WRITERS:
        write = partial(kilt_row, wikipedia_ids=True) if wikipedia_ids else WRITERS[format]
        values = (write(prediction, question) for prediction, question in zip(ordered, questions, strict=True))
    else:
        values = iter([document_of(ordered, format)])
    with write_atomic(path) as file:
        for value in values:
            file.write(json.dumps(value, allow_nan=False).encode("ascii") + b"\n")


def check_format(format: str) -> None:
    """Refuses an unknown format.

    Raises:
        UnknownNameError: There is no such format.
    """
    if format not in PREDICTION_FORMATS:
        raise UnknownNameError("format of predictions", format, PREDICTION_FORMATS)


# -- reading -------------------------------------------------------------------------------------------------------


def read_predictions(
    path: FilePath,
    questions: Sequence[Question] | None = None,
    format: str | None = None,
    missing: Literal["error", "zero"] = "error",
) -> dict[str, Prediction]:
    """Reads predictions in an official format, plain or gzip.

    Args:
        path: The file.
        questions: The questions that were asked, to check the ids. MuSiQue gives an unanswerable question the id of its
            answerable twin: the order of the questions tells them apart. Default: ids are not checked.
        format: A key of `PREDICTION_FORMATS`. Default: detected from the content.
        missing: What a question without a prediction is: an error, or one without an answer (``"zero"``), as in
            HotpotQA's and 2WikiMultihopQA's scripts.

    Returns:
        Question id to prediction, in the order of the file.

    Raises:
        DataMissingError: The file does not exist.
        DataError: The file is empty, damaged, cut, of another format, or a value has a wrong type; an id is there
            twice, is unknown, or is missing. The error names the file, and line, item or id.
        UnknownNameError: There is no such format.
    """
    if format is not None:
        check_format(format)
    content, found = _open(path)
    if format is not None and found != format and (found, format) not in ALIKE:
        keys = ", ".join(PREDICTION_FORMATS[found])
        raise DataError(f"this is a file of format {found!r} (keys {keys}), not of {format!r}", path)
    name, known = format or found, None if questions is None else _Known(questions)
    if isinstance(content, Rows):
        read, resolve = READERS[name], known or _unchecked

        def parse(row: Row, position: int) -> Prediction:
            return resolve(read(row), twins=name == "musique")

        predictions = {own.id: own for own in parse_rows(content, parse, BadLines())}
    else:
        predictions = {}
        for own in of_document(content, name, path):
            try:
                predictions[own.id] = own if known is None else known(own)
            except DataError as error:
                raise DataError(error.reason, path) from None
    return _complete(predictions, questions or (), missing, path)


def detect_format(path: FilePath) -> str:
    """Returns the name of the format of a file of predictions; errors as `read_predictions`."""
    return _open(path)[1]


ALIKE: Final = {("2wiki", "hotpotqa"), ("hotpotqa", "2wiki")}
"""Formats of which one can be read as the other: without evidence, or with the error that it lacks some."""


class _Known:
    """Check of ids against those of the questions, which also tells MuSiQue's twins apart."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self.ids = {question.id for question in questions}
        self._twins: dict[str, deque[str]] = {}
        for question in questions:
            self._twins.setdefault(question.id.removesuffix(UNANSWERABLE_SUFFIX), deque()).append(question.id)

    def __call__(self, prediction: Prediction, twins: bool = False) -> Prediction:
        """Returns a prediction under the id of its question.

        Raises:
            DataError: No question has this id, or fewer than there are predictions for it.
        """
        id = prediction.id
        if twins and id in self._twins:
            if not self._twins[id]:
                raise DataError(f"duplicate id {id!r:.80}: an earlier line has it too")
            id = self._twins[id].popleft()
        elif id not in self.ids:
            raise DataError(f"unknown id {id!r:.80}: none of the {len(self.ids)} questions has it")
        return Prediction(id, prediction.answer, prediction.pages)


def _unchecked(prediction: Prediction, twins: bool = False) -> Prediction:
    """Returns a prediction as it is."""
    return prediction


def _complete(
    predictions: dict[str, Prediction],
    questions: Sequence[Question],
    missing: Literal["error", "zero"],
    path: FilePath,
) -> dict[str, Prediction]:
    """Returns predictions for every question; refuses missing ones unless they count 0."""
    absent = [question.id for question in questions if question.id not in predictions]
    if absent and missing == "error":
        raise DataError(
            f"{len(absent)} of {len(questions)} questions have no prediction (first: {absent[0]!r:.80})", path
        )
    return predictions | {id: Prediction(id, None) for id in absent}


def _open(path: FilePath) -> tuple[Rows | Mapping[str, Any], str]:
    """Opens a file of predictions; returns its rows, or its one document, and the name of its format."""
    kind = sniff(path)
    if kind == "parquet":
        raise DataError("a parquet file: predictions are JSON or JSON lines", path)
    if kind == "jsonl":
        lines = iter_jsonl(path)
        first = next(lines)
        if not _is_document(first[1]):
            return Rows(str(path), "line", itertools.chain([first], lines)), _format_of(first[1], path, first[0])
    content = read_json(path, MAX_DOCUMENT)
    if isinstance(content, list):
        row = content[0] if content else None
        if not isinstance(row, Mapping):
            raise DataError(f"expected a list of objects, the first item is {row!r:.60}", path)
        return Rows(str(path), "item", enumerate(content, start=1)), _format_of(row, path, None)
    if not isinstance(content, Mapping):
        raise DataError(f"expected an object or a list of objects, got {content!r:.60}", path)
    found = _format_of(content, path, None)
    if found in READERS:  # one row, written over several lines
        return Rows(str(path), "item", [(1, content)]), found
    return content, found


def _is_document(row: Row) -> bool:
    """Returns whether an object is a whole document, perhaps on one line, and not a row, which has an id."""
    return isinstance(row.get("answer"), Mapping) and "id" not in row


SHAPES: Final[Mapping[str, Callable[[Row], bool]]] = {
    "2wiki": lambda row: _is_document(row) and "evidence" in row,
    "hotpotqa": lambda row: _is_document(row),
    "musique": lambda row: "predicted_answer" in row,
    "flashrag": lambda row: isinstance(row.get("output"), Mapping),
    "kilt": lambda row: "output" in row,
}
"""Tests of a document or a row, by the name of the format; the first that holds decides."""


def _format_of(row: Row, path: FilePath, line: int | None) -> str:
    """Returns the name of the format of a document or a row; the error for any other names the nearest."""
    for name, holds in SHAPES.items():
        if holds(row):
            return name
    near = {
        name: sum(bool(difflib.get_close_matches(key, map(str, row), 1, CLOSE)) for key in keys) / len(keys)
        for name, keys in PREDICTION_FORMATS.items()
    }
    best = max(near, key=lambda name: near[name])
    hint = f"; the nearest is {best}, which has {', '.join(PREDICTION_FORMATS[best])}" if near[best] else ""
    keys = ", ".join(list(map(str, row))[:12]) or "none"
    raise DataError(
        f"predictions of no known format: got keys {keys:.200}{hint}. Known: {', '.join(PREDICTION_FORMATS)}",
        path,
        line,
    )
