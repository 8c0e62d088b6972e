"""The study of a real model, at a small size."""

import json
from pathlib import Path

import pytest
from real_models import ARMS, CONTROLS, MAX_TOKENS, arguments, recipe_of
from tables import contrast_rows, decompositions
from test_benchmarks import here

pytestmark = pytest.mark.study
SCRIPT = "studies/real_models/real_models.py"
SMALL = ["steps=2", "rollout.questions=3", "rollout.attempts=2", "learner.frozen_layers=0", "log.tensorboard=false"]
SMALL += ["advantage.drop_zero_variance=false", "log.curve=false", "optimizer.autocast=null", "curriculum=null"]


def test_two_arms_are_recorded_once_and_tabled(practised):
    given = ["warm", "main", "form", "--home", str(practised), "--start", "tiny", "--base", "tiny", "--limit", "4"]
    given += ["--dtype", "float32", "--out", str(practised / "out"), "--json", "--set", *SMALL, "--controls"]
    alone = here(SCRIPT, *given, "agent")
    assert alone.returncode == 0 and "step 1" in alone.stderr, alone.stderr
    first = here(SCRIPT, *given, *CONTROLS)  # adds the controls that the records lack
    assert first.returncode == 0 and "step 1" not in first.stderr, first.stderr
    assert "main: agent" not in first.stderr and "main: closed book" in first.stderr
    paths = json.loads(first.stdout)["records"]
    records = [json.loads(Path(path).read_text()) for path in paths]
    assert [record["arm"] for record in records] == ["warm", "main", "form"]
    assert [record["training"] and record["training"]["steps"] for record in records] == [None, 2, 2]
    assert all(len(record["scores"][f"generated, {name}"]) == 4 for record in records for name in CONTROLS)
    again = here(SCRIPT, *given, *CONTROLS)
    assert "main:" not in again.stderr and json.loads(again.stdout)["records"] == paths
    shown = here("studies/real_models/tables.py", "--records", str(practised / "out" / "records"), "--json")
    assert shown.returncode == 0, shown.stderr
    tables = json.loads(shown.stdout)
    assert {row["arm"] for row in tables["results"]} == {"warm", "main", "form"}
    assert "main less warm, generated" in tables["decompositions"]


def row(em, answer="x", evidence="all", hops=2):
    return {"em": em, "answers": [answer], "evidence": [evidence], "golds": ["x"], "hops": hops, "searches": 1}


def record(arm, seed, rows):
    return {"arm": arm, "seed": seed, "training": None, "scores": {"hotpotqa, agent": rows, "generated, agent": rows}}


def test_contrasts_by_hand():
    right, wrong = row(1.0), row(0.0, "y")
    records = {
        ("warm", 1): record("warm", 1, {"a": wrong, "b": wrong, "c": right, "d": wrong}),
        ("main", 1): record("main", 1, {"a": right, "b": right, "c": right, "d": wrong}),
        ("main", 2): record("main", 2, {"a": right, "b": wrong, "c": right, "d": wrong}),
    }
    rows = {row["contrast"]: row for row in contrast_rows(records)}
    assert rows["main less warm, real"]["em"] == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert rows["main less warm, generated, 2 hops"]["seeds"] == 2
    parts = decompositions(records)["main less warm, real"].terms
    assert parts["reading"].mean == pytest.approx(3 / 8) and parts["searching"].mean == 0


@pytest.mark.parametrize("arm", [arm for arm, entry in ARMS.items() if entry and arm != "demonstrations"])
def test_every_arm_has_a_recipe(arm, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["real_models.py", arm, "--home", str(tmp_path), "--start", "tiny"])
    monkeypatch.setattr("real_models.mixed_questions", lambda home: "practice-comparisons")  # home is empty
    recipe = recipe_of(arm, 3, arguments())
    assert (recipe.seed, recipe.steps <= 40) == (3, True)
    assert recipe.rollout.max_tokens in (MAX_TOKENS, None)
