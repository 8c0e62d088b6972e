"""The critic, and one whole PPO step against a reference written out in float64."""

import copy
import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from advantage_options import advantage_options, assign_gae
from made_models import tiny_qwen2
from test_learner import gradients, random_samples
from toy_training import toy_recipe, toy_trainer

from searchgym.testing.reference.advantages import gae_advantages
from searchgym.testing.reference.losses import policy_loss, trained_tokens, value_loss
from searchgym.testing.reference.update import ReferenceModel
from searchgym.train.algorithms.loss_options import LossOptions
from searchgym.train.algorithms.losses import token_weights, value_sums
from searchgym.train.algorithms.samples import VALUED
from searchgym.train.algorithms.value_losses.squared import Squared
from searchgym.train.learner.critic import Critic, explained_variance, make_critic
from searchgym.train.learner.policy import Policy
from searchgym.train.learner.trained_model import Updater
from searchgym.train.recipe.options import CriticOptions, OptimizerOptions

GAE = advantage_options(estimator="gae", gamma=0.98, lam=0.9, std="population", eps=1e-8)


def critic_model(seed=0):
    """A critic with the body of a made model and a head of random weights."""
    model = make_critic(tiny_qwen2(vocabulary=50, sharp=0.2, seed=seed), Squared())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.score.weight.normal_(0, 0.3, generator=generator)
    return model


def critic(model=None, **options):
    optimizer = OptimizerOptions(**({"lr": 1e-3, "max_grad_norm": 0.0, "micro_batch_tokens": 256} | options))
    own = CriticOptions(optimizer=optimizer, value_clip=0.2)
    return Critic(Updater(model or critic_model(), optimizer, 10), own, seed=0)


def rewarded(count=6):
    rng = np.random.default_rng(3)
    samples = random_samples(count)
    for sample in samples:
        sample.reward[-1] = rng.integers(2)
    return samples


# -- values --------------------------------------------------------------------------------------------------------


def test_values_are_read_at_the_token_before():
    own, samples = critic(), rewarded()
    for sample in own.with_values(samples):
        with torch.no_grad():
            whole = own.updater.model(input_ids=torch.tensor(sample.ids[None].astype(np.int64))).logits[0, :, 0].numpy()
        places = np.flatnonzero(sample.mask)
        np.testing.assert_allclose(sample.value[places], whole[places - 1], atol=1e-5)
        assert not sample.value[~sample.mask].any()


def test_a_new_critic_says_0_and_has_the_body_of_the_policy():
    model = tiny_qwen2(vocabulary=50, sharp=0.2)
    made = make_critic(model, Squared())
    for name, value in model.base_model.state_dict().items():
        assert torch.equal(made.base_model.state_dict()[name], value)
    for sample in critic(made).with_values(rewarded(2)):
        assert not sample.value.any()


def test_value_loss_by_hand():
    # clip at 0.2: the first value moved by 0.5, counts as 0.2 away and is worse there; the second moved by 0.1
    values, old, returns = torch.tensor([1.5, 0.1]), torch.tensor([1.0, 0.0]), torch.tensor([2.0, 1.0])
    weight = torch.tensor([1.0, 2.0])
    loss, sums = value_sums(values, old, returns, weight, 0.2)
    assert float(loss) == pytest.approx(0.5 * (0.8**2 + 2 * 0.9**2))
    assert (sums["clipped"], sums["value"]) == (1, pytest.approx(1.6))
    assert float(value_sums(values, old, returns, weight, None)[0]) == pytest.approx(0.5 * (0.5**2 + 2 * 0.9**2))


def test_explained_variance():
    returns = np.array([0.0, 1.0, 0.0, 1.0])
    assert explained_variance(returns, returns) == 1
    assert explained_variance(np.full(4, 0.5), returns) == 0
    assert explained_variance(1 - returns, returns) == -3
    assert explained_variance(returns, np.ones(4)) == 0


@pytest.mark.slow
def test_a_critic_learns_its_returns():
    own, samples = critic(lr=3e-3, minibatches=2), rewarded()
    found = []
    for step in range(30):
        made = assign_gae(own.with_values(samples), GAE, VALUED["model"])
        made = [dataclasses.replace(s, returns=np.where(s.mask, s.reward[-1], 0).astype(np.float32)) for s in made]
        found.append(own.value_step(made, step))
    assert found[-1]["explained_variance"] > 0.8 > found[0]["explained_variance"]


# -- one PPO step --------------------------------------------------------------------------------------------------


class Gradients:
    """A model whose gradients are compared."""

    def __init__(self, model):
        self.updater = SimpleNamespace(model=model)


def reference_step(policy, critic, samples, options):
    """PPO with GAE by the reference trainer, in float64: losses and gradients of both models."""
    recipe = SimpleNamespace(
        loss=options, rollout=SimpleNamespace(temperature=0.7), critic=SimpleNamespace(value_clip=None)
    )
    policy, critic = (
        ReferenceModel(copy.deepcopy(model).double(), recipe, OptimizerOptions()) for model in (policy, critic)
    )
    places = [trained_tokens(sample) for sample in samples]
    samples = [dataclasses.replace(sample, value=np.zeros(len(sample.ids))) for sample in samples]
    for sample, at in zip(samples, places, strict=True):
        sample.value[at] = critic.logits(sample.ids, at)[:, 0].detach().numpy()
    made = []
    for sample, (advantage, returns) in zip(samples, gae_advantages(samples, GAE, 0.0, False), strict=True):
        spread = np.zeros(len(sample.ids))
        spread[sample.mask] = advantage
        made.append(dataclasses.replace(sample, advantage=spread, returns=returns))
    old = [sample.old_logp[sample.mask].astype(np.float64) for sample in made]
    losses = []
    for of_sample in (policy_loss(policy, made, old, None), value_loss(critic, made, places)):
        losses.append(sum(of_sample(i) for i in range(len(made))))
        losses[-1].backward()
    return losses[0].item(), losses[1].item(), Gradients(policy.model), Gradients(critic.model)


def test_one_ppo_step_equals_a_float64_reference():
    start, body = tiny_qwen2(vocabulary=50, sharp=0.2), critic_model(1)
    samples = rewarded()
    optimizer = OptimizerOptions(micro_batch_tokens=256)
    options = LossOptions(clip_low=0.2, clip_high=0.28)
    policy = Policy(Updater(start, optimizer, 1), options, optimizer, temperature=0.7)
    other = tiny_qwen2(vocabulary=50, sharp=0.2, seed=1)  # ratios on both sides of the clip
    samples = Policy(Updater(other, optimizer, 1), options, optimizer, temperature=0.7).with_logp(samples)
    own = Critic(Updater(body, optimizer, 1), CriticOptions(optimizer=optimizer, value_clip=0.2), seed=0)
    loss, value_loss, wanted, wanted_critic = reference_step(start, body, samples, options)

    made = assign_gae(own.with_values(samples), GAE, VALUED["model"])
    flat = {
        name: [getattr(s, name)[s.mask] for s in made]
        for name in ("advantage", "sampler_logp", "old_logp", "value", "returns")
    }
    weight, denominator = token_weights(made)
    got = policy.trained_model.accumulate(made, flat | {"weight": weight}, denominator, policy.policy_loss)
    assert got["clipped_low"] > 5
    assert got["clipped_high"] > 5
    assert got["loss"] == pytest.approx(loss, abs=1e-5)
    torch.testing.assert_close(gradients(policy).double(), gradients(wanted), rtol=1e-5, atol=1e-5)
    values = {"old_value": flat["value"], "return": flat["returns"], "weight": weight}
    assert own.trained_model.accumulate(made, values, denominator, own.value_loss)["loss"] == pytest.approx(
        value_loss, abs=1e-5
    )
    torch.testing.assert_close(gradients(own).double(), gradients(wanted_critic), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("part", ["policy", "critic"])
def test_what_stands_at_masked_places_changes_no_gradient_by_a_bit(part):
    rng = np.random.default_rng(5)
    found = []
    for noisy in (False, True):
        samples = rewarded()
        own, optimizer = critic(), OptimizerOptions(micro_batch_tokens=256, minibatches=1, epochs=1)
        made = assign_gae(own.with_values(samples), GAE, VALUED["model"])
        if noisy:
            noise = [np.where(s.mask, 0, rng.normal(size=len(s.ids))).astype(np.float32) for s in made]
            made = [
                dataclasses.replace(
                    s, advantage=s.advantage + n, sampler_logp=s.sampler_logp + n, value=s.value + n,
                    returns=s.returns + n, reward=s.reward + n,
                )
                for s, n in zip(made, noise, strict=True)
            ]  # fmt: skip
        policy = Policy(Updater(tiny_qwen2(vocabulary=50, sharp=0.2), optimizer, 1), LossOptions(), optimizer)
        model, step = (policy, policy.policy_step) if part == "policy" else (own, own.value_step)
        model.updater.apply = lambda number, m=model: (
            found.append(gradients(m).clone()),
            {"gradient_norm": 0.0, "learning_rate": 0.0, "updates": 0.0},
        )[1]
        step(made, 0)
    assert torch.equal(*found)


# -- in the loop ---------------------------------------------------------------------------------------------------


def ppo(**changes):
    base = {
        "advantage": {"estimator": "gae"},
        "critic": {"optimizer": {"lr": 1e-2, "micro_batch_tokens": 1024}, "warmup_steps": 2},
    }
    return toy_recipe(**(base | changes))


def test_ppo_learns_the_bandit(tmp_path):
    rows = toy_trainer(tmp_path / "run", ppo(steps=30, validation={"every": 10}, checkpoint={"every": 0})).run().rows
    assert rows[0]["validation/em"] < 0.5
    assert rows[-1]["validation/em"] == 1
    assert [row["learner/updates"] for row in rows[1:4]] == [0, 0, 1]  # the critic alone at first
    assert {"critic/explained_variance", "critic/loss", "critic/gradient_norm"} <= set(rows[-1])
    assert "groups/groups" not in rows[-1]


@pytest.mark.slow
def test_a_stopped_run_of_ppo_goes_on_bit_for_bit(tmp_path):
    recipe = ppo(steps=6, critic={"optimizer": {"lr": 1e-2, "minibatches": 2}, "warmup_steps": 1})
    whole = toy_trainer(tmp_path / "whole", recipe).run()
    half = dataclasses.replace(recipe, steps=4)
    toy_trainer(tmp_path / "parts", half).run()
    (tmp_path / "parts/recipe.yaml").write_bytes((tmp_path / "whole/recipe.yaml").read_bytes())
    resumed = toy_trainer(tmp_path / "parts", recipe, resume=True).run()
    for name in ("model.safetensors", "critic/model.safetensors"):
        assert (whole.checkpoint / name).read_bytes() == (resumed.checkpoint / name).read_bytes()
