"""A learner of two processes: what it learns, and how it ends when a rank does."""

import dataclasses
import os
import signal

import pytest
import torch
from made_models import save_tiny
from test_learner import random_samples
from toy_training import toy_recipe

from searchgym.errors import HangError, TrainingError
from searchgym.rollout.loading import load_model
from searchgym.train.learner import LocalLearner
from searchgym.train.remote import RemoteLearner
from searchgym.train.worker import stacks_file


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """ZeRO 2 over two ranks, on a model on disk."""
    folder = tmp_path_factory.mktemp("model")
    return toy_recipe(
        model=str(save_tiny(folder)),
        learner={"backend": "deepspeed", "ranks": 2, "zero": 2},
        optimizer={"lr": 1e-3, "micro_batch_tokens": 128},
    )


@pytest.fixture
def learner(recipe, tmp_path):
    made = RemoteLearner(recipe, tmp_path / "ranks", deadline=60)
    yield made
    made.close()


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
    with pytest.raises(TrainingError, match="hold no token to train on"):  # raised on both ranks: they go on
        learner.learn([dataclasses.replace(s, mask=s.mask & False) for s in samples], 2)
    learner.load(tmp_path / "saved")
    assert learner.version == 2


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
    assert "trained.py" in stacks  # where the other rank waits


def test_a_rank_that_cannot_load_its_model_says_so(recipe, tmp_path):
    lost = dataclasses.replace(recipe, model=str(tmp_path / "nowhere"))
    learner = RemoteLearner(lost, tmp_path / "ranks", deadline=60)
    with pytest.raises(TrainingError, match="nowhere"):
        learner.prepare(random_samples(1))
