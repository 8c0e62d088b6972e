"""Ceilings of a run: what the agent would score with perfect retrieval, and what a perfect reader would; and its floor.

The agent's own score is at most about that with its questions' gold pages given (reading), and what its retriever finds
when asked for the gold titles bounds every reader over it (retrieval). The gaps tell which of the two to work on. The
floor is what it scores if each search returns pages about another question: more than that, the agent owes to the hits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from searchgym.agents.base import LoadedAgent, load_agent
from searchgym.envs.task import Task
from searchgym.errors import UsageError
from searchgym.eval.run_folder import SCORES, holds_run
from searchgym.eval.runner import EvalOptions, evaluate, write_json
from searchgym.eval.scores import Scores
from searchgym.records import Hit, Passage, Question, title_key
from searchgym.retrieval.index.distractors import passages_of
from searchgym.retrieval.retriever import Retriever
from searchgym.rollout.models import Model

READING: Final = "gold_pages"
"""Folder of the run in which every search returns the question's gold pages."""
RETRIEVAL: Final = "evidence_oracle"
"""Folder of the run of the scripted agent that searches for the gold titles and then knows the answer."""


FLOOR: Final = "other_hits"
"""Folder of the run in which every search returns what is found for another question."""


class OtherHits:
    """Retriever that finds pages for another question, always the same one, whatever the query.

    What it returns is found by a search for the title of one of that question's gold pages, which the query decides:
    pages of the usual number, form and quality, that do not help.

    Args:
        inner: Retriever of the task.
        questions: Questions of the task; those without gold titles get no hits.

    Raises:
        UsageError: No two questions have gold titles of their own.
    """

    def __init__(self, inner: Retriever, questions: Iterable[Question]) -> None:
        self.inner, self.corpus_sha256 = inner, getattr(inner, "corpus_sha256", None)
        self.in_process = bool(getattr(inner, "in_process", False))
        titles = {q.id: tuple(dict.fromkeys(q.gold_titles)) for q in questions if q.gold_titles}
        order = random.Random(0).sample(sorted(titles), len(titles))
        self.titles: dict[str, tuple[str, ...]] = {}
        """Question id to the titles that are searched for instead of its queries."""
        for place, id in enumerate(order):
            own = {title_key(title) for title in titles[id]}
            turned = [*order[place + 1 :], *order[:place]]
            other = next((o for o in turned if own.isdisjoint(map(title_key, titles[o]))), None)
            if other is None:
                raise UsageError("the floor needs questions with different gold titles")
            self.titles[id] = titles[other]

    def search_for(self, question_ids: Sequence[str], queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns hits for another question in place of each query's, at most k."""
        asked: list[str | None] = []
        for id, query in zip(question_ids, queries, strict=True):
            titles = self.titles.get(id)
            asked.append(titles[zlib.crc32(query.encode("utf-8", "replace")) % len(titles)] if titles else None)
        found = iter(self.inner.search([title for title in asked if title is not None], k))
        return [[] if title is None else list(next(found)) for title in asked]


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
    """Returns the gold pages of each question: its own gold paragraphs, and the first passage of each other gold title.

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
        judged = {title_key(paragraph.title) for paragraph in own}
        keys = dict.fromkeys(title_key(title) for title in question.gold_titles or ())
        found += [by_title[key] for key in keys if key in by_title and key not in judged]
        if found:
            pages[question.id] = found
    if not pages:
        raise UsageError("ceilings need questions that name their gold pages, and the texts of these pages")
    return pages


def with_gold_pages(task: Task) -> Task:
    """Returns the task in which every search returns the question's gold pages, all of them.

    It asks the questions that name gold pages and have an answer: nothing can be read for the others.

    Raises:
        UsageError: There is no such question, or the pages are not at hand.
    """
    task = task.asking(q for q in task.questions if q.gold_titles and q.answerable is not False)
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
    given: Task | None = None,
) -> Scores:
    """Runs an agent with the gold pages given, and the evidence oracle, and adds their scores to those of a run.

    Args:
        task: Environment and questions of the run.
        agent: Agent of the run.
        out: Folder of the run; the others go into folders in it.
        scores: Scores of the run.
        models: The model behind each role.
        options: How the run was made.
        progress: Called with (episodes done, episodes in all) of the longer run.
        given: The task `with_gold_pages`, if it was made before the run, which then cannot fail here.

    Returns:
        The scores with ``ceilings``: EM and F1 of ``gold_pages``, of ``evidence_oracle`` and, where questions differ in
        their gold pages and search one corpus, of ``other_hits``; the gaps ``reading_gap`` and ``retrieval_gap`` (EM of
        the first two less that of the run); and ``hits_gain`` (EM of the run less that of ``other_hits``).
    """
    options = options or EvalOptions()
    given = given or with_gold_pages(task)
    named = task.asking(given.questions)
    found: dict[str, dict[str, Any]] = {}
    runs = [
        (READING, given, agent, models),
        (RETRIEVAL, named, load_agent("evidence-oracle"), None),
    ]
    if isinstance(named.retriever, Retriever) and len({q.gold_titles for q in named.questions}) > 1:
        with contextlib.suppress(UsageError):  # questions about the same pages have no such floor
            floor = dataclasses.replace(named, retriever=OtherHits(named.retriever, named.questions))
            runs.append((FLOOR, floor, agent, models))
    for folder, own_task, own_agent, own_models in runs:
        resume = dataclasses.replace(options, resume=not options.overwrite and holds_run(out / folder))
        reached = evaluate(own_task, own_agent, out / folder, own_models, resume, progress=progress)
        found[folder] = {"n": reached["n"], "em": reached["em"], "f1": reached["f1"]}
    gaps = {"reading_gap": found[READING]["em"] - scores["em"], "retrieval_gap": found[RETRIEVAL]["em"] - scores["em"]}
    if FLOOR in found:
        gaps["hits_gain"] = scores["em"] - found[FLOOR]["em"]
    scores = scores | {"ceilings": {**found, **gaps}}
    write_json(out / SCORES, scores)
    return scores
