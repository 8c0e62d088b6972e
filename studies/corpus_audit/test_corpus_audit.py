"""The study at a small size: planted holes are named, and filling restores the oracle."""

import pytest
from corpus_audit import COUNTS, limits, one, passport, sets
from plant import FAULTS

pytestmark = pytest.mark.study


def test_planted_holes_are_named_and_filled(monkeypatch):
    monkeypatch.delenv("SEARCHGYM_DATA", raising=False)
    ((name, questions, passages),) = sets(3)
    row = one(name, questions, passages, seed=3, top_k=20)
    assert [row[f"{kind} named"] for kind in COUNTS] == [f"{count}/{count}" for count in COUNTS.values()]
    assert (row["flagged when clean"], row["named elsewhere"], row["oracle, filled"]) == (0, 0, 1.0)
    assert row["oracle, holed"] < row["oracle, answerable"] < 1.0


def test_planted_faults_are_named(monkeypatch):
    monkeypatch.delenv("SEARCHGYM_DATA", raising=False)
    ((name, questions, passages),) = sets(3)
    row = passport(name, questions, passages, seed=3)
    for fault in FAULTS:
        named, planted = row[fault].split("/")
        assert named == planted and row[f"{fault}, more"] == 0


def test_the_limits_lie_between_what_they_part():
    rows = {(row["worlds"], row["planted"], row["measure"]): row for row in limits([1])}
    for level in ("simple", "full"):
        assert rows[level, "retitled", "distance of the nearest other title"]["100%"] < 0.15
        assert rows[level, "missing", "distance of the nearest other title"]["0%"] > 0.15
        assert rows[level, "untouched", "share of words under its title"]["0%"] == 1.0
