import math

import numpy as np
import pytest
import torch
from test_advantages import sample

from searchgym.train.losses import clipped_ratio_loss, kl_k3, policy_sums, token_logp, token_weights
from searchgym.train.recipe import LossOptions


def test_log_probs_and_entropy_against_torch_distributions():
    rng = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(7, 5, generator=rng), torch.tensor([0, 1, 2, 3, 4, 0, 1])
    logp, entropy = token_logp(logits, targets, temperature=0.7)
    oracle = torch.distributions.Categorical(logits=logits.double() / 0.7)
    torch.testing.assert_close(logp.double(), oracle.log_prob(targets), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(entropy.double(), oracle.entropy(), rtol=1e-6, atol=1e-6)


def test_low_precision_logits_are_summed_in_float32():
    logp, entropy = token_logp(torch.zeros(1, 4, dtype=torch.bfloat16), torch.tensor([2]))
    assert logp.dtype == entropy.dtype == torch.float32
    assert logp.item() == pytest.approx(-math.log(4), abs=1e-6)
    assert entropy.item() == pytest.approx(math.log(4), abs=1e-6)


def test_the_clip_by_hand_in_its_six_cases():
    ratio = torch.tensor([0.5, 1.0, 1.5, 0.5, 1.0, 1.5])
    advantage = torch.tensor([2.0, 2.0, 2.0, -2.0, -2.0, -2.0])
    loss = clipped_ratio_loss(ratio.log(), torch.zeros(6), advantage, low=0.2, high=0.3)
    torch.testing.assert_close(loss, torch.tensor([-1.0, -2.0, -2.6, 1.6, 2.0, 3.0]))


def test_only_clipped_tokens_have_no_gradient():
    logp = torch.tensor([0.5, 1.5, 0.5, 1.5]).log().requires_grad_()
    clipped_ratio_loss(logp, torch.zeros(4), torch.tensor([1.0, 1.0, -1.0, -1.0]), 0.2, 0.2).sum().backward()
    # d(-r A) / d logp = -r A where the ratio acts.
    torch.testing.assert_close(logp.grad, torch.tensor([-0.5, 0.0, 0.0, 1.5]))


def test_k3_is_an_unbiased_estimate_of_the_kl_and_never_negative():
    p, q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    estimate = kl_k3(p.log(), q.log())
    assert (estimate >= 0).all()
    assert float((p * estimate).sum()) == pytest.approx(float((p * (p / q).log()).sum()), abs=1e-12)


def test_the_parts_of_the_policy_loss_add_up():
    logp = torch.tensor([-1.0, -2.0, -0.5]).requires_grad_()
    old, ref = torch.tensor([-1.5, -2.0, -0.1]), torch.tensor([-1.2, -1.0, -0.5])
    advantage, weight = torch.tensor([1.0, -1.0, -1.0]), torch.tensor([1.0, 0.5, 2.0])
    entropy = torch.tensor([0.3, 0.2, 0.1])
    options = LossOptions(clip_low=0.2, clip_high=0.2, kl_coef=0.1, entropy_coef=0.01)
    sums = policy_sums(logp, entropy, old, advantage, weight, ref, options)
    ratio = [math.exp(0.5), 1.0, math.exp(-0.4)]
    policy = [-min(ratio[0], 1.2), 1.0, max(ratio[2], 0.8)]
    kl = [math.exp(d) - d - 1 for d in (-0.2, 1.0, 0.0)]
    expected = sum(
        w * (p + 0.1 * k - 0.01 * h) for w, p, k, h in zip([1, 0.5, 2], policy, kl, [0.3, 0.2, 0.1], strict=True)
    )
    assert sums.loss.item() == pytest.approx(expected, abs=1e-6)
    assert sums.statistics == pytest.approx(
        {
            "ratio": sum(ratio),
            "clipped_low": 1,
            "clipped_high": 1,
            "old_kl": sum(math.exp(d) - d - 1 for d in (0.5, 0.0, -0.4)),
            "entropy": 0.6,
            "ref_kl": sum(kl),
        },
        abs=1e-6,
    )


def test_token_weights_of_both_reductions():
    samples = [sample(0), sample(0, tokens=2)]  # two trained tokens and one
    weights, denominator = token_weights(samples)
    assert ([w.tolist() for w in weights], denominator) == ([[1.0, 1.0], [1.0]], 3.0)
    weights, denominator = token_weights(samples, "sequence-mean")
    assert ([w.tolist() for w in weights], denominator) == ([[0.5, 0.5], [1.0]], 2.0)
    assert all(w.dtype == np.float32 for w in weights)
