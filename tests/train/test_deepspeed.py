"""DeepSpeed on two ranks against plain torch on one: the same gradients, the same trajectories, resumes that resume."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rank_script import ADAPTERS, CASES, EARLIER, ROUGH, advance, earlier, logp_of, make, steps_of
from transformers import AutoModelForCausalLM

from searchgym.errors import TrainingError
from searchgym.rollout.foreign.adapters import read_weights
from searchgym.train.distributed.deepspeed_updater import TAG, DeepSpeedUpdater, _tensors_only, deepspeed_config
from searchgym.train.recipe.backends.deepspeed import DeepSpeed
from searchgym.train.recipe.options import OptimizerOptions

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
    out = tmp_path_factory.mktemp("ranks")
    write_earlier(out)
    return two_ranks(out, [*CASES, *ROUGH])


def write_earlier(out):
    """Writes the adapter that cases continue, trained by plain torch."""
    learner, recipe = make(ADAPTERS["LoRA, ZeRO 2"], "torch")
    advance(learner, recipe, range(3))
    (out / EARLIER).mkdir()
    learner.save(out / EARLIER)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same cases on plain torch, made once each."""
    made, out = {}, tmp_path_factory.mktemp("alone")
    write_earlier(out)

    def of(name):
        if name not in made:
            learner, recipe = make(CASES[name], "torch", earlier(name, out))
            start = {key: value.clone() for key, value in learner.weights().items()}
            made[name] = (advance(learner, recipe, range(steps_of(CASES[name]))), learner.weights(), start)
        return made[name]

    return of


def flat(weights):
    return torch.cat([weights[name].flatten() for name in sorted(weights)])


@pytest.mark.smoke
def test_a_step_of_zero_2_on_two_ranks_is_that_of_one_rank(alone, tmp_path):
    name, adapter = "sgd, ZeRO 2", "LoRA, ZeRO 2"
    found = two_ranks(tmp_path, [name, adapter])
    check_gradients(found, alone, name)
    check_adapter(found, adapter, tmp_path)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("sgd")])
def test_the_gradients_of_a_step_are_those_of_one_rank(found, alone, name):
    check_gradients(found, alone, name)


def check_gradients(found, alone, name):
    rows, weights, start = alone(name)
    moved, wanted = flat(found[name]["weights"]) - flat(start), flat(weights) - flat(start)
    assert float(wanted.norm()) > 1
    assert float((moved - wanted).norm() / wanted.norm()) < 1e-6
    assert found[name]["rows"][0]["gradient_norm"] == pytest.approx(rows[0]["gradient_norm"], rel=1e-6)


def check_adapter(found, name, out):
    """Ten steps of an adapter are those of one rank with plain torch, and so is the rest of the model."""
    learner, recipe = make(CASES[name], "torch", earlier(name, out))
    start = {key: value.clone() for key, value in learner.weights(adapter=True).items()}
    rows = advance(learner, recipe, range(10))
    weights, own = learner.weights(adapter=True), found[name]["adapter"]
    assert own.keys() == weights.keys()
    assert max(float((weights[key] - start[key]).abs().max()) for key in start) > 0.01
    torch.testing.assert_close(flat(own), flat(weights), rtol=0, atol=1e-6)
    torch.testing.assert_close(flat(found[name]["weights"]), flat(learner.weights()), rtol=0, atol=1e-6)
    torch.testing.assert_close(found[name]["logp"], logp_of(learner), rtol=1e-6, atol=1e-5)
    for key in ("loss", "gradient_norm", "ref_kl", "critic/loss"):
        assert [row.get(key) for row in found[name]["rows"]] == [
            pytest.approx(row[key], abs=1e-6, rel=1e-5) if key in row else None for row in rows
        ], key


PRECISE = [name for name in ADAPTERS if name.startswith("LoRA") and not name.endswith("bfloat16")]
BESIDE_BFLOAT16 = [name for name in ADAPTERS if name.endswith("bfloat16")]


@pytest.mark.parametrize("name", PRECISE)
def test_an_adapter_on_two_ranks_is_that_of_one_rank(found, name):
    check_adapter(found, name, found["out"])


@pytest.mark.parametrize("name", BESIDE_BFLOAT16)
def test_an_adapter_beside_a_base_in_bfloat16_stays_in_float32(found, alone, name):
    """The first gradient is that of one rank; later, a rounding of the base that falls otherwise shows in bfloat16."""
    rows, weights, _ = alone(name)
    own = found[name]
    assert own["rows"][0]["gradient_norm"] == pytest.approx(rows[0]["gradient_norm"], rel=1e-6)
    assert {weight.dtype for weight in own["adapter"].values()} == {torch.float32}
    assert any(not torch.equal(weight, weight.bfloat16().float()) for weight in own["adapter"].values())
    assert {weight.dtype for weight in own["weights"].values()} == {torch.bfloat16}
    torch.testing.assert_close(flat(own["weights"]), flat(weights), rtol=2**-7, atol=2**-8)


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_stop_in_the_middle_gives_an_adapter_the_same_bits(found, name):
    own = found[name]
    assert own["resumed rows"][-1]["loss"] == own["rows"][-1]["loss"]
    assert all(torch.equal(weight, own["weights"][key]) for key, weight in own["resumed weights"].items())
    assert own["version"] == 10


@pytest.mark.parametrize("name", PRECISE)
def test_the_files_of_an_adapter_are_those_of_one_rank(found, tmp_path, name):
    folder = found["out"] / name
    learner, recipe = make(CASES[name], "torch", earlier(name, found["out"]))
    advance(learner, recipe, range(5))
    learner.save(tmp_path)
    config = "adapter_config.json"
    assert (folder / config).read_text() == (tmp_path / config).read_text()
    own, wanted = read_weights(folder), read_weights(tmp_path)
    assert own.keys() == wanted.keys()
    torch.testing.assert_close(flat(own), flat(wanted), rtol=0, atol=1e-6)
    assert not (folder / "model.safetensors").exists()


@pytest.mark.parametrize("name", ADAPTERS)
def test_frozen_weights_are_not_in_deepspeeds_state(found, name):
    frozen = ("embed_tokens", "lm_head", "layers.0." if "frozen" in name else "base_layer")
    for path in (found["out"] / name / TAG).glob("*model_states.pt"):
        with _tensors_only():
            state = torch.load(path, map_location="cpu")
        assert state["module"] and not [key for key in state["module"] for part in frozen if part in key]
        assert not state.get("frozen_param_fragments")


def test_a_state_of_other_weights_is_refused(tmp_path):
    """An adapter's state for a whole model, and one of fewer layers."""
    updater = DeepSpeedUpdater.__new__(DeepSpeedUpdater)
    model = torch.nn.Linear(2, 2)
    updater._frozen = {"bias"}
    updater._fill({"weight": torch.ones(2, 2)}, model)
    assert torch.equal(model.weight, torch.ones(2, 2))
    for state in ({}, {"weight": torch.ones(2, 2), "lora_A": torch.ones(1)}):
        with pytest.raises(TrainingError, match=r"a state of other weights, \w+ among them: .*another lora"):
            updater._fill(state, model)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ADAPTERS and not name.startswith("sgd")])
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
    assert (
        deepspeed_config(OptimizerOptions(), DeepSpeed(ranks=2, zero=1), 2, True)["communication_data_type"] == "fp32"
    )


@pytest.mark.parametrize("name", ROUGH)
def test_weights_in_bfloat16_are_taken_up_with_their_copies_in_float32(found, name):
    own = found[name]
    for resumed, whole in zip(own["resumed rows"], own["rows"], strict=True):
        assert resumed["loss"] == pytest.approx(whole["loss"], abs=1e-6)
    torch.testing.assert_close(flat(own["resumed weights"]), flat(own["weights"]), rtol=1e-6, atol=1e-6)
