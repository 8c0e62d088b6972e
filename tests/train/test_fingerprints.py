"""Fingerprints of weights on both sides of a publication: what arrives passes, what does not is named at once."""

import contextlib
import copy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_models import tiny_qwen2, tiny_tokenizer
from test_learner import random_samples
from toy_training import toy_recipe

sys.path.insert(0, str(Path(__file__).parent.parent / "rollout"))
from fake_servers import FakeVllm, gated

from searchgym.errors import TrainingError
from searchgym.rollout.loading import load_model
from searchgym.rollout.sampler import FingerprintedSampler
from searchgym.rollout.samplers.vllm import Vllm
from searchgym.rollout.transfer.fingerprint import (
    BLOCK,
    BLOCKS,
    adapter_fingerprint,
    fingerprint,
    loaded_adapter_fingerprint,
    part_of,
    rounded_fingerprint,
)
from searchgym.rollout.transfer.receiver import Receiver
from searchgym.rollout.transformers.sampler import TransformersSampler, load_sampler
from searchgym.rollout.vllm.sampler import VllmSampler
from searchgym.rollout.vllm.start import start_engine
from searchgym.train.learner.learner import LocalLearner
from searchgym.train.learner.lora import adapter_config
from searchgym.train.loop.publish import Publisher

RATE = 1e-6
"""Rate at which one update of an adapter changes no log-prob by as much as the probe allows."""


def learner_of(model, rank=8):
    optimizer = {"lr": RATE, "warmup_steps": 0, "micro_batch_tokens": 256}
    recipe = toy_recipe(lora={"rank": rank, "alpha": 32.0}, optimizer=optimizer, rollout={"probe": 4})
    return recipe, LocalLearner(recipe, model)


def publisher_of(recipe, learner, sampler):
    return Publisher(recipe, learner, {"policy": SimpleNamespace(sampler=sampler)})


# -- the digest ----------------------------------------------------------------------------------------------------


def test_a_fingerprint_depends_on_names_and_bits_alone():
    one, two = torch.arange(6.0), torch.ones(2, 3, dtype=torch.bfloat16)
    right = fingerprint([("a", one), ("b", two)])
    assert fingerprint([("b", two.clone()), ("a", one.clone())]) == right
    bits = one.clone().view(torch.int32)
    bits[5] += 1  # the last bit of the last element
    for other in ([("b", one), ("a", two)], [("a", one)], [("a", bits.view(torch.float32)), ("b", two)]):
        assert fingerprint(other) != right


@pytest.mark.parametrize("count", [0, 1, BLOCK * BLOCKS, BLOCK * BLOCKS + 1, 100_003])
def test_large_tensors_are_read_in_blocks_that_reach_both_ends(count):
    tensor = torch.arange(count)
    part = part_of(tensor)
    assert len(part) == min(count, BLOCK * BLOCKS)
    assert torch.equal(part_of(part), part)
    assert torch.equal(part.unique(), part)
    if count > BLOCK * BLOCKS:
        assert int(part[0]) == 0 and count - int(part[-1]) <= BLOCKS
        assert int(part.diff().max()) <= count // (BLOCKS - 1)


def test_weights_are_rounded_as_the_sampler_rounds_them():
    state = {"w": torch.randn(300, 200), "v": torch.randn(7)}
    held = {"w": state["w"].bfloat16(), "v": state["v"]}
    assert rounded_fingerprint(state, held) == fingerprint(held.items()) != fingerprint(state.items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_is_recognised_as_vllm_stores_it(dtype):
    """Packed, renamed, in the engine's dtype, B times 3; one packed layer lacks a part."""
    stored = getattr(torch, dtype)
    names = [f"x.{n}.lora_{part}.weight" for n in "qkd" for part in "AB"]
    state = {name: torch.randn(4, 6) if "lora_A" in name else torch.randn(6, 4) for name in names}
    a, b = ([state[f"x.{n}.lora_{part}.weight"].to(stored) for n in "qkd"] for part in "AB")
    b = [one.clone().mul_(3.0) for one in b]
    packed = SimpleNamespace(lora_a=[a[0], a[1], None], lora_b=[b[0], b[1], None], scaling=[1, 1, None])
    single = SimpleNamespace(lora_a=a[2], lora_b=b[2], scaling=1)
    loaded = SimpleNamespace(loras={"qkv": packed, "down": single})
    right = adapter_fingerprint(state, 3.0, dtype)
    assert loaded_adapter_fingerprint(loaded) == right
    worker = Receiver()
    worker.model_runner = SimpleNamespace(
        lora_manager=SimpleNamespace(_adapter_manager=SimpleNamespace(list_adapters=lambda: {7: loaded, 2: None}))
    )
    assert [worker.weights_fingerprint(n) for n in (7, 0, 2, None)] == [right, right, "", ""]
    worker.model_runner = SimpleNamespace()
    assert worker.weights_fingerprint(7) is None
    b[1][5, 3] += 1
    assert loaded_adapter_fingerprint(loaded) != right


# -- transformers --------------------------------------------------------------------------------------------------


def transformers_sampler(model, dtype=torch.float32, mixed=False):
    return TransformersSampler(copy.deepcopy(model).to(dtype), tiny_tokenizer(), mixed=mixed)


@pytest.mark.parametrize(
    ("rank", "dtype", "mixed"),
    [(8, torch.float32, False), (0, torch.float32, False), (8, torch.bfloat16, False), (0, torch.float32, True)],
)
def test_weights_that_arrive_pass(rank, dtype, mixed):
    model = tiny_qwen2(vocabulary=50)
    sampler = transformers_sampler(model, dtype, mixed)
    recipe, learner = learner_of(model, rank)
    publisher = publisher_of(recipe, learner, sampler)
    assert isinstance(sampler, FingerprintedSampler)
    for step in range(3):
        publisher.publish(learner.version)
        learner.learn(random_samples(4, seed=step), step)


def test_an_adapter_that_never_arrives_is_seen_at_the_first_update(monkeypatch):
    model = tiny_qwen2(vocabulary=50)
    sampler = transformers_sampler(model)
    recipe, learner = learner_of(model)
    publisher = publisher_of(recipe, learner, sampler)
    publisher.publish(0)
    before = learner.logp(samples := random_samples(4, seed=9))
    monkeypatch.setattr(TransformersSampler, "update", lambda self, state, version: None)
    publisher.publish(0)  # nothing has changed
    learner.learn(random_samples(4), 0)
    moved = np.abs(np.concatenate(learner.logp(samples)) - np.concatenate(before)).mean()
    assert moved < 1e-4  # a tenth of what the probe allows
    with pytest.raises(TrainingError, match=r"policy: the weights of version 1 did not .* of version 0, by"):
        publisher.publish(1)
    recipe = toy_recipe(lora={"rank": 8}, rollout={"probe": 0})
    publisher_of(recipe, learner, sampler).publish(1)  # switched off


def test_an_adapter_of_the_version_before_is_seen(monkeypatch):
    model, right, late = tiny_qwen2(vocabulary=50), TransformersSampler.update, []

    def delayed(self, state, version):
        late.append({name: weight.clone() for name, weight in state.items()})
        right(self, late[-2:][0], version)

    monkeypatch.setattr(TransformersSampler, "update", delayed)
    sampler = transformers_sampler(model)
    recipe, learner = learner_of(model)
    publisher = publisher_of(recipe, learner, sampler)
    publisher.publish(0)
    learner.learn(random_samples(4), 0)
    with pytest.raises(TrainingError, match=r"weights of version 1 did not arrive in Qwen2.*has those of version 0"):
        publisher.publish(1)


# -- servers -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def served(tmp_path, fakes, rank, transfer, separate):
    """A publisher to fake servers of the tiny model, its learner, and the servers' addresses."""
    recipe, learner = learner_of(load_model("tiny")[0], rank)
    with contextlib.ExitStack() as opened:
        addresses = tuple(opened.enter_context(gated(fake)) for fake in fakes)
        more = {"shared": str(tmp_path)} if transfer == "folder" else {}
        options = Vllm(servers=addresses, stall=20.0, transfer=transfer, **more)
        engine = start_engine("tiny", dtype="float32", requests=4, options=options, adapters=int(separate), rank=8)
        sampler = VllmSampler(engine, ends=[5], adapter=adapter_config(recipe.lora) if separate else None)
        opened.callback(sampler.close)
        publisher = publisher_of(recipe, learner, sampler)
        publisher._alone = separate
        publisher._arrived.add("policy")  # as after the check with a test adapter
        yield publisher, learner, addresses


@pytest.mark.parametrize(
    ("rank", "transfer", "separate"),
    [(0, "folder", False), (8, "folder", True), (8, "folder", False), (0, "gloo", False)],
)
def test_a_server_whose_weights_do_not_arrive_is_named_at_the_first_update(tmp_path, rank, transfer, separate):
    """Also behind other weights that a run before left: the server says each time that it has loaded them."""
    fakes = [FakeVllm(load_sampler("tiny")[0]) for _ in range(2)]
    with served(tmp_path, fakes, rank, transfer, separate) as (publisher, learner, addresses):
        publisher.publish(0)
        learner.learn(random_samples(4), 0)
        publisher.publish(1)
        learner.learn(random_samples(4, seed=1), 1)
        fakes[1].ignores_weights = True
        with pytest.raises(TrainingError, match=rf"version 2 did not arrive in {addresses[1]}, which has those of"):
            publisher.publish(2)


def test_an_adapter_that_no_server_loads_is_seen_before_the_first_step(tmp_path):
    fake = FakeVllm(load_sampler("tiny")[0])
    fake.ignores_weights = True
    with (
        served(tmp_path, [fake], 8, "folder", True) as (publisher, _, (address,)),
        pytest.raises(TrainingError, match=rf"weights of version 0 did not arrive in {address}, which has none"),
    ):
        publisher.publish(0)


def test_a_sampler_whose_weights_cannot_be_read_is_noted_once(tmp_path, capsys):
    with served(tmp_path, [FakeVllm()], 0, "folder", False) as (publisher, learner, _):
        for _ in range(2):
            publisher.publish(learner.version)
    assert capsys.readouterr().err.count("weights cannot be read: only log-probs show if they arrived") == 1


# -- vLLM itself ---------------------------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.filterwarnings("default")  # vLLM and its imports raise warnings that we cannot mend
@pytest.mark.parametrize(("separate", "dtype"), [(True, "float32"), (True, "bfloat16"), (False, "bfloat16")])
def test_weights_that_do_not_reach_vllm_are_seen(separate, dtype, monkeypatch):
    """Two versions arrive; of the third, the engine loads the file of the second again."""
    recipe, learner = learner_of(load_model("tiny")[0])
    options = Vllm(cache_gib=1, max_context=1024, eager=True)
    engine = start_engine("tiny", dtype=dtype, requests=4, options=options, adapters=2 * separate, rank=8)
    sampler = VllmSampler(engine, ends=[5], adapter=adapter_config(recipe.lora) if separate else None)
    with contextlib.closing(sampler):
        publisher = publisher_of(recipe, learner, sampler)
        publisher._alone = separate
        publisher._arrived.add("policy")
        for step in range(2):
            publisher.publish(step)
            learner.learn(random_samples(4, seed=step), step)
        folders = sampler._folders if separate else engine.folders
        old = [sampler._adapter.folder] if separate else [engine._weights]
        name = "tensors" if separate else "model"
        write = getattr(folders, name)
        monkeypatch.setattr(folders, name, lambda *given: write(*given) and old[0])
        with pytest.raises(TrainingError, match=r"version 2 did not .* which has those of version 1"):
            publisher.publish(2)
