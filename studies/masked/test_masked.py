"""Masked spans counted, and the two warm starts at a small size."""

import importlib
import json

import pytest
from linked_pages import linked_pages
from test_benchmarks import here

from searchgym.corpora.passages import write_corpus

pytestmark = pytest.mark.study


def test_the_contrast_of_warm_starts_by_hand(monkeypatch):
    masked_warm_start = importlib.import_module("masked_warm_start")

    em = {"masked": (0.5, 0.6, 0.55), "plain": (0.4, 0.5, 0.45)}
    rows = [{"arm": arm, "seed": n, "warm em": own} for arm, values in em.items() for n, own in enumerate(values, 1)]
    found = masked_warm_start.contrast(rows, "warm")
    assert found["difference"] == pytest.approx(0.1) and found["verdict"] == "masked wins"
    whole = [
        row | {"warm em_by_question": {f"q{n}": float(n < 10 * row["warm em"]) for n in range(10)}} for row in rows
    ]
    found = masked_warm_start.contrast(whole, "warm")
    assert found["verdict"] == "not resolved" and found["low"] == 0  # one question of ten makes all of it
    worse = [row | {"warm em": 1 - row["warm em"]} for row in rows]
    assert masked_warm_start.contrast(worse, "warm")["verdict"] == "plain wins"
    rows[0]["warm em"] = 0.1
    assert masked_warm_start.contrast(rows, "warm")["verdict"] == "not resolved"


def test_two_warm_starts_that_are_not_repeated(tmp_path):
    given = ["--seeds", "1", "--reader", "9000", "--tokens", "8000", "--steps", "1", "--questions", "2", "--float32"]
    given += ["--set", "rollout.questions=2", "rollout.attempts=2", "rollout.max_tokens=16"]
    kept = ["--recorded", str(tmp_path / "rows.jsonl"), "--json"]
    found = here("studies/masked/masked_warm_start.py", *given, "--out", str(tmp_path / "runs"), *kept)
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert [row["arm"] for row in result["arms"]] == ["masked", "plain"]
    assert all(row["tokens"] >= 8000 and row["generated_tokens"] > 0 for row in result["arms"])
    assert [row["after"] for row in result["contrasts"]] == ["warm", "trained"]
    recorded = here("studies/masked/masked_warm_start.py", *given, "--out", str(tmp_path / "elsewhere"), *kept)
    assert recorded.returncode == 0 and json.loads(recorded.stdout) == result
    assert not (tmp_path / "elsewhere" / "reader").exists()
    other = here("studies/masked/masked_warm_start.py", *given, "--questions", "3", "--out", str(tmp_path / "runs"))
    assert other.returncode == 2 and "another --out" in other.stderr


def test_masked_spans_are_counted_and_printed(tmp_path):
    write_corpus(tmp_path / "corpus.jsonl", linked_pages(12))
    found = here(
        "studies/masked/masked_spans.py", str(tmp_path / "corpus.jsonl"), "--n", "40", "--shown", "3", "--json"
    )
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    for source, with_source in (("kept", True), ("hidden", False)):
        told = result[source]
        assert told["spans"] == sum(told["by kind"].values()) > 0 and len(told["shown"]) == 3
        assert sum(told["by masks"].values()) == sum(told["tasks"].values()) == told["oracle"]["tasks"]
        assert told["oracle"]["recall"] == 1.0
        assert told["oracle"]["source among the hits"] == (told["oracle"]["tasks"] if with_source else 0)
