import math

import numpy as np
import pytest
import torch
from test_advantages import sample

from searchgym.train.algorithms.loss_options import LossOptions
from searchgym.train.algorithms.losses import (
    clipped_ratio_loss,
    importance_weight,
    kl_estimate,
    kl_k3,
    llds,
    policy_sums,
    sequence_log_ratio,
    token_logp,
    token_weights,
)


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
    loss = clipped_ratio_loss(ratio.log(), advantage, low=0.2, high=0.3)
    torch.testing.assert_close(loss, torch.tensor([-1.0, -2.0, -2.6, 1.6, 2.0, 3.0]))


def test_only_clipped_tokens_have_no_gradient():
    logp = torch.tensor([0.5, 1.5, 0.5, 1.5]).log().requires_grad_()
    clipped_ratio_loss(logp, torch.tensor([1.0, 1.0, -1.0, -1.0]), 0.2, 0.2).sum().backward()
    # d(-r A) / d logp = -r A where the ratio acts.
    torch.testing.assert_close(logp.grad, torch.tensor([-0.5, 0.0, 0.0, 1.5]))


def test_k3_is_an_unbiased_estimate_of_the_kl_and_never_negative():
    p, q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    estimate = kl_k3(p.log(), q.log())
    assert (estimate >= 0).all()
    assert float((p * estimate).sum()) == pytest.approx(float((p * (p / q).log()).sum()), abs=1e-12)


def test_k3_is_cut_at_ten_nats_and_has_no_gradient_there():
    """As verl's ``low_var_kl``; without the cut one token 39 nats away counts 8.7e16, and one 99 away ends a run."""
    logp = torch.tensor([-40.0, -100.0, -1.0, -2.0]).requires_grad_()
    estimate = kl_k3(logp, torch.tensor([-1.0, -1.0, -100.0, -1.0]))
    torch.testing.assert_close(estimate, torch.tensor([10.0, 10.0, 10.0, math.e - 2]))
    estimate.sum().backward()
    torch.testing.assert_close(logp.grad, torch.tensor([0.0, 0.0, 0.0, 1 - math.e]))
    free = kl_k3(torch.tensor([-4.0, -1.0, -1000.0]), torch.tensor([-1.0, -40.0, -1.0]), cap=None)
    torch.testing.assert_close(free, torch.tensor([math.exp(3) - 4, 38.0, math.exp(20) - 1000]))
    assert kl_k3(torch.tensor(-4.0), torch.tensor(-1.0), cap=7.5).item() == 7.5


FAR = [100.0, 1000.0, -1000.0]


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("dual", [None, 3.0])
def test_a_ratio_that_overflows_is_clipped_like_any_other(far, dual):
    advantage = torch.tensor([1.0, 0.0, -1.0])
    log_ratio = torch.full((3,), far).requires_grad_()
    loss = clipped_ratio_loss(log_ratio, advantage, 0.2, 0.2, dual)
    beyond = dual or math.exp(20)  # without a bound of its own, a ratio where A < 0 is one of 20 nats
    wanted = [-1.2, 0.0, beyond] if far > 0 else [0.0, 0.0, 0.8]
    torch.testing.assert_close(loss, torch.tensor(wanted))
    loss.sum().backward()
    assert log_ratio.grad.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("far", FAR)
def test_no_statistic_of_a_far_policy_overflows(ratio, far):
    """One token far from where it was sampled, and far from the reference: loss, gradient and metrics stay numbers."""
    logp = torch.tensor([-1.0, -1.0]).requires_grad_()
    old = torch.tensor([-1.0 - far, -1.0])
    options = LossOptions(ratio=ratio, kl_coef=0.1, importance_cap=2.0, dual_clip=3.0)
    total, statistics = policy_sums(
        logp, torch.zeros(2), old, torch.tensor([1.0, -1.0]), torch.ones(2), torch.tensor([-1.0 + far, -1.0]), options,
        sampler_logp=torch.tensor([-1.0, -1.0 + far]), rows=[1, 1],
    )  # fmt: skip
    total.backward()
    assert torch.isfinite(total) and torch.isfinite(logp.grad).all()
    assert all(map(math.isfinite, statistics.values())), statistics
    assert statistics["ref_kl"] == 10.0
    assert statistics["clipped_high"] == (far > 0)


def test_the_cap_of_k3_is_the_recipes():
    arguments = (
        torch.tensor([-4.0]), torch.zeros(1), torch.tensor([-4.0]), torch.zeros(1), torch.ones(1), torch.tensor([-1.0])
    )  # fmt: skip
    whole = math.exp(3) - 4
    for options, kl in [({}, 10.0), ({"kl_cap": 12.0}, 12.0), ({"kl_cap": None}, whole), ({"kl_estimator": "k2"}, 4.5)]:
        assert policy_sums(*arguments, LossOptions(kl_coef=1.0, **options))[0].item() == pytest.approx(kl, rel=1e-6)


def test_the_parts_of_the_policy_loss_add_up():
    logp = torch.tensor([-1.0, -2.0, -0.5]).requires_grad_()
    old, ref = torch.tensor([-1.5, -2.0, -0.1]), torch.tensor([-1.2, -1.0, -0.5])
    advantage, weight = torch.tensor([1.0, -1.0, -1.0]), torch.tensor([1.0, 0.5, 2.0])
    entropy = torch.tensor([0.3, 0.2, 0.1])
    options = LossOptions(clip_low=0.2, clip_high=0.2, kl_coef=0.1, entropy_coef=0.01)
    total, statistics = policy_sums(logp, entropy, old, advantage, weight, ref, options)
    ratio = [math.exp(0.5), 1.0, math.exp(-0.4)]
    policy = [-min(ratio[0], 1.2), 1.0, max(ratio[2], 0.8)]
    kl = [math.exp(d) - d - 1 for d in (-0.2, 1.0, 0.0)]
    expected = sum(
        w * (p + 0.1 * k - 0.01 * h) for w, p, k, h in zip([1, 0.5, 2], policy, kl, [0.3, 0.2, 0.1], strict=True)
    )
    assert total.item() == pytest.approx(expected, abs=1e-6)
    assert statistics == pytest.approx(
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


def test_the_constant_reduction_divides_by_a_number_that_no_length_changes():
    samples = [sample(0), sample(0, tokens=2)]
    weights, denominator = token_weights(samples, "constant", 10)
    assert ([w.tolist() for w in weights], denominator) == ([[1.0, 1.0], [1.0]], 20.0)


def test_the_dual_clip_by_hand():
    logp = torch.tensor([4.0, 2.0, 0.5, 4.0]).log().requires_grad_()
    advantage = torch.tensor([-2.0, -2.0, -2.0, 2.0])
    loss = clipped_ratio_loss(logp, advantage, 0.2, 0.2, dual=3.0)
    torch.testing.assert_close(loss, torch.tensor([6.0, 4.0, 1.6, -2.4]))
    loss.sum().backward()
    torch.testing.assert_close(logp.grad, torch.tensor([0.0, 4.0, 0.0, 0.0]))
    torch.testing.assert_close(clipped_ratio_loss(logp, advantage, 0.2, 0.2), torch.tensor([8.0, 4.0, 1.6, -2.4]))


def test_the_sequence_ratio_by_hand():
    single = torch.tensor([0.1, 0.3, -0.2], requires_grad=True)
    together = sequence_log_ratio(single, [2, 0, 1])
    torch.testing.assert_close(together, torch.tensor([0.2, 0.2, -0.2]))
    (-torch.exp(together) * torch.tensor([2.0, 2.0, -1.0])).sum().backward()
    # A sequence's tokens share its -s A n, one n-th each.
    torch.testing.assert_close(single.grad, torch.tensor([-2 * math.exp(0.2)] * 2 + [math.exp(-0.2)]))
    assert len(sequence_log_ratio(torch.zeros(0), [0])) == 0


def test_importance_is_cut_at_the_cap_and_has_no_gradient():
    old = torch.tensor([3.0, 0.5, 1.0]).log().requires_grad_()
    weight = importance_weight(old, torch.zeros(3), 2.0)
    torch.testing.assert_close(weight, torch.tensor([2.0, 0.5, 1.0]))
    assert not weight.requires_grad


def test_the_three_estimates_of_the_kl_and_their_gradients():
    theta = torch.tensor([0.3, -0.5, 0.1, 0.9], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.4, 0.1, 0.3, 0.2], dtype=torch.float64)

    logp = torch.log_softmax(theta, 0)
    p = logp.exp()
    here, there = (p * (logp - q.log())).sum(), (q * (q.log() - logp)).sum()
    drawn = p.detach()  # the tokens are the policy's own
    k1, k2, k3 = ((drawn * kl_estimate(name, logp, q.log())).sum() for name in ("k1", "k2", "k3"))
    torch.testing.assert_close(k1, here)
    torch.testing.assert_close(k2, (drawn * (logp - q.log()) ** 2 / 2).sum())
    torch.testing.assert_close(k3, here)

    def gradient(value):
        return torch.autograd.grad(value, theta, retain_graph=True)[0]

    torch.testing.assert_close(gradient(k1), torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(gradient(k2), gradient(here))
    torch.testing.assert_close(gradient(k3), gradient(there))


def test_llds_by_hand():
    # Calls of 2, 2, 1 and 1 tokens: fell by 0.3, rose by 0.3, fell but the advantage is negative, fell by 0.4.
    log_ratio = torch.tensor([-0.5, 0.2, -0.1, 0.4, -0.3, -0.4], requires_grad=True)
    advantage = torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0, 0.0])
    penalty = llds(log_ratio, advantage, [2, 2, 0, 1, 1])
    torch.testing.assert_close(penalty, torch.tensor([0.5, 0.0, 0.0, 0.0, 0.0, 0.4]))
    penalty.sum().backward()
    torch.testing.assert_close(log_ratio.grad, torch.tensor([-1.0, 0, 0, 0, 0, -1.0]))
    # As two responses: the first four tokens together did not fall.
    torch.testing.assert_close(llds(log_ratio, advantage, [4, 2]), torch.tensor([0.0, 0, 0, 0, 0, 0.4]))


def test_llds_of_unchanged_weights_is_nothing():
    log_ratio = torch.zeros(3, requires_grad=True)
    llds(log_ratio, torch.ones(3), [3]).sum().backward()
    assert log_ratio.grad.tolist() == [0, 0, 0]


def test_all_parts_of_the_policy_loss_add_up():
    logp = torch.tensor([-1.0, -2.0, -0.5]).requires_grad_()
    old, ref = torch.tensor([-1.5, -1.8, -0.1]), torch.tensor([-1.2, -1.0, -0.5])
    advantage, weight = torch.tensor([1.0, 1.0, -1.0]), torch.tensor([1.0, 0.5, 2.0])
    sampler = torch.tensor([-1.5 - math.log(3), -1.8, -0.1 + math.log(2)])
    options = LossOptions(
        clip_low=0.2,
        clip_high=0.2,
        dual_clip=1.5,
        ratio="sequence",
        importance_cap=2.0,
        kl_coef=0.1,
        kl_estimator="k2",
        llds_coef=0.2,
    )
    total, statistics = policy_sums(
        logp, torch.zeros(3), old, advantage, weight, ref, options, sampler_logp=sampler, rows=[2, 1], runs=[1, 1, 1]
    )
    first, second = math.exp(0.15), math.exp(-0.4)
    policy = [-first * 2, -first, 0.8 * 0.5]
    kl, fallen = [0.2**2 / 2, 1 / 2, 0], [0, 0.2, 0]
    expected = sum(w * (p + 0.1 * k + 0.2 * f) for w, p, k, f in zip([1, 0.5, 2], policy, kl, fallen, strict=True))
    assert total.item() == pytest.approx(expected, abs=1e-6)
    found = {name: statistics[name] for name in ("importance", "importance_capped", "llds", "llds_acting")}
    assert found == pytest.approx({"importance": 3.5, "importance_capped": 1, "llds": 0.2, "llds_acting": 1}, abs=1e-6)
    assert statistics["ratio"] == pytest.approx(2 * first + second, abs=1e-6)
    assert statistics["clipped_dual"] == 0
    in_reward, statistics = policy_sums(
        logp, torch.zeros(3), old, advantage, weight, ref, LossOptions(kl_coef=0.1, kl_in="reward", kl_estimator="k1")
    )
    without, _ = policy_sums(logp, torch.zeros(3), old, advantage, weight, None, LossOptions())
    assert in_reward.item() == without.item()
    assert statistics["ref_kl"] == pytest.approx(0.2 - 1.0 + 0, abs=1e-6)
