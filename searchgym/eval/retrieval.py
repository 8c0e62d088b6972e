"""Evaluation of retrievers: files of TREC qrels and runs; recall, MRR and nDCG.

The definitions are those of ``trec_eval`` (``recall``, ``recip_rank`` within a cut-off, ``ndcg_cut`` with linear
gains), averaged over the queries of the qrels; a query without hits counts 0. Deviation: hits of equal score stay in
the order of the file, whereas ``trec_eval`` orders them by document id.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from searchgym.corpora.files import text_lines, write_atomic
from searchgym.errors import DataError, DataWarning, ScoringError
from searchgym.eval.evidence import Pages, golds_of, titled
from searchgym.records import Passage, Question, SupportingFact
from searchgym.retrieval.retriever import Retriever
from searchgym.scoring.ranking import ndcg

Qrels = dict[str, dict[str, int]]
"""Relevance judgements: relevance (above 0 is relevant) by query id and passage id."""
Run = dict[str, list[tuple[str, float]]]
"""Retrieval results: (passage id, score) pairs by query id, best first."""

CUTOFFS = (1, 3, 5, 10, 20, 100)
BATCH = 256
"""Number of queries per retriever call."""


def read_qrels(path: Path) -> Qrels:
    """Reads qrels: TREC's ``query 0 passage relevance``, or BEIR's ``query-id corpus-id score`` with its header line.

    Raises:
        DataError: A line is malformed, or a pair is judged twice.
    """
    qrels: Qrels = {}
    for number, fields in _fields(path, (3, 4)):
        if number == 1 and fields[:2] == ["query-id", "corpus-id"]:
            continue
        if len(fields) not in (3, 4):
            raise DataError(f"expected 'query 0 passage relevance', got {len(fields)} fields", path, number)
        query, passage, relevance = fields[0], fields[-2], fields[-1]
        judged = qrels.setdefault(query, {})
        if passage in judged:
            raise DataError(f"passage {passage!r} is judged twice for query {query!r}", path, number)
        value = _number(relevance, "relevance", path, number)
        if value != int(value):
            raise DataError(f"relevance {relevance!r} is not a whole number", path, number)
        judged[passage] = int(value)
    if not qrels:
        raise DataError("holds no judgements", path)
    return qrels


def write_qrels(path: Path, qrels: Mapping[str, Mapping[str, int]]) -> None:
    """Writes a file of TREC qrels."""
    _write(path, ((query, "0", passage, str(r)) for query, judged in qrels.items() for passage, r in judged.items()))


def read_run(path: Path) -> Run:
    """Reads a TREC run, ``query Q0 passage rank score tag``; hits are sorted by score, equal scores keep their order.

    Raises:
        DataError: A line is malformed, or a query has a passage twice.
    """
    run: Run = {}
    for number, fields in _fields(path, (6,)):
        if len(fields) != 6:
            raise DataError(f"expected 'query Q0 passage rank score tag', got {len(fields)} fields", path, number)
        hits = run.setdefault(fields[0], [])
        hits.append((fields[2], _number(fields[4], "score", path, number)))
    for query, hits in run.items():
        if len({passage for passage, _ in hits}) < len(hits):
            raise DataError(f"query {query!r} has a passage twice", path)
        hits.sort(key=lambda hit: -hit[1])
    return run


def write_run(path: Path, run: Mapping[str, Sequence[tuple[str, float]]], tag: str = "searchgym") -> None:
    """Writes a TREC run; ranks start at 1, scores have full precision."""
    _write(
        path,
        (
            (query, "Q0", passage, str(rank), repr(score), tag)
            for query, hits in run.items()
            for rank, (passage, score) in enumerate(hits, start=1)
        ),
    )


def _fields(path: Path, counts: Collection[int]) -> Iterator[tuple[int, list[str]]]:
    """Yields (line number, fields) of each line that is not blank.

    A line is split at tabs if this results in an allowed number of fields, none of them empty; otherwise at blanks.

    Args:
        path: File to read; a byte order mark is skipped.
        counts: Allowed numbers of fields.
    """
    for number, line in text_lines(path):
        if line.strip():
            tabbed = [field.strip() for field in line.split("\t")]
            yield number, tabbed if len(tabbed) in counts and all(tabbed) else line.split()


def _number(text: str, what: str, path: Path, line: int) -> float:
    """Parses a finite number; `what` names it in errors."""
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
    """Returns relevance judgements in which the gold passages of questions are relevant (1).

    If a question comes with the text of a gold paragraph and the corpus contains it, that passage is relevant;
    otherwise every passage with the gold title is. A gold page that the corpus lacks is judged, too, under an id that
    no passage has (``unreachable:1``), so that it counts as not found, as in an evaluation.

    Raises:
        ScoringError: No gold page has a passage in the corpus, or no question names gold pages.
    """
    questions = list(questions)
    return judgements(questions, titled(questions, passages))


def judgements(questions: Sequence[Question], pages: Pages) -> Qrels:
    """Returns the judgements of `qrels_from_questions`, given the passages with gold titles from `titled`."""
    qrels: Qrels = {}
    lacking: list[tuple[str, str]] = []
    count = 0
    for question in questions:
        if question.gold_titles is None:
            continue
        ids_of: dict[str, set[str]] = {}
        for gold in golds_of(question, by_passage=True):
            passages = pages.get(gold.title, [])
            ids_of.setdefault(gold.title, set()).update(passage.id for passage in passages if gold.matches(passage))
        for title, ids in ids_of.items():
            ids = ids or {passage.id for passage in pages.get(title, [])}  # the corpus splits this page differently
            if not ids:
                lacking.append((question.id, title))
            relevant = sorted(ids) or [f"unreachable:{len(lacking)}"]
            qrels.setdefault(question.id, {}).update(dict.fromkeys(relevant, 1))
        count += len(ids_of)
    if not qrels:
        raise ScoringError("no question names its gold pages: give --qrels")
    if len(lacking) == count:
        such = f"such as {lacking[0][1]!r} of question {lacking[0][0]!r}"
        raise ScoringError(f"none of the {count} gold pages is in the corpus, {such}: is it another corpus?")
    return qrels


def with_qrels(questions: Sequence[Question], qrels: Qrels, passages: Iterable[Passage]) -> list[Question]:
    """Returns questions with the titles of their relevant passages as gold pages; those without judgements unchanged.

    A judged id is the id of a passage, or of the document that `searchgym corpus chunk` has cut into passages
    (``doc7`` for ``doc7#0``). Queries of the qrels that are not among the questions are ignored. A `DataWarning` counts
    the relevant ids that the corpus lacks.

    Args:
        questions: Questions with the ids of the qrels.
        qrels: Relevance judgements.
        passages: The corpus, which is read once.

    Raises:
        ScoringError: No question is judged, no relevant passage is in the corpus, or one of them has no title.
    """
    relevant = {q.id: [i for i, r in qrels[q.id].items() if r > 0] for q in questions if q.id in qrels}
    searched = {id for ids in relevant.values() for id in ids}
    if not searched:
        such = f"such as {next(iter(qrels), '')!r}, and the questions ids such as {questions[0].id!r}"
        raise ScoringError(f"no question has a relevant passage: the qrels have queries {such}")
    titles: dict[str, str] = {}
    for passage in passages:
        for id in (passage.id, passage.id.rpartition("#")[0]):
            if id in searched:
                if not passage.title.strip():
                    raise ScoringError(f"relevant passage {id!r} has no title, by which gold pages are recognised")
                titles.setdefault(id, passage.title)
    if lacking := sorted(searched - titles.keys()):
        message = f"{len(lacking)} of {len(searched)} relevant passages are not in the corpus, such as {lacking[0]!r}"
        if not titles:
            raise ScoringError(f"{message}: is it another corpus?")
        warnings.warn(message, DataWarning, stacklevel=1)
    facts = {
        question: tuple(SupportingFact(title) for title in dict.fromkeys(titles[id] for id in ids if id in titles))
        for question, ids in relevant.items()
    }
    return [dataclasses.replace(q, supporting_facts=facts[q.id]) if facts.get(q.id) else q for q in questions]


def retrieve_run(retriever: Retriever, queries: Mapping[str, str], k: int) -> Run:
    """Searches every query and returns at most k hits for each."""
    ids = list(queries)
    run: Run = {}
    for at in range(0, len(ids), BATCH):
        batch = ids[at : at + BATCH]
        results = retriever.search([queries[i] for i in batch], k)
        run |= {i: [(hit.passage.id, hit.score) for hit in hits] for i, hits in zip(batch, results, strict=True)}
    return run


# -- measures ------------------------------------------------------------------------------------------------------


def evaluate_run(
    qrels: Mapping[str, Mapping[str, int]],
    run: Mapping[str, Sequence[tuple[str, float]]],
    cutoffs: Sequence[int] = CUTOFFS,
) -> dict[str, float]:
    """Returns ``n`` and ``recall@k``, ``mrr@k``, ``ndcg@k`` for each cut-off.

    Raises:
        ScoringError: The run contains a query without judgements, or a query has no relevant passage.
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
    """Checks that every query has a relevant passage.

    Raises:
        ScoringError: A query has no relevant passage.
    """
    for query, judged in qrels.items():
        if not any(r > 0 for r in judged.values()):
            raise ScoringError(f"query {query!r} has no relevant passage: leave it out of the qrels")


def recall(gains: Sequence[int], relevant: Sequence[int], k: int) -> float:
    """Returns the recall at k: the share of the relevant passages that are among the first k hits."""
    return sum(gain > 0 for gain in gains[:k]) / len(relevant)


def reciprocal_rank(gains: Sequence[int], relevant: Sequence[int], k: int) -> float:
    """Returns the reciprocal rank of the first relevant hit among the first k; 0 if there is none."""
    return next((1 / rank for rank, gain in enumerate(gains[:k], start=1) if gain > 0), 0.0)
