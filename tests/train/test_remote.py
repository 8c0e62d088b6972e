"""A learner of two processes: what it learns, and how it ends when a rank does."""

import dataclasses
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path

import numpy as np
import pytest
import torch
from made_models import save_tiny
from test_learner import random_samples
from toy_training import toy_recipe

from searchgym.errors import HangError, TrainingError, UsageError
from searchgym.rollout.loading import load_model
from searchgym.train.distributed.remote import RemoteLearner
from searchgym.train.distributed.worker import KEY, send, stacks_file
from searchgym.train.learner.learner import LocalLearner
from searchgym.train.recipe.options import LoraOptions


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """ZeRO 2 over two ranks, on a model on disk."""
    folder = tmp_path_factory.mktemp("model")
    return toy_recipe(
        model=str(save_tiny(folder)),
        learner={"backend": {"kind": "deepspeed", "ranks": 2, "zero": 2}},
        optimizer={"lr": 1e-3, "micro_batch_tokens": 128},
    )


@pytest.fixture
def learner(recipe, tmp_path):
    made = RemoteLearner(recipe, tmp_path / "ranks", deadline=60)
    yield made
    made.close()


@pytest.mark.engine
def test_it_learns_what_one_process_learns(recipe, learner, tmp_path):
    samples = random_samples(5)
    alone = dataclasses.replace(recipe, learner=type(recipe.learner)())
    own = LocalLearner(alone, load_model(recipe.model)[0])
    for step in range(2):
        got, wanted = learner.learn(learner.prepare(samples), step), own.learn(samples, step)
        assert got["loss"] == pytest.approx(wanted["loss"], abs=1e-5)
        assert got["tokens_trained"] == wanted["tokens_trained"]
    assert learner.version == own.version == 2
    for name, weight in own.weights().items():
        torch.testing.assert_close(learner.weights()[name], weight, rtol=1e-4, atol=1e-5)
    (tmp_path / "saved").mkdir()
    learner.save(tmp_path / "saved")
    with pytest.raises(TrainingError, match="have no token to train on"):  # raised on both ranks: they go on
        learner.learn([dataclasses.replace(s, mask=s.mask & False) for s in samples], 2)
    learner.load(tmp_path / "saved")
    assert learner.version == 2


@pytest.mark.engine
def test_ranks_continue_an_adapter_that_ranks_have_trained(recipe, tmp_path, monkeypatch):
    adapted, samples = dataclasses.replace(recipe, lora=LoraOptions(rank=4, alpha=8.0)), random_samples(5)
    first = RemoteLearner(adapted, tmp_path / "ranks", deadline=60)
    try:
        first.learn(samples, 0)
        logp, weights = first.logp(samples), first.weights(adapter=True)
        (tmp_path / "saved").mkdir()
        first.save(tmp_path / "saved")
    finally:
        first.close()
    assert weights and all(".lora_" in name for name in weights)
    monkeypatch.chdir(tmp_path)
    later = RemoteLearner(adapted, tmp_path / "more", deadline=60, adapter=Path("saved"))
    try:
        for own, wanted in zip(later.logp(samples), logp, strict=True):
            np.testing.assert_array_equal(own, wanted)
        assert all(torch.equal(weights[name], weight) for name, weight in later.weights(adapter=True).items())
    finally:
        later.close()


@pytest.mark.engine
def test_a_rank_that_is_killed_ends_all(learner):
    samples = random_samples(5)
    learner.learn(samples, 0)
    others = list(learner._processes)
    os.kill(learner._processes[1].pid, signal.SIGKILL)
    with pytest.raises(TrainingError, match=r"rank \d ended with exit code -?\d+"):
        learner.learn(samples, 1)
    assert all(process.poll() is not None for process in others)
    with pytest.raises(TrainingError, match="ranks have ended"):
        learner.learn(samples, 1)


@pytest.mark.engine
def test_a_rank_that_stands_still_ends_all_by_the_deadline_with_stacks(recipe, tmp_path):
    learner = RemoteLearner(recipe, tmp_path / "ranks", deadline=60)
    samples = random_samples(5)
    learner.learn(samples, 0)
    learner._deadline = 3.0
    os.kill(learner._processes[1].pid, signal.SIGSTOP)
    others = list(learner._processes)
    with pytest.raises(HangError, match=r"learn: no answer from rank 0, rank 1 within 3 s; stacks: .*stacks-rank0.txt"):
        learner.learn(samples, 1)
    assert all(process.poll() is not None for process in others)
    stacks = stacks_file(tmp_path / "ranks", 0).read_text()
    assert "trained_model.py" in stacks  # where the other rank waits


@pytest.mark.engine
def test_a_rank_that_cannot_load_its_model_says_so(recipe, tmp_path):
    lost = dataclasses.replace(recipe, model=str(tmp_path / "nowhere"))
    learner = RemoteLearner(lost, tmp_path / "ranks", deadline=60)
    with pytest.raises(TrainingError, match="nowhere"):
        learner.prepare(random_samples(1))


@pytest.mark.engine
def test_what_one_rank_says_is_told_though_the_other_one_waits_for_it(learner, monkeypatch):
    monkeypatch.setattr("searchgym.train.distributed.remote.APART", 1.0)
    learner._begin()
    monkeypatch.setattr("searchgym.train.distributed.remote.send", lambda connection, message: None)
    own, theirs = multiprocessing.Pipe()
    learner._connections[0].close()
    learner._connections[0] = own
    send(theirs, ("error", "the disk of this rank is full"))  # the other one gets nothing and says nothing
    with pytest.raises(TrainingError, match="the disk of this rank is full"):
        learner.learn(random_samples(2), 0)
    with pytest.raises(TrainingError, match="ranks have ended"):
        learner.learn(random_samples(2), 0)


@pytest.mark.engine
def test_an_interrupt_waits_for_the_answers_and_leaves_the_ranks_alive(learner, monkeypatch, tmp_path):
    learner._begin()
    real = send

    def interrupted(connection, message):
        os.kill(os.getpid(), signal.SIGINT)
        monkeypatch.setattr("searchgym.train.distributed.remote.send", real)
        real(connection, message)

    monkeypatch.setattr("searchgym.train.distributed.remote.send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        learner.learn(random_samples(2), 0)
    assert learner.version == 1
    learner.save(tmp_path)  # the checkpoint that Ctrl-C promises
    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.engine
def test_two_threads_do_not_ask_at_once(learner, monkeypatch, tmp_path):
    learner._begin()
    said, real = [], send

    def save():
        with pytest.raises(TrainingError, match="save: the ranks are still at work on another call") as caught:
            learner.save(tmp_path)
        said.append(caught.value)

    def asked_meanwhile(connection, message):
        monkeypatch.setattr("searchgym.train.distributed.remote.send", real)
        watchdog = threading.Thread(target=save)
        watchdog.start()
        watchdog.join()
        real(connection, message)

    monkeypatch.setattr("searchgym.train.distributed.remote.send", asked_meanwhile)
    assert len(learner.prepare(random_samples(2))) == 2
    assert len(said) == 1
    assert len(learner.prepare(random_samples(1))) == 1


# -- ranks that are started elsewhere --------------------------------------------------------------------------------


def listening(recipe):
    """Returns the recipe of a learner that waits at a free port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    backend = recipe.learner.backend.joined_at(address)
    return dataclasses.replace(recipe, learner=dataclasses.replace(recipe.learner, backend=backend)), address


def torchrun(address, folder, ranks, key):
    """Starts ranks as one does on each of several machines."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.Popen(
        [sys.executable, *command, "-m", "searchgym.train.distributed.worker", address, str(folder)],
        env=os.environ | {KEY: key},
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.engine
def test_ranks_that_torchrun_starts_learn_what_own_ones_learn(recipe, learner, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # torchrun sets it
    samples = random_samples(5)
    wanted = [learner.learn(samples, step)["loss"] for step in range(2)]
    weights = learner.weights()
    learner.close()
    monkeypatch.setenv(KEY, "known to both")
    joined, address = listening(recipe)
    launcher = torchrun(address, tmp_path / "joined", 2, "known to both")
    other = RemoteLearner(joined, tmp_path / "ranks", deadline=60)
    try:
        assert [other.learn(samples, step)["loss"] for step in range(2)] == wanted
        assert all(torch.equal(weights[name], weight) for name, weight in other.weights().items())
        other.close()
        assert launcher.wait(60) == 0  # its ranks ended with the training
    finally:
        other.close()
        launcher.kill()
        launcher.wait()


@pytest.mark.engine
def test_a_joined_rank_that_goes_is_told(recipe, tmp_path, monkeypatch):
    monkeypatch.setenv(KEY, "known to both")
    joined, address = listening(recipe)
    launcher = torchrun(address, tmp_path / "joined", 2, "known to both")
    learner = RemoteLearner(joined, tmp_path / "ranks", deadline=60)
    try:
        learner.learn(random_samples(5), 0)
        launcher.terminate()
        with pytest.raises(TrainingError, match=r"rank \d has ended; see the output of its launcher"):
            learner.learn(random_samples(5), 1)
    finally:
        learner.close()
        launcher.kill()
        launcher.wait()


def knock(address, key, message):
    """Reports at an address like a rank, and returns what came of it."""
    host, port = address.split(":")
    while True:
        try:
            with Client((host, int(port)), authkey=key) as connection:
                send(connection, message)
            return "in"
        except ConnectionRefusedError:
            time.sleep(0.01)
        except AuthenticationError:
            return "refused"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "ranks", "result", "message"),
    [
        (b"known to one", 2, "refused", "0 of 2 ranks joined at {address} within 2 s"),
        (b"known to both", 1, "in", "1 ranks were started for learner.backend.ranks 2: the numbers must be equal"),
    ],
)
def test_strangers_and_ranks_of_another_number_are_not_let_in(
    recipe, tmp_path, monkeypatch, key, ranks, result, message
):
    joined, address = listening(recipe)
    monkeypatch.setenv(KEY, "known to both")
    monkeypatch.setattr("searchgym.train.distributed.remote.START_SECONDS", 2.0)
    with ThreadPoolExecutor() as pool:
        knocked = pool.submit(knock, address, key, (0, ranks))
        with pytest.raises(TrainingError, match=message.format(address=address)):
            RemoteLearner(joined, tmp_path / "ranks", deadline=60).learn(random_samples(1), 0)
        assert knocked.result() == result


@pytest.mark.slow
def test_who_says_nothing_does_not_hold_up_the_start(recipe, tmp_path, monkeypatch):
    joined, address = listening(recipe)
    monkeypatch.setenv(KEY, "known to both")
    monkeypatch.setattr("searchgym.train.distributed.remote.START_SECONDS", 2.0)
    monkeypatch.setattr("searchgym.train.distributed.remote.APART", 1.0)
    host, port = address.split(":")

    def call_and_wait():
        while True:
            try:
                with socket.create_connection((host, int(port))) as caller:
                    caller.settimeout(30)
                    while caller.recv(1000):
                        pass
                    return "hung up on"
            except ConnectionRefusedError:
                time.sleep(0.01)

    with ThreadPoolExecutor() as pool:
        called = pool.submit(call_and_wait)
        with pytest.raises(TrainingError, match="0 of 2 ranks joined"):
            RemoteLearner(joined, tmp_path / "ranks", deadline=60).learn(random_samples(1), 0)
        assert called.result() == "hung up on"


def test_without_a_key_nobody_listens(recipe, tmp_path):
    joined, _ = listening(recipe)
    with pytest.raises(UsageError, match=f"set {KEY} here and where the ranks start"):
        RemoteLearner(joined, tmp_path / "ranks", deadline=60).learn(random_samples(1), 0)
