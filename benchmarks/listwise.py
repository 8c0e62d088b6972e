"""Listwise reranking by the retrieving kind of encoder beside plain reranking: nDCG@10 and recall@5 on real questions.

    python benchmarks/listwise.py --data DATA [--read 1 3 5 10] [--json]

Fixed before the run: BM25's first 50 hits, reordered by MiniLM's vectors, with the query alone (*plain*) or with the
first n hits read together with it (`listwise: n`); the questions of HotpotQA and 2WikiMultihopQA on their own corpora,
each text as the query. A number n is better or worse than plain if the 95 % interval of the paired difference of
nDCG@10 over all questions excludes 0 (bootstrap, 10,000 resamples; four comparisons, uncorrected).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from searchgym.cli.output import emit, emit_rows, say
from searchgym.corpora import read_passages, read_questions
from searchgym.eval import bootstrap_ci, qrels_from_questions, retrieve_run
from searchgym.eval.retrieval import Run, recall
from searchgym.retrieval import build_index, load_index
from searchgym.scoring.ranking import ndcg

SETS: Final = ("hotpotqa", "2wikimultihopqa")
RERANK: Final[dict[str, Any]] = {"kind": "rerank", "of": "bm25", "encoder": "minilm-package", "first": 50}
RESAMPLES: Final = 10_000
Scores = dict[str, list[float]]


def main() -> None:
    """Prints a row for plain reranking and for each number of hits read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = os.environ.get("SEARCHGYM_DATA")
    parser.add_argument("--data", type=Path, default=data, required=data is None, help="folder with hotpotqa/ ...")
    parser.add_argument("--read", type=int, nargs="+", default=[1, 3, 5, 10], help="numbers of hits read")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    scores: dict[int, Scores] = {number: {} for number in (0, *given.read)}
    for name in SETS:
        for number, values in scored(Path(given.data) / name, list(scores)).items():
            for measure, of_questions in values.items():
                scores[number].setdefault(measure, []).extend(of_questions)
    rows = [row_of(number, scores) for number in scores]
    if given.json:
        emit({"results": rows}, True)
        return
    emit_rows(rows, False, "results", f"{len(scores[0]['ndcg@10'])} questions; differences of nDCG@10 to plain, 95 %")


def scored(folder: Path, numbers: Sequence[int]) -> dict[int, Scores]:
    """Returns nDCG@10 and recall@5 of each question of a set, by number of hits read."""
    passages, questions = list(read_passages(folder / "corpus.json")), list(read_questions(folder / "questions.json"))
    qrels = qrels_from_questions(questions, passages)
    texts = {question.id: question.text for question in questions if question.id in qrels}
    scores = dict[int, Scores]()
    with tempfile.TemporaryDirectory() as place:
        build_index(passages, Path(place) / "index", RERANK)
        for number in numbers:
            say(f"{folder.name}, {number} hits read ...")
            retriever = load_index(Path(place) / "index", card=RERANK | {"listwise": number})
            scores[number] = measured(qrels, retrieve_run(retriever, texts, 10))
    return scores


def measured(qrels: Mapping[str, Mapping[str, int]], run: Run) -> Scores:
    """Returns the measures of each question, in the order of question ids."""
    scores: Scores = {"ndcg@10": [], "recall@5": []}
    for question in sorted(qrels):
        judged = qrels[question]
        gains, relevant = [judged.get(passage, 0) for passage, _ in run.get(question, ())], list(judged.values())
        scores["ndcg@10"].append(ndcg(gains, relevant, 10))
        scores["recall@5"].append(recall(gains, relevant, 5))
    return scores


def row_of(number: int, scores: Mapping[int, Scores]) -> dict[str, Any]:
    """Returns the table row of a number of hits read."""
    mine = scores[number]
    row: dict[str, Any] = {"read": number or "plain"}
    row |= {measure: round(float(np.mean(values)), 3) for measure, values in mine.items()}
    differences = np.subtract(mine["ndcg@10"], scores[0]["ndcg@10"])
    low, high = bootstrap_ci(list(differences), resamples=RESAMPLES)
    return row | {"difference": round(float(differences.mean()), 3), "low": round(low, 3), "high": round(high, 3)}


if __name__ == "__main__":
    main()
