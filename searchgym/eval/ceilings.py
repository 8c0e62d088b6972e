"""Ceilings of a run: what the agent would score with perfect retrieval, and what a perfect reader would.

The agent's own score is at most about that with its questions' gold pages given (reading), and what its retriever finds
when asked for the gold titles bounds every reader over it (retrieval). The gaps tell which of the two to work on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from searchgym.agents.base import LoadedAgent, load_agent
from searchgym.corpora.retrieval.index.distractors import passages_of
from searchgym.envs.task import Task
from searchgym.errors import UsageError
from searchgym.eval.runner import SCORES, EvalOptions, evaluate, write_json
from searchgym.eval.scores import Scores
from searchgym.records import Hit, Passage, Question, title_key
from searchgym.rollout.models import Model

READING: Final = "gold_pages"
"""Folder of the run in which every search returns the question's gold pages."""
RETRIEVAL: Final = "evidence_oracle"
"""Folder of the run of the scripted agent that searches for the gold titles and then knows the answer."""


class GoldRetriever:
    """Retriever that returns the gold pages of a question for whatever query.

    Args:
        pages: Question id to its gold pages.
        corpus_sha256: SHA-256 of the corpus that the pages are from, None if there is none.
    """

    in_process = True

    def __init__(self, pages: Mapping[str, Sequence[Passage]], corpus_sha256: str | None = None) -> None:
        self.pages, self.corpus_sha256 = pages, corpus_sha256

    def search_for(self, question_ids: Sequence[str], queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns the gold pages of each query's question, at most k."""
        return [[Hit(page, 1.0) for page in self.pages.get(id, ())][:k] for id in question_ids]


def gold_pages(questions: Iterable[Question], passages: Iterable[Passage]) -> dict[str, list[Passage]]:
    """Returns the gold pages of each question: its own gold paragraphs, or else the first passage of each gold title.

    Raises:
        UsageError: No question names gold pages that are at hand.
    """
    questions = list(questions)
    titles = {title_key(title) for question in questions for title in question.gold_titles or ()}
    by_title: dict[str, Passage] = {}
    for passage in passages:
        if (key := title_key(passage.title)) in titles:
            by_title.setdefault(key, passage)
    pages: dict[str, list[Passage]] = {}
    for question in questions:
        own = [p for p in question.paragraphs or () if p.supporting and p.text.strip()]
        found = [Passage(f"{question.id}/{number}", p.title, p.text) for number, p in enumerate(own)]
        if not found:
            keys = dict.fromkeys(title_key(title) for title in question.gold_titles or ())
            found = [by_title[key] for key in keys if key in by_title]
        if found:
            pages[question.id] = found
    if not pages:
        raise UsageError("ceilings need questions that name their gold pages, and the texts of these pages")
    return pages


def with_gold_pages(task: Task) -> Task:
    """Returns the task in which every search returns the question's gold pages, all of them."""
    pages = gold_pages(task.questions, passages_of(task.retriever) or ())
    most = max(map(len, pages.values()))
    rules = dataclasses.replace(task.rules, top_k=max(task.rules.top_k, most))
    sha256 = getattr(task.retriever, "corpus_sha256", None)
    return dataclasses.replace(task, retriever=GoldRetriever(pages, sha256), rules=rules)


def add_ceilings(
    task: Task,
    agent: LoadedAgent,
    out: Path,
    scores: Scores,
    models: Mapping[str, Model] | None = None,
    options: EvalOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Scores:
    """Runs an agent with the gold pages given, and the evidence oracle, and adds their scores to those of a run.

    Args:
        task: Environment and questions of the run.
        agent: Agent of the run.
        out: Folder of the run; the two runs go into folders in it.
        scores: Scores of the run.
        models: The model behind each role.
        options: How the run was made.
        progress: Called with (episodes done, episodes in all) of the longer run.

    Returns:
        The scores with ``ceilings``: ``gold_pages`` and ``evidence_oracle`` (EM and F1 of the two runs), and the gaps
        ``reading_gap`` and ``retrieval_gap``: their EM less that of the run.
    """
    options = options or EvalOptions()
    named = task.asking(question for question in task.questions if question.gold_titles)
    found: dict[str, dict[str, Any]] = {}
    for folder, own_task, own_agent, own_models in (
        (READING, with_gold_pages(named), agent, models),
        (RETRIEVAL, named, load_agent("evidence-oracle"), None),
    ):
        resume = dataclasses.replace(options, resume=not options.overwrite and (out / folder / "run.json").exists())
        reached = evaluate(own_task, own_agent, out / folder, own_models, resume, progress=progress)
        found[folder] = {"n": reached["n"], "em": reached["em"], "f1": reached["f1"]}
    gaps = {"reading_gap": found[READING]["em"] - scores["em"], "retrieval_gap": found[RETRIEVAL]["em"] - scores["em"]}
    scores = scores | {"ceilings": {**found, **gaps}}
    write_json(out / SCORES, scores)
    return scores
