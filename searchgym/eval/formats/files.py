"""Files of predictions in the official formats, with ids checked against the questions.

Written files are pure ASCII with escapes, since the official scripts open them in the locale's encoding.
"""

from __future__ import annotations

import difflib
import itertools
import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

from searchgym.corpora.fields import Row
from searchgym.corpora.files import MAX_DOCUMENT, FilePath, iter_jsonl, read_json, write_atomic
from searchgym.corpora.rows import Rows, parse_rows, sniff
from searchgym.errors import BadLines, DataError, UnknownNameError, UsageError
from searchgym.eval.formats.predictions import (
    PREDICTION_FORMATS,
    Prediction,
    document_of,
    is_document,
    kilt_row,
    of_document,
)
from searchgym.records import Question
from searchgym.scoring import UNANSWERABLE_SUFFIX, check_ids

CLOSE: Final = 0.8
"""Minimum similarity of two keys that count as alike in the search for the nearest format."""


# -- writing -------------------------------------------------------------------------------------------------------


def write_predictions(
    path: FilePath,
    predictions: Sequence[Prediction],
    questions: Sequence[Question],
    format: str,
    wikipedia_ids: bool = False,
) -> None:
    """Writes predictions in an official format, in the order of the questions; the file is complete or absent.

    Args:
        path: File to write; compressed if its name ends in ``.gz``, which the official scripts do not read.
        predictions: Predictions, one for each question.
        questions: Questions in the order of the official file, which MuSiQue's script requires.
        format: A key of `PREDICTION_FORMATS`.
        wikipedia_ids: For KILT only: whether passage ids are ids of Wikipedia pages; see `kilt_row`.

    Raises:
        UnknownNameError: The format is unknown.
        UsageError: `wikipedia_ids` with another format, or `path` cannot be written.
        ScoringError: The predictions do not match the questions one to one.
    """
    check_format(format)
    if wikipedia_ids and format != "kilt":
        raise UsageError(f"only KILT's format has ids of Wikipedia pages, not {format}: leave out wikipedia_ids")
    check_ids([prediction.id for prediction in predictions], questions)
    by_id = {prediction.id: prediction for prediction in predictions}
    write = partial(kilt_row, wikipedia_ids=True) if wikipedia_ids else PREDICTION_FORMATS[format].write
    values: Iterable[dict[str, Any]]
    if write is None:
        values = [document_of([by_id[question.id] for question in questions], format)]
    else:
        values = (write(by_id[question.id], question) for question in questions)
    with write_atomic(path) as file:
        for value in values:
            file.write(json.dumps(value, allow_nan=False).encode("ascii") + b"\n")


def check_format(format: str) -> None:
    """Checks that a format exists.

    Raises:
        UnknownNameError: The format is unknown.
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
        path: File to read.
        questions: Questions of the predictions, to check the ids. In MuSiQue's format an unanswerable question has the
            id of its answerable twin; the order of the questions distinguishes them. Default: ids are not checked.
        format: A key of `PREDICTION_FORMATS`. Default: detected from the content.
        missing: Treatment of a question without a prediction: ``"error"``, or ``"zero"`` for a prediction without an
            answer, as in the scripts of HotpotQA and 2WikiMultihopQA.

    Returns:
        Predictions by question id, in the order of the file; missing ones come last.

    Raises:
        DataMissingError: The file does not exist.
        DataError: The file is empty, damaged, truncated or of another format, a value has a wrong type, or an id is
            duplicate, unknown or missing. The error names the file, and the line, item or id.
        UnknownNameError: The format is unknown.
    """
    if format is not None:
        check_format(format)
    content, detected = _open(path)
    name = format or detected
    if detected != name and {detected, name} != {"2wiki", "hotpotqa"}:  # each of these two can be read as the other
        keys = ", ".join(PREDICTION_FORMATS[detected].keys)
        raise DataError(f"this is a file of format {detected!r} (keys {keys}), not of {name!r}", path)
    of_question = _by_question(questions, twins=name == "musique")
    predictions: dict[str, Prediction] = {}
    read = PREDICTION_FORMATS[name].read
    if isinstance(content, Rows) and read is not None:
        rows = parse_rows(content, lambda row, position: of_question(read(row)), BadLines())
        predictions = {prediction.id: prediction for prediction in rows}
    elif not isinstance(content, Rows):
        for prediction in of_document(content, name, path):
            try:
                predictions[prediction.id] = of_question(prediction)
            except DataError as error:
                raise DataError(error.reason, path) from None
    absent = [question.id for question in questions or () if question.id not in predictions]
    if absent and missing == "error":
        reason = f"{len(absent)} of {len(questions or ())} questions have no prediction (first: {absent[0]!r:.80})"
        raise DataError(reason, path)
    return predictions | {id: Prediction(id, None) for id in absent}


def _by_question(questions: Sequence[Question] | None, twins: bool) -> Callable[[Prediction], Prediction]:
    """Returns a function that checks a prediction's id and replaces it by its question's id.

    Args:
        questions: Questions of the predictions; None if ids are not checked.
        twins: Whether an unanswerable question has the id of its answerable twin, as in MuSiQue.
    """
    ids = {question.id for question in questions or ()}
    left: dict[str, deque[str]] = {}
    for question in questions or ():
        left.setdefault(question.id.removesuffix(UNANSWERABLE_SUFFIX), deque()).append(question.id)

    def of_question(prediction: Prediction) -> Prediction:
        id = prediction.id
        if questions is None:
            return prediction
        if twins and id in left:
            if not left[id]:
                raise DataError(f"duplicate id {id!r:.80}: an earlier line has it too")
            return replace(prediction, id=left[id].popleft())
        if id not in ids:
            raise DataError(f"unknown id {id!r:.80}: none of the {len(ids)} questions has it")
        return prediction

    return of_question


def detect_format(path: FilePath) -> str:
    """Returns the name of the format of a file of predictions; raises the errors of `read_predictions`."""
    return _open(path)[1]


def _open(path: FilePath) -> tuple[Rows | Mapping[str, Any], str]:
    """Opens a file of predictions; returns its rows, or its document, and the name of its format."""
    kind = sniff(path)
    if kind == "parquet":
        raise DataError("a parquet file: predictions are JSON or JSON lines", path)
    if kind == "jsonl":
        lines = iter_jsonl(path)
        first = next(lines)
        if not is_document(first[1]):
            return Rows(str(path), "line", itertools.chain([first], lines)), _format_of(first[1], path, first[0])
    content = read_json(path, MAX_DOCUMENT)
    if isinstance(content, list):
        row = content[0] if content else None
        if not isinstance(row, Mapping):
            raise DataError(f"expected a list of objects, the first item is {row!r:.60}", path)
        return Rows(str(path), "item", enumerate(content, start=1)), _format_of(row, path, None)
    if not isinstance(content, Mapping):
        raise DataError(f"expected an object or a list of objects, got {content!r:.60}", path)
    detected = _format_of(content, path, None)
    if PREDICTION_FORMATS[detected].read is not None:  # one row, written over several lines
        return Rows(str(path), "item", [(1, content)]), detected
    return content, detected


def _format_of(row: Row, path: FilePath, line: int | None) -> str:
    """Returns the name of the format of a document or a row; if it has none, the error names the nearest one."""
    near: dict[str, float] = {}
    for name, form in PREDICTION_FORMATS.items():
        if form.matches(row):
            return name
        alike = [key for key in form.keys if difflib.get_close_matches(key, map(str, row), 1, CLOSE)]
        near[name] = len(alike) / len(form.keys)
    best = max(near, key=lambda name: near[name])
    hint = f"; the nearest is {best}, which has {', '.join(PREDICTION_FORMATS[best].keys)}" if near[best] else ""
    keys = ", ".join(list(map(str, row))[:12]) or "none"
    raise DataError(
        f"predictions of no known format: got keys {keys:.200}{hint}. Known: {', '.join(PREDICTION_FORMATS)}",
        path,
        line,
    )
