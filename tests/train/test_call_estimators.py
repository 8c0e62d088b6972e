"""Siblings, states and stages: worked by hand, against second formulas, and where they equal plain comparisons."""

import dataclasses
import random

import numpy as np
import pytest
from advantage_options import advantage_options
from test_tree import sample

from searchgym.errors import DataError, SearchGymError, UnknownNameError
from searchgym.records import Hit, Opened, Passage, Searched
from searchgym.testing.reference import advantages as formulas
from searchgym.train import load_recipe
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.recipe.preflight import check_names

ROOT2 = 2**0.5


def assigned(samples, options):
    """Returns the advantages of the calls of each remaining sample, by (episode, first call), and the counts."""
    made, counts = options.estimator.assign(samples, options)
    found = {(s.episode_id, s.calls[0].index): [float(s.advantage[c.start]) for c in s.calls] for s in made}
    again = formulas.group_advantages(samples, options, 0.0)
    for one, row in zip(samples, again, strict=True):
        key = (one.episode_id, one.calls[0].index)
        assert (row is not None) == (key in found)
        if row is not None:
            spread = np.zeros(len(one.ids))
            spread[one.mask] = row
            assert found[key] == pytest.approx([spread[c.start] for c in one.calls], abs=1e-5)
    return found, counts


def alone(found):
    """Returns the advantages of episodes of one sequence, by the episode's name."""
    return {name: row for (name, _), row in found.items()}


# -- siblings ------------------------------------------------------------------------------------------------------


def test_siblings_by_hand():
    """Two of four attempts begin alike. Children of the question: 1/2, 0, 0; of the shared search: 1, 0."""
    samples = [sample("a", 1, 1, 2), sample("b", 0, 1, 3), sample("c", 0, 4), sample("d", 0, 5)]
    found, counts = assigned(samples, advantage_options(estimator="siblings", std="population", eps=0.0))
    across, local = np.array([0.75, -0.25]) / 0.1875**0.5, np.array([1 / 3, -1 / 6]) / np.std([0.5, 0, 0])
    expected = {"a": [across[0] + local[0], across[0] + 1], "b": [across[1] + local[0], across[1] - 1]}
    assert alone(found) == {name: pytest.approx(row) for name, row in expected.items()} | {
        name: pytest.approx([across[1] + local[1]]) for name in "cd"
    }
    assert counts.more == {"nodes": 5, "branching": 2}


def test_without_siblings_it_is_grpo():
    """The attempts differ in an observation after their last call only, so no call has a sibling."""
    samples = [sample("a", 1, 1), sample("b", 0, 1)]
    samples[1].ids[-1] += 1
    found, _ = assigned(samples, advantage_options(estimator="siblings"))
    plain, _ = assigned(samples, advantage_options())
    assert alone(found) == {name: pytest.approx(row, abs=1e-3) for name, row in alone(plain).items()}


# -- states --------------------------------------------------------------------------------------------------------


def in_states(name, reward, *states):
    """Returns an episode whose calls were made in states, named by numbers."""
    made = sample(name, reward, *random.Random(name).sample(range(1, 40), len(states)))
    calls = [dataclasses.replace(call, state=b"%d" % s) for call, s in zip(made.calls, states, strict=True)]
    return dataclasses.replace(made, calls=tuple(calls))


def test_states_by_hand():
    """State 0 holds three calls with discounted rewards 1/4, 0 and 1/2, state 1 two with 1/2 and 0, state 2 one."""
    samples = [in_states("a", 1, 0, 1, 2), in_states("b", 0, 0, 1), in_states("c", 1, 0, 3)]
    options = advantage_options(estimator="gigpo", gamma=0.5, std="none")
    found, counts = assigned(samples, options)
    across = {"a": 1 / 3, "b": -2 / 3, "c": 1 / 3}
    local = {"a": [0, 0.25, 0], "b": [-0.25, -0.25], "c": [0.25, 0]}
    assert alone(found) == {n: pytest.approx([across[n] + v for v in local[n]]) for n in across}
    assert counts.more == {"calls": 7, "shared_state": 5}


def test_where_all_states_differ_it_is_grpo():
    samples = [in_states("a", 1, 0, 1), in_states("b", 0, 2, 3)]
    found, _ = assigned(samples, advantage_options(estimator="gigpo"))
    assert alone(found) == {
        "a": pytest.approx([1 / ROOT2] * 2, abs=1e-5),
        "b": pytest.approx([-1 / ROOT2] * 2, abs=1e-5),
    }


def test_without_discount_equal_beginnings_have_the_local_half_of_siblings():
    """Two attempts that share their first search, and part: both compare the two second calls."""
    samples = [in_states("a", 1, 0, 1), in_states("b", 0, 0, 1)]
    for one in samples:
        one.ids[1:3] = 7, 57
    states, _ = assigned(samples, advantage_options(estimator="gigpo", gamma=1.0, std="none"))
    siblings, _ = assigned(samples, advantage_options(estimator="siblings", std="none"))
    assert [row[1] for row in states.values()] == pytest.approx([row[1] for row in siblings.values()])


def test_the_state_is_the_set_of_pages_seen_before_a_call():
    from test_credit import team

    pages = [Hit(Passage(id, id, id), 1.0) for id in "ab"]
    searches = [Searched(1, "x", (pages[0], pages[1])), Searched(2, "y", (pages[1],))]

    def states(searches, opens=()):
        made = team([{"role": "r"}] * 4, searches=searches, opens=list(opens))
        for turn, call in enumerate(made.calls, start=1):
            call.turn = turn
        return [call.state for row in samples_from(made) for call in row.calls]

    first = states(searches)
    assert first[0] == b"" and first[1] == first[2] == first[3] != b""
    assert states([Searched(2, "z", (pages[1], pages[0]))])[2] == first[1]  # the order does not matter
    assert states(searches, [Opened(2, "a", "a", part=1)])[2] != first[2]
    assert states(searches, [Opened(2, "nothing")])[2] == first[2]


# -- stages --------------------------------------------------------------------------------------------------------

NAMES = {"plan": ["planning"], "research": ["search", "summary"], "answer": ["answer"]}
ALONE = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def staged(episode, group="g", **rewards):
    """Returns one sequence for each call of a team, given the reward of each role's call, in order."""
    rows = []
    for index, (role, reward) in enumerate(rewards.items()):
        row = sample(episode, reward, 1 + index, group=group)
        call = dataclasses.replace(row.calls[0], index=index, role=role)
        rows.append(dataclasses.replace(row, calls=(call,)))
    return rows


def teams(*episodes):
    return [row for name, rewards in zip("abcdef", episodes, strict=False) for row in staged(name, **rewards)]


def by_stage(**values):
    return advantage_options(estimator="stages", normalise="role", chain="none", stages=NAMES, **values)


def test_stages_by_hand():
    """Gains of the plan: 0.2 + 0.5 (0.4 + 0.2) + 1, and 0.4 + 0.5 x 0.2; of research: 0.6 + 0.5, and 0.2; 1 and 0."""
    samples = teams(
        {"planning": 0.2, "search": 0.4, "summary": 0.2, "answer": 1.0},
        {"planning": 0.4, "search": 0.2, "answer": 0.0},
    )
    weights = [[1, 0.5, 1], [0, 1, 0.5], [0, 0, 1]]
    found, counts = assigned(samples, by_stage(weights=weights, std="none"))
    gains = {"planning": (1.5, 0.5), "search": (1.1, 0.2), "summary": (1.1, 0.2), "answer": (1.0, 0.0)}
    for row in samples:
        a, b = gains[row.calls[0].role]
        own = (a - b) / 2 if row.episode_id == "a" else (b - a) / 2
        assert found[row.episode_id, row.calls[0].index] == [pytest.approx(own)]
    assert (counts.groups, counts.zero_variance, counts.small) == (1, 0, 0)


EPISODES = [
    {"planning": 0.3, "search": 0.1, "answer": 1.0}, {"planning": 0.1, "search": 0.5, "answer": 0.0},
    {"planning": 0.3, "answer": 1.0}, {"planning": 0.9, "search": 0.2, "answer": 0.4},
]  # fmt: skip


def test_with_weights_for_itself_alone_a_stage_is_compared_as_its_role():
    samples = teams(*EPISODES)
    found, _ = assigned(samples, by_stage(weights=ALONE))
    plain, _ = assigned(samples, advantage_options(normalise="role", chain="none"))
    assert found == {key: pytest.approx(row, abs=1e-5) for key, row in plain.items()}


def test_with_all_later_stages_it_is_the_chain_along_the_episode():
    samples = teams(*EPISODES)
    found, _ = assigned(samples, by_stage())
    plain, _ = assigned(samples, advantage_options(normalise="role", chain="episode"))
    assert found == {key: pytest.approx(row, abs=1e-5) for key, row in plain.items()}


def test_a_row_of_weights_may_be_scaled_and_an_absent_stage_changes_no_other():
    samples = teams(*EPISODES)
    found, _ = assigned(samples, by_stage(weights=[[1, 0.4, 0.8], [0, 1, 0.8], [0, 0, 1]]))
    scaled, _ = assigned(samples, by_stage(weights=[[5, 2, 4], [0, 1, 0.8], [0, 0, 7]]))
    assert scaled == {key: pytest.approx(row, abs=1e-4) for key, row in found.items()}
    without, _ = assigned(teams(*({k: v for k, v in e.items() if k != "search"} for e in EPISODES)), by_stage())
    whole, _ = assigned(samples, by_stage(weights=[[1, 0, 1], [0, 1, 1], [0, 0, 1]]))
    answers = [row[0] for key, row in whole.items() if key[1] == len(EPISODES["abcd".index(key[0])]) - 1]
    assert answers == pytest.approx([row[0] for key, row in without.items() if key[1] == 1])


def test_stages_of_equal_gains_leave_the_batch():
    same = teams({"planning": 0.3, "answer": 1.0}, {"planning": 0.3, "answer": 1.0})
    found, counts = assigned(same, by_stage())
    assert found == {} and (counts.groups, counts.zero_variance) == (1, 1)
    partly, counts = assigned(teams({"planning": 1.0, "answer": 0.0}, {"planning": 0.0, "answer": 0.0}), by_stage())
    assert set(partly) == {("a", 0), ("b", 0)} and counts.zero_variance == 0
    with pytest.raises(DataError, match="role update is in no stage; the roles are planning, search, summary, answer"):
        assigned(teams({"update": 1.0}), by_stage())


@pytest.mark.parametrize("seed", range(5))
def test_random_teams_agree_with_the_second_formula(seed):
    rng = random.Random(seed)
    roles = [role for names in NAMES.values() for role in names]
    samples = []
    for number in range(12):
        reached = [role for role in roles if rng.random() < 0.7] or ["answer"]
        rewards = {role: rng.choice([0.0, 0.5, 1.0]) for role in reached}
        samples += staged(f"e{number}", group=f"g{number % 3}", **rewards)
    matrix = [[1, 0.4, 0.8], [0, 1, 0.8], [0, 0, 1]]
    assigned(samples, by_stage(weights=matrix, drop_zero_variance=rng.random() < 0.5, std_floor=0.1))


# -- over the batch ------------------------------------------------------------------------------------------------


def test_rescaled_advantages_have_mean_0_and_deviation_1_over_the_batch():
    groups = {"g": (1, 0, 0), "h": (1, 1, 0.5, 0), "same": (1, 1)}
    samples = [
        sample(f"{group}{n}", reward, 1 + n, 9, group=group)
        for group, rewards in groups.items()
        for n, reward in enumerate(rewards)
    ]
    found, _ = assigned(samples, advantage_options(rescale="batch", drop_zero_variance=False, std="none"))
    values = [row[0] for key, row in found.items() if not key[0].startswith("same")]
    assert np.mean(values) == pytest.approx(0, abs=1e-6) and np.std(values) == pytest.approx(1, abs=1e-4)
    assert [row for key, row in found.items() if key[0].startswith("same")] == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["advantage.estimator=tree", "advantage.rescale=batch"], "rescale batch: it scales what groups compared"),
        (["advantage.estimator=reinforce-pp", "advantage.rescale=batch"], "rescale batch"),
        (["advantage.estimator={kind: stages, stages: {a: [planning], b: [planning]}}"], "no role twice"),
        (["advantage.estimator={kind: stages, stages: {a: [planning], b: [answer]}}"], "set advantage.normalise"),
        (["advantage.estimator={kind: stages, stages: {a: [x], b: [y]}, weights: [[1, 1]]}"], "2 rows of 2"),
        (["advantage.estimator={kind: stages, stages: {a: [x], b: [y]}, weights: [[1, 1], [1, 1]]}"], "earlier stages"),
        (["advantage.estimator=stages"], "stages"),
        (["advantage.estimator=siblngs"], "siblings"),
        (
            ["advantage.estimator={kind: stages, stages: {plan: [planning], rest: [search, summary, update, answer]}}",
             "advantage.normalise=role", "advantage.chain=none", "credit={outcome: 1}"],
            "name the roles of outcome",
        ),
    ],
)  # fmt: skip
def test_recipes_that_do_not_fit_are_refused(values, message):
    with pytest.raises(SearchGymError, match=message):
        load_recipe("tiny-mask", values)


def test_a_stage_with_a_role_that_the_agent_lacks_is_refused():
    stages = "advantage.estimator={kind: stages, stages: {plan: [planing], rest: [search, summary, update, answer]}}"
    values = [stages, "advantage.normalise=role", "advantage.chain=none", "credit={gain: 1, format: 1}"]
    with pytest.raises(
        UnknownNameError, match=r"unknown role 'planing' in advantage\.estimator; did you mean 'planning'"
    ):
        check_names(load_recipe("tiny-grpo", ["agent=m-ask", "model=tiny-teams", *values]))


# -- shaped (MARS2) ------------------------------------------------------------------------------------------------


def test_shaped_by_hand():
    """Attempts a and b begin alike, c and d with other calls. a and b part after the shared call, whose V is 1/2.

    a: r 1, V 1/2, sibling b 0: 1 + 1/2 (1 - 1/4 - 0) = 1.375; b: 0 + 1/2 (0 - 1/4 - 1/2) = -0.375. c parts at the
    question, whose V is 1/2; beside it are 1/2 (a, b) and 1 (d): 0 + 1/2 (0 - 1/4 - 3/8) = -0.3125. d: beside
    it are 1/2 and 0: 1 + 1/2 (1 - 1/4 - 1/8) = 1.3125.
    """
    samples = [sample("a", 1, 1, 2), sample("b", 0, 1, 3), sample("c", 0, 4), sample("d", 1, 5)]
    found, counts = assigned(samples, advantage_options(estimator="shaped", std="none"))
    shaped = np.array([1.375, -0.375, -0.3125, 1.3125])
    expected = shaped - shaped.mean()
    assert alone(found) == {
        "a": pytest.approx([expected[0]] * 2), "b": pytest.approx([expected[1]] * 2),
        "c": pytest.approx([expected[2]]), "d": pytest.approx([expected[3]]),
    }  # fmt: skip
    assert counts.more == {"nodes": 5, "shared": 1}


def test_shaped_without_shared_calls_is_grpo():
    samples = [sample("a", 1, 1, 2), sample("b", 0, 3), sample("c", 0, 4), sample("d", 0.5, 5)]
    assert assigned(samples, advantage_options(estimator="shaped"))[0] == {
        name: pytest.approx(row) for name, row in assigned(samples, advantage_options())[0].items()
    }


# -- deepsearch ----------------------------------------------------------------------------------------------------


def with_logp(made, *logps):
    """Gives each call of a sample a log-prob."""
    for call, logp in zip(made.calls, logps, strict=True):
        made.sampler_logp[call.start : call.end] = logp
    return made


def test_deepsearch_by_hand():
    """Of a and b, which part after a shared call, the right a is backed up; of c and d, both wrong, the surer d.

    a backs up 1/2 and 1 to its two calls, d -1 to its one; mean 1/6. b's second call and c's have no value.
    """
    samples = [
        with_logp(sample("a", 1, 1, 2), -1, -1), with_logp(sample("b", 0, 1, 3), -1, 0),
        with_logp(sample("c", 0, 4), -2), with_logp(sample("d", 0, 5), -1),
    ]  # fmt: skip
    found, counts = assigned(samples, advantage_options(estimator="deepsearch"))
    assert alone(found) == {
        "a": pytest.approx([1 / 2 - 1 / 6, 1 - 1 / 6]), "b": pytest.approx([1 / 2 - 1 / 6, 0]),
        "c": pytest.approx([0]), "d": pytest.approx([-1 - 1 / 6]),
    }  # fmt: skip
    assert counts.more == {"nodes": 5, "shared": 1, "backed_up": 2}


def test_a_positive_value_stays_where_paths_disagree():
    """The shared call is on the path of a (right, 1/2), of b (wrong, with c after its own fork: -1/3)."""
    samples = [
        with_logp(sample("a", 1, 1, 2), -1, -1),
        with_logp(sample("b", 0, 1, 3, 6), -1, -1, -1), with_logp(sample("c", 0, 1, 3, 7), -1, -1, -2),
    ]  # fmt: skip
    found, _ = assigned(samples, advantage_options(estimator="deepsearch"))
    values = [1 / 2, 1, -2 / 3, -1]
    mean = sum(values) / 4
    assert alone(found)["a"] == pytest.approx([values[0] - mean, values[1] - mean])
    assert alone(found)["b"] == pytest.approx([values[0] - mean, values[2] - mean, values[3] - mean])
    assert alone(found)["c"] == pytest.approx([values[0] - mean, values[2] - mean, 0])


@pytest.mark.parametrize("estimator", ["shaped", "deepsearch"])
def test_random_trees_against_the_second_formula(estimator):
    rng = random.Random(0)
    for _ in range(40):
        samples = []
        for n in range(rng.randint(2, 7)):
            made = sample(str(n), rng.choice([0, 0.25, 1]), *(rng.randint(1, 2) for _ in range(rng.randint(1, 4))))
            samples.append(with_logp(made, *(-rng.random() for _ in made.calls)))
        assigned(samples, advantage_options(estimator=estimator))


@pytest.mark.parametrize("reward", [0, 1])
def test_a_tree_whose_leaves_are_all_alike_teaches_nothing(reward):
    samples = [sample("a", reward, 1, 2), sample("b", reward, 1, 3)]
    for estimator in ("shaped", "deepsearch"):
        assert assigned(samples, advantage_options(estimator=estimator))[0] == {}
