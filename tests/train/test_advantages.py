import dataclasses

import numpy as np
import pytest
from advantage_options import advantage_options, compare

from searchgym.errors import DataError
from searchgym.train.algorithms.advantages import assign_advantages, groups_with_signal, whiten_cells
from searchgym.train.algorithms.estimator import group_advantages
from searchgym.train.algorithms.samples import Sample, SampleCall


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
    sample_std, _ = group_advantages(rewards, arms, advantage_options(eps=0))
    assert sample_std == pytest.approx((rewards - 0.25) / np.sqrt(1.625 / 9), rel=1e-12)
    assert sample_std[0] == pytest.approx(1.765045, abs=1e-6)
    population, _ = group_advantages(rewards, arms, advantage_options(eps=0, std="population"))
    assert population == pytest.approx((rewards - 0.25) / np.sqrt(1.625 / 10), rel=1e-12)
    assert population[0] == pytest.approx(1.860521, abs=1e-6)
    centred, _ = group_advantages(rewards, arms, advantage_options(std="none"))
    assert centred.tolist() == [0.75, -0.25, -0.25, -0.25, 0.25, -0.25, -0.25, -0.25, -0.25, 0.75]
    floored, _ = group_advantages(rewards, arms, advantage_options(eps=0.5, std_floor=1.0))
    assert floored == pytest.approx((rewards - 0.25) / 1.5, rel=1e-12)


def test_each_group_has_its_own_mean_in_any_order():
    rewards, groups = np.array([1.0, 10.0, 0.0, 12.0]), ["a", "b", "a", "b"]
    advantages, counts = group_advantages(rewards, groups, advantage_options(std="none"))
    assert advantages.tolist() == [0.5, -1.0, -0.5, 1.0]
    assert (counts.groups, counts.small, counts.zero_variance) == (2, 0, 0)


def test_groups_without_signal_get_zero_and_are_counted():
    rewards, groups = np.array([1.0, 0.1, 0.1, 0.1, 0.0, 1.0]), ["one", "same", "same", "same", "two", "two"]
    advantages, counts = group_advantages(rewards, groups, advantage_options(min_group=3))
    assert advantages.tolist() == [0.0] * 6
    assert (counts.groups, counts.small, counts.zero_variance) == (3, 2, 1)
    advantages, counts = group_advantages(rewards, groups, advantage_options(eps=0, std="population"))
    assert advantages.tolist() == [0.0, 0.0, 0.0, 0.0, -1.0, 1.0]
    assert (counts.groups, counts.small, counts.zero_variance) == (3, 1, 1)


def test_a_reward_that_is_not_finite_is_refused():
    with pytest.raises(DataError, match="reward nan in group 'g'"):
        group_advantages(np.array([0.0, np.nan]), ["g", "g"], advantage_options())


def test_advantages_stand_on_the_mask_and_an_episode_counts_once():
    samples = [sample(1, episode="e0"), sample(1, episode="e0"), sample(0, episode="e1")]
    (first, second, third), counts = assign_advantages(samples, advantage_options(eps=0, std="population"))
    assert first.advantage.tolist() == second.advantage.tolist() == [0.0, 1.0, 1.0]
    assert third.advantage.tolist() == [0.0, -1.0, -1.0]
    assert (first.advantage.dtype, counts.groups) == (np.float32, 1)


def test_groups_without_signal_leave_the_batch_unless_they_are_kept():
    samples = [sample(1, "a", episode="0"), sample(0, "a", episode="1"), sample(1, "b"), sample(1, "c", episode="2")]
    samples.append(dataclasses.replace(samples[3], episode_id="3"))
    kept, counts = assign_advantages(samples, advantage_options())
    assert [s.group_uid for s in kept] == ["a", "a"]
    assert (counts.groups, counts.small, counts.zero_variance) == (3, 1, 1)
    everything, _ = assign_advantages(samples, advantage_options(drop_zero_variance=False))
    assert [s.group_uid for s in everything] == ["a", "a", "b", "c", "c"]
    assert not any(s.advantage.any() for s in everything[2:])


def test_a_group_that_mixes_questions_is_refused():
    with pytest.raises(DataError, match=r"group 'g' has questions 'q' and 'p': a group has one question"):
        assign_advantages([sample(1), sample(0, question="p", episode="f")], advantage_options())


def test_a_sample_without_a_group_is_refused():
    with pytest.raises(DataError, match="episode e has no group_uid"):
        assign_advantages([sample(1, group=None)], advantage_options())


# -- estimators by hand --------------------------------------------------------------------------------------------


def test_rloo_by_hand():
    # The others of 1, 0, 0, 2 have the means 2/3, 1, 1, 1/3.
    assert compare("rloo", np.array([1.0, 0.0, 0.0, 2.0])) == pytest.approx([1 / 3, -1, -1, 5 / 3], rel=1e-12)
    advantages, counts = group_advantages(
        np.array([1.0, 5.0, 0.0, 5.0, 7.0]), ["a", "b", "a", "b", "c"], advantage_options(estimator="rloo")
    )
    assert advantages.tolist() == [1, 0, -1, 0, 0]
    assert (counts.groups, counts.small, counts.zero_variance, counts.more) == (3, 1, 1, {})


SIX, COUNTS = np.array([1, 0, 0, 1, 0, 0.5]), np.array([1, 1, 2, 2, 2, 3])


def test_stratified_grpo_by_hand():
    # In the group: mean 5/12, squared deviations 1.208333, deviation 0.448764. In the strata: means 1/2 and 1/3,
    # deviations 1/2 and sqrt(2)/3; the last stratum is a singleton and falls back to the group.
    group = (SIX - 5 / 12) / np.sqrt(1.2083333333333333 / 6)
    strata = [1, -1, -(0.5**0.5), 2**0.5, -(0.5**0.5), group[5]]
    options = advantage_options(estimator="stratified", std="population", eps=0, alpha=0.25)
    advantages, counts = group_advantages(SIX, ["g"] * 6, options, searches=COUNTS.tolist())
    assert advantages == pytest.approx(0.25 * np.array(strata) + 0.75 * group, rel=1e-12)
    assert advantages[3] == pytest.approx(1.328453, abs=1e-6)
    assert counts.more == {"strata": 3, "lone": 1}


@pytest.mark.parametrize("std", ["sample", "population"])
def test_the_two_ends_of_the_blend(std):
    """In a stratum the paper's variance is 1, over n, whatever the deviation of the whole group is taken over."""
    within = compare("stratified", SIX, COUNTS, alpha=1.0, eps=0, std=std)
    for count in (1, 2):
        own = within[np.equal(COUNTS, count)]
        assert (own.mean(), own.std()) == (pytest.approx(0, abs=1e-12), pytest.approx(1, rel=1e-12))
    assert within[:2].tolist() == [1, -1]  # two that differ
    none = compare("stratified", SIX, COUNTS, alpha=0.0, std=std)
    assert none.tolist() == compare("grpo", SIX, std=std).tolist()
    one = compare("stratified", SIX, np.full(6, 4), alpha=1.0, eps=0, std=std)
    assert one.tolist() == compare("grpo", SIX, eps=0, std="population").tolist()


def test_strata_are_not_divided_where_groups_are_not():
    undivided = compare("stratified", SIX, COUNTS, alpha=1.0, std="none")
    assert undivided[:2].tolist() == [0.5, -0.5]


def test_a_stratum_of_equal_rewards_is_exactly_zero():
    rewards, searches = np.array([0.1, 0.1, 0.1, 0.7]), np.array([1, 1, 1, 2])
    assert compare("stratified", rewards, searches, alpha=1.0)[:3].tolist() == [0, 0, 0]


def test_a_stratum_is_equal_by_rewards_whatever_kl_takes_off():
    options = advantage_options(estimator="stratified", alpha=1.0)
    penalties = np.array([1e-5, 2e-5, 0.0, 3e-5])
    advantages, _ = group_advantages(
        np.array([1.0, 1, 0, 0]), ["g"] * 4, options, searches=[1, 1, 2, 2], penalties=penalties
    )
    assert advantages.tolist() == [0, 0, 0, 0]


def advantages_of(samples):
    return np.concatenate([s.advantage[s.mask] for s in samples])


def test_reinforce_plus_plus_by_hand():
    # Tokens 1, 1, 0: mean 2/3, deviation sqrt(2)/3. Each question was drawn once: no group is needed.
    samples = [sample(1, "a", "p"), sample(0, "b", "q", "f", tokens=2)]
    options = advantage_options(estimator="reinforce-pp", std="population", eps=0)
    found, counts = assign_advantages(samples, options)
    assert advantages_of(found) == pytest.approx([0.5**0.5, 0.5**0.5, -(2**0.5)], rel=1e-6)
    assert (counts.groups, counts.small, counts.zero_variance) == (1, 0, 0)
    equal = [sample(1, "a", "p"), sample(1, "b", "q", "f")]
    assert assign_advantages(equal, options)[0] == []
    kept, counts = assign_advantages(equal, dataclasses.replace(options, drop_zero_variance=False))
    assert (advantages_of(kept).tolist(), counts.zero_variance) == ([0] * 4, 1)


def test_reinforce_plus_plus_with_a_group_baseline_by_hand():
    # Centred: 0.5 twice, -0.5; 1 twice, -1 twice. Mean of seven tokens 1/14, of their squares 4.75 / 7.
    samples = [sample(1, episode="0"), sample(0, episode="1", tokens=2)]
    samples += [sample(3, "h", "p", "2"), sample(1, "h", "p", "3")]
    options = advantage_options(estimator="reinforce-pp-baseline", std="population", eps=0)
    flat = [sample(4, "same", "r", "4"), sample(4, "same", "r", "5")]
    found, counts = assign_advantages([*samples, *flat, sample(9, "alone", "s", "6")], options)
    centred = np.array([0.5, 0.5, -0.5, 1, 1, -1, -1])
    expected = (centred - 1 / 14) / np.sqrt(4.75 / 7 - 1 / 14**2)
    assert advantages_of(found) == pytest.approx(expected, rel=1e-6)
    assert (counts.groups, counts.small, counts.zero_variance) == (4, 1, 1)
    # Kept, an equal group is part of what is whitened; a group of one never is.
    kept, _ = assign_advantages(
        [*samples, *flat, sample(9, "alone", "s", "6")], dataclasses.replace(options, drop_zero_variance=False)
    )
    mean, square = 0.5 / 11, 4.75 / 11
    expected = (np.append(centred, [0] * 4) - mean) / np.sqrt(square - mean**2)
    assert advantages_of(kept) == pytest.approx([*expected, 0, 0], rel=1e-6)


# -- KL in the reward ----------------------------------------------------------------------------------------------


def with_k1(own, *k1):
    """The sample with old and reference log-probs whose differences on the mask are `k1`."""
    ref = np.array([9.0, -1.5, -1.8], np.float32)[: len(own.ids)]
    old = ref.copy()
    old[own.mask] += np.array(k1, np.float32)
    return dataclasses.replace(own, old_logp=old, ref_logp=ref)


def test_kl_in_the_reward_is_taken_off_the_return_of_an_episode():
    # k1 sums 0.3 and 0.1 at 0.1 each: returns 0.97 and -0.01, mean 0.48.
    pair = [with_k1(sample(1, episode="0"), 0.5, -0.2), with_k1(sample(0, episode="1", tokens=2), 0.1)]
    found, _ = assign_advantages(pair, advantage_options(std="none"), kl_coef=0.1)
    assert advantages_of(found) == pytest.approx([0.49, 0.49, -0.49], abs=1e-6)
    leave_one_out, _ = assign_advantages(pair, advantage_options(estimator="rloo"), kl_coef=0.1)
    assert advantages_of(leave_one_out) == pytest.approx([0.98, 0.98, -0.98], abs=1e-6)
    # Two sequences of one episode: its return takes off both sums.
    second = with_k1(sample(1, episode="0", tokens=2), 0.4)
    found, _ = assign_advantages([*pair, second], advantage_options(std="none"), kl_coef=0.1)
    assert advantages_of(found) == pytest.approx([0.47, 0.47, -0.47, 0.47], abs=1e-6)


def test_reinforce_plus_plus_gives_each_token_the_kl_from_itself_on():
    # k1 to go: 0.3, -0.2 and 0.3; returns 0.97, 1.02, -0.03 with mean 0.653333.
    pair = [with_k1(sample(1, "a", "p"), 0.5, -0.2), with_k1(sample(0, "b", "q", "f", tokens=2), 0.3)]
    found, _ = assign_advantages(pair, advantage_options(estimator="reinforce-pp", std="none"), kl_coef=0.1)
    assert advantages_of(found) == pytest.approx([0.316667, 0.366667, -0.683333], abs=1e-5)


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "stratified", "reinforce-pp-baseline", "reinforce-pp"])
def test_kl_alone_is_no_signal(estimator):
    pair = [with_k1(sample(1, episode="0"), 0.5, -0.2), with_k1(sample(1, episode="1"), 0.1, 0.3)]
    options = advantage_options(estimator=estimator)
    found, counts = assign_advantages(pair, options, kl_coef=0.1)
    assert (found, counts.zero_variance) == ([], 1)
    kept, _ = assign_advantages(pair, dataclasses.replace(options, drop_zero_variance=False), kl_coef=0.1)
    assert advantages_of(kept).tolist() == [0] * 4


def test_kl_in_the_reward_without_log_probs_is_refused():
    with pytest.raises(DataError, match="episode e: KL in the reward needs old_logp and ref_logp"):
        assign_advantages([sample(1)], advantage_options(), kl_coef=0.1)


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "stratified", "reinforce-pp-baseline", "reinforce-pp"])
def test_garbage_outside_the_mask_changes_no_bit(estimator):
    rng = np.random.default_rng(0)
    rewards = [1.0, 0.0, 0.5, 0.0]
    own = [with_k1(sample(r, episode=str(i)), *rng.normal(size=2)) for i, r in enumerate(rewards)]
    own = [dataclasses.replace(s, searches=i // 2) for i, s in enumerate(own)]

    def noise(array, mask):
        return np.where(mask, array, rng.normal(size=len(mask)) * 1e6).astype(np.float32)

    names = ("reward", "advantage", "sampler_logp", "old_logp", "ref_logp")
    dirty = [dataclasses.replace(s, **{n: noise(getattr(s, n), s.mask) for n in names}) for s in own]
    options = advantage_options(estimator=estimator)
    clean, noisy = (assign_advantages(x, options, kl_coef=0.1)[0] for x in (own, dirty))
    assert [s.advantage.tobytes() for s in clean] == [s.advantage.tobytes() for s in noisy]
    assert advantages_of(clean).any()
    assert not any(s.advantage[~s.mask].any() for s in noisy)


# -- what leaves the batch -----------------------------------------------------------------------------------------


def test_overlong_episodes_leave_after_their_group_was_compared_with_them():
    samples = [sample(1, episode="0"), dataclasses.replace(sample(0, episode="1"), overlong=True)]
    options = advantage_options(std="none", drop_overlong=True)
    found, counts = assign_advantages(samples, options)
    assert [s.episode_id for s in found] == ["0"]
    assert (advantages_of(found).tolist(), counts.zero_variance) == ([0.5, 0.5], 0)
    assert len(assign_advantages(samples, dataclasses.replace(options, drop_overlong=False))[0]) == 2


def test_groups_with_signal_are_large_enough_and_differ():
    samples = [sample(1, "a", episode="0"), sample(0, "a", episode="1"), sample(1, "b"), sample(1, "c", episode="2")]
    samples.append(dataclasses.replace(samples[3], episode_id="3"))
    assert groups_with_signal(samples, advantage_options()) == {"a"}


# -- by role and turn ----------------------------------------------------------------------------------------------


def call(reward, role, turn=1, episode="e", group="g", start=1):
    """Returns a sample of one call of two tokens."""
    made = sample(reward, group=group, episode=episode)
    return dataclasses.replace(made, calls=(SampleCall(0, start, 3, role, turn),))


def compared(samples, **options):
    made, counts = assign_advantages(samples, advantage_options(drop_zero_variance=False, **options))
    return [float(one.advantage[-1]) for one in made], counts


def test_calls_are_compared_with_those_of_their_role():
    rewards = {"plan": [1.0, 0.0], "answer": [0.2, 0.6]}
    samples = [call(own[i], role, episode=f"e{i}") for i in range(2) for role, own in rewards.items()]
    got, counts = compared(samples, normalise="role", std="none")
    assert got == pytest.approx([0.5, -0.2, -0.5, 0.2])
    assert counts.groups == 2
    other = [dataclasses.replace(one, group_uid="h", question_id="r") for one in samples]
    assert compared([*samples, *other], normalise="role", std="none")[0] == pytest.approx([*got, *got])
    with pytest.raises(DataError, match="normalise to role"):
        compared(samples)


def test_differences_that_rounding_alone_makes_are_no_signal():
    """0.1 + 0.2 - 0.3 is not 0, and 0.7 in single precision is not 0.7."""
    for rewards in ([0.1 + 0.2 - 0.3, 0.0], [float(np.float32(0.7)), 0.7], [1e7, 1e7 + 1]):
        advantages, counts = group_advantages(np.array(rewards), ["g", "g"], advantage_options())
        assert advantages.tolist() == [0, 0] and counts.zero_variance == 1
    advantages, counts = group_advantages(np.array([1e-6, 2e-6]), ["g", "g"], advantage_options(std="none"))
    assert counts.zero_variance == 0 and advantages == pytest.approx([-5e-7, 5e-7], rel=1e-9)


def test_calls_of_a_turn_and_their_fallback_to_the_role():
    """Turn 1 has three calls, turn 2 a single one, which is compared with all four."""
    rewards = [0.0, 0.3, 0.6]
    samples = [call(reward, "search", 1, f"e{i}") for i, reward in enumerate(rewards)]
    samples.append(call(0.5, "search", 2, "e2"))
    got, counts = compared(samples, normalise="role-turn", std="none")
    assert got == pytest.approx([-0.3, 0.0, 0.3, 0.5 - (0.9 + 0.5) / 4])
    assert (counts.groups, counts.small) == (2, 1)
    alone = [*samples[:3], call(0.5, "answer", 2, "e2")]
    assert compared(alone, normalise="role-turn", std="none")[0][-1] == 0
    assert groups_with_signal([alone[-1]], advantage_options(normalise="role-turn")) == set()
    assert groups_with_signal(samples, advantage_options(normalise="role-turn")) == {"g"}


def test_a_call_in_a_sequence_gets_its_own_reward_and_the_later_ones():
    """Two turns in one sequence: 0.1 then 1.0 in the first episode, 0.3 then 0.0 in the second."""
    made = []
    for i, (first, last) in enumerate([(0.1, 1.0), (0.3, 0.0)]):
        mask = np.array([False, True, False, True])
        one = dataclasses.replace(
            sample(0.0, episode=f"e{i}"),
            ids=np.arange(4, dtype=np.int32),
            mask=mask,
            reward=np.array([0, first, 0, last], np.float32),
            advantage=np.zeros(4, np.float32),
            calls=(SampleCall(0, 1, 2, "s", 1), SampleCall(1, 3, 4, "s", 2)),
        )
        made.append(one)
    got, _ = assign_advantages(made, advantage_options(normalise="role-turn", std="none"))
    assert [one.advantage.tolist() for one in got] == [
        pytest.approx([0, 0.4, 0, 0.5]),
        pytest.approx([0, -0.4, 0, -0.5]),
    ]


def test_whitening_by_role_is_whitening_of_each_role_alone():
    options = advantage_options(estimator="reinforce-pp", normalise="role", drop_zero_variance=False)
    samples = [call(r, role, episode=f"e{i}") for role in ("a", "b") for i, r in enumerate([0.0, 0.25, 1.0])]
    samples[3:] = [dataclasses.replace(one, reward=one.reward * 10 + 5) for one in samples[3:]]
    got, _ = assign_advantages(samples, options)
    alone, _ = assign_advantages(samples[:3], dataclasses.replace(options, normalise="all"))
    for first, second, own in zip(got[:3], got[3:], alone, strict=True):
        assert first.advantage == pytest.approx(own.advantage, abs=1e-6)
        assert second.advantage == pytest.approx(own.advantage, abs=1e-4)
    lone = whiten_cells([np.array([1.0, 2.0])], [call(1.0, "a")], options)
    assert lone[0].tolist() == [0.0, 0.0]  # a call has nobody to be compared with, its tokens are no crowd
