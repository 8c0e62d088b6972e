"""One step of each recipe for a further agent: what its roles ask for trains, and what is frozen stays."""

import pytest

from searchgym.rollout.storage import read_episodes
from searchgym.train.loop.assembly import train
from searchgym.train.recipe.load import load_recipe

SMALL = ["steps=1", "rollout.questions=2", "rollout.max_tokens=64", "validation.every=0", "optimizer.warmup_steps=0"]
SMALL += ["guard.min_legal=null"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["tiny-searchplanner", "tiny-parallel", "tiny-mmoa", "tiny-hiersearch", "tiny-asearcher", "tiny-ikea",
     "tiny-adasearch", "tiny-zerosearch"],
)  # fmt: skip
def test_one_step(name, tmp_path):
    own = ["critic.warmup_steps=0"] if name == "tiny-mmoa" else []
    own += ["rollout.questions=6"] if name in ("tiny-ikea", "tiny-adasearch") else []  # groups are often all alike
    recipe = load_recipe(name, [*SMALL, *own])
    row = train(recipe, tmp_path / "run").rows[-1]
    episodes = list(read_episodes(tmp_path / "run" / "episodes.jsonl"))
    assert row["step"] == 1 and episodes
    updates = {key: value for key, value in row.items() if key.endswith("/updates")}
    assert sum(updates.values()) > 0
    last = tmp_path / "run" / "checkpoints" / "last"
    if name == "tiny-searchplanner":
        assert {call.model_key for episode in episodes for call in episode.calls} == {"planner", "generator"}
        assert not any("generator" in key for key in updates)
        assert (last / "planner").exists() and not (last / "generator").exists()
    if name == "tiny-zerosearch":
        assert all(episode.scores["simulated"] == 1 for episode in episodes if episode.searches)
