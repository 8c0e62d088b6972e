"""GAE against a worked case, the definition, and what it must not see."""

import dataclasses

import numpy as np
import pytest
from advantage_options import advantage_options, assign_gae, gae, with_options
from test_learner import random_samples

from searchgym.errors import DataError
from searchgym.train.algorithms.samples import VALUED

PLAIN = advantage_options(estimator="gae", gamma=0.9, lam=0.8, whiten=False)


def test_a_case_by_hand():
    # delta_2 = 1 - 0.4 = 0.6; delta_1 = 0.9 x 0.4 - 0.5 = -0.14; delta_0 = 0.9 x 0.5 - 0.2 = 0.25
    # A_1 = -0.14 + 0.72 x 0.6 = 0.292; A_0 = 0.25 + 0.72 x 0.292 = 0.46024
    found = gae(np.array([0.0, 0.0, 1.0]), np.array([0.2, 0.5, 0.4]), gamma=0.9, lam=0.8)
    np.testing.assert_allclose(found, [0.46024, 0.292, 0.6], atol=1e-12)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.97, 1.0), (0.97, 0.5), (1.0, 0.0)])
def test_it_is_the_weighted_sum_of_later_deltas(gamma, lam):
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(2, 12))
    deltas = rewards + gamma * np.append(values[1:], 0) - values
    wanted = [sum((gamma * lam) ** (j - k) * deltas[j] for j in range(k, 12)) for k in range(12)]
    np.testing.assert_allclose(gae(rewards, values, gamma, lam), wanted, atol=1e-12)
    if gamma == lam == 1:  # the return less the value
        np.testing.assert_allclose(gae(rewards, values, 1, 1), np.cumsum(rewards[::-1])[::-1] - values, atol=1e-12)


def valued(tokens="model", seed=0):
    """Samples with a reward at their end and values where the chain has tokens."""
    rng = np.random.default_rng(seed)
    made = []
    for sample in random_samples(5):
        reward, value = np.zeros((2, len(sample.ids)), np.float32)
        reward[-1] = rng.integers(2)
        places = VALUED[tokens](sample)
        value[places] = rng.normal(size=len(places))
        made.append(dataclasses.replace(sample, reward=reward, value=value))
    return made


def test_the_chain_skips_observations():
    samples = valued()
    for before, after in zip(samples, assign_gae(samples, PLAIN, VALUED["model"]), strict=True):
        mask = before.mask
        own = gae(before.reward[mask].astype(float), before.value[mask].astype(float), 0.9, 0.8)
        np.testing.assert_allclose(after.advantage[mask], own, atol=1e-6)
        np.testing.assert_allclose(after.returns[mask], own + before.value[mask], atol=1e-6)
        assert not after.advantage[~mask].any()
        assert not after.returns[~mask].any()


def test_the_chain_through_observations_is_an_option():
    samples = valued("response")
    for before, after in zip(samples, assign_gae(samples, PLAIN, VALUED["response"]), strict=True):
        first, last = np.flatnonzero(before.mask)[[0, -1]]
        whole = slice(first, last + 1)
        own = gae(before.reward[whole].astype(float), before.value[whole].astype(float), 0.9, 0.8)
        np.testing.assert_allclose(after.advantage[whole], np.where(before.mask[whole], own, 0), atol=1e-6)
        np.testing.assert_allclose(after.returns[whole], own + before.value[whole], atol=1e-6)


def test_what_stands_at_masked_places_changes_nothing():
    samples = valued()
    rng = np.random.default_rng(1)
    noisy = []
    for sample in samples:
        noise = np.where(sample.mask, 0, rng.normal(size=len(sample.ids))).astype(np.float32)
        noisy.append(dataclasses.replace(sample, value=sample.value + noise, reward=sample.reward + noise))
    for own, other in zip(*(assign_gae(s, PLAIN, VALUED["model"]) for s in (samples, noisy)), strict=True):
        np.testing.assert_array_equal(own.advantage, other.advantage)
        np.testing.assert_array_equal(own.returns, other.returns)


def test_whitened_advantages_have_mean_0_and_deviation_1():
    made = assign_gae(valued(), with_options(PLAIN, whiten=True), VALUED["model"])
    every = np.concatenate([sample.advantage[sample.mask] for sample in made])
    assert every.mean() == pytest.approx(0, abs=1e-6)
    assert every.std(ddof=1) == pytest.approx(1, abs=1e-4)
    plain = assign_gae(valued(), PLAIN, VALUED["model"])
    for own, other in zip(made, plain, strict=True):  # the critic learns what it would learn without
        np.testing.assert_array_equal(own.returns, other.returns)


def test_kl_in_the_reward_is_taken_off_token_by_token():
    (sample,) = valued()[:1]
    logp = np.where(sample.mask, np.float32(-1), np.float32(0))
    sample = dataclasses.replace(sample, old_logp=logp, ref_logp=2 * logp)  # k1 = 1 at every token
    (own,) = assign_gae([sample], PLAIN, VALUED["model"], kl_coef=0.1)
    mask = sample.mask
    wanted = gae(sample.reward[mask].astype(float) - 0.1, sample.value[mask].astype(float), 0.9, 0.8)
    np.testing.assert_allclose(own.advantage[mask], wanted, atol=1e-6)


def test_overlong_samples_are_left_out_and_missing_values_refused():
    samples = valued()
    samples[1] = dataclasses.replace(samples[1], overlong=True)
    kept = assign_gae(samples, dataclasses.replace(PLAIN, drop_overlong=True), VALUED["model"])
    assert [s.episode_id for s in kept] == ["e0", "e2", "e3", "e4"]
    with pytest.raises(DataError, match="e0 has no values"):
        assign_gae(random_samples(1), PLAIN, VALUED["model"])
    broken = dataclasses.replace(samples[0], reward=np.full(len(samples[0].ids), np.nan, np.float32))
    with pytest.raises(DataError, match="finite"):
        assign_gae([broken], PLAIN, VALUED["model"])


def test_sequences_of_one_episode_do_not_share_rewards():
    """A team's episode has a sequence per call: what one of them earns must not reach the others' tokens."""
    samples = [dataclasses.replace(sample, episode_id="e", question_id="q") for sample in valued(seed=3)]
    samples[0].reward[:] = 0
    samples[1].reward[-1] = 8
    made = assign_gae(samples, PLAIN, VALUED["model"])
    for before, after in zip(samples, made, strict=True):
        mask = before.mask
        deltas = before.reward[mask] + 0.9 * np.append(before.value[mask][1:], 0) - before.value[mask]
        wanted = [sum(0.72 ** (j - k) * deltas[j] for j in range(k, len(deltas))) for k in range(len(deltas))]
        np.testing.assert_allclose(after.advantage[mask], wanted, atol=1e-5)


def test_whitening_leaves_observations_out():
    """With values on observations, their advantages are computed, but only trained tokens are averaged."""
    samples, options = valued("response", seed=4), with_options(PLAIN, whiten=True)
    for sample in samples:
        sample.value[~sample.mask] *= 50  # a mean that included these would be far off
    raw = assign_gae(samples, PLAIN, VALUED["response"])
    every = np.concatenate([sample.advantage[sample.mask] for sample in raw]).astype(np.float64)
    for before, after in zip(raw, assign_gae(samples, options, VALUED["response"]), strict=True):
        wanted = (before.advantage[before.mask] - every.mean()) / (every.std(ddof=1) + options.estimator.eps)
        np.testing.assert_allclose(after.advantage[after.mask], wanted, rtol=1e-4, atol=1e-5)
