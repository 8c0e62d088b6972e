"""Whether a retriever reaches the gold pages of questions, by three kinds of queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from searchgym.agents.oracle_roles import steps_of
from searchgym.eval.audit.holes import Finding
from searchgym.records import Hit, Question, title_key
from searchgym.retrieval.retriever import Retriever
from searchgym.text import base_title

Reach = Mapping[str, int | None]
"""Number of hits of each query by which all gold pages are there, by kind of query; None if more are needed."""
QUERIES: Final = ("question", "titles", "sub-questions")
"""Kinds of queries: the question's text, the title of each gold page, and the sub-questions of its decomposition."""
BATCH: Final = 256
"""Number of queries of one call of the retriever."""


def reach_of(
    questions: Sequence[Question],
    findings: Sequence[Sequence[Finding]],
    retriever: Retriever,
    most: int,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Reach]:
    """Searches for the gold pages of questions.

    Args:
        questions: Questions.
        findings: State of the gold pages of each question; the passages with their texts count, whatever their title.
        retriever: Retriever over the corpus.
        most: Number of hits of each search.
        progress: Called with the stage ``searches``, and how many of how many queries are done.

    Returns:
        One mapping for each question; empty if it names no gold page, without ``sub-questions`` if it has none.
    """
    queries: list[tuple[int, str, str]] = []  # question, kind of query, query
    for at, (question, states) in enumerate(zip(questions, findings, strict=True)):
        if states:
            queries += [(at, kind, query) for kind, texts in _queries(question).items() for query in texts]
    hits: dict[tuple[int, str], list[Sequence[Hit]]] = {}
    for start in range(0, len(queries), BATCH):
        part = queries[start : start + BATCH]
        for (at, kind, _), result in zip(part, retriever.search([query for *_, query in part], most), strict=True):
            hits.setdefault((at, kind), []).append(result)
        if progress is not None:
            progress("searches", start + len(part), len(queries))
    return [
        {kind: _needed(findings[at], hits[at, kind]) for kind in QUERIES if (at, kind) in hits}
        for at in range(len(questions))
    ]


def _queries(question: Question) -> dict[str, list[str]]:
    """Returns the queries about a question, by kind."""
    titles = [base_title(title) for title in question.gold_titles or ()]
    queries = {"question": [question.text], "titles": titles}
    if question.hops:
        queries["sub-questions"] = [step.filled for step in steps_of(question)]
    return queries


def _needed(findings: Sequence[Finding], results: Sequence[Sequence[Hit]]) -> int | None:
    """Returns the smallest number of hits per query that contains every gold page; None if one is in no hit."""
    ranks: list[int] = []
    for finding in findings:
        key, ids = title_key(finding.title), set(finding.ids)
        at = [
            rank
            for hits in results
            for rank, hit in enumerate(hits, start=1)
            if hit.passage.id in ids or (not ids and title_key(hit.passage.title) == key)
        ]
        if not at:
            return None
        ranks.append(min(at))
    return max(ranks)
