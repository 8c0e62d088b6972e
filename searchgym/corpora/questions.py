"""Reads and writes questions.

The format is detected from the content:

==============  ====================================================================================================
``hotpotqa``    the official JSON list, or the simplified one of ``{question, answer, type}``; a question without an id
                gets its position, from 0
``2wiki``       the same with ``evidences``, and with ``evidences_id`` and ``answer_id`` in the ids release
``musique``     JSON lines with ``paragraphs`` and ``question_decomposition``
``flashrag``    JSON lines ``{id, question, golden_answers, metadata}``, also with ``answers`` for the golds, and with
                ``supporting_facts`` beside them
``kilt``        JSON lines ``{id, input, output: [{answer, provenance: [{title, ...}]}]}``
``search-r1``   parquet ``{data_source, prompt, reward_model, extra_info}``; the kind is the data source
``browsecomp``  BrowseComp-Plus: rows ``{query_id, query, answer, gold_docs, evidence_docs, negative_docs}``, encrypted
                as released, or decrypted; see `searchgym.corpora.readers.browsecomp`
``searchgym``   JSON lines of `Question`'s fields: what `write_questions` writes
``beir``        ``queries.jsonl``: texts without answers, for `read_queries` only
==============  ====================================================================================================

Gold answers are one text or a list of texts, none of them blank. A list written as text, in JSON's or Python's syntax
(``"['coast', 'shore']"``), is read as a list; one that cannot be read, such as ``"['coast' 'shore']"`` from a NumPy
array, is an error.

A format describes rows: a JSON list, JSON lines, gzip or parquet may hold any of them, as may a data set on the hub
(whose tables keep ``supporting_facts`` and ``context`` as columns; both layouts are read).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from searchgym.corpora.fields import Row, accepted, id_field, text_field, texts_field
from searchgym.corpora.files import FilePath, iter_jsonl, write_jsonl
from searchgym.corpora.question_formats import FORMATS, unused_keys
from searchgym.corpora.readers.browsecomp import is_question
from searchgym.corpora.rows import Rows, find_format, open_rows, parse_rows
from searchgym.errors import BadLines, DataError, DataMissingError, DataWarning, UnknownNameError, UsageError
from searchgym.records import Passage, Question

EXPECTED = (
    "question and answer, answers or golden_answers, text and answers, KILT's input and output, Search-R1's prompt and "
    "reward_model, or BrowseComp-Plus' query_id, query and answer"
)
"""Description of the known formats for error messages."""
LISTED = 8
"""Maximum number of unused keys that a note lists."""


def read_questions(
    path: FilePath, format: str | None = None, bad: BadLines | None = None, aliases: FilePath | None = None
) -> list[Question]:
    """Reads questions with their gold answers.

    A `DataWarning` names the keys of handwritten forms that are not used; see `unused_keys`.

    Args:
        path: The file, or a data set ``hf:OWNER/NAME:CONFIG/SPLIT`` on the hub.
        format: One of `FORMATS`. Default: detected from the content.
        bad: Tolerance for bad rows. Default: the first bad row is an error.
        aliases: 2WikiMultihopQA's ``id_aliases.json``, the source of `Question.aliases`, by the answers' entity ids.
            For files only: rows from the hub have no entity ids.

    Returns:
        Questions in file order, with unique ids and the text exactly as in the source. In MuSiQue-Full an unanswerable
        question shares its id with its answerable twin; `UNANSWERABLE_SUFFIX` is appended to the former's id.

    Raises:
        DataMissingError: The file does not exist.
        DataError: The file is empty or damaged, its format is unknown, a question has no gold answer or a blank one,
            a field has the wrong type, or an id occurs twice.
        UnknownNameError: `format` is not one of `FORMATS`.
        UsageError: `aliases` is given, but no question has an entity id for its answer.
    """
    bad = BadLines() if bad is None else bad
    questions = parse_questions(open_rows(path, bad), format, bad)
    if aliases is None or str(path).startswith("hf:"):
        return questions
    if not any(question.answer_id for question in questions):
        raise UsageError(f"{path}: no question has an answer_id: aliases need 2WikiMultihopQA's ids release")
    names = read_aliases(aliases)
    return [dataclasses.replace(q, aliases=names.get(q.answer_id or "", ())) for q in questions]


def stream_questions(path: FilePath, bad: BadLines | None = None) -> Iterator[Question]:
    """Reads questions one by one, in memory that does not grow with a file of JSON lines; see `read_questions`."""
    bad = BadLines() if bad is None else bad
    return _parsed(open_rows(path, bad, streaming=True), None, bad)


def parse_questions(rows: Rows, format: str | None, bad: BadLines) -> list[Question]:
    """Reads questions from rows of any source; `format`, `bad` and the errors are those of `read_questions`."""
    return list(_parsed(rows, format, bad))


def _parsed(rows: Rows, format: str | None, bad: BadLines) -> Iterator[Question]:
    """Yields the questions of rows, and warns of unused keys at the end."""
    if format is None:
        format, rows = find_format(rows, _shape, EXPECTED)
        if format == "beir":
            raise DataError(
                "BEIR queries have no answers: score their retrieval by `searchgym retrieval --qrels`, or add answers "
                "(id, question, answers)",
                rows.source,
            )
    elif format not in FORMATS:
        raise UnknownNameError("question format", format, FORMATS)
    parse, unused = FORMATS[format], Counter[str]()

    def counted(row: Row, position: int) -> Question:
        question = parse(row, position)
        unused.update(unused_keys(row, format))
        return question

    yield from parse_rows(rows, counted, bad)
    if unused:
        keys = [f"{key:.40} ({count} question{'s' * (count > 1)})" for key, count in unused.most_common(LISTED)]
        more = ", ..." * (len(unused) > LISTED)
        warnings.warn(f"{rows.source}: not used: {', '.join(keys)}{more}", DataWarning, stacklevel=1)


def read_queries(path: FilePath, bad: BadLines | None = None) -> dict[str, str]:
    """Reads the queries of a retrieval evaluation.

    Args:
        path: A BEIR folder or its ``queries.jsonl``, or a file of questions in any format.
        bad: Tolerance for bad rows. Default: the first bad row is an error.

    Returns:
        Query texts by id, in file order.

    Raises:
        DataMissingError: The file does not exist.
        DataError: The file cannot be read; see `read_questions`.
    """
    bad = BadLines() if bad is None else bad
    file = Path(path)
    if file.is_dir():
        file = file / "queries.jsonl"
        if not file.is_file():
            raise DataMissingError("is a folder without queries.jsonl: give a BEIR folder or a file", path)
    format, rows = find_format(open_rows(file, bad), _shape, f"{EXPECTED}, or BEIR's _id and text")
    if format != "beir":
        return {question.id: question.text for question in parse_rows(rows, FORMATS[format], bad)}
    queries = parse_rows(rows, lambda row, _: Passage(id_field(row, "_id"), "", text_field(row, "text")), bad)
    return {query.id: query.text for query in queries}


def read_aliases(path: FilePath) -> dict[str, tuple[str, ...]]:
    """Reads 2WikiMultihopQA's ``id_aliases.json``: JSON lines ``{"Q_id", "aliases", "demonyms"}``.

    Returns:
        Aliases and demonyms by entity id; the official scorer (v1.1) accepts both.

    Raises:
        DataMissingError: The file does not exist.
        DataError: The file is empty or damaged, or a line has another form or a blank name.
    """
    aliases = {}
    for number, row in iter_jsonl(path):
        try:
            names = (name for key in ("aliases", "demonyms") for name in accepted(key, texts_field(row, key)))
            aliases[text_field(row, "Q_id")] = tuple(dict.fromkeys(names))
        except DataError as error:
            raise DataError(error.reason, path, number) from None
    return aliases


def write_questions(path: FilePath, questions: Iterable[Question]) -> int:
    """Writes questions atomically as JSON lines of format ``searchgym``, compressed if the name ends in ``.gz``.

    Returns:
        Number of questions written.
    """
    return write_jsonl(path, map(question_row, questions))


def question_row(question: Question) -> dict[str, Any]:
    """Returns a question as a row of format ``searchgym``, plain data for JSON; empty fields are left out."""
    row = {field.name: getattr(question, field.name) for field in dataclasses.fields(Question)}
    for key, as_plain in PLAIN.items():
        if row[key] is not None:
            row[key] = [as_plain(item) for item in row[key]]
    row["answers"] = list(question.answers)
    row["aliases"] = list(question.aliases) or None
    row["metadata"] = dict(question.metadata) or None
    return {key: value for key, value in row.items() if value is not None}


PLAIN: dict[str, Any] = {
    "supporting_facts": lambda fact: [fact.title, fact.sentence],
    "evidences": lambda triple: [triple.subject, triple.relation, triple.object],
    "evidence_ids": lambda triple: [triple.subject, triple.relation, triple.object],
    "hops": dataclasses.asdict,
    "paragraphs": lambda paragraph: {
        "title": paragraph.title,
        "sentences": list(paragraph.sentences),
        "supporting": paragraph.supporting,
    },
}
"""Functions that turn an item of a list field of `Question` into plain data, by field name."""


def _shape(row: Row) -> str | None:
    """Returns the name of a row's format, None if no known format fits."""
    if {"text", "answers"} <= row.keys():
        return "searchgym"
    if is_question(row):
        return "browsecomp"
    if {"prompt", "reward_model"} <= row.keys():
        return "search-r1"
    if {"input", "output"} <= row.keys():
        return "kilt"
    if "question" in row:
        marks = {
            "golden_answers": "flashrag",
            "question_decomposition": "musique",
            "paragraphs": "musique",
            "evidences": "2wiki",
        }
        others = "flashrag" if "answers" in row and "answer" not in row else "hotpotqa"
        return next((name for mark, name in marks.items() if mark in row), others)
    return "beir" if {"_id", "text"} <= row.keys() else None
