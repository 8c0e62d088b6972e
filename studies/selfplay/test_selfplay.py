"""Self-play in figures, from a tiny training."""

import json

import pytest
from test_benchmarks import here

from searchgym.eval.viewing.saved import SavedRun
from searchgym.train.loop.assembly import train
from searchgym.train.recipe.load import load_recipe

pytestmark = pytest.mark.study


def test_self_play_in_figures(tmp_path):
    """A tiny recorded training: signal with waypoints is at least that without, and half of a step is chosen."""
    found = here("studies/selfplay/selfplay.py", "--size", "200", "--proposals", "400", "--json")
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    valid = {(row["proposer"], row["hops"]): row["valid"] for row in result["validity"]}
    assert all(valid["path", hops] == 1 > valid["kinds", hops] > valid["blind", hops] for hops in (1, 2, 3))
    options = ["steps=6", "rollout.questions=4", "rollout.attempts=3", "validation.every=0"]
    run = tmp_path / "run"
    train(load_recipe("tiny-grpo", options), run)
    found = here("studies/selfplay/selfplay.py", str(run), "--json")
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert {(row["arms by"], row["run"], row["steps"]) for row in result["replay"]} == {
        (level, name, 2) for level in ("hops", "shape", "last", "relations") for name in ("all", "0")
    }
    every = next(row for row in result["waypoints"] if row["questions"] == "all")
    assert every["groups"] == 24 and every["with waypoints"] >= every["outcome"]
    groups = {}
    for episode in SavedRun.read(run).episodes.values():
        groups.setdefault(episode.group_uid, []).append(episode.reward)
    mixed = sum(len(set(rewards)) > 1 for rewards in groups.values())
    assert every["outcome"] == pytest.approx(mixed / 24)
