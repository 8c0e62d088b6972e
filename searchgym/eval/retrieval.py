"""Evaluation of retrievers: TREC qrels and runs in and out; recall, MRR and nDCG.

Definitions are those of ``trec_eval`` (``recall``, ``recip_rank`` within a cut-off, ``ndcg_cut`` with linear gains),
averaged over the queries of the qrels; a query without hits counts 0. Deviation: hits of equal score stand in the
order of the file, where ``trec_eval`` orders them by document id.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from searchgym.corpora.files import text_lines, write_atomic
from searchgym.errors import DataError, ScoringError
from searchgym.eval.evidence import Pages, golds_of, titled
from searchgym.records import Passage, Question
from searchgym.retrieval.retriever import Retriever
from searchgym.scoring.ranking import ndcg

Qrels = dict[str, dict[str, int]]
"""Relevance judgements: query id to passage id to relevance (above 0 is relevant)."""
Run = dict[str, list[tuple[str, float]]]
"""Retrieval results: query id to (passage id, score) pairs, best first."""

CUTOFFS = (1, 3, 5, 10, 20, 100)
BATCH = 256
"""Number of queries per retriever call."""


def read_qrels(path: Path) -> Qrels:
    """Reads qrels: TREC's ``query 0 passage relevance``, or BEIR's ``query-id corpus-id score`` with its header line.

    Raises:
        DataError: A line of another form, or a pair judged twice.
    """
    qrels: Qrels = {}
    for number, fields in _fields(path, (3, 4)):
        if number == 1 and fields[:2] == ["query-id", "corpus-id"]:
            continue
        if len(fields) not in (3, 4):
            raise DataError(f"expected 'query 0 passage relevance', got {len(fields)} fields", path, number)
        query, passage, relevance = fields[0], fields[-2], fields[-1]
        own = qrels.setdefault(query, {})
        if passage in own:
            raise DataError(f"passage {passage!r} is judged twice for query {query!r}", path, number)
        value = _number(relevance, "relevance", path, number)
        if value != int(value):
            raise DataError(f"relevance {relevance!r} is not a whole number", path, number)
        own[passage] = int(value)
    if not qrels:
        raise DataError("holds no judgements", path)
    return qrels


def write_qrels(path: Path, qrels: Mapping[str, Mapping[str, int]]) -> None:
    """Writes TREC qrels."""
    _write(path, ((query, "0", passage, str(r)) for query, own in qrels.items() for passage, r in own.items()))


def read_run(path: Path) -> Run:
    """Reads a TREC run, ``query Q0 passage rank score tag``; hits are ordered by score, equal scores by the file.

    Raises:
        DataError: A line of another form, or a passage twice under one query.
    """
    run: Run = {}
    for number, fields in _fields(path, (6,)):
        if len(fields) != 6:
            raise DataError(f"expected 'query Q0 passage rank score tag', got {len(fields)} fields", path, number)
        own = run.setdefault(fields[0], [])
        own.append((fields[2], _number(fields[4], "score", path, number)))
    for query, own in run.items():
        if len({passage for passage, _ in own}) < len(own):
            raise DataError(f"a passage stands twice under query {query!r}", path)
        own.sort(key=lambda hit: -hit[1])
    return run


def write_run(path: Path, run: Mapping[str, Sequence[tuple[str, float]]], tag: str = "searchgym") -> None:
    """Writes a TREC run; ranks start at 1, scores keep every digit."""
    _write(
        path,
        (
            (query, "Q0", passage, str(rank), repr(score), tag)
            for query, own in run.items()
            for rank, (passage, score) in enumerate(own, start=1)
        ),
    )


def _fields(path: Path, counts: Collection[int]) -> Iterator[tuple[int, list[str]]]:
    """Yields (line number, fields): between tabs if these are of a right number and not empty, else between blanks.

    Args:
        path: The file; a byte order mark is skipped.
        counts: Numbers of fields that a line may have.
    """
    for number, line in text_lines(path):
        if line.strip():
            tabbed = [field.strip() for field in line.split("\t")]
            yield number, tabbed if len(tabbed) in counts and all(tabbed) else line.split()


def _number(text: str, what: str, path: Path, line: int) -> float:
    """Returns a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{what} {text!r} is not a number", path, line)
    return value


def _write(path: Path, rows: Iterable[tuple[str, ...]]) -> None:
    """Writes rows of blank-separated fields to a file, atomically."""
    with write_atomic(path) as file:
        for row in rows:
            if any(not field or len(field.split()) != 1 for field in row):
                raise DataError(f"TREC files cannot hold an id with blanks: {row!r}; use other ids", path)
            file.write((" ".join(row) + "\n").encode())


# -- from questions ------------------------------------------------------------------------------------------------


def qrels_from_questions(questions: Iterable[Question], passages: Iterable[Passage]) -> Qrels:
    """Judges the gold passages of questions as relevant (1).

    Where a question comes with the text of a gold paragraph and the corpus holds it, that passage is relevant; else
    every passage whose title is a gold title. A gold page that the corpus lacks is judged as well, under an id that no
    passage has (``unreachable:1``): it counts as never found, as in an evaluation.

    Raises:
        ScoringError: No gold page has a passage in the corpus, or no question names gold pages.
    """
    questions = list(questions)
    return judgements(questions, titled(questions, passages))


def judgements(questions: Sequence[Question], pages: Pages) -> Qrels:
    """Returns `qrels_from_questions`, given the passages with gold titles as `titled` gives them."""
    qrels: Qrels = {}
    lacking: list[tuple[str, str]] = []
    count = 0
    for question in questions:
        if question.gold_titles is None:
            continue
        ids_of: dict[str, set[str]] = {}
        for gold in golds_of(question, by_passage=True):
            held = pages.get(gold.title, [])
            ids_of.setdefault(gold.title, set()).update(passage.id for passage in held if gold.matches(passage))
        for title, ids in ids_of.items():
            ids = ids or {passage.id for passage in pages.get(title, [])}  # the corpus cuts this page otherwise
            if not ids:
                lacking.append((question.id, title))
            found = sorted(ids) or [f"unreachable:{len(lacking)}"]
            qrels.setdefault(question.id, {}).update(dict.fromkeys(found, 1))
        count += len(ids_of)
    if not qrels:
        raise ScoringError("no question names its gold pages: give --qrels")
    if len(lacking) == count:
        such = f"such as {lacking[0][1]!r} of question {lacking[0][0]!r}"
        raise ScoringError(f"none of the {count} gold pages is in the corpus, {such}: is it another corpus?")
    return qrels


def retrieve_run(retriever: Retriever, queries: Mapping[str, str], k: int) -> Run:
    """Searches every query; returns at most k hits each."""
    ids = list(queries)
    run: Run = {}
    for at in range(0, len(ids), BATCH):
        batch = ids[at : at + BATCH]
        found = retriever.search([queries[i] for i in batch], k)
        run |= {i: [(hit.passage.id, hit.score) for hit in hits] for i, hits in zip(batch, found, strict=True)}
    return run


# -- measures ------------------------------------------------------------------------------------------------------


def evaluate_run(
    qrels: Mapping[str, Mapping[str, int]],
    run: Mapping[str, Sequence[tuple[str, float]]],
    cutoffs: Sequence[int] = CUTOFFS,
) -> dict[str, float]:
    """Returns ``n`` and ``recall@k``, ``mrr@k``, ``ndcg@k`` for each cut-off.

    Raises:
        ScoringError: The run answers a query that the qrels do not judge at all, or nothing is relevant to a query.
    """
    unknown = run.keys() - qrels.keys()
    if unknown:
        raise ScoringError(f"the run holds {len(unknown)} queries without judgements, such as {min(unknown)!r}")
    check_relevant(qrels)
    scores: dict[str, float] = {"n": len(qrels)}
    gains = {
        query: [max(judged.get(passage, 0), 0) for passage, _ in run.get(query, ())] for query, judged in qrels.items()
    }
    for name, measure in (("recall", recall), ("mrr", reciprocal_rank), ("ndcg", ndcg)):
        for k in cutoffs:
            values = [
                measure(gains[query], [r for r in judged.values() if r > 0], k) for query, judged in qrels.items()
            ]
            scores[f"{name}@{k}"] = math.fsum(values) / len(values)
    return scores


def check_relevant(qrels: Mapping[str, Mapping[str, int]]) -> None:
    """Refuses judgements that cannot be scored, before a search.

    Raises:
        ScoringError: Nothing is relevant to a query.
    """
    for query, judged in qrels.items():
        if not any(r > 0 for r in judged.values()):
            raise ScoringError(f"query {query!r} has no relevant passage: leave it out of the qrels")


def recall(gains: Sequence[int], relevant: Sequence[int], k: int) -> float:
    """Computes recall: the share of the relevant passages that are among the first k hits."""
    return sum(gain > 0 for gain in gains[:k]) / len(relevant)


def reciprocal_rank(gains: Sequence[int], relevant: Sequence[int], k: int) -> float:
    """Computes the reciprocal rank of the first relevant hit among the first k, 0 if there is none."""
    return next((1 / rank for rank, gain in enumerate(gains[:k], start=1) if gain > 0), 0.0)
