"""Reading and writing questions.

Formats, told apart by their content:

=============  =====================================================================================================
``hotpotqa``   the official JSON list, or the simplified one of ``{question, answer, type}``; ids are positions from 0
               where there are none
``2wiki``      the same with ``evidences``; ids release (``evidences_id``, ``answer_id``) and its alias file too
``musique``    JSON lines with ``paragraphs`` and ``question_decomposition``
``flashrag``   JSON lines ``{id, question, golden_answers, metadata}``
``search-r1``  parquet ``{data_source, prompt, reward_model, extra_info}``
``searchgym``  JSON lines of `Question`'s fields: what `write_questions` writes
``beir``       ``queries.jsonl``: texts without answers, for `read_queries` only
=============  =====================================================================================================

A format is about rows: a JSON list, JSON lines, gzip or parquet may hold any of them, as may a data set on a hub (whose
tables keep ``supporting_facts`` and ``context`` as columns; both ways are read).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from searchgym.corpora.files import BadLines, FilePath, iter_jsonl, write_jsonl
from searchgym.corpora.question_formats import FORMATS
from searchgym.corpora.rows import Row, Rows, find_format, id_field, open_rows, parse_rows, text_field, texts_field
from searchgym.errors import DataError, DataMissingError, UnknownNameError, UsageError
from searchgym.records import Question

EXPECTED = "question and answer, question and golden_answers, text and answers, or Search-R1's prompt and reward_model"


def read_questions(
    path: FilePath, format: str | None = None, bad: BadLines | None = None, aliases: FilePath | None = None
) -> list[Question]:
    """Reads questions with their gold answers.

    Args:
        path: The file.
        format: One of `FORMATS`; told from the content if left out.
        bad: Tolerance for bad rows; none if left out.
        aliases: 2WikiMultihopQA's ``id_aliases.json``: fills `Question.aliases` through the answers' entity ids.

    Returns:
        Questions in the order of the file, ids unique; text exactly as the source has it. An unanswerable twin of
        MuSiQue-Full, which shares its id with the answerable question, has `UNANSWERABLE_SUFFIX` put to its id.

    Raises:
        DataMissingError: There is no such file.
        DataError: Empty, damaged, of no known format, a question without gold answer, a field of another type, an id
            that comes twice.
        UnknownNameError: No such format.
        UsageError: `aliases` was given and no question has an entity id for its answer.
    """
    bad = BadLines() if bad is None else bad
    questions = parse_questions(open_rows(path, bad), format, bad)
    return questions if aliases is None else _with_aliases(questions, aliases, path)


def parse_questions(rows: Rows, format: str | None, bad: BadLines) -> list[Question]:
    """Reads questions from rows, wherever they come from; the rest is as in `read_questions`."""
    if format is None:
        format, rows = find_format(rows, _shape, EXPECTED)
        if format == "beir":
            raise DataError("BEIR queries have no answers: they serve retrieval evaluation only", rows.source)
    elif format not in FORMATS:
        raise UnknownNameError("question format", format, FORMATS)
    return list(parse_rows(rows, FORMATS[format], bad))


def read_queries(path: FilePath, bad: BadLines | None = None) -> dict[str, str]:
    """Reads the texts to search for in a retrieval evaluation.

    Args:
        path: A BEIR folder or its ``queries.jsonl``, or a file of questions in any format.
        bad: Tolerance for bad rows; none if left out.

    Returns:
        ``{id: text}`` in the order of the file.

    Raises:
        DataMissingError: There is no such file.
        DataError: As `read_questions`.
    """
    bad = BadLines() if bad is None else bad
    file = Path(path)
    if file.is_dir():
        file = file / "queries.jsonl"
        if not file.is_file():
            raise DataMissingError("is a folder without queries.jsonl: give a BEIR folder or a file", path)
    format, rows = find_format(open_rows(file, bad), _shape, f"{EXPECTED}, or BEIR's _id and text")
    if format != "beir":
        return {question.id: question.text for question in parse_questions(rows, format, bad)}
    return {query.id: query.text for query in parse_rows(rows, _query, bad)}


def read_aliases(path: FilePath) -> dict[str, tuple[str, ...]]:
    """Reads 2WikiMultihopQA's ``id_aliases.json``: JSON lines ``{"Q_id", "aliases", "demonyms"}``.

    Returns:
        ``{entity id: aliases and demonyms}``, both of which the official scorer (v1.1) accepts.

    Raises:
        DataMissingError: There is no such file.
        DataError: Empty, damaged, or a line of another form.
    """
    aliases = {}
    for number, row in iter_jsonl(path):
        try:
            names = texts_field(row, "aliases") + texts_field(row, "demonyms")
            aliases[text_field(row, "Q_id")] = tuple(dict.fromkeys(names))
        except DataError as error:
            raise DataError(error.reason, path, number) from None
    return aliases


def write_questions(path: FilePath, questions: Iterable[Question]) -> int:
    """Writes questions as JSON lines that read back equal, all at once; packed if the name ends in ``.gz``.

    Returns:
        Number of questions written.
    """
    return write_jsonl(path, map(question_row, questions))


def question_row(question: Question) -> dict[str, Any]:
    """Returns a question as plain data, for JSON; what is absent is left out."""
    row = {field.name: getattr(question, field.name) for field in dataclasses.fields(Question)}
    for key, as_plain in PLAIN.items():
        if row[key] is not None:
            row[key] = [as_plain(one) for one in row[key]]
    row["answers"] = list(question.answers)
    row["aliases"] = list(question.aliases) or None
    row["metadata"] = dict(question.metadata) or None
    return {key: value for key, value in row.items() if value is not None}


PLAIN: dict[str, Any] = {
    "supporting_facts": lambda fact: [fact.title, fact.sentence],
    "evidences": lambda triple: [triple.subject, triple.relation, triple.object],
    "evidence_ids": lambda triple: [triple.subject, triple.relation, triple.object],
    "hops": dataclasses.asdict,
    "paragraphs": lambda one: {"title": one.title, "sentences": list(one.sentences), "supporting": one.supporting},
}
"""How the members of a question's lists become plain data."""


def _with_aliases(questions: list[Question], aliases: FilePath, path: FilePath) -> list[Question]:
    """Returns questions with the aliases of their answers' entities."""
    if not any(question.answer_id for question in questions):
        raise UsageError(f"{path}: no question has an answer_id: aliases need 2WikiMultihopQA's ids release")
    names = read_aliases(aliases)
    return [dataclasses.replace(q, aliases=names.get(q.answer_id or "", ())) for q in questions]


def _shape(row: Row) -> str | None:
    """Returns the name of the format that a row is in, None if in none."""
    if {"text", "answers"} <= row.keys():
        return "searchgym"
    if {"prompt", "reward_model"} <= row.keys():
        return "search-r1"
    if "question" in row:
        marks = {
            "golden_answers": "flashrag",
            "question_decomposition": "musique",
            "paragraphs": "musique",
            "evidences": "2wiki",
        }
        return next((name for mark, name in marks.items() if mark in row), "hotpotqa")
    return "beir" if {"_id", "text"} <= row.keys() else None


class Query(NamedTuple):
    """A text to search for."""

    id: str
    text: str


def _query(row: Row, position: int) -> Query:
    """Reads a BEIR query."""
    return Query(id_field(row, "_id"), text_field(row, "text"))
