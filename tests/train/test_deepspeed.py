"""DeepSpeed on two ranks against plain torch on one: the same gradients, the same trajectories, resumes that resume."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rank_script import ADAPTERS, CASES, EARLIER, ROUGH, advance, logp_of, make, steps_of
from transformers import AutoModelForCausalLM

from searchgym.train.distributed.deepspeed_updater import deepspeed_config
from searchgym.train.recipe.backends.deepspeed import DeepSpeed
from searchgym.train.recipe.options import LearnerOptions, OptimizerOptions

pytestmark = pytest.mark.engine
RANKS = 2


def two_ranks(out, names):
    """What two ranks make of some cases; one start of DeepSpeed for all of them."""
    script, here = Path(__file__).with_name("rank_script.py"), Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(here), str(here.parent), *sys.path])}
    ranks, logs = [], [out / f"rank{rank}.log" for rank in range(RANKS)]
    for rank, path in enumerate(logs):
        with path.open("wb") as log:  # not a pipe: one that is full would hold up its rank, and so all of them
            ranks.append(
                subprocess.Popen(
                    [sys.executable, str(script), str(rank), str(RANKS), str(out / "meeting"), str(out), *names],
                    env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        codes = [rank.wait(timeout=1200) for rank in ranks]
    except subprocess.TimeoutExpired:
        codes = []
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert codes == [0] * RANKS, [path.read_text()[-3000:] for path in logs]
    return torch.load(out / "found.pt", weights_only=True) | {"out": out}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two ranks made of every case."""
    return two_ranks(tmp_path_factory.mktemp("ranks"), [*CASES, *ROUGH])


@pytest.fixture(scope="module")
def alone():
    """The same cases on plain torch, made once each."""
    made = {}

    def of(name):
        if name not in made:
            learner, recipe = make(CASES[name], "torch")
            start = {key: value.clone() for key, value in learner.weights().items()}
            made[name] = (advance(learner, recipe, range(steps_of(CASES[name]))), learner.weights(), start)
        return made[name]

    return of


def flat(weights):
    return torch.cat([weights[name].flatten() for name in sorted(weights)])


@pytest.mark.smoke
def test_a_step_of_zero_2_on_two_ranks_is_that_of_one_rank(alone, tmp_path):
    name = "sgd, ZeRO 2"
    check_gradients(two_ranks(tmp_path, [name]), alone, name)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("sgd")])
def test_the_gradients_of_a_step_are_those_of_one_rank(found, alone, name):
    check_gradients(found, alone, name)


def check_gradients(found, alone, name):
    rows, weights, start = alone(name)
    moved, wanted = flat(found[name]["weights"]) - flat(start), flat(weights) - flat(start)
    assert float(wanted.norm()) > 1
    assert float((moved - wanted).norm() / wanted.norm()) < 1e-6
    assert found[name]["rows"][0]["gradient_norm"] == pytest.approx(rows[0]["gradient_norm"], rel=1e-6)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("sgd")])
def test_ten_steps_are_those_of_one_rank(found, alone, name):
    rows, weights, _ = alone(name)
    for own, wanted in zip(found[name]["rows"], rows, strict=True):
        for key in ("loss", "gradient_norm", "entropy", "tokens_trained", "learning_rate", "critic/loss"):
            if key in wanted:
                assert own[key] == pytest.approx(wanted[key], abs=1e-4, rel=1e-4), key
    torch.testing.assert_close(flat(found[name]["weights"]), flat(weights), rtol=1e-3, atol=1e-4)


def test_both_ranks_have_work_and_unequal_shares(alone):
    rows, _, _ = alone("adam, ZeRO 2, one row at a time")
    assert rows[0]["micro_batches"] == 7  # four and three


@pytest.mark.parametrize("name", ["adam, ZeRO 2", "ZeRO 3, offloaded"])
def test_a_stop_in_the_middle_changes_nothing(found, name):
    own = found[name]
    for resumed, whole in zip(own["resumed rows"], own["rows"], strict=True):
        assert resumed["loss"] == pytest.approx(whole["loss"], abs=1e-6)
    torch.testing.assert_close(flat(own["resumed weights"]), flat(own["weights"]), rtol=1e-6, atol=1e-6)
    assert own["version"] == 10


@pytest.mark.parametrize("name", ["adam, ZeRO 2", "ZeRO 3, offloaded"])
def test_what_is_saved_loads_without_deepspeed(found, name):
    model = AutoModelForCausalLM.from_pretrained(found["out"] / name)
    half, recipe = make(CASES[name], "torch")
    advance(half, recipe, range(5))
    torch.testing.assert_close(flat(dict(model.state_dict())), flat(half.weights()), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ROUGH)
def test_gradients_of_weights_in_bfloat16_are_added_up_in_float32(found, name):
    """The same episode 2 and 64 times: the same mean, cut into powers of two, which bfloat16 holds exactly."""
    assert found[name]["many"] == pytest.approx(found[name]["few"], rel=1e-6)


def test_gradients_travel_between_ranks_in_float32():
    options = LearnerOptions(backend=DeepSpeed(ranks=2, zero=1), dtype="bfloat16")
    assert deepspeed_config(OptimizerOptions(), options, 2)["communication_data_type"] == "fp32"


@pytest.mark.parametrize("name", ROUGH)
def test_weights_in_bfloat16_are_taken_up_with_their_copies_in_float32(found, name):
    own = found[name]
    for resumed, whole in zip(own["resumed rows"], own["rows"], strict=True):
        assert resumed["loss"] == pytest.approx(whole["loss"], abs=1e-6)
    torch.testing.assert_close(flat(own["resumed weights"]), flat(own["weights"]), rtol=1e-6, atol=1e-6)
