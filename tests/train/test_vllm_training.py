"""Trainings whose sampler is vLLM itself, on the CPU: after every update the probe looks at what has arrived."""

import contextlib
import dataclasses
import json
import os
import signal
import sys

import pytest
import torch

from searchgym.cli import main
from searchgym.errors import TrainingError
from searchgym.rollout.loading import load_model
from searchgym.rollout.storage import read_episodes
from searchgym.rollout.vllm.engine import VllmEngine, vllm_version
from searchgym.rollout.vllm.local import LocalVllm
from searchgym.train.learner.learner import LocalLearner
from searchgym.train.recipe.load import load_recipe
from searchgym.train.run.assembly import assemble, train, trainer_of

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("default"),  # vLLM and its imports raise warnings that we cannot mend
]
SMALL = [
    "rollout.sampler=vllm",
    "rollout.vllm.cache_gib=1",
    "rollout.vllm.max_context=1024",
    "rollout.vllm.eager=true",
    "rollout.questions=4",
    "rollout.attempts=4",
    "validation.every=0",
    "log.tensorboard=false",
    "optimizer.lr=1e-3",
]


def recipe(*settings):
    return load_recipe("tiny-grpo", [*SMALL, *settings])


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


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 1e-3), ("bfloat16", 0.02)])
def test_five_steps_each_with_a_probe(tmp_path, untied, tied, dtype, allowed):
    own = ["steps=5", *([] if tied else [f"model={untied}"])]
    own += ["optimizer.autocast=bfloat16"] if dtype == "bfloat16" else []
    rows = train(recipe(*own), tmp_path / "run").rows[1:]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    probed = [row["probe/difference"] for row in rows if row["learner/updates"]]
    assert len(probed) >= 4
    assert max(probed) <= allowed
    assert all(row["retokenisation_mismatch"] == 0 for row in rows)
    assert {row["rollout/staleness"] for row in rows} == {0}
    difference = "learner/sampler_difference"
    assert max(row[difference] for row in rows if row["learner/updates"]) <= allowed


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    made = assemble(recipe(), tmp_path_factory.mktemp("parts"))
    yield made
    made.close()


@pytest.mark.parametrize("missing", ["the update", "the reset of the cache"])
def test_the_probe_catches(parts, tmp_path, monkeypatch, missing):
    """An update that is skipped, and keys and values that are kept, each planted in a training."""
    chosen = recipe("steps=3", "rollout.questions=8", "optimizer.lr=1e-2", "optimizer.warmup_steps=0")
    if missing == "the update":
        monkeypatch.setattr(LocalVllm, "load", lambda self, folder: None)
    else:
        monkeypatch.setattr(LocalVllm, "forget", lambda self: None)
    own = dataclasses.replace(parts, learner=LocalLearner(chosen, load_model("tiny")[0]))
    with pytest.raises(TrainingError, match=r"log-probs of sampler and trainer differ by .* nats on average"):
        trainer_of(chosen, own, tmp_path / "run").run()
    monkeypatch.undo()
    parts.publish(parts.learner.version)


def test_an_engine_that_is_killed_again_and_again_loses_no_episode_and_doubles_none(parts, monkeypatch):
    """SIGKILL at two moments of one rollout."""
    engine = parts.sampler.engine
    kills, ended = [20, 130], []
    take = VllmEngine._step

    def step(self):
        before = len(self._under_way)
        take(self)
        ended.append(before - len(self._under_way))
        if kills and sum(ended) >= kills[0] and self._under_way:
            kills.pop(0)
            for process in self.backend.processes:
                os.kill(process, signal.SIGKILL)

    monkeypatch.setattr(VllmEngine, "_step", step)
    restarts = engine.restarts
    episodes = parts.rollout(parts.task.questions[:40], 4, 7, False)
    assert not kills
    assert engine.restarts == restarts + 2
    ids = [episode.id for episode in episodes]
    assert len(ids) == len(set(ids)) == 160
    assert all(episode.stop_reason != "model_error" for episode in episodes)


def test_two_engines_of_which_one_is_killed(tmp_path, monkeypatch, capsys):
    """Every call of an episode is made by one engine, until that one dies; with new weights it is there again."""
    made = assemble(recipe("rollout.vllm.replicas=2"), tmp_path / "parts")
    engines, calls, kill = made.sampler.engine, {}, []
    ask = VllmEngine.ask

    def noted(self, asked):
        calls.setdefault(asked.episode, []).append(self)
        if kill and sum(map(len, calls.values())) > 60:
            for process in kill.pop().backend.processes:
                os.kill(process, signal.SIGKILL)
        ask(self, asked)

    monkeypatch.setattr(VllmEngine, "ask", noted)
    with contextlib.closing(made):
        first, second = (replica.engine for replica in engines._replicas)
        assert len(made.rollout(made.task.questions[:12], 4, 0, False)) == 48
        assert {len(set(own)) for own in calls.values()} == {1}
        assert {one for own in calls.values() for one in own} == {first, second}
        assert max(map(len, calls.values())) > 1
        calls.clear()
        kill.append(first)
        episodes = made.rollout(made.task.questions[:40], 4, 1, False)
        assert not kill
        assert len({episode.id for episode in episodes}) == 160
        assert all(episode.stop_reason != "model_error" for episode in episodes)
        assert engines.moved >= 1
        assert all(own == sorted(own, key=lambda one: one is second) for own in calls.values())  # none moved back
        assert "its episodes go on elsewhere" in capsys.readouterr().err
        made.publish(1)
        assert first not in [replica.engine for replica in engines._replicas]
        calls.clear()
        made.rollout(made.task.questions[:12], 4, 2, False)
        assert len({one for own in calls.values() for one in own}) == 2


def test_keys_that_are_adapters_share_one_engine_with_a_frozen_one(tmp_path):
    """A team of three keys on one base: two adapters are trained, each probed after each update; the base stays."""
    models = "{planners: {roles: [planning, search]}, writers: {roles: [summary, answer]}, rest: {frozen: true}}"
    team = ["lora.rank=8", "rollout.vllm.adapters=separate", f"models={models}", "guard.min_legal=null", "steps=2"]
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
    own = recipe("steps=3", "lora.rank=8", f"rollout.vllm.adapters={adapters}", *ahead)
    rows = train(own, tmp_path / "run").rows[1:]
    assert max(row["probe/difference"] for row in rows if row["learner/updates"]) <= 1e-3
    assert max(row["rollout/staleness"] for row in rows) <= 1
    checkpoint = tmp_path / "run" / "checkpoints" / "last"
    assert (checkpoint / "adapter_model.safetensors").exists()
    answers = [evaluated(monkeypatch, capsys, checkpoint, tmp_path / by, by) for by in ("vllm", "transformers")]
    assert len(answers[0]) == 8
    assert answers[0] == answers[1]


def evaluated(monkeypatch, capsys, model, out, by):
    """What the model says to some questions, greedily, by the command of that."""
    command = ["searchgym", "eval", "World", "--agent", "search-r1", "--model", str(model), "--limit", "8"]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(out), "--sampler", by])
    with pytest.raises(SystemExit, match="0"):
        main()
    capsys.readouterr()
    (engine,) = {tuple(model[2:]) for model in json.loads((out / "run.json").read_text())["models"].values()}
    assert engine == ((f"vllm {vllm_version()} float32",) if by == "vllm" else ())
    return {
        episode.question_id: [call.text for call in episode.calls] for episode in read_episodes(out / "episodes.jsonl")
    }
