"""Sampler and learner in mixed precision: one rule for both, and no small update is lost."""

import dataclasses
import platform

import numpy as np
import pytest
import torch
from made_models import tiny_qwen2, tiny_tokenizer
from toy_training import toy_recipe

from searchgym.errors import GuardError
from searchgym.rollout.sampler import SampleRequest, Sampling
from searchgym.rollout.samplers.transformers import BATCH_TOKENS, most_tokens
from searchgym.rollout.transformers import running_batch
from searchgym.rollout.transformers.precision import emulates_bfloat16, head_of, mixed_precision, round_matrices
from searchgym.rollout.transformers.running_batch import affordable_tokens
from searchgym.rollout.transformers.sampler import TransformersSampler
from searchgym.train.algorithms.samples import Sample, SampleCall
from searchgym.train.learner.learner import LocalLearner
from searchgym.train.loop.guards import check_guards
from searchgym.train.recipe.options import GuardOptions


def model():
    """Logits up to 30: bfloat16 tells numbers of that size apart by 0.125."""
    made = tiny_qwen2(vocabulary=512, sharp=0.5)
    with torch.no_grad():
        head_of(made).weight.mul_(4)
    return made


def sampled(mixed, own=None, count=16):
    sampler = TransformersSampler(own or model(), tiny_tokenizer("base"), ends=(), mixed=mixed)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 340, int(rng.integers(20, 90))).astype(np.int32) for _ in range(count)]
    asked = [SampleRequest(prompt, Sampling(24), seed) for seed, prompt in enumerate(prompts)]
    return [sample_of(prompt, reply) for prompt, reply in zip(prompts, sampler.sample(asked), strict=True)]


def sample_of(prompt, reply):
    ids = np.concatenate([prompt, reply.ids])
    zeros, start, end = np.zeros(len(ids), np.float32), len(prompt), len(ids)
    logp = np.concatenate([zeros[:start], reply.logp])
    calls = (SampleCall(0, start, end, "searcher", 1),)
    made = Sample(ids, np.arange(end) >= start, zeros, zeros, zeros, calls, "policy", "e", "e", 0, None, 0)
    return dataclasses.replace(made, sampler_logp=logp)


def difference(samples, autocast="bfloat16", own=None):
    recipe = toy_recipe(optimizer={"autocast": autocast, "micro_batch_tokens": 1024})
    found = LocalLearner(recipe, own or model()).logp(samples)
    return float(np.abs(np.concatenate(found) - np.concatenate([s.sampler_logp[s.mask] for s in samples])).mean())


def test_sampler_and_learner_round_at_the_same_places():
    alike, apart = difference(sampled(True)), difference(sampled(False))
    assert alike < apart / 2
    rounded = model().to(torch.bfloat16)  # everything in bfloat16, logits and residual stream too
    assert alike < difference(sampled(False, rounded)) / 2


def test_only_the_matrices_of_layers_are_rounded():
    own = model()
    round_matrices(own)
    kept = {name for name, p in own.named_parameters() if p.dtype == torch.float32}
    assert kept == {name for name, _ in own.named_parameters() if "embed" in name or "norm" in name or "head" in name}


def test_logits_are_float32_and_the_model_is_left_as_it_was():
    own, ids = model(), torch.arange(9)[None]
    with torch.no_grad(), mixed_precision(own):
        logits = own(ids).logits
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, logits.bfloat16().float())
    assert "forward" not in vars(head_of(own))
    with torch.no_grad():
        exact = own(ids).logits
        assert torch.equal(exact, model()(ids).logits)
    assert 0 < (exact - logits).abs().max() < exact.abs().max() / 20


def test_small_updates_are_not_rounded_away():
    """A hundredth of the rounding moves few of the sampler's weights, by so much more that the mean is right."""
    own = model()
    sampler = TransformersSampler(model(), tiny_tokenizer("base"), ends=(), mixed=True)
    name = "model.layers.0.mlp.down_proj.weight"
    torch.manual_seed(0)
    state = {key: value.clone() for key, value in own.state_dict().items()}
    state[name] = 0.5 + 0.5 * torch.rand_like(state[name])  # of one binade: neighbours are 2 ** -8 apart
    sampler.update(state, 1)
    before = sampler.model.state_dict()[name].double()
    step = 2.0**-8 / 100
    sampler.update(state | {name: state[name] + step}, 2)
    moved = sampler.model.state_dict()[name].double() - before
    assert 0 < (moved != 0).double().mean() < 0.05
    assert moved.mean() == pytest.approx(step, rel=0.5)
    sampler.update(state | {name: state[name].bfloat16() + step}, 3)  # a learner with rounded weights loses it all
    assert torch.equal(sampler.model.state_dict()[name].double(), before)


def test_learning_at_a_small_rate_moves_weights_that_bfloat16_would_keep():
    recipe = toy_recipe(optimizer={"autocast": "bfloat16", "lr": 1e-7, "micro_batch_tokens": 1024})
    learner, before = LocalLearner(recipe, model()), model().state_dict()
    samples = [dataclasses.replace(s, advantage=s.mask.astype(np.float32)) for s in sampled(True)]
    learner.learn(samples, 0)
    after = learner.weights()
    assert {weight.dtype for weight in after.values()} == {torch.float32}
    name = "model.layers.0.mlp.down_proj.weight"
    assert not torch.equal(after[name], before[name])
    changed = after[name].bfloat16() != before[name].bfloat16()
    assert changed.double().mean() < 0.05


def test_keys_and_values_fit_into_a_share_of_the_memory(monkeypatch):
    own = tiny_qwen2()
    config = own.config
    each = 2 * config.num_hidden_layers * config.num_key_value_heads * config.hidden_size // config.num_attention_heads
    monkeypatch.setattr(running_batch, "device_memory", lambda device: 16 * each * 4 * 1000 + 1)
    assert affordable_tokens(own) == 1000
    assert affordable_tokens(own.to(torch.bfloat16)) == 2000
    monkeypatch.undo()
    assert affordable_tokens(own) == BATCH_TOKENS


def test_a_gpu_takes_larger_batches_where_memory_allows():
    most = most_tokens
    assert most(1.0, 24 * 100_000.0, on_gpu=True) == 100_000 and most(1.0, 24 * 100_000.0, on_gpu=False) == 65_536
    assert most(1.0, 1e9, on_gpu=True) == 262_144
    assert most(1.0, 24 * 60_000.0, on_gpu=True) == 65_536 and most(1.0, 16 * 50_000.0, on_gpu=True) == 50_000


def test_a_difference_ends_the_run_once_it_stays():
    """As any guard: one step above the bound, which `loss.importance_cap` corrects for, ends no run of days."""
    options = GuardOptions(patience=3)
    for metric in ("learner/sampler_difference", "learner/writers/sampler_difference"):
        above, below = ({metric: value, "rollout/staleness": 0.0} for value in (0.0201, 0.02))
        check_guards([above], options)
        check_guards([above, above], options)
        check_guards([above, above, below], options)
        check_guards([above, above, {"rollout/staleness": 0.0}, above], options)  # a step that learnt nothing
        check_guards([above, above, above | {"rollout/staleness": 1.0}], options)  # of older weights
        said = f"{metric} was 0.0201, 0.0201, 0.0201 in the last steps, guard.bounds has at most 0.02: .*selfcheck"
        with pytest.raises(GuardError, match=said):
            check_guards([below, above, above, above], options)
    check_guards([{"learner/sampler_difference": 0.5}] * 3, GuardOptions(bounds={"learner/sampler_difference": None}))


def test_a_gross_difference_ends_the_run_in_its_first_step():
    """Ten times the bound is another policy, whatever the patience: importance weights do not mend that."""
    check_guards([{"learner/sampler_difference": 0.2}], GuardOptions())
    with pytest.raises(
        GuardError, match=r"sampler_difference was 0\.201 in .* has at most 0\.02 and ends a run at once at 10 times"
    ):
        check_guards([{"learner/sampler_difference": 0.201}], GuardOptions())
    check_guards([{"learner/sampler_difference": 0.5, "rollout/staleness": 1.0}], GuardOptions())
    check_guards([], GuardOptions())


@pytest.mark.parametrize(
    ("machine", "known", "emulates"),
    [
        ("x86_64", (), True),
        ("x86_64", ("_is_avx512_bf16_supported",), False),
        ("x86_64", ("_is_amx_tile_supported",), False),
        ("aarch64", (), False),
    ],
)
def test_a_cpu_without_instructions_for_bfloat16_is_told_apart(monkeypatch, machine, known, emulates):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda name=name: name in known)
    assert emulates_bfloat16() == emulates
