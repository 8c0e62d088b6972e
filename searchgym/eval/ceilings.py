"""Ceilings and floor of a run's score, from further runs of the same agent and of an oracle.

The reading ceiling is the agent's score if every search returns the question's gold pages. The retrieval ceiling is the
score of an oracle that searches for the gold titles and answers correctly once it has all gold pages: it bounds every
reader over the retriever. The gaps show whether reading or retrieval limits the score. The floor is the agent's score
if every search returns pages about another question: the part of the score above it is due to the hits.
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
"""Folder of the run of the scripted agent that searches for the gold titles."""
FLOOR: Final = "other_hits"
"""Folder of the run in which every search returns hits for another question."""


class OtherHits:
    """Retriever that returns hits for another question, always the same one for a given question.

    It searches for the title of one of the other question's gold pages, chosen by the query. The hits have the usual
    number, form and quality, but do not help.

    Args:
        inner: Retriever of the task.
        questions: Questions of the task; those without gold titles get no hits.

    Raises:
        UsageError: A question shares gold titles with every other one.
    """

    def __init__(self, inner: Retriever, questions: Iterable[Question]) -> None:
        self.inner, self.corpus_sha256 = inner, getattr(inner, "corpus_sha256", None)
        self.in_process = bool(getattr(inner, "in_process", False))
        titles = {q.id: tuple(dict.fromkeys(q.gold_titles)) for q in questions if q.gold_titles}
        order = random.Random(0).sample(sorted(titles), len(titles))
        self.titles: dict[str, tuple[str, ...]] = {}
        """Titles to search for instead of a question's queries, by question id."""
        for index, id in enumerate(order):
            keys = {title_key(title) for title in titles[id]}
            turned = [*order[index + 1 :], *order[:index]]
            other = next((o for o in turned if keys.isdisjoint(map(title_key, titles[o]))), None)
            if other is None:
                raise UsageError("the floor needs questions with different gold titles")
            self.titles[id] = titles[other]

    def search_for(self, question_ids: Sequence[str], queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits per query, for another question than the query's."""
        title_queries: list[str | None] = []
        for id, query in zip(question_ids, queries, strict=True):
            titles = self.titles.get(id)
            title_queries.append(titles[zlib.crc32(query.encode("utf-8", "replace")) % len(titles)] if titles else None)
        results = iter(self.inner.search([title for title in title_queries if title is not None], k))
        return [[] if title is None else list(next(results)) for title in title_queries]


class GoldRetriever:
    """Retriever that returns the gold pages of a question for every query.

    Args:
        pages: Gold pages by question id.
        corpus_sha256: SHA-256 of the corpus of the pages; None without a corpus.
    """

    in_process = True

    def __init__(self, pages: Mapping[str, Sequence[Passage]], corpus_sha256: str | None = None) -> None:
        self.pages, self.corpus_sha256 = pages, corpus_sha256

    def search_for(self, question_ids: Sequence[str], queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns the gold pages of each query's question, at most k."""
        return [[Hit(page, 1.0) for page in self.pages.get(id, ())][:k] for id in question_ids]


def gold_pages(questions: Iterable[Question], passages: Iterable[Passage]) -> dict[str, list[Passage]]:
    """Returns the gold pages of questions, by question id.

    These are the gold paragraphs that come with the question, and the first passage with each other gold title.

    Raises:
        UsageError: No question names a gold page whose text is available.
    """
    questions = list(questions)
    titles = {title_key(title) for question in questions for title in question.gold_titles or ()}
    by_title: dict[str, Passage] = {}
    for passage in passages:
        if (key := title_key(passage.title)) in titles:
            by_title.setdefault(key, passage)
    pages: dict[str, list[Passage]] = {}
    for question in questions:
        paragraphs = [p for p in question.paragraphs or () if p.supporting and p.text.strip()]
        gold = [Passage(f"{question.id}/{number}", p.title, p.text) for number, p in enumerate(paragraphs)]
        judged = {title_key(paragraph.title) for paragraph in paragraphs}
        keys = dict.fromkeys(title_key(title) for title in question.gold_titles or ())
        gold += [by_title[key] for key in keys if key in by_title and key not in judged]
        if gold:
            pages[question.id] = gold
    if not pages:
        raise UsageError("ceilings need questions that name their gold pages, and the texts of these pages")
    return pages


def with_gold_pages(task: Task) -> Task:
    """Returns a task in which every search returns all gold pages of the question.

    It has only the questions that name gold pages and are answerable.

    Raises:
        UsageError: There is no such question, or the texts of the pages are not available.
    """
    task = task.asking(q for q in task.questions if q.gold_titles and q.answerable is not False)
    pages = gold_pages(task.questions, passages_of(task.retriever) or ())
    most = max(map(len, pages.values()))
    rules = dataclasses.replace(task.rules, top_k=max(task.rules.top_k, most))
    sha256 = getattr(task.retriever, "corpus_sha256", None)
    return dataclasses.replace(task, retriever=GoldRetriever(pages, sha256), rules=rules)


def with_other_hits(task: Task) -> Task:
    """Returns a task in which every search returns hits for another question; see `OtherHits`.

    Raises:
        UsageError: The task has no corpus for all questions, or a question shares gold titles with every other one.
    """
    if not isinstance(task.retriever, Retriever):
        raise UsageError("the floor needs a corpus for all questions: leave distractors=True out")
    return dataclasses.replace(task, retriever=OtherHits(task.retriever, task.questions))


def add_ceilings(
    task: Task,
    agent: LoadedAgent,
    out: Path,
    scores: Scores,
    models: Mapping[str, Model] | None = None,
    options: EvalOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
    gold_task: Task | None = None,
) -> Scores:
    """Runs the agents for a run's ceilings and floor, and adds the results to the run's scores.

    Args:
        task: Environment and questions of the run.
        agent: Agent of the run.
        out: Folder of the run; the further runs are written to subfolders.
        scores: Scores of the run.
        models: Model of each role.
        options: Options of the run.
        progress: Called with (episodes done, episodes in total) of each further run.
        gold_task: Result of `with_gold_pages`, if it was computed before the run. Default: computed here.

    Returns:
        The scores with ``ceilings``: EM and F1 of ``gold_pages``, of ``evidence_oracle`` and, if questions differ in
        their gold pages and search one corpus, of ``other_hits``; the gaps ``reading_gap`` and ``retrieval_gap`` (EM of
        the first two minus that of the run); and ``hits_gain`` (EM of the run minus that of ``other_hits``).
    """
    options = options or EvalOptions()
    gold_task = gold_task or with_gold_pages(task)
    named = task.asking(gold_task.questions)
    ceilings: dict[str, dict[str, Any]] = {}
    runs = [
        (READING, gold_task, agent, models),
        (RETRIEVAL, named, load_agent("evidence-oracle"), None),
    ]
    with contextlib.suppress(UsageError):  # no floor without one corpus, or if questions share their gold pages
        runs.append((FLOOR, with_other_hits(named), agent, models))
    for folder, run_task, run_agent, run_models in runs:
        resume = dataclasses.replace(options, resume=not options.overwrite and holds_run(out / folder))
        reached = evaluate(run_task, run_agent, out / folder, run_models, resume, progress=progress)
        ceilings[folder] = {"n": reached["n"], "em": reached["em"], "f1": reached["f1"]}
    gaps = {
        "reading_gap": ceilings[READING]["em"] - scores["em"],
        "retrieval_gap": ceilings[RETRIEVAL]["em"] - scores["em"],
    }
    if FLOOR in ceilings:
        gaps["hits_gain"] = scores["em"] - ceilings[FLOOR]["em"]
    scores = scores | {"ceilings": {**ceilings, **gaps}}
    write_json(out / SCORES, scores)
    return scores
