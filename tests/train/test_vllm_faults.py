"""Trainings on vLLM itself, on the CPU, whose engine is killed or has other weights than it should."""

import contextlib
import dataclasses
import os
import signal

import pytest
from test_vllm_training import recipe

from searchgym.errors import TrainingError
from searchgym.rollout.loading import load_model
from searchgym.rollout.vllm.backend import EngineRequest
from searchgym.rollout.vllm.engine import VllmEngine
from searchgym.rollout.vllm.local import LocalVllm
from searchgym.train.learner.learner import LocalLearner
from searchgym.train.loop.assembly import assemble, trainer_of
from searchgym.train.loop.publish import Publisher

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("default"),  # vLLM and its imports raise warnings that we cannot mend
]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    made = assemble(recipe(), tmp_path_factory.mktemp("parts"))
    yield made
    made.close()


@pytest.mark.parametrize("missing", ["the update", "the reset of the cache"])
def test_the_probe_catches(parts, tmp_path, monkeypatch, missing):
    """An update that is skipped, and keys and values that are kept, each planted in a training.

    Fingerprints, which see the first one earlier, are turned off: see test_fingerprints.py.
    """
    monkeypatch.setattr(Publisher, "_compare", lambda *_: None)
    chosen = recipe("steps=3", "rollout.questions=8", "optimizer.lr=1e-2", "optimizer.warmup_steps=0")
    if missing == "the update":
        monkeypatch.setattr(LocalVllm, "load", lambda self, folder: None)
    else:
        monkeypatch.setattr(LocalVllm, "forget", lambda self: None)
    own = dataclasses.replace(parts, learner=LocalLearner(chosen, load_model("tiny")[0]))
    with pytest.raises(TrainingError, match=r"log-probs of sampler and trainer differ by .* nats on average"):
        trainer_of(chosen, own, tmp_path / "run").run()
    monkeypatch.undo()
    parts.publisher().publish(parts.learner.version)


@pytest.mark.study
def test_an_engine_killed_again_and_again_loses_and_doubles_no_episode(parts, monkeypatch):
    """SIGKILL at two moments of one rollout."""
    engine = parts.sampler.engine
    kills, ended = [8, 30], []
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
    episodes = parts.rollout(parts.task.questions[:12], 4, 7, False)
    assert not kills
    assert engine.restarts == restarts + 2
    ids = [episode.id for episode in episodes]
    assert len(ids) == len(set(ids)) == 48
    assert all(episode.stop_reason != "model_error" for episode in episodes)


def test_two_engines_of_which_one_is_killed(tmp_path, monkeypatch, capsys):
    """Every call of an episode is made by one engine, until that one dies; with new weights it is there again."""
    made = assemble(recipe("rollout.sampler.replicas=2"), tmp_path / "parts")
    engines, calls, kill = made.sampler.engine, {}, []
    ask = VllmEngine.ask

    def noted(self, asked):
        if isinstance(asked, EngineRequest):  # else a call to the engine, such as for new weights
            calls.setdefault(asked.episode, []).append(self)
        if kill and sum(map(len, calls.values())) > 20:
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
        episodes = made.rollout(made.task.questions[:12], 4, 1, False)
        assert not kill
        assert len({episode.id for episode in episodes}) == 48
        assert all(episode.stop_reason != "model_error" for episode in episodes)
        assert engines.moved >= 1
        assert all(own == sorted(own, key=lambda one: one is second) for own in calls.values())  # none moved back
        assert "its episodes continue on other engines" in capsys.readouterr().err
        made.publisher().publish(1)
        assert first not in [replica.engine for replica in engines._replicas]
        calls.clear()
        made.rollout(made.task.questions[:12], 4, 2, False)
        assert len({one for own in calls.values() for one in own}) == 2
