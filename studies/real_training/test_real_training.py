"""The study on real text, its ladder and its page, at a small size."""

import json

import pytest
from ladder import RUNGS, recipe_of
from test_benchmarks import here

from searchgym.eval.viewing.saved import SavedRun
from searchgym.train.recipe.load import load_recipe

pytestmark = pytest.mark.study


SMALL = ["steps=2", "rollout.questions=4", "rollout.attempts=2", "rollout.resample=0", "learner.frozen_layers=0"]
SMALL += [
    "advantage.drop_zero_variance=false",
    "validation.every=2",
    "validation.questions=4",
    "log.tensorboard=false",
    "log.curve=false",
    "optimizer.autocast=null",  # some CPUs emulate bfloat16
]


def test_every_rung_has_a_recipe(tmp_path):
    for name, rungs in RUNGS.items():
        plain = recipe_of(name, "recipe", tmp_path, [])
        assert plain.name == name
        assert all(recipe_of(name, rung, tmp_path, []) != plain for rung in rungs if rung != "recipe")


def test_a_ladder_of_two_rungs(practised):
    given = ["recipe", "lr 2e-5", "--home", str(practised), "--out", str(practised / "ladder"), "--json"]
    found = here("studies/real_training/ladder.py", *given, "--set", "model=tiny", *SMALL)
    assert found.returncode == 0, found.stderr
    rows = json.loads(found.stdout)["results"]
    assert [row["rung"] for row in rows] == ["recipe", "lr 2e-5"]
    assert all(len(row["validation"]) == 2 for row in rows)
    run = practised / "ladder" / "recipe" / "train"
    assert load_recipe(str(run / "recipe.yaml")).optimizer.lr == 1e-5
    assert load_recipe(str(practised / "ladder" / "lr-2e-5" / "train" / "recipe.yaml")).optimizer.lr == 2e-5
    # the first and last fifth of 16 episodes are three each, counted here once more
    first = list(SavedRun.read(run).episodes.values())[:3]
    assert rows[0]["em, first"] == round(sum(episode.scores["em"] for episode in first) / 3, 3)
    assert rows[0]["searches, first"] == round(sum(len(episode.searches) for episode in first) / 3, 3)


def test_a_study_of_all_arms(practised):
    out = practised / "study"
    # the facts of a world's pages that patterns of real text find are of one page, or lead to comparisons
    arms = ("warm", "grpo", "demonstrations", "rejection", "permuted", "worlds", "selfplay-any")
    given = [*arms, "--seeds", "0", "--home", str(practised)]
    given += ["--corpus", str(practised / "corpus.jsonl"), "--model", "tiny", "--out", str(out), "--json"]
    given += ["--shown", "learner.frozen_layers=0", "optimizer.autocast=null", "--dtype", "float32", "--set", *SMALL]
    found = here("studies/real_training/real_training.py", *given)
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert {(row["arm"], row["set"]) for row in result["results"]} == {
        (arm, f"generated {agent}") for arm in arms for agent in ("search-r1", "direct")
    }
    records = {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}
    assert set(records) == {f"{arm}-0" for arm in arms}
    read = [records[f"{arm}-0"]["tokens_read"] for arm in ("grpo", "demonstrations")]
    assert 0.5 < read[1] / read[0] < 2  # as near as whole steps of eight demonstrations come
    assert load_recipe(str(out / "worlds-0" / "train" / "recipe.yaml")).env == "searchgym/WorldFull-v0"
    contrast = next(row for row in result["contrasts"] if row["contrast"] == "grpo less warm")
    em = [[records[f"{arm}-0"]["scores"]["generated search-r1"]["em"][id] for id in sorted(
        records["warm-0"]["scores"]["generated search-r1"]["em"])] for arm in ("grpo", "warm")]  # fmt: skip
    assert contrast["em"] == pytest.approx(sum(em[0]) / 6 - sum(em[1]) / 6)
    again = here("studies/real_training/real_training.py", *given)
    assert again.returncode == 0 and json.loads(again.stdout) == result and "scored" not in again.stderr
    refused = here("studies/real_training/real_training.py", "selfplay", *given[len(arms) :])
    assert refused.returncode == 1 and "name their answer (comparisons)" in refused.stderr


def test_episodes_of_two_runs_stand_side_by_side(tmp_path):
    questions = [{"id": f"q{n}", "question": f"Who | {n}?", "golden_answers": ["Ada", "Ada L."]} for n in range(4)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    wrong = {"searches": [], "answer": None, "scores": {"em": 0.0}}
    right = {"searches": [{"query": "a"}, {"query": "b"}], "answer": {"text": "Ada"}, "scores": {"em": 1.0}}
    for name, ids, told in (("before", "031", wrong), ("after", "1230", right)):
        rows = [{"question_id": f"q{n}"} | told for n in ids]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [str(tmp_path / "before"), str(tmp_path / "after"), "--questions", str(tmp_path / "test.jsonl")]
    printed = here("studies/real_training/side_by_side.py", *given, "--n", "2").stdout.splitlines()
    assert printed[2:] == [f"| Who / {n}? | Ada, Ada L. |  → no answer (wrong) | a; b → Ada (right) |" for n in (0, 1)]
    assert [
        row["question"]
        for row in json.loads(here("studies/real_training/side_by_side.py", *given, "--json").stdout)["results"]
    ] == [
        "Who | 0?",
        "Who | 1?",
        "Who | 3?",
    ]
