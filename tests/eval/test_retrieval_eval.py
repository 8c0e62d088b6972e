import math

import ir_measures
import numpy as np
import pytest
from support import PASSAGES, QUESTIONS, TitleRetriever

from searchgym.errors import DataError, DataMissingError, ScoringError
from searchgym.eval.retrieval import (
    evaluate_run,
    qrels_from_questions,
    read_qrels,
    read_run,
    retrieve_run,
    write_qrels,
    write_run,
)


def test_measures_by_hand():
    qrels = {"a": {"x": 1, "y": 1}, "b": {"z": 1}}
    run = {"a": [("w", 3.0), ("x", 2.0), ("v", 1.0), ("y", 0.5)]}
    scores = evaluate_run(qrels, run, (1, 2, 4))
    assert scores["n"] == 2
    assert [scores[f"recall@{k}"] for k in (1, 2, 4)] == [0.0, 0.25, 0.5]
    assert [scores[f"mrr@{k}"] for k in (1, 2, 4)] == [0.0, 0.25, 0.25]
    ideal = 1 + 1 / math.log2(3)
    assert scores["ndcg@2"] == pytest.approx(1 / math.log2(3) / ideal / 2)
    assert scores["ndcg@4"] == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / ideal / 2)


@pytest.mark.filterwarnings(
    "ignore:.*will be removed in Python 3.14:DeprecationWarning"
)  # ir_measures, from Python 3.12 on
def test_measures_equal_trec_eval_on_random_runs():
    rng = np.random.default_rng(0)
    qrels, run = {}, {}
    for q in range(60):
        judged = rng.choice(50, size=rng.integers(1, 12), replace=False)
        relevance = rng.integers(0, 4, size=len(judged))
        relevance[0] = max(relevance[0], 1)
        qrels[f"q{q}"] = {f"d{d}": int(r) for d, r in zip(judged, relevance, strict=True)}
        if q % 10:
            hits = rng.choice(50, size=rng.integers(0, 30), replace=False)
            scores = np.sort(rng.permutation(1000)[: len(hits)])[::-1]
            run[f"q{q}"] = [(f"d{d}", float(s)) for d, s in zip(hits, scores, strict=True)]
    ours = evaluate_run(qrels, run, (1, 5, 20))
    measures = [ir_measures.parse_measure(f"{m}@{k}") for m in ("R", "RR", "nDCG") for k in (1, 5, 20)]
    theirs = ir_measures.calc_aggregate(measures, qrels, {q: dict(h) for q, h in run.items()})
    names = {"R": "recall", "RR": "mrr", "nDCG": "ndcg"}
    for measure in measures:
        name = f"{names[measure.NAME]}@{measure.params['cutoff']}"
        assert ours[name] == pytest.approx(theirs[measure], abs=1e-9), name


def test_files_go_out_and_come_back(tmp_path):
    qrels = {"a": {"x": 1, "y": 0}, "b": {"ż": 2}}
    run = {"a": [("x", 0.1 + 0.2), ("y", -1.0)], "b": [("ż", 1e-300)]}
    write_qrels(tmp_path / "qrels", qrels)
    write_run(tmp_path / "run", run)
    assert read_qrels(tmp_path / "qrels") == qrels
    assert read_run(tmp_path / "run") == run
    assert (tmp_path / "run").read_text().splitlines()[0] == "a Q0 x 1 0.30000000000000004 searchgym"


def test_beir_qrels_and_unsorted_runs(tmp_path):
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    assert read_qrels(tmp_path / "qrels.tsv") == {"q": {"d": 1}}
    (tmp_path / "run").write_text("q Q0 a 1 1.0 t\nq Q0 b 2 2.0 t\nq Q0 c 3 1.0 t\n")
    assert [d for d, _ in read_run(tmp_path / "run")["q"]] == ["b", "a", "c"]


@pytest.mark.parametrize("head", ["", "query-id\tcorpus-id\tscore\n"])
def test_a_byte_order_mark_belongs_to_no_id(tmp_path, head):
    (tmp_path / "qrels").write_text(f"{head}1\td\t1\n", encoding="utf-8-sig")
    assert read_qrels(tmp_path / "qrels") == {"1": {"d": 1}}
    (tmp_path / "run").write_text("1 Q0 d 1 1.0 t\n", encoding="utf-8-sig")
    assert read_run(tmp_path / "run") == {"1": [("d", 1.0)]}


def test_ids_with_blanks_between_tabs_are_whole(tmp_path):
    (tmp_path / "beir").write_text("query-id\tcorpus-id\tscore\nq 1\td 1\t1\nq 1\td 2\t0\n")
    assert read_qrels(tmp_path / "beir") == {"q 1": {"d 1": 1, "d 2": 0}}
    (tmp_path / "trec").write_text("q 1\t0\td 1\t2\r\n")
    assert read_qrels(tmp_path / "trec") == {"q 1": {"d 1": 2}}
    (tmp_path / "run").write_text("q 1\tQ0\td 1\t1\t0.5\tmy tag\n")
    assert read_run(tmp_path / "run") == {"q 1": [("d 1", 0.5)]}
    for text in ("q\t0 d 1\n", "q 0\td 1\n", "q  0\t d\t\t1\n"):  # blanks of another kind: no id has one
        (tmp_path / "mixed").write_text(text)
        assert read_qrels(tmp_path / "mixed") == {"q": {"d": 1}}


@pytest.mark.parametrize(
    ("reader", "text", "message"),
    [
        (read_qrels, "q 0 d 1\nq 0 e 1 x y\n", r"bad:2: expected 'query 0"),
        (read_qrels, "q 0 d 1\nq 0 d 1\n", "bad:2: passage 'd' is judged twice"),
        (read_qrels, "q 0 d one\n", "bad:1: relevance 'one' is not a number"),
        (read_qrels, "q 0 d 0.5\n", "bad:1: relevance '0.5' is not a whole number"),
        (read_qrels, "", "holds no judgements"),
        (read_run, "q Q0 d 1 1.0\n", "bad:1: expected 'query Q0"),
        (read_run, "q Q0 d 1 nan t\n", "bad:1: score 'nan' is not a number"),
        (read_run, "q Q0 d 1 2 t\nq Q0 d 2 1 t\n", "query 'q' has a passage twice"),
    ],
)
def test_bad_files(tmp_path, reader, text, message):
    (tmp_path / "bad").write_text(text)
    with pytest.raises(DataError, match=message):
        reader(tmp_path / "bad")


def test_missing_files_and_ids_with_blanks(tmp_path):
    with pytest.raises(DataMissingError, match="no such file"):
        read_run(tmp_path / "none")
    with pytest.raises(DataError, match="cannot hold an id with blanks"):
        write_run(tmp_path / "run", {"q": [("my page", 1.0)]})
    assert not (tmp_path / "run").exists()


def test_qrels_from_gold_titles():
    assert qrels_from_questions(QUESTIONS, PASSAGES) == {"q0": {"p1": 1}, "q1": {"p1": 1, "p2": 1}, "q2": {"p0": 1}}
    found = qrels_from_questions(QUESTIONS, PASSAGES[:1])  # two pages are not in the corpus, and count as never found
    assert found["q2"] == {"p0": 1} and [len(own) for own in found.values()] == [1, 2, 1]
    assert evaluate_run(found, {id: [("p0", 1.0)] for id in found}, [1])["recall@1"] == pytest.approx(1 / 3)
    with pytest.raises(ScoringError, match="no question names its gold pages"):
        qrels_from_questions([], PASSAGES)


def test_runs_that_do_not_fit_the_qrels():
    with pytest.raises(ScoringError, match="queries without judgements, such as 'b'"):
        evaluate_run({"a": {"x": 1}}, {"b": []})
    with pytest.raises(ScoringError, match="no relevant passage"):
        evaluate_run({"a": {"x": 0}}, {})


def test_searching_in_batches_gives_the_same_run(monkeypatch):
    queries = {f"q{i}": title for i, title in enumerate(["Alpha", "Beta", "none", "Gamma Beta"])}
    whole = retrieve_run(TitleRetriever(), queries, 2)
    monkeypatch.setattr("searchgym.eval.retrieval.BATCH", 3)
    assert retrieve_run(TitleRetriever(), queries, 2) == whole
    assert whole["q3"] == [("p1", 1.0), ("p2", 1.0)]
    assert whole["q2"] == []
