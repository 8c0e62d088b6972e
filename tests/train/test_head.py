"""Scores of trained tokens in tiles, against whole logits: values, gradients, mixed precision, capped logits."""

import dataclasses

import numpy as np
import pytest
import torch
from made_models import tiny_qwen2
from toy_training import toy_recipe
from transformers import Gemma2Config, Gemma2ForCausalLM

from searchgym.errors import UsageError
from searchgym.rollout.transformers.precision import head_of, mixed_precision
from searchgym.train.algorithms.losses import token_logp
from searchgym.train.algorithms.samples import Sample, SampleCall
from searchgym.train.learner import head
from searchgym.train.learner.head import head_scores
from searchgym.train.learner.learner import LocalLearner


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several tiles in both directions, whose last ones are smaller."""
    monkeypatch.setitem(head.TILES, "cpu", (5, 7))


def problem(count, bias, dtype=torch.float64, vocabulary=23):
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, vocabulary, bias=bias).to(dtype)
    hidden = (4 * torch.randn(count, 6)).to(dtype).requires_grad_()
    return layer, hidden, torch.randint(0, vocabulary, (count,))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("count", [0, 1, 13])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("entropy", [False, True])
def test_scores_and_gradients_are_those_of_whole_logits(bias, count, temperature, entropy):
    layer, hidden, targets = problem(count, bias)
    scores = head_scores(hidden, layer, targets, temperature, entropy_gradient=entropy)
    every = torch.log_softmax(layer(hidden) / temperature, -1)
    expected = every.gather(-1, targets[:, None])[:, 0], -(every.exp() * every).sum(-1)
    torch.testing.assert_close(tuple(scores), expected, rtol=1e-12, atol=1e-12)
    weights, trained = torch.randn(2, count, dtype=torch.float64), [hidden, *layer.parameters()]

    def gradient(logp, entropies):
        loss = (weights[0] * logp).sum() + (weights[1] * entropies).sum() * entropy
        return torch.autograd.grad(loss, trained)

    torch.testing.assert_close(gradient(*scores), gradient(*expected), rtol=1e-10, atol=1e-12)
    assert scores.entropy.requires_grad == entropy


def test_a_frozen_head_gets_no_gradient_and_passes_one_on():
    layer, hidden, targets = problem(9, bias=False)
    layer.requires_grad_(False)
    head_scores(hidden, layer, targets).logp.sum().backward()
    assert layer.weight.grad is None
    assert hidden.grad.abs().sum() > 0


def test_far_apart_logits_stay_finite():
    layer, hidden, targets = problem(9, bias=False, dtype=torch.float32)
    scores = head_scores(hidden * 1e4, layer, targets, entropy_gradient=True)
    logp, entropy = token_logp(layer(hidden * 1e4), targets)
    torch.testing.assert_close(tuple(scores), (logp, entropy), rtol=1e-6, atol=1e-2)
    gradients = torch.autograd.grad(scores.logp.sum() + scores.entropy.sum(), [hidden, layer.weight])
    assert all(bool(g.isfinite().all()) for g in gradients)


def test_mixed_scores_are_float32_sums_of_rounded_inputs():
    layer, hidden, targets = problem(40, bias=True, dtype=torch.float32)
    scores = head_scores(hidden, layer, targets, mixed=True)
    logits = hidden.bfloat16().double() @ layer.weight.bfloat16().double().T + layer.bias.double()
    exact = torch.log_softmax(logits, -1).gather(-1, targets[:, None])[:, 0].float()
    torch.testing.assert_close(scores.logp, exact, rtol=1e-5, atol=1e-5)
    coarse = token_logp(logits.bfloat16(), targets)[0]
    assert (scores.logp - exact).abs().max() < (coarse - exact).abs().max() / 100
    found = torch.autograd.grad(scores.logp.sum(), [hidden, layer.weight])
    expected = torch.autograd.grad(exact.sum(), [hidden, layer.weight])
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def sample(vocabulary=50, length=64):
    ids = np.random.default_rng(0).integers(0, vocabulary, length).astype(np.int32)
    mask, zeros = np.arange(length) >= 25, np.zeros(length, np.float32)
    calls = (SampleCall(0, 25, length, "searcher", 1),)
    made = Sample(ids, mask, zeros, zeros, zeros, calls, "policy", "e", "e", 0, None, 0)
    return dataclasses.replace(made, advantage=mask.astype(np.float32))


def test_learner_and_sampler_give_the_same_log_probs_in_mixed_precision():
    own, one = tiny_qwen2(vocabulary=512, sharp=0.5), sample()
    with torch.no_grad(), mixed_precision(own):
        logits = own(torch.from_numpy(one.ids.astype(np.int64))[None]).logits[0]
    at = np.flatnonzero(one.mask)
    expected = torch.log_softmax(logits, -1)[at - 1, one.ids[at]]
    found = LocalLearner(toy_recipe(optimizer={"autocast": "bfloat16"}), own).logp([one])[0]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


def capped():
    """A model that caps its logits after the output layer."""
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, final_logit_softcapping=0.5, query_pre_attn_scalar=8,
    )  # fmt: skip
    return Gemma2ForCausalLM(config).eval()


@pytest.mark.parametrize("make", [capped, tiny_qwen2])
def test_logits_that_a_model_changes_after_its_head_are_whole(make):
    own, one = make(), sample()
    with torch.no_grad():
        logits = own(torch.from_numpy(one.ids.astype(np.int64))[None]).logits[0]
    at = np.flatnonzero(one.mask)
    expected = torch.log_softmax(logits, -1)[at - 1, one.ids[at]]
    learner = LocalLearner(toy_recipe(), own)
    for _ in range(2):
        np.testing.assert_allclose(learner.logp([one])[0], expected.numpy(), atol=1e-5)
    assert learner.policy.trained_model._scores == (make is tiny_qwen2)
    before = head_of(own).weight.detach().clone()
    learner.learn([one], 0)
    assert not torch.equal(before, head_of(own).weight)


def test_an_adapter_on_the_head_counts():
    tied, one = tiny_qwen2(), sample()
    own = type(tied)(type(tied.config).from_dict(tied.config.to_dict() | {"tie_word_embeddings": False}))
    learner = LocalLearner(toy_recipe(lora={"rank": 2, "targets": ["lm_head"]}), own)
    before = learner.logp([one])[0]
    torch.nn.init.normal_(head_of(own).lora_B["default"].weight)
    assert np.abs(learner.logp([one])[0] - before).max() > 1e-3


def test_no_logits_of_all_tokens_are_held(monkeypatch):
    """The largest tensor of forward and backward pass is a tile, or the gradient of the head's weight."""
    monkeypatch.setitem(head.TILES, "cpu", (16, 32))
    layer, hidden, targets = problem(512, bias=False, dtype=torch.float32, vocabulary=1024)
    sizes = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            sizes.extend(value.numel() for value in [result] if isinstance(value, torch.Tensor))
            return result

    with Sizes():
        head_scores(hidden, layer, targets, entropy_gradient=True).logp.sum().backward()
    assert max(sizes) <= max(16 * 32, layer.weight.numel())


def test_a_vocabulary_of_256_000_needs_memory_for_a_tile(monkeypatch):
    monkeypatch.setitem(head.TILES, "cpu", (16, 4096))
    layer, hidden, targets = problem(64, bias=False, dtype=torch.float32, vocabulary=256_000)
    whole = token_logp(layer(hidden), targets)
    scores = head_scores(hidden, layer, targets)
    torch.testing.assert_close(scores.logp, whole[0], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(scores.entropy, whole[1], rtol=1e-4, atol=1e-4)


def test_a_row_longer_than_the_model_is_refused_before_an_update():
    learner = LocalLearner(toy_recipe(), tiny_qwen2())
    before = {name: weight.clone() for name, weight in learner.weights().items()}
    most = learner.policy.updater.model.config.max_position_embeddings
    with pytest.raises(UsageError, match=rf"has {most + 1} tokens, the model reads at most {most}"):
        learner.learn([sample(length=most + 1)], 0)
    assert all(torch.equal(weight, before[name]) for name, weight in learner.weights().items())
