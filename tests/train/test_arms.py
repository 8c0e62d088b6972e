"""The proposer's policy: its rewards by hand, its shrinkage, its forgetting and its entropy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchgym.train.selfplay.arms import LEVELS, Arm, choice_of, hardness, signal
from searchgym.train.selfplay.kinds.path import LearningProposer

BORN = Arm("chain", 2, "path", "director", "born")
DIED = Arm("chain", 2, "path", "director", "died")
WRITER = Arm("chain", 2, "path", "writer", "born")
SINGLE = Arm("chain", 1, "path", "born", "born")
OLDER = Arm("comparison", 2, "least", "born", "born")
ARMS = (BORN, DIED, WRITER, SINGLE, OLDER)


def policy(**options):
    return LearningProposer(**options).policy(ARMS)


def test_the_signal_is_an_unbiased_estimate():
    """The mean over all outcomes of n attempts, by their binomial chances, is 4 p (1 - p)."""
    for n in (2, 5, 8):
        for p in (0.0, 0.1, 0.5, 0.8, 1.0):
            chances = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
            mean = np.dot(chances, signal([k / n for k in range(n + 1)], [n] * (n + 1)))
            assert mean == pytest.approx(4 * p * (1 - p))
    assert hardness([0.25]) == [0.75]


@pytest.mark.parametrize(("level", "together"), [("hops", True), ("shape", True), ("last", True), ("relations", False)])
def test_levels_tell_apart_what_their_names_say(level, together):
    assert (choice_of(BORN, level) == choice_of(WRITER, level)) == together
    assert (choice_of(BORN, level) == choice_of(DIED, level)) == (level in ("hops", "shape"))
    assert (choice_of(BORN, level) == choice_of(OLDER, level)) == (level == "hops")


def test_values_are_shrunk_means_of_advantages():
    """Two rewards, 1 and 0: the baseline is 0.5, the deviation 0.5, so the advantages are 1 and -1."""
    made = policy(arms="relations", prior=2.0)
    made.learn([BORN, SINGLE], np.array([1.0, 0.0]))
    chain2 = 1 / (1 + 2)  # the shape of BORN, DIED and WRITER
    want = {BORN: (1 + 2 * chain2) / 3, DIED: chain2, WRITER: chain2, SINGLE: (-1 - 2 / 3) / 3, OLDER: 0.0}
    assert made.values() == pytest.approx([want[arm] for arm in ARMS])


def test_what_was_learnt_is_forgotten():
    made = policy(arms="last", prior=1.0, decay=0.5)
    made.learn([BORN, SINGLE], np.array([1.0, 0.0]))
    made.learn([BORN, SINGLE], np.array([0.0, 1.0]))
    # of BORN: -1 now and 1 at half weight; the shape first, then the arm
    shape = (-1 + 0.5) / (1.5 + 1)
    assert made.values([BORN]) == pytest.approx([(-0.5 + shape) / 2.5])


def test_values_are_means_which_do_not_grow_with_the_steps():
    """A policy gradient adds up what it sees; a mean of advantages of 1 and -1 stays below 1, with its decayed weight.

    After many steps an arm of 8 questions a step has a weight of 8 / (1 - 0.9) = 80.
    """
    made, seen = policy(arms="relations", prior=2.0, decay=0.9), []
    for _ in range(400):
        made.learn([BORN, SINGLE] * 8, np.array([1.0, 0.0] * 8))
        seen.append(float(made.values([BORN])[0]))
    shape = 80 / (80 + 2)
    limit = (80 + 2 * shape) / (80 + 2)
    assert seen[-1] == pytest.approx(limit) and max(seen) <= limit + 1e-9
    assert limit / LearningProposer().temperature == pytest.approx(4.0, abs=0.01)  # the logit


def test_pass_rates_that_are_not_known_count_for_nothing():
    made = policy()
    made.learn([BORN, DIED, SINGLE], np.array([math.nan, 1.0, 0.0]))
    assert made.values([DIED])[0] > made.values([BORN])[0] > 0 > made.values([SINGLE])[0]  # BORN has its shape alone
    made = policy()
    made.learn([BORN, SINGLE], np.array([math.nan, 1.0]))
    assert not made.values().any()
    made.learn([BORN, SINGLE], np.array([0.5, 0.5]))
    assert not made.values().any()


def test_even_draws_are_even_over_what_is_told_apart():
    assert policy(arms="hops", max_named=1.0).probabilities() == pytest.approx([1 / 8, 1 / 8, 1 / 8, 1 / 2, 1 / 8])
    assert policy(arms="relations", max_named=1.0).probabilities() == pytest.approx([1 / 5] * 5)


def test_named_answers_have_a_share_at_most():
    made = policy(arms="relations", max_named=0.15)
    assert made.probabilities() == pytest.approx([0.85 / 4] * 4 + [0.15])
    assert made.probabilities([False] * 4 + [True]) == pytest.approx([0, 0, 0, 0, 1])
    assert made.probabilities([False] * 5) == pytest.approx([0] * 5)


def entropy(chances, level):
    """Returns the entropy of what a policy tells apart at a level, in nats."""
    choices = [choice_of(arm, level) for arm in ARMS]
    shares = [sum(c for c, own in zip(chances, choices, strict=True) if own == choice) for choice in set(choices)]
    return -sum(share * math.log(share) for share in shares if share)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.sampled_from(ARMS), st.floats(0, 1)), max_size=60),
    st.sampled_from([0.0, 0.7, 1.0]),
    st.sampled_from(sorted(LEVELS)),
    st.sampled_from([0.0, 0.15, 1.0]),
)
def test_the_policy_is_a_distribution_with_the_entropy_that_is_asked_for(seen, least, level, named):
    options = {"arms": level, "min_entropy": least, "max_named": named}
    made, even = policy(**options), policy(**options).probabilities()
    for place in range(0, len(seen), 8):
        part = seen[place : place + 8]
        made.learn([arm for arm, _ in part], np.array([reward for _, reward in part]))
    chances = made.probabilities()
    assert chances.sum() == pytest.approx(1) and (chances >= 0).all()
    assert chances[[arm.named for arm in ARMS]].sum() <= named + 1e-9
    share = entropy(chances, level) / entropy(even, level)
    assert share >= least - 1e-6
    assert made.entropy() == pytest.approx(share)
    again = policy(**options)
    again.restore(made.state())
    assert np.array_equal(again.probabilities(), chances)


def test_a_closed_arm_that_is_worth_most_leaves_the_others_as_they_are():
    made = policy(arms="relations", max_named=1.0, temperature=1e-3, min_entropy=0.0)
    made.learn(list(ARMS), np.array([1.0, 0.0, 0.0, 0.0, 0.0]))
    chances = made.probabilities([False, True, True, True, True])
    assert chances[0] == 0 and chances.sum() == pytest.approx(1)


def test_arms_that_teach_are_drawn_more():
    made, rng = policy(arms="relations", max_named=1.0), np.random.default_rng(0)
    pays = dict(zip(ARMS, (0.9, 0.1, 0.5, 0.0, 0.2), strict=True))
    for _ in range(20):
        arms = [ARMS[i] for i in rng.choice(5, 16, p=made.probabilities())]
        made.learn(arms, np.array([pays[arm] + rng.normal(0, 0.1) for arm in arms]))
    order = np.argsort(-made.probabilities())
    assert ARMS[order[0]] == BORN and ARMS[order[-1]] == SINGLE
