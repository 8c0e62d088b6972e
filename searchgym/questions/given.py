"""Questions that a user gives: files, data sets of the Hugging Face hub, or records."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from searchgym.errors import UsageError
from searchgym.records import Question

Given = str | os.PathLike[str] | Sequence[Question] | Sequence[str]


def given_questions(env: str, given: Given, aliases: str | os.PathLike[str] | None = None) -> tuple[Question, ...]:
    """Returns the questions of a file, a data set (``hf:OWNER/NAME:CONFIG/SPLIT``), several of these, or the records.

    Where several sources share ids, each id gets the number of its source.

    Args:
        env: Id of the environment, for messages.
        given: The user's questions.
        aliases: 2WikiMultihopQA's ``id_aliases.json``.

    Raises:
        UsageError: `given` is empty, or neither paths nor `Question` records.
        DataMissingError: A file does not exist.
    """
    if isinstance(given, (str, os.PathLike)):
        from searchgym.corpora.questions import read_questions

        return tuple(read_questions(given, aliases=aliases))
    records: list[Any] = list(given) if isinstance(given, Sequence) else [given]
    if not records:
        raise UsageError(f"{env}: questions= is empty")
    if all(isinstance(record, Question) for record in records):
        return tuple(records)
    if not all(isinstance(record, (str, os.PathLike)) for record in records):
        what = "neither paths nor a list of Question records, nor a mapping such as {'seed': 7}"
        raise UsageError(f"{env}: questions= is {what}: {given!r:.80}")
    parts = [given_questions(env, source, aliases) for source in records]
    ids = [question.id for part in parts for question in part]
    if len(set(ids)) == len(ids):
        return tuple(question for part in parts for question in part)
    return tuple(
        dataclasses.replace(question, id=f"{number}/{question.id}")
        for number, part in enumerate(parts, start=1)
        for question in part
    )


def given_label(given: Given) -> str:
    """Returns what stands for the name of a split in records and reports: the names of the files."""
    several = given if isinstance(given, (list, tuple)) else [given]
    names = [Path(one).name for one in several if isinstance(one, (str, os.PathLike))]
    return f"given ({', '.join(names)})" if names else "given"
