"""Excludes pages reserved for evaluation from demonstrations: gold pages, and questions about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from searchgym.envs.task import Task
from searchgym.errors import UsageError
from searchgym.questions.masked.hiding import HidingRetriever
from searchgym.questions.masked.spans import SPAN_SEPARATOR
from searchgym.questions.source import held_out_by
from searchgym.records import title_key
from searchgym.retrieval.index.distractors import passages_of
from searchgym.retrieval.index.index import build_in_memory
from searchgym.text import base_title, norm


def without_held_out(task: Task, files: Sequence[Path]) -> tuple[Task, int]:
    """Returns a task without the gold pages and entities of evaluation questions, and the number of excluded pages.

    Neither searches nor questions of the new task lead to these pages: BM25 is rebuilt over the other pages.

    Args:
        task: Task whose corpus is on this machine.
        files: Files of evaluation questions; if empty, the task is returned unchanged.

    Raises:
        UsageError: The corpus is not on this machine, no question is left, or the task has further retrievers.
    """
    if not files:
        return task, 0
    if task.retrievers:
        raise UsageError("--hold-out: retrievers would find the pages that are held out: leave them out")
    passages = list(passages_of(task.retriever) or ())
    held_out = held_out_by(passages, files)
    if not passages or held_out is None:
        raise UsageError("--hold-out needs the corpus on this machine: give --corpus, not a retrieval server")
    titles = {title_key(passages[page].title) for page in held_out.pages}

    def apart(title: str) -> bool:
        return title_key(title) not in titles and norm(base_title(title)) not in held_out.names

    remaining = [
        question
        for question in task.questions
        if all(map(apart, question.gold_titles or ()))
        and ("masks" not in question.metadata or apart(str(question.metadata.get("page", ""))))
        and not {norm(part) for answer in question.golds for part in (answer, *answer.split(SPAN_SEPARATOR))}
        & held_out.names
    ]
    if not remaining:
        raise UsageError(f"each of the {len(task.questions)} questions is about a page that is held out")
    left = [passage for page, passage in enumerate(passages) if page not in held_out.pages]
    index = build_in_memory(left)
    hiding = task.retriever.over(index) if isinstance(task.retriever, HidingRetriever) else index
    return dataclasses.replace(task.asking(remaining), retriever=hiding), len(passages) - len(left)
