"""Trainings whose sampler is vLLM itself, on the CPU: after every update the probe looks at what has arrived."""

import functools
import json
import sys
from pathlib import Path

import pytest
import torch

from searchgym.cli import main
from searchgym.rollout.loading import load_model
from searchgym.rollout.samplers.transformers import Transformers
from searchgym.rollout.samplers.vllm import Vllm, vllm_version
from searchgym.rollout.storage import read_episodes
from searchgym.train.loop.assembly import assemble, train, trainer_of
from searchgym.train.recipe.load import load_recipe

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("default"),  # vLLM and its imports raise warnings that we cannot mend
]
SMALL = [
    "rollout.sampler=vllm",
    "rollout.sampler.cache_gib=1",
    "rollout.sampler.max_context=1024",
    "rollout.sampler.eager=true",
    "rollout.questions=4",
    "rollout.attempts=4",
    "validation.every=0",
    "log.tensorboard=false",
    "optimizer.lr=1e-3",
]
sys.path.insert(0, str(Path(__file__).parent.parent / "rollout"))  # for the reward
SHORT = [
    # an update in every step, so that there is a probe
    "env_options={questions: {split: train, size: 200, seed: 1}, max_turns: 3, reward: 'fake_servers:numbered'}",
    "rollout.questions=2",
    "rollout.max_tokens=64",
]


def recipe(*settings):
    return load_recipe("tiny-grpo", [*SMALL, *SHORT, *settings])


@pytest.fixture(scope="module")
def untied(tmp_path_factory):
    """The tiny model with a head of its own."""
    model, tokenizer = load_model("tiny")
    folder = tmp_path_factory.mktemp("untied") / "model"
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert not json.loads((folder / "config.json").read_text())["tie_word_embeddings"]
    return folder


@pytest.mark.parametrize(
    ("tied", "dtype", "allowed", "steps"), [(True, "bfloat16", 0.02, 3), (False, "float32", 1e-3, 5)]
)
def test_some_steps_each_with_a_probe(tmp_path, untied, tied, dtype, allowed, steps):
    own = [f"steps={steps}", *([] if tied else [f"model={untied}"])]
    own += ["optimizer.autocast=bfloat16"] if dtype == "bfloat16" else []
    rows = train(recipe(*own), tmp_path / "run").rows[1:]
    assert [row["step"] for row in rows] == [*range(1, steps + 1)]
    probed = [row["probe/difference"] for row in rows if row["learner/updates"]]
    assert len(probed) == steps
    assert max(probed) <= allowed
    assert all(row["retokenisation_mismatch"] == 0 for row in rows)
    assert {row["rollout/staleness"] for row in rows} == {0}
    difference = "learner/sampler_difference"
    assert max(row[difference] for row in rows if row["learner/updates"]) <= allowed


@pytest.mark.study
def test_keys_that_are_adapters_share_one_engine_with_a_frozen_one(tmp_path):
    """A team of three keys on one base: two adapters are trained, each probed after each update; the base stays."""
    models = "{planners: {roles: [planning, search]}, writers: {roles: [summary, answer]}, rest: {frozen: true}}"
    team = ["lora.rank=8", "rollout.sampler.adapters=separate", f"models={models}", "guard.min_legal=null", "steps=2"]
    team += ["optimizer.warmup_steps=0", "critic.warmup_steps=0"]
    chosen = load_recipe("tiny-mask", [*SMALL, *team])
    parts = assemble(chosen, tmp_path)
    try:
        assert len(parts.samplers.engines) == 1
        assert len({id(model.sampler.engine) for model in parts.models.values()}) == 1
        rows = trainer_of(chosen, parts, tmp_path / "run").run().rows[1:]
        versions = {key: model.sampler.version for key, model in parts.models.items()}
    finally:
        parts.close()
    assert [row["learner/planners/updates"] + row["learner/writers/updates"] for row in rows] == [2, 2]
    assert max(row["probe/difference"] for row in rows) <= 1e-3
    assert max(row[f"learner/{key}/sampler_difference"] for row in rows for key in ("planners", "writers")) <= 1e-3
    assert versions == {"planners": 2, "writers": 2, "rest": 0}
    last = tmp_path / "run" / "checkpoints" / "last"
    assert all((last / key / "adapter_model.safetensors").exists() for key in ("planners", "writers"))
    assert not (last / "rest").exists()


@pytest.mark.parametrize("adapters", ["separate", "merged"])
def test_an_adapter_is_trained_sampled_and_evaluated(tmp_path, monkeypatch, capsys, adapters):
    ahead = ["rollout.staleness=1", "loss.importance_cap=2"]
    own = recipe("steps=3", "lora.rank=8", f"rollout.sampler.adapters={adapters}", *ahead)
    rows = train(own, tmp_path / "run").rows[1:]
    assert max(row["probe/difference"] for row in rows if row["learner/updates"]) <= 1e-3
    assert max(row["rollout/staleness"] for row in rows) <= 1
    checkpoint = tmp_path / "run" / "checkpoints" / "last"
    assert (checkpoint / "adapter_model.safetensors").exists()
    if adapters == "merged":  # the checkpoint is the same kind of file
        return
    answers = [evaluated(monkeypatch, capsys, checkpoint, tmp_path / by, by) for by in ("vllm", "transformers")]
    assert len(answers[0]) == 8
    assert answers[0] == answers[1]


def evaluated(monkeypatch, capsys, model, out, by):
    """What the model says to some questions, greedily, by the command of that."""
    command = ["searchgym", "eval", "World", "--agent", "search-r1", "--model", str(model), "--limit", "8"]
    command += ["--max-tokens", "64", "--max-context", "1024"]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(out), "--sampler", by])
    # without compilation, which takes longer than the answers
    kinds = {"vllm": functools.partial(Vllm, eager=True, cache_gib=1), "transformers": Transformers}
    monkeypatch.setattr("searchgym.rollout.models.find_kind", lambda base, name: kinds[name])
    with pytest.raises(SystemExit, match="0"):
        main()
    capsys.readouterr()
    (engine,) = {tuple(model[2:]) for model in json.loads((out / "run.json").read_text())["models"].values()}
    assert engine == ((f"vllm {vllm_version()} float32",) if by == "vllm" else ())
    return {
        episode.question_id: [call.text for call in episode.calls] for episode in read_episodes(out / "episodes.jsonl")
    }
