"""Groups that are trees: where attempts fork, what is trained on, equality without forks, and a resumed run."""

import dataclasses

import numpy as np
import pytest
from test_starts import VALUES as STARTS
from test_starts import episode, resumed_and_whole
from toy_training import exact

from searchgym.errors import CardError, DataError
from searchgym.rollout.storage import read_episodes
from searchgym.train import load_recipe, train
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.curriculum.forks import Tree, TreeOptions, frontier_scores, grow
from searchgym.train.curriculum.solved import SolvedPool

NO_FORKS = "rollout.tree={roots: 6, tokens: 1}"
TREE = "rollout.tree={roots: 2, rounds: 2}"
VALUES = [*(value for value in STARTS if "starts" not in value), "rollout.attempts=6"]


def tree(*logps):
    """A tree of roots of question one with these log-probs."""
    made = Tree()
    for attempt, of_turns in enumerate(logps):
        made.add(episode("one", attempt, float(attempt), of_turns))
    return made


def cuts(starts):
    return [(start.episode.attempt, start.turns, start.branch) for start in starts]


def test_forks_begin_before_the_least_likely_turns():
    """By hand: the second turn of attempt 0 (0.9), then of attempt 1 (0.8), then the third of 0 (0.2), then again."""
    three = tree([-0.1, -0.9, -0.2], [-5.0, -0.8])
    chosen = three.choose(TreeOptions(), 4, np.random.default_rng(0), {})
    assert cuts(chosen) == [(0, 1, 0), (1, 1, 0), (0, 2, 0), (0, 1, 1)]
    several = tree([-0.1, -0.9, -0.2], [-5.0, -0.8]).choose(TreeOptions(branches=2), 2, np.random.default_rng(0), {})
    assert cuts(several) == [(0, 1, 0), (0, 1, 1), (1, 1, 0), (1, 1, 1)]


def test_a_fork_is_forked_only_after_the_turns_that_it_repeats():
    grown = tree([-0.1, -0.9, -0.2])
    (start,) = grown.choose(TreeOptions(), 1, np.random.default_rng(0), {})
    grown.add(episode("one", 9, 1.0, [-0.1, -0.3, -0.7, -0.4]), start.turns)
    assert grown.episodes[1].id == "one#1@0"
    assert cuts(grown.choose(TreeOptions(), 3, np.random.default_rng(0), {})) == [(1, 2, 0), (1, 3, 0), (0, 2, 0)]


def test_forks_at_the_fall_of_the_value():
    values = {"one#0@0/0": 0.5, "one#0@0/1": 0.9, "one#0@0/2": 0.2}  # the second turn loses 0.7, the third 0.2
    chosen = tree([-0.1, -0.1, -9.0]).choose(TreeOptions(by="value"), 1, np.random.default_rng(0), values)
    assert cuts(chosen) == [(0, 1, 0)]


def test_random_forks_reach_every_turn_but_the_first():
    seen = set()
    for seed in range(30):
        seen |= set(cuts(tree([-0.1, -0.9, -0.2], [-5, -1]).choose(
            TreeOptions(by="random"), 1, np.random.default_rng(seed), {})))  # fmt: skip
    assert seen == {(0, 1, 0), (0, 2, 0), (1, 1, 0)}


def test_attempts_of_one_turn_begin_again_at_the_question():
    assert cuts(tree([-3.0], [-9.0]).choose(TreeOptions(), 2, np.random.default_rng(0), {})) == [(0, 0, 0), (0, 0, 1)]


def played(starts):
    """Stands for the engine: each fork has one more turn than what it repeats, of two tokens."""
    forks = [episode(start.episode.question_id, 0, 1.0, [-0.5] * (start.turns + 1)) for start in starts]
    return [dataclasses.replace(fork, replayed=start.turns) for fork, start in zip(forks, starts, strict=True)]


def test_a_group_grows_to_its_attempts():
    roots = [episode(name, attempt, 1.0, [-0.1, -0.2]) for name in ("one", "two") for attempt in (0, 1)]
    grown = grow(roots, TreeOptions(rounds=2, branches=2), 10, np.random.default_rng(0), played)
    assert [each.id for each in grown] == [f"{name}#{n}@0" for name in ("one", "two") for n in range(10)]
    assert [each.attempt for each in grown] == [*range(10), *range(10)]


def test_a_budget_of_tokens_ends_a_tree():
    """By hand: two roots of two turns cost 8 tokens, each round of two forks 4 more; the third round is not begun."""
    roots = [episode("one", attempt, 1.0, [-0.1, -0.2]) for attempt in (0, 1)]
    sizes = {}
    for tokens in (8, 9, 12, 13, None):
        options = TreeOptions(rounds=2, tokens=tokens)
        sizes[tokens] = len(grow(roots, options, 6, np.random.default_rng(0), played))
    assert sizes == {8: 2, 9: 4, 12: 4, 13: 6, None: 6}


def test_a_solved_question_is_asked_without_forks():
    """Its solution, of two turns, is the third attempt; the fourth begins at the question; the other one's forks."""
    roots = [episode(name, attempt, 0.0, [-0.1, -0.2]) for name in ("one", "two") for attempt in (0, 1)]
    starts = []

    def noted(begun):
        starts.append([(start.episode.id, start.turns) for start in begun])
        return played(begun)

    solved = {"two": episode("two", 7, 1.0, [-0.4, -0.4])}
    grown = grow(roots, TreeOptions(rounds=2, solved=True), 4, np.random.default_rng(0), noted, None, solved)
    assert starts == [[("two#7@0", 2), ("two#0@0", 0)], [("one#0@0", 1)], [("one#1@0", 1)]]
    assert [each.id for each in grown] == [f"{name}#{n}@0" for name in ("one", "two") for n in range(4)]


def test_the_buffer_has_a_solution_of_questions_that_are_hard():
    """By hand: one of four right is hard, two of four are not; a question that is no longer hard leaves the buffer."""

    def group(question, *rewards):
        return [episode(question, attempt, reward, [-0.1]) for attempt, reward in enumerate(rewards)]

    pool = SolvedPool()
    pool.learn([*group("hard", 0, 0, 1, 0), *group("easy", 1, 0, 1, 0), *group("failed", 0, 0, 0, 0)])
    assert pool.state() == ["hard#2@0"]
    replayed = dataclasses.replace(pool.episodes["hard"], id="hard#4@1", replayed=1)
    pool.learn([*group("hard", 0, 0, 0, 0), replayed])  # an attempt that repeats everything counts nothing
    assert pool.state() == ["hard#2@0"]
    restored = SolvedPool()
    restored.restore(["hard#2@0"], group("hard", 0, 0, 1))
    assert restored.state() == pool.state()
    with pytest.raises(DataError, match="lacks hard#2@0, a solution of a hard question"):
        restored.restore(["hard#2@0"], group("hard", 0, 0))
    pool.learn(group("hard", 1, 0))
    assert pool.state() == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["rollout.tree={roots: 6}"], "all 6 rollout.attempts are roots, so none forks"),
        (["rollout.tree={roots: 2, solved: true, replayed: false}"], "solved needs log.episodes_every 1"),
        (["rollout.tree={roots: 7}"], "of 6 rollout.attempts 7 are roots"),
        (["rollout.tree={roots: 1, rounds: 2}"], "5 forks cannot be divided into 2 rounds of 1 branches"),
        (["rollout.tree={roots: 2, by: value}"], "by value needs a critic"),
        ([TREE, "rollout.starts={share: 0.5}"], "rollout.tree and rollout.starts: choose one"),
        ([TREE, "method=rejection"], "rollout.tree acts in method policy only"),
        (["rollout.tree={roots: 2, by: entrpy}"], "entropy"),
    ],
)
def test_values_that_do_not_fit(values, message):
    with pytest.raises(CardError, match=message):
        load_recipe("tiny-grpo", [*VALUES, *values])


@pytest.mark.slow
def test_a_run_with_trees_resumes_to_the_same_bits(tmp_path):
    recipe = load_recipe("tiny-grpo", [*VALUES, TREE, "advantage.estimator=tree"])
    whole, episodes = resumed_and_whole(recipe, tmp_path)
    by_id, forks = {each.id: each for each in episodes}, [each for each in episodes if each.replays is not None]
    assert len(by_id) == len(episodes) == 3 * 4 * 6 and len(forks) == 3 * 4 * 4
    for fork in forks:
        source = by_id[fork.replays]
        assert fork.group_uid == source.group_uid and source.attempt < fork.attempt
        assert [call.text for call in fork.calls[: fork.replayed]] == [
            call.text for call in source.calls[: fork.replayed]
        ]
        again, alone = samples_from(fork, replayed=True), samples_from(fork)
        assert again[0].mask.sum() > alone[0].mask.sum() or not fork.replayed
    assert any(by_id[fork.replays].replays is not None and fork.replayed for fork in forks)  # a fork of a fork
    assert all(row["rollout/forks"] > 0 and row["rollout/repeated_tokens"] > 0 for row in whole[1:])
    signal = [row for row in whole[1:] if row["groups/zero_variance_share"] < 1]
    assert signal and all(row["groups/shared"] > 0 for row in signal), [row["groups/shared"] for row in signal]


@pytest.mark.slow
def test_a_run_asks_solved_questions_again_and_resumes(tmp_path):
    """Four questions in every step: those that one of eight attempts solves come again with that attempt."""
    values = [*VALUES, "rollout.attempts=8", "env_options={questions: {split: train, size: 4, seed: 1, hops: [2]}}"]
    recipe = load_recipe("tiny-grpo", [*values, "rollout.tree={roots: 2, rounds: 2, solved: true}", "optimizer.lr=0"])
    _, episodes = resumed_and_whole(recipe, tmp_path)
    by_id = {each.id: each for each in episodes}
    again = [each for each in episodes if each.replayed and each.replayed == len(each.calls)]
    assert again and len(by_id) == len(episodes)
    for each in again:
        source = by_id[each.replays]
        assert each.reward == source.reward == 1 and each.question_id == source.question_id
        assert [call.text for call in each.calls] == [call.text for call in source.calls]
        group = [other for other in episodes if other.group_uid == each.group_uid]
        assert len(group) == 8 and not any(0 < other.replayed < len(other.calls) for other in group)


@pytest.mark.slow
def test_a_tree_without_forks_is_the_flat_case(tmp_path):
    """Roots that have spent the budget do not fork, so that a seventh attempt is never made."""
    flat, tree = ([*VALUES, "steps=2", *values] for values in ([], [NO_FORKS, "rollout.attempts=7"]))
    rows = [train(load_recipe("tiny-grpo", values), tmp_path / str(len(values))).rows for values in (flat, tree)]
    assert exact(rows[0]) == exact(rows[1])


def test_frontier_scores_by_hand():
    """Two attempts with equal first turns, rewards 1 and 0: after the first turn Q is 0, after the second of a it is 1.

    Cut after turn 1: tanh 0 + tanh 0 + 0.3 + sqrt(1/3); of the first attempt after turn 2: tanh 0 + tanh 1 + 0.2 +
    sqrt(2/3).
    """
    one, two = episode("one", 0, 1.0, [-0.3, -0.2, -0.9]), episode("one", 1, 0.0, [-0.3, -0.4])
    for each, texts in ((one, "abc"), (two, "ad")):
        for call, text in zip(each.calls, texts, strict=True):
            call.text = text
    assert frontier_scores(one, [one, two]) == pytest.approx(
        {1: 0.3 + (1 / 3) ** 0.5, 2: np.tanh(1) + 0.2 + (2 / 3) ** 0.5}
    )
    made = Tree()
    for each in (one, two):
        made.add(each)
    assert cuts(made.choose(TreeOptions(by="frontier"), 2, np.random.default_rng(0), {})) == [(0, 2, 0), (0, 1, 0)]


@pytest.mark.slow
def test_a_team_with_two_model_keys_grows_a_tree(tmp_path):
    """Both keys learn from attempts that fork from each other, by rewards that the tree shapes."""
    values = [
        "model=tiny-teams",
        "agent=m-ask",
        "models={planners: {roles: [planning]}, others: {}}",
        "rollout.questions=2",
        "rollout.attempts=4",
        "rollout.tree={roots: 2}",
        "advantage.estimator=shaped",
        "advantage.drop_zero_variance=false",
        "steps=1",
    ]
    (row,) = train(load_recipe("tiny-grpo", [*VALUES, *values]), tmp_path / "run").rows[1:]
    episodes = list(read_episodes(tmp_path / "run" / "episodes.jsonl"))
    assert sum(each.replays is not None for each in episodes) == 4 and row["rollout/forks"] > 0
    assert {call.model_key for each in episodes for call in each.calls[each.replayed :]} == {"planners", "others"}
    assert all(row[f"learner/{key}/tokens_trained"] > 0 for key in ("planners", "others"))
