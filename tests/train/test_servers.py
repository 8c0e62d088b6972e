"""Trainings that sample from two servers, of which one is killed and one stands still."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "rollout"))
from fake_servers import SERVED, FakeVllm, gated
from support import free_port
from test_learner import random_samples

from searchgym.errors import EngineLostError, TrainingError, UsageError
from searchgym.rollout.folders import model_folder
from searchgym.rollout.samplers.vllm import Vllm
from searchgym.rollout.storage import read_episodes
from searchgym.rollout.transformers.sampler import load_sampler
from searchgym.rollout.vllm.client import KEY, Client
from searchgym.rollout.vllm.engine import VllmEngine
from searchgym.rollout.vllm.setup import EngineSetup, serve_command
from searchgym.train.algorithms.samples import SampleCall
from searchgym.train.loop.assembly import assemble, trainer_of
from searchgym.train.loop.publish import Publisher
from searchgym.train.recipe.load import load_recipe

QUESTIONS, ATTEMPTS = 2, 2


def recipe_on(servers, shared, steps, stall, *more):
    return load_recipe(
        "tiny-grpo",
        [
            "rollout.sampler=vllm",
            f"rollout.sampler.servers={json.dumps(servers)}",
            *([f"rollout.sampler.shared={shared}"] if shared else ["rollout.sampler.transfer=gloo"]),
            f"rollout.sampler.stall={stall}",
            f"rollout.questions={QUESTIONS}",
            f"rollout.attempts={ATTEMPTS}",
            f"steps={steps}",
            "validation.every=0",
            "log.tensorboard=false",
            "log.curve=false",
            "optimizer.lr=1e-4",
            "optimizer.warmup_steps=0",
            # an update in every step, so that there is a probe
            "env_options={questions: {split: train, size: 200, seed: 1}, reward: 'fake_servers:numbered'}",
            *more,
        ],
    )


class FakeServer:
    """A server in this process, on a sampler of transformers."""

    def __init__(self, folder):
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.open = contextlib.ExitStack()

    def start(self):
        sampler, _ = load_sampler("tiny")
        self.fake = FakeVllm(sampler)
        self.open.enter_context(gated(self.fake, SERVED, port=self.port))

    def wait(self):
        pass

    def kill(self):
        self.fake.works.clear()
        self.open.close()

    def stop(self):
        self.fake.open.clear()

    def go_on(self):
        self.fake.open.set()


class VllmServer:
    """``vllm serve`` in another process, with a folder of its own for temporary files."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.address = f"http://127.0.0.1:{free_port()}"
        self.open = contextlib.ExitStack()
        # vLLM's sockets in it need a short path
        self.temporary = self.open.enter_context(tempfile.TemporaryDirectory(prefix="sg"))

    def start(self):
        options = Vllm(cache_gib=1, max_context=1024, eager=True)
        setup = EngineSetup(folder=model_folder("tiny"), dtype="float32", requests=16, options=options)
        command, extra = serve_command(setup, self.address)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=os.environ | extra | {"TMPDIR": self.temporary},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.open.callback(self.kill)

    def wait(self):
        """Waits until it answers; whether it is asked by the right key does not matter."""
        client = Client(self.address, {})
        while True:
            assert self.process.poll() is None, (self.folder / "log").read_text()[-3000:]
            try:
                client.call("/health", timeout=5.0)
            except UsageError:
                return
            except EngineLostError:
                threading.Event().wait(0.5)

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self):
        os.killpg(self.process.pid, signal.SIGSTOP)

    def go_on(self):
        os.killpg(self.process.pid, signal.SIGCONT)


def train_through(kind, tmp_path, monkeypatch, way, *, steps, kill, back, stop, go_on, stall):
    """Trains while the first server is killed in step `kill` and the second stands still in step `stop`.

    The first is started again at the end of step `back`, the second goes on at the end of step `go_on`.

    Returns:
        (rows, episodes, servers, names of the engines at the end).
    """
    monkeypatch.setenv(KEY, "known to both")
    first, second = servers = [kind(tmp_path / name) for name in ("one", "two")]
    (tmp_path / "shared").mkdir()
    asked, ask, events = [], VllmEngine.ask, {(kill, 0): first.kill, (stop, 1): second.stop}

    def noted(self, request):
        ask(self, request)
        asked.append(self.name)
        for at, server in enumerate(servers):  # in the middle of a step, with requests on it
            if self.name == server.address and asked.count(self.name) > 1:
                events.pop((len(rows) + 1, at), lambda: None)()

    rows = []

    def report(row):
        if row["step"]:
            rows.append(row)
            asked.clear()
            if row["step"] == back:
                first.start()
                first.wait()
            if row["step"] == go_on:
                second.go_on()

    with contextlib.ExitStack() as opened:
        for server in servers:
            opened.callback(server.open.close)
            server.start()
        for server in servers:
            server.wait()
        recipe = recipe_on(
            [server.address for server in servers], way == "folder" and tmp_path / "shared", steps, stall
        )
        parts = opened.enter_context(contextlib.closing(assemble(recipe, tmp_path / "parts")))
        monkeypatch.setattr(VllmEngine, "ask", noted)
        trainer_of(recipe, parts, tmp_path / "run", report=report).run()
        left = [*parts.sampler.pins().values()]
    assert not events
    return rows, [*read_episodes(tmp_path / "run" / "episodes.jsonl")], servers, left


def check(found, said, steps, stall):
    rows, episodes, (first, second), left = found
    assert [row["step"] for row in rows] == [*range(1, steps + 1)]
    assert all(row["learner/updates"] for row in rows)
    assert max(row["probe/difference"] for row in rows) <= 1e-3
    assert len({episode.id for episode in episodes}) == len(episodes) == steps * QUESTIONS * ATTEMPTS
    assert all(episode.stop_reason != "model_error" for episode in episodes)
    assert f"{first.address} has ended ({first.address}" in said
    assert f"{second.address} has ended ({second.address} has not answered for {stall:g} s: it stands still" in said
    assert left == [first.address, second.address]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["folder", pytest.param("group", marks=pytest.mark.study)])
def test_servers_of_which_one_is_killed_and_one_stands_still(tmp_path, monkeypatch, capsys, way):
    found = train_through(FakeServer, tmp_path, monkeypatch, way, steps=6, kill=2, back=2, stop=4, go_on=4, stall=2.0)
    check(found, capsys.readouterr().err, 6, 2.0)
    assert [*(tmp_path / "shared").iterdir()] == []


@pytest.mark.cluster
@pytest.mark.filterwarnings("default")  # vLLM and its imports raise warnings that we cannot mend
@pytest.mark.parametrize("way", ["folder", "group"])
def test_two_real_servers_of_which_one_is_killed_and_one_stands_still(tmp_path, monkeypatch, capsys, way):
    found = train_through(VllmServer, tmp_path, monkeypatch, way, steps=10, kill=3, back=4, stop=6, go_on=8, stall=30.0)
    check(found, capsys.readouterr().err, 10, 30.0)
    assert [*(tmp_path / "shared").iterdir()] == []


@pytest.mark.slow
def test_the_probe_names_the_server_with_other_weights(tmp_path, monkeypatch):
    """It says that it has loaded the weights, and answers with the old ones."""
    good, bad = (FakeVllm(load_sampler("tiny")[0]) for _ in range(2))
    samples = []
    for sample in random_samples(2):
        call = SampleCall(0, len(sample.ids) - 1, len(sample.ids), "searcher", 1)
        samples.append(dataclasses.replace(sample, calls=(call,)))
    with gated(good) as one, gated(bad) as two:
        recipe = recipe_on([one, two], tmp_path, 1, 20.0)
        with contextlib.closing(assemble(recipe, tmp_path / "parts")) as parts:
            assert parts.publisher().probe(samples)["probe/difference"] <= 1e-3
            with torch.no_grad():
                for weight in parts.learner.policy.updater.model.parameters():
                    weight.mul_(1.1)
            parts.publisher().publish(1)
            assert parts.publisher().probe(samples)["probe/difference"] <= 1e-3
            bad.ignores_weights = True
            with torch.no_grad():
                for weight in parts.learner.policy.updater.model.parameters():
                    weight.mul_(1.1)
            with pytest.raises(TrainingError, match=f"did not arrive in {two}"):  # by fingerprints, whatever the size
                parts.publisher().publish(2)
            monkeypatch.setattr(Publisher, "_compare", lambda *_: None)
            parts.publisher().publish(2)
            with pytest.raises(TrainingError, match=rf"differ by .* nats on average on {two} \(\d+ tokens"):
                parts.publisher().probe(samples)
