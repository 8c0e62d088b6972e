"""Credit passed along the calls of an episode: by hand, against other formulas, and on a toy with known truth."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from advantage_options import advantage_options, assign_gae, gae, with_options

from searchgym.train.algorithms.advantages import assign_advantages, call_returns
from searchgym.train.algorithms.loss_options import LossOptions
from searchgym.train.algorithms.losses import policy_sums, token_weights
from searchgym.train.algorithms.samples import VALUED, Sample, SampleCall

CHAIN = advantage_options(
    estimator="rloo", normalise="role", chain="episode", drop_zero_variance=False
)  # fmt: skip


def call(index, reward, role="r", episode="e", kept=0.0, values=None, prefix=False, turn=1, **changes):
    """Returns the sequence of one call: a prompt of two tokens, two of the model."""
    reward_row, kept_row = np.zeros((2, 4), np.float32)
    reward_row[-1], kept_row[-1] = reward, kept
    return Sample(
        ids=np.arange(4, dtype=np.int32),
        mask=np.array([False, False, True, True]),
        reward=reward_row,
        advantage=np.zeros(4, np.float32),
        sampler_logp=np.zeros(4, np.float32),
        calls=(SampleCall(index, 2, 4, role, turn, prefix),),
        model_key=changes.pop("key", "policy"),
        episode_id=episode,
        question_id="q",
        attempt=0,
        group_uid="g",
        policy_version=0,
        local_reward=kept_row,
        value=None if values is None else np.array([0, 0, *values], np.float32),
        **changes,
    )


# -- group estimators ----------------------------------------------------------------------------------------------


def test_returns_by_hand():
    """Gains 0.2, 0, 0.3, -0.1; the second call's output was illegal (-1), which is its own affair."""
    calls = [call(0, 0.2), call(1, -1.0, kept=-1.0), call(2, 0.3), call(3, -0.1), call(4, 0.0)]
    returns = call_returns(calls, CHAIN)
    assert [own for (own,) in returns] == pytest.approx([0.4, 0.2 - 1.0, 0.2, -0.1, 0.0])
    shuffled = [calls[i] for i in (3, 0, 4, 2, 1)]
    assert [own for (own,) in call_returns(shuffled, CHAIN)] == pytest.approx([-0.1, 0.4, 0.0, 0.2, -0.8])
    alone = dataclasses.replace(CHAIN, chain="call")
    assert [own for (own,) in call_returns(calls, alone)] == pytest.approx([0.2, -1.0, 0.3, -0.1, 0.0])


def test_trial_answers_neither_give_nor_take():
    calls = [call(0, 0.5, prefix=True), call(1, 0.0), call(2, 0.7, prefix=True), call(3, 1.0)]
    assert [own for (own,) in call_returns(calls, CHAIN)] == pytest.approx([0.5, 1.0, 0.7, 1.0])


def test_episodes_and_groups_stay_apart():
    calls = [call(0, 0.0), call(1, 1.0), call(0, 0.0, episode="f"), call(1, 0.25, episode="f")]
    other = [dataclasses.replace(one, group_uid="h", reward=8 * one.reward) for one in calls[:2]]
    assert [own for (own,) in call_returns([*calls, *other], CHAIN)] == pytest.approx([1, 1, 0.25, 0.25, 8, 8])


def test_a_frozen_call_passes_back_what_it_earns():
    """The middle call's weights are frozen: it is compared and passes credit on, and nothing is learnt from it."""
    group = []
    for episode, last in (("e", 1.0), ("f", 0.0)):
        group += [call(0, 0.0, "a", episode), call(1, last, "b", episode, key="frozen"), call(2, 0.0, "c", episode)]
    made, _ = assign_advantages(group, CHAIN)
    assert [float(one.advantage[-1]) for one in made] == pytest.approx([1, 1, 0, -1, -1, 0])


def test_one_sequence_is_as_before():
    """Where an episode is one sequence, the chain of the episode is that of the sequence."""
    one = call(0, 0.0)
    mask = np.array([False, True, False, True])
    reward = np.array([0, 0.25, 0, 0.5], np.float32)
    calls = (SampleCall(0, 1, 2, "s", 1), SampleCall(1, 3, 4, "s", 2))
    one = dataclasses.replace(one, mask=mask, reward=reward, calls=calls, local_reward=None)
    for chain in ("call", "episode"):
        assert call_returns([one], dataclasses.replace(CHAIN, chain=chain)) == [[0.75, 0.5]]


SCORES = {"a": {(0,): 0.3, (1,): 0.0}, "b": {(0, 0): 0.5, (0, 1): 0.1, (1, 0): 0.2, (1, 1): 1.0}}
"""A toy of two calls with two actions each: the score of the answer that each proposes, given the actions so far."""
LOGITS = {"a": torch.tensor([0.3, -0.2], dtype=torch.float64), "b": torch.tensor([[0.1, 0.4], [-0.3, 0.2]]).double()}


def log_policy(actions, logits):
    first, second = actions
    return torch.log_softmax(logits["a"], 0)[first], torch.log_softmax(logits["b"][first], 0)[second]


def true_gradient():
    """The gradient of the expected last score, by summing over all four courses of an episode."""
    logits = {name: own.clone().requires_grad_() for name, own in LOGITS.items()}
    total = 0.0
    for actions in itertools.product((0, 1), repeat=2):
        total = total + torch.exp(sum(log_policy(actions, logits))) * SCORES["b"][actions]
    total.backward()
    return torch.cat([logits["a"].grad, logits["b"].grad.flatten()])


def loss_gradient(options, credit, roles="ab"):
    """The expected gradient of the policy loss at ratio 1, over all groups of two episodes, with its sign turned.

    Args:
        options: Of the advantages.
        credit: Returns the rewards of the two calls of an episode, given its actions.
        roles: Role of each call.
    """
    found = torch.zeros(6, dtype=torch.float64)
    courses = list(itertools.product((0, 1), repeat=2))
    for pair in itertools.product(courses, repeat=2):
        logits = {name: own.clone().requires_grad_() for name, own in LOGITS.items()}
        chance, samples, logps = 1.0, [], []
        for number, actions in enumerate(pair):
            logp = log_policy(actions, logits)
            chance = chance * float(torch.exp(sum(logp)).detach())
            for index, reward in enumerate(credit(actions)):
                samples.append(call(index, reward, roles[index], f"e{number}", turn=index + 1))
                logps += [logp[index] / 2] * 2  # a call's two tokens together have its log-prob
        made, _ = assign_advantages(samples, options)
        advantage = torch.tensor(np.concatenate([one.advantage[one.mask] for one in made]))
        logp = torch.stack(logps)
        weights, _ = token_weights(made, "token-mean")
        weight = torch.tensor(np.concatenate(weights))
        total, _ = policy_sums(logp, torch.zeros_like(logp), logp.detach(), advantage, weight, None, LossOptions())
        (total * chance / -len(pair)).backward()
        found += torch.cat([logits["a"].grad, logits["b"].grad.flatten()])
    return found


def gains(actions):
    first = SCORES["a"][actions[:1]]
    return first, SCORES["b"][actions] - first


def test_the_gradient_at_ratio_one_is_that_of_the_last_score():
    """A baseline of the other attempt (RLOO) has no bias, so the expectation over all groups is exact."""
    torch.testing.assert_close(loss_gradient(CHAIN, gains), true_gradient(), atol=1e-7, rtol=0)
    plain = dataclasses.replace(CHAIN, chain="call")
    outcome = lambda actions: (SCORES["b"][actions],) * 2  # noqa: E731
    torch.testing.assert_close(loss_gradient(plain, outcome), true_gradient(), atol=1e-7, rtol=0)


def test_a_role_that_acts_twice_must_be_compared_turn_by_turn():
    """Compared with its own later call too, whose return depends on its action, a call's baseline has a bias."""
    by_turn = dataclasses.replace(CHAIN, normalise="role-turn")
    torch.testing.assert_close(loss_gradient(by_turn, gains, "aa"), true_gradient(), atol=1e-7, rtol=0)
    assert float((loss_gradient(CHAIN, gains, "aa") - true_gradient()).abs().max()) > 0.02


def test_gains_that_are_not_passed_on_have_another_gradient():
    myopic = loss_gradient(dataclasses.replace(CHAIN, chain="call"), gains)
    assert float((myopic - true_gradient()).abs().max()) > 0.05


# -- GAE -----------------------------------------------------------------------------------------------------------

GAE = advantage_options(estimator="gae", chain="episode", gamma=0.9, lam=0.8, whiten=False)


def valued(rewards, seed=0, **changes):
    rng = np.random.default_rng(seed)
    return [call(i, own, values=rng.normal(size=2).round(2), **changes) for i, own in enumerate(rewards)]


def test_two_calls_by_hand():
    """Values 0.2, 0.5 of the first call and 0.4, 0.1 of the second, which earns 1; gamma 0.9, lambda 0.8.

    delta_3 = 1 - 0.1 = 0.9; delta_2 = 0.9 x 0.1 - 0.4 = -0.31; delta_1 = 0.9 x 0.4 - 0.5 = -0.14;
    delta_0 = 0.9 x 0.5 - 0.2 = 0.25. A_2 = -0.31 + 0.72 x 0.9 = 0.338; A_1 = -0.14 + 0.72 x 0.338 = 0.10336;
    A_0 = 0.25 + 0.72 x 0.10336 = 0.3244192.
    """
    calls = [call(0, 0.0, values=[0.2, 0.5]), call(1, 1.0, values=[0.4, 0.1])]
    second, first = assign_gae(calls[::-1], GAE, VALUED["model"])
    assert first.advantage[2:].tolist() == pytest.approx([0.3244192, 0.10336], abs=1e-6)
    assert second.advantage[2:].tolist() == pytest.approx([0.338, 0.9], abs=1e-6)
    assert first.returns[2:].tolist() == pytest.approx([0.5244192, 0.60336], abs=1e-6)


def test_a_chain_is_gae_over_the_calls_in_a_row():
    calls = valued([0.3, -0.2, 0.0, 0.9])
    joined = gae(
        np.concatenate([one.reward[one.mask] for one in calls]).astype(float),
        np.concatenate([one.value[one.mask] for one in calls]).astype(float),
        0.9,
        0.8,
    )
    made = assign_gae(calls, GAE, VALUED["model"])
    np.testing.assert_allclose(np.concatenate([one.advantage[one.mask] for one in made]), joined, atol=1e-6)
    apart = assign_gae(calls, dataclasses.replace(GAE, chain="call"), VALUED["model"])
    assert abs(apart[0].advantage[2] - made[0].advantage[2]) > 0.01


def test_without_discount_it_is_the_rewards_to_go_less_the_value():
    options, calls = with_options(GAE, gamma=1.0, lam=1.0), valued([0.3, -0.2, 0.9])
    for one, to_go in zip(assign_gae(calls, options, VALUED["model"]), [1.0, 0.7, 0.9], strict=True):
        np.testing.assert_allclose(one.advantage[2:], to_go - one.value[2:], atol=1e-6)
        np.testing.assert_allclose(one.returns[2:], to_go, atol=1e-6)


def test_frozen_calls_add_their_reward_without_a_value():
    """Calls 0 and 2 are frozen: what the first earns is nobody's, what the third earns counts after the second."""
    calls = valued([0.0, 0.3, 0.0, 0.9], seed=1)
    frozen = [call(0, 5.0, key="frozen"), call(2, 0.5, key="frozen")]
    made = assign_gae([calls[1], calls[3]], GAE, VALUED["model"], 0.0, frozen)
    rewards, values = [0, 0.3 + 0.5, 0, 0.9], [*calls[1].value[2:], *calls[3].value[2:]]
    wanted = gae(np.array(rewards), np.array(values, float), 0.9, 0.8)
    np.testing.assert_allclose(np.concatenate([one.advantage[2:] for one in made]), wanted, atol=1e-6)
    assert [one.calls[0].index for one in made] == [1, 3]
    without = assign_gae([calls[1], calls[3]], GAE, VALUED["model"])
    assert abs(float(without[0].advantage[-1] - made[0].advantage[-1]) + 0.5) < 1e-6


def test_trial_answers_have_a_chain_of_their_own():
    calls = [*valued([0.0, 1.0]), *valued([0.4], seed=2, prefix=True)]
    calls[2] = dataclasses.replace(calls[2], calls=(dataclasses.replace(calls[2].calls[0], index=9),))
    made = assign_gae(calls, GAE, VALUED["model"])
    alone = assign_gae(calls[2:], dataclasses.replace(GAE, chain="call"), VALUED["model"])
    np.testing.assert_array_equal(made[2].advantage, alone[0].advantage)
    np.testing.assert_array_equal(made[0].advantage, assign_gae(calls[:2], GAE, VALUED["model"])[0].advantage)


def test_observations_with_values_are_in_the_chain():
    """One sequence with an observation, then another sequence: the chain runs through the observation."""
    ids = np.arange(5, dtype=np.int32)
    first = dataclasses.replace(
        call(0, 0.0),
        ids=ids,
        mask=np.array([False, True, False, True, True]),
        reward=np.array([0, 0.1, 0, 0, 0.2], np.float32),
        value=np.array([0, 0.3, 0.6, -0.1, 0.4], np.float32),
        advantage=np.zeros(5, np.float32),
        sampler_logp=np.zeros(5, np.float32),
        local_reward=None,
        calls=(SampleCall(0, 1, 2, "s", 1), SampleCall(2, 3, 5, "s", 2)),
    )
    between = call(1, 0.7, values=[0.5, 0.2])
    made = assign_gae([first, between], GAE, VALUED["response"])
    rewards = np.array([0.1, 0, 0.7, 0, 0, 0.2])
    wanted = gae(rewards, np.array([0.3, 0.5, 0.2, 0.6, -0.1, 0.4]), 0.9, 0.8)
    np.testing.assert_allclose(made[0].advantage, [0, wanted[0], 0, wanted[4], wanted[5]], atol=1e-6)
    np.testing.assert_allclose(made[0].returns[2], wanted[3] + 0.6, atol=1e-6)
    np.testing.assert_allclose(made[1].advantage[2:], wanted[1:3], atol=1e-6)


def test_search_r1_whitens_over_observations_too():
    """``verl`` masks with the attention mask of the response: mean and deviation count the observations' advantages."""
    rng = np.random.default_rng(5)
    mask = np.array([False, True, False, False, True, True])
    samples = []
    for number in range(3):
        value = np.where(np.arange(6) > 0, rng.normal(size=6), 0).astype(np.float32)
        reward = np.array([0, 0, 0, 0, 0, number], np.float32)
        calls = (SampleCall(0, 1, 2, "s", 1), SampleCall(1, 4, 6, "s", 2))
        rest = {"ids": np.arange(6, dtype=np.int32), "advantage": np.zeros(6, np.float32), "local_reward": None}
        rest |= {"sampler_logp": np.zeros(6, np.float32), "calls": calls, "episode_id": f"e{number}"}
        samples.append(dataclasses.replace(call(0, 0.0), mask=mask, reward=reward, value=value, **rest))
    options = advantage_options(estimator="gae", whiten_over="valued", gamma=0.9, lam=0.8)
    raw = [gae(s.reward[1:].astype(float), s.value[1:].astype(float), 0.9, 0.8) for s in samples]
    every = np.concatenate(raw)
    for one, own in zip(assign_gae(samples, options, VALUED["response"]), raw, strict=True):
        wanted = (own - every.mean()) / (every.std(ddof=1) + options.estimator.eps)
        np.testing.assert_allclose(one.advantage, np.where(mask, np.append(0, wanted), 0), atol=1e-5)
    trained = assign_gae(samples, with_options(options, whiten_over="trained"), VALUED["response"])
    assert np.abs(trained[0].advantage - assign_gae(samples, options, VALUED["response"])[0].advantage).max() > 0.01
