"""Process rewards by branches: worked by hand, and against sums over a group's tree."""

import dataclasses
import math

import numpy as np
import pytest
from advantage_options import advantage_options, assign_tree, branch_rewards, with_options
from hypothesis import given
from hypothesis import strategies as st

from searchgym.testing.reference import advantages as formulas
from searchgym.train.algorithms import advantages
from searchgym.train.algorithms.advantages import assign_advantages, groups_with_signal
from searchgym.train.algorithms.samples import Sample, SampleCall

TREE = advantage_options(estimator="tree")


def test_branches_by_hand():
    """Three of four attempts begin with the same search, and two of these with the same two.

    V(root) = 1/2, V(a) = 2/3, V(ab) = 1, V(ac) = 0, V(d) = 0.
    """
    paths = [[b"a", b"b", b"x"], [b"a", b"b", b"y"], [b"a", b"c"], [b"d"]]
    rows = branch_rewards([1, 1, 0, 0], paths)
    first = (2 / 3 - 1 / 2 + 2 / 3 - 1 / 2) / math.sqrt(3)
    second = (1 - 1 / 2 + 1 - 2 / 3) / math.sqrt(2)
    assert rows[0] == pytest.approx([first, second, 1 / 2])
    assert rows[1] == pytest.approx([first, second, 1 / 2])
    assert rows[2] == pytest.approx([first, (0 - 1 / 2) + (0 - 2 / 3)])
    assert rows[3] == pytest.approx([2 * (0 - 1 / 2)])


def test_the_same_call_after_another_beginning_is_another_node():
    rows = branch_rewards([1, 0], [[b"a", b"c"], [b"b", b"c"]])
    assert rows == [[1.0, 0.5], [-1.0, -0.5]]


@given(
    st.lists(st.tuples(st.floats(0, 1), st.lists(st.sampled_from([b"a", b"b"]), max_size=3)), min_size=1, max_size=6)
)
def test_local_advantages_telescope(attempts):
    """Without the weights the second halves of an attempt's rewards add up to its last node's value less the root's."""
    rewards, paths = zip(*attempts, strict=True)
    rows = branch_rewards(rewards, paths)
    for path, row in zip(paths, rows, strict=True):
        total, root = 0.0, np.mean(rewards)
        value = root
        for depth, number in enumerate(row, start=1):
            same = [r for r, other in zip(rewards, paths, strict=True) if other[:depth] == path[:depth]]
            value = np.mean(same)
            total += number * math.sqrt(len(same)) - (value - root)
        assert total == pytest.approx(value - root, abs=1e-9)


def sample(episode, reward, *calls, group="g"):
    """Returns a monolithic episode's sequence: a prompt, then for each call one token and one of an observation."""
    ids = np.array([9, *(token for call in calls for token in (call, 50 + call))], np.int32)
    mask, rewards = np.zeros(len(ids), np.bool_), np.zeros(len(ids), np.float32)
    mask[1::2], rewards[-2] = True, reward
    return Sample(
        ids=ids, mask=mask, reward=rewards, advantage=np.zeros(len(ids), np.float32),
        sampler_logp=np.zeros(len(ids), np.float32),
        calls=tuple(SampleCall(i, 1 + 2 * i, 2 + 2 * i, "r", i + 1) for i in range(len(calls))),
        model_key="policy", episode_id=episode, question_id="q", attempt=0, group_uid=group, policy_version=0,
    )  # fmt: skip


def test_advantages_of_attempts_that_share_their_first_search():
    samples = [sample("a", 1, 1, 2), sample("b", 0, 1, 3), sample("c", 0, 4), sample("d", 0, 5)]
    made, counts = assign_tree(samples, TREE)
    by_call = [[float(s.advantage[call.start]) for call in s.calls] for s in made]
    first = (0.5 - 0.25 + 0.5 - 0.25) / math.sqrt(2)
    assert by_call[0] == pytest.approx([first, (1 - 0.25) + (1 - 0.5)])
    assert by_call[1] == pytest.approx([first, (0 - 0.25) + (0 - 0.5)])
    assert by_call[2] == by_call[3] == pytest.approx([-0.5])
    assert all(not s.advantage[~s.mask].any() for s in made)
    assert (counts.groups, counts.more["nodes"], counts.more["shared"]) == (1, 5, 1)


def test_an_observation_that_differs_parts_the_attempts():
    one, other = sample("a", 1, 1, 2), sample("b", 0, 1, 2)
    other.ids[2] = 77
    made, counts = assign_tree([one, other], TREE)
    assert (counts.more["nodes"], counts.more["shared"]) == (3, 1)
    assert [float(s.advantage[s.mask][1]) for s in made] == [1.0, -1.0]


def test_groups_without_signal_leave_as_with_grpo():
    same = [sample("a", 0.3, 1), sample("b", 0.3, 2)]
    assert assign_tree(same, TREE)[0] == []
    kept, counts = assign_tree(same, dataclasses.replace(TREE, drop_zero_variance=False))
    assert [s.advantage.any() for s in kept] == [False, False] and counts.more["nodes"] == 0
    mixed = [*same, sample("a", 1, 1, group="h"), sample("b", 0, 1, group="h")]
    assert [s.group_uid for s in assign_tree(mixed, TREE)[0]] == ["h", "h"]


def test_a_team_is_a_path_of_calls():
    """Two sequences per episode; the second call is the same text, but only two attempts came to it alike."""
    samples = []
    for name, reward, first in (("a", 1, 1), ("b", 0, 1), ("c", 0, 3)):
        for index, token in enumerate((first, 7)):
            made = sample(name, reward, token)
            samples.append(dataclasses.replace(made, calls=(dataclasses.replace(made.calls[0], index=index),)))
    made, counts = assign_tree(samples, TREE)
    values = [float(s.advantage[1]) for s in made]
    shared = (0.5 - 1 / 3) / math.sqrt(2)
    assert values[:2] == pytest.approx([2 * shared, shared])
    assert values[2:4] == pytest.approx(values[:2])
    assert values[4:] == pytest.approx([-2 / 3, -1 / 3])
    assert (counts.more["nodes"], counts.more["shared"]) == (4, 2)


def test_without_common_beginnings_the_last_call_has_what_dr_grpo_gives():
    samples = [sample("a", 1, 1, 2), sample("b", 0, 3, 4), sample("c", 0, 5, 6)]
    made, _ = assign_tree(samples, TREE)
    plain, _ = assign_advantages(samples, advantage_options(std="none"))
    for one, other in zip(made, plain, strict=True):
        mine, theirs = one.advantage[one.mask], other.advantage[other.mask]
        assert mine[1] == pytest.approx(theirs[1]) and mine[0] == pytest.approx(2 * theirs[0])


def test_four_attempts_that_share_nothing_have_whole_outcomes():
    rows = branch_rewards([1, 0, 0, 0], [[bytes([10 * n + d]) for d in range(3)] for n in range(4)])
    assert rows == [[1.5, 0.75, 0.75], *[[-0.5, -0.25, -0.25]] * 3]


def test_the_control_takes_attempts_for_separate_however_alike_they_are():
    """``shared: false`` is what the tree gives where nothing is shared: what is left to explain is the branches."""
    samples = [sample("a", 1, 1, 2), sample("b", 0, 1, 3), sample("c", 0, 1, 3), sample("d", 1, 5)]
    control = with_options(TREE, shared=False)
    made, counts = assign_tree(samples, control)
    by_call = [[float(s.advantage[call.start]) for call in s.calls] for s in made]
    assert by_call == [[1.0, 0.5], [-1.0, -0.5], [-1.0, -0.5], [1.0]]
    assert (counts.more["nodes"], counts.more["shared"]) == (7, 0)
    again = formulas.group_advantages(samples, control, 0.0)
    assert [row.tolist() for row in again] == by_call
    branched, _ = assign_tree(samples, TREE)
    assert [float(s.advantage[1]) for s in branched] != [row[0] for row in by_call]


def test_what_stays_is_found_without_advantages_that_nobody_uses(monkeypatch):
    samples = [sample("a", 1, 1, 2), sample("b", 0, 1, 3), sample("e", 1, 1, group="h"), sample("f", 1, 2, group="h")]
    whole, counts = assign_tree(samples, TREE)

    def refused(*given, **more):
        raise AssertionError("advantages are computed")

    monkeypatch.setattr(advantages, "group_advantages", refused)
    again, same = assign_tree(samples, TREE)
    assert [s.advantage.tolist() for s in again] == [s.advantage.tolist() for s in whole] and same == counts
    assert (counts.groups, counts.zero_variance, counts.small) == (2, 1, 0)
    assert groups_with_signal(samples, advantage_options(normalise="role-turn")) == {"g"}
