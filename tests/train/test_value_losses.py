"""HL-Gauss: the critic as a classifier of returns, by hand, against another formula, and in a recipe."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_models import tiny_qwen2
from test_critic import rewarded

from searchgym.errors import SearchGymError, TrainingError
from searchgym.testing.reference.losses import blurred, trained_tokens, value_loss, value_of
from searchgym.testing.reference.update import ReferenceModel
from searchgym.train import load_recipe
from searchgym.train.algorithms.losses import token_weights
from searchgym.train.algorithms.value_losses.hl_gauss import HlGauss
from searchgym.train.algorithms.value_losses.squared import Squared
from searchgym.train.learner.critic import Critic, make_critic
from searchgym.train.learner.trained_model import Updater
from searchgym.train.recipe.options import CriticOptions, OptimizerOptions

LOSS = HlGauss()


def centres(loss):
    width = (loss.high - loss.low) / loss.bins
    return torch.tensor([loss.low + (i + 0.5) * width for i in range(loss.bins)], dtype=torch.float64)


@pytest.mark.parametrize("loss", [LOSS, HlGauss(bins=21), HlGauss(smoothing=2.0), HlGauss(low=-2, high=2, bins=101)])
def test_a_target_sums_to_one_and_its_mean_is_the_return(loss):
    returns = torch.linspace(0, 1, 41, dtype=torch.float64)
    targets = loss.targets(returns)
    assert targets.shape == (41, loss.bins) and (targets >= 0).all()
    np.testing.assert_allclose(targets.sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(targets @ centres(loss), returns, atol=1e-4)


def test_without_a_margin_the_ends_are_biased():
    """The research note's figures, for a range of exactly [0, 1]: 0 reads back as 0.0135."""
    tight = HlGauss(low=-1e-9, high=1.0)
    ends = tight.targets(torch.tensor([0.0, 1.0], dtype=torch.float64)) @ centres(tight)
    np.testing.assert_allclose(ends, [0.0135, 0.9865], atol=5e-4)


def test_targets_of_two_bins_by_hand():
    two = HlGauss(bins=2, low=-1, high=1, smoothing=1.0)  # edges -1, 0, 1; width and deviation 1

    def phi(x):
        return (1 + math.erf(x / math.sqrt(2))) / 2

    left, right = phi(-0.5) - phi(-1.5), phi(0.5) - phi(-0.5)
    expected = [left / (left + right), right / (left + right)]
    np.testing.assert_allclose(two.targets(torch.tensor([0.5], dtype=torch.float64))[0], expected, atol=1e-12)


def test_the_gradient_is_softmax_less_target():
    outputs = torch.randn(3, LOSS.bins, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    returns, weight = torch.tensor([0.0, 0.4, 1.0], dtype=torch.float64), torch.tensor([1.0, 2.0, 0.5])
    leaf = outputs.clone().requires_grad_()
    LOSS.sums(leaf, torch.zeros(3), returns, weight, None)[0].backward()
    expected = weight[:, None] * (outputs.softmax(1) - LOSS.targets(returns))
    np.testing.assert_allclose(leaf.grad, expected, atol=1e-6)


def test_targets_and_values_equal_the_second_formula():
    returns = torch.tensor([-0.7, 0.0, 0.31, 1.0, 2.0], dtype=torch.float64)
    np.testing.assert_allclose(LOSS.targets(returns), [blurred(float(y), LOSS) for y in returns], atol=1e-12)
    outputs = torch.randn(5, LOSS.bins, generator=torch.Generator().manual_seed(1))
    np.testing.assert_allclose(LOSS.values(outputs), value_of(outputs.double(), LOSS), atol=1e-6)


@pytest.mark.parametrize("loss", [LOSS, Squared()], ids=["hl-gauss", "squared"])
def test_a_table_of_values_converges_to_the_mean_return(loss):
    """Three states with returns of 0 and 1, a quarter, a half and all of them 1."""
    returns = torch.tensor([[0, 0, 0, 1], [0, 1, 0, 1], [1, 1, 1, 1]], dtype=torch.float64)
    table = torch.tensor([loss.start()] * 3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([table], lr=0.3)
    for _ in range(600):
        optimizer.zero_grad()
        outputs = table.repeat_interleave(4, 0)
        loss.sums(outputs, torch.zeros(12), returns.flatten(), torch.ones(12) / 12, None)[0].backward()
        optimizer.step()
    np.testing.assert_allclose(loss.values(table.detach()), [0.25, 0.5, 1.0], atol=2e-3)


def test_a_new_critic_says_0():
    critic = make_critic(tiny_qwen2(vocabulary=50, sharp=0.2), LOSS)
    assert critic.config.num_labels == LOSS.bins
    owner = Critic(Updater(critic, OptimizerOptions(), 10), CriticOptions(loss=LOSS), seed=0)
    for sample in owner.with_values(rewarded(2)):
        np.testing.assert_allclose(sample.value, 0, atol=1e-4)


def test_the_loss_of_a_step_equals_the_second_implementation():
    critic = make_critic(tiny_qwen2(vocabulary=50, sharp=0.2), LOSS)
    with torch.no_grad():
        critic.score.weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(0))
    options = OptimizerOptions(lr=1e-3, max_grad_norm=0.0, micro_batch_tokens=256)
    owner = Critic(Updater(critic, options, 10), CriticOptions(loss=LOSS, optimizer=options), seed=0)
    samples = [dataclasses.replace(s, returns=0.9 * s.mask.astype(np.float32)) for s in owner.with_values(rewarded())]
    recipe = SimpleNamespace(critic=SimpleNamespace(loss=LOSS, value_clip=0.5))
    shadow = ReferenceModel(critic.double(), recipe, options)
    places = [trained_tokens(sample) for sample in samples]
    with torch.no_grad():
        expected = sum(float(value_loss(shadow, samples, places)(i)) for i in range(len(samples)))
    critic.float()
    weights, denominator = token_weights(samples)
    flat = {"old_value": [s.value[s.mask] for s in samples], "return": [s.returns[s.mask] for s in samples]}
    metrics = owner.trained_model.accumulate(samples, flat | {"weight": weights}, denominator, owner.value_loss)
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)


def test_returns_outside_the_range_are_counted_and_many_end_the_run():
    outputs, zeros, ones = torch.zeros(4, LOSS.bins), torch.zeros(4), torch.ones(4)
    _, statistics = LOSS.sums(outputs, zeros, torch.tensor([0.0, 0.5, 1.0, 7.0]), ones, None)
    assert statistics["clamped"] == 1
    with pytest.raises(
        TrainingError, match=r"3 of 4 returns are outside \[-0.5, 1.5\], from 0 to 9: set critic.loss.low"
    ):
        LOSS.sums(outputs, zeros, torch.tensor([0.0, 9.0, 9.0, 9.0]), ones, None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["critic.loss={kind: hl-gauss, low: 0}"], "low is 0 and high is 1.5: expected low < 0 < high"),
        (["critic.loss={kind: hl-gauss, high: .nan}"], "nan"),
        (["critic.loss={kind: hl-gauss, bins: 1}"], "bins"),
        (["critic.loss=hl-gauss", "critic.value_clip=0.2"], "critic.value_clip is 0.2: critic.loss hl-gauss clips no"),
        (["critic.loss=hl-gaus"], "hl-gauss"),
        (["advantage.estimator=rloo", "critic.loss=hl-gauss"], "only an estimator like gae uses one"),
    ],
)
def test_recipes_with_a_wrong_loss_are_refused(values, message):
    with pytest.raises(SearchGymError, match=message):
        load_recipe("tiny-ppo", values)
