import dataclasses

import numpy as np
import pytest

from searchgym.errors import DataError
from searchgym.train.advantages import assign_advantages, group_advantages
from searchgym.train.recipe import AdvantageOptions
from searchgym.train.samples import Sample


def sample(reward, group="g", question="q", episode="e", tokens=3):
    mask = np.array([False, True, True][:tokens])
    rewards = np.zeros(len(mask), np.float32)
    rewards[-1] = reward
    return Sample(
        ids=np.arange(len(mask), dtype=np.int32),
        mask=mask,
        reward=rewards,
        advantage=np.zeros(len(mask), np.float32),
        sampler_logp=np.zeros(len(mask), np.float32),
        calls=(),
        model_key="policy",
        episode_id=episode,
        question_id=question,
        attempt=0,
        group_uid=group,
        policy_version=0,
    )


def test_ten_arms_by_hand():
    # Rewards 1, 0, 0, 0, 0.5, 0, 0, 0, 0, 1: mean 0.25, squared deviations 2 x 0.5625 + 0.0625 + 7 x 0.0625 = 1.625.
    rewards = np.array([1, 0, 0, 0, 0.5, 0, 0, 0, 0, 1])
    arms = ["g"] * 10
    sample_std, _ = group_advantages(rewards, arms, AdvantageOptions(eps=0))
    assert sample_std == pytest.approx((rewards - 0.25) / np.sqrt(1.625 / 9), rel=1e-12)
    assert sample_std[0] == pytest.approx(1.765045, abs=1e-6)
    population, _ = group_advantages(rewards, arms, AdvantageOptions(eps=0, std="population"))
    assert population == pytest.approx((rewards - 0.25) / np.sqrt(1.625 / 10), rel=1e-12)
    assert population[0] == pytest.approx(1.860521, abs=1e-6)
    centred, _ = group_advantages(rewards, arms, AdvantageOptions(std="none"))
    assert centred.tolist() == [0.75, -0.25, -0.25, -0.25, 0.25, -0.25, -0.25, -0.25, -0.25, 0.75]
    floored, _ = group_advantages(rewards, arms, AdvantageOptions(eps=0.5, std_floor=1.0))
    assert floored == pytest.approx((rewards - 0.25) / 1.5, rel=1e-12)


def test_each_group_has_its_own_mean_in_any_order():
    rewards, groups = np.array([1.0, 10.0, 0.0, 12.0]), ["a", "b", "a", "b"]
    advantages, counts = group_advantages(rewards, groups, AdvantageOptions(std="none"))
    assert advantages.tolist() == [0.5, -1.0, -0.5, 1.0]
    assert (counts.groups, counts.small, counts.zero_variance) == (2, 0, 0)


def test_groups_without_signal_get_zero_and_are_counted():
    rewards, groups = np.array([1.0, 0.1, 0.1, 0.1, 0.0, 1.0]), ["one", "same", "same", "same", "two", "two"]
    advantages, counts = group_advantages(rewards, groups, AdvantageOptions(min_group=3))
    assert advantages.tolist() == [0.0] * 6
    assert (counts.groups, counts.small, counts.zero_variance) == (3, 2, 1)
    advantages, counts = group_advantages(rewards, groups, AdvantageOptions(eps=0, std="population"))
    assert advantages.tolist() == [0.0, 0.0, 0.0, 0.0, -1.0, 1.0]
    assert (counts.groups, counts.small, counts.zero_variance) == (3, 1, 1)


def test_a_reward_that_is_not_finite_is_refused():
    with pytest.raises(DataError, match="reward nan in group 'g'"):
        group_advantages(np.array([0.0, np.nan]), ["g", "g"], AdvantageOptions())


def test_advantages_stand_on_the_mask_and_an_episode_counts_once():
    samples = [sample(1, episode="e0"), sample(1, episode="e0"), sample(0, episode="e1")]
    (first, second, third), counts = assign_advantages(samples, AdvantageOptions(eps=0, std="population"))
    assert first.advantage.tolist() == second.advantage.tolist() == [0.0, 1.0, 1.0]
    assert third.advantage.tolist() == [0.0, -1.0, -1.0]
    assert (first.advantage.dtype, counts.groups) == (np.float32, 1)


def test_groups_without_signal_leave_the_batch_unless_they_are_kept():
    samples = [sample(1, "a", episode="0"), sample(0, "a", episode="1"), sample(1, "b"), sample(1, "c", episode="2")]
    samples.append(dataclasses.replace(samples[3], episode_id="3"))
    kept, counts = assign_advantages(samples, AdvantageOptions())
    assert [s.group_uid for s in kept] == ["a", "a"]
    assert (counts.groups, counts.small, counts.zero_variance) == (3, 1, 1)
    everything, _ = assign_advantages(samples, AdvantageOptions(drop_zero_variance=False))
    assert [s.group_uid for s in everything] == ["a", "a", "b", "c", "c"]
    assert not any(s.advantage.any() for s in everything[2:])


def test_a_group_that_mixes_questions_is_refused():
    with pytest.raises(DataError, match=r"group 'g' holds questions 'q' and 'p': a group is one question"):
        assign_advantages([sample(1), sample(0, question="p", episode="f")], AdvantageOptions())


def test_a_sample_without_a_group_is_refused():
    with pytest.raises(DataError, match="episode e has no group_uid"):
        assign_advantages([sample(1, group=None)], AdvantageOptions())
