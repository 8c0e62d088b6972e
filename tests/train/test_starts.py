"""Groups that begin at prefixes of earlier episodes: which are chosen, what is trained on, and a resumed run."""

import numpy as np
import pytest
from toy_training import exact

from searchgym.errors import CardError, DataError
from searchgym.records import Call, Context, Episode, Span
from searchgym.rollout.storage import read_episodes
from searchgym.train import load_recipe, train
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.curriculum.starts import StartOptions, StartPool

VALUES = [
    "steps=3",
    "rollout.questions=4",
    "rollout.attempts=2",
    "rollout.starts={share: 0.5, by: entropy}",
    "validation.every=0",
    "checkpoint.every=2",
    "log.tensorboard=false",
    "log.curve=false",
    "env_options={questions: {split: train, size: 40, seed: 1}}",
]


def episode(question, attempt, reward, logps):
    """An episode with one call of two tokens in each turn, whose log-probs are given."""
    spans, calls, end = [Span("prompt", np.array([1, 2], np.int32))], [], 2
    for turn, logp in enumerate(logps, 1):
        spans.append(Span("model", np.array([3, 4], np.int32), np.full(2, logp, np.float32)))
        calls.append(Call(0, end, end + 2, "searcher", "policy", turn))
        end += 2
    return Episode(
        f"{question}#{attempt}@0", question, "a", "e", attempt=attempt, contexts=[Context(None, 0, spans)], calls=calls,
        turns=len(logps), reward=reward, stop_reason="answer",
    )  # fmt: skip


EPISODES = [
    episode("one", 0, 1.0, [-0.1, -0.9, -0.2]),
    episode("one", 1, 0.0, [-5.0, -0.3]),
    episode("two", 0, 1.0, [-0.1, -0.8]),
    episode("two", 1, 1.0, [-0.1, -0.1]),
    episode("short", 0, 0.0, [-9.0]),
    episode("short", 1, 1.0, [-9.0]),
]


def pool(by, questions=4, share=0.5, seed=0):
    return StartPool(StartOptions(share=share, by=by), questions, seed)


def test_entropy_cuts_before_the_least_likely_turn_of_each_question():
    """By hand: question one has 0.9 in the second turn of its first attempt, two 0.8; the first turn never counts."""
    chosen = pool("entropy")
    chosen.learn(0, EPISODES)
    assert chosen.state() == [["one#0@0", 1], ["two#0@0", 1]]
    fewer = pool("entropy", share=0.25)
    fewer.learn(0, EPISODES)
    assert fewer.state() == [["one#0@0", 1]]


def test_variance_takes_questions_whose_attempts_differ():
    seen = set()
    for seed in range(20):
        chosen = pool("variance", seed=seed)
        chosen.learn(0, EPISODES)
        ((id, turns),) = chosen.state()  # the attempts at question two are alike, those at short have one turn
        seen.add((id, turns))
    assert seen == {("one#0@0", 1), ("one#0@0", 2), ("one#1@0", 1)}


def test_best_takes_right_attempts_of_questions_whose_rewards_differ_and_cuts_early():
    """By hand: of question one the right attempt has three turns; after one turn with chance 1 / 1.95, after two."""
    turns = []
    for seed in range(400):
        chosen = pool("best", seed=seed)
        chosen.learn(0, EPISODES)
        ((id, turn),) = chosen.state()
        assert id == "one#0@0"  # the attempts at two are alike, those at short have one turn
        turns.append(turn)
    assert set(turns) == {1, 2} and np.mean(np.array(turns) == 1) == pytest.approx(1 / 1.95, abs=0.07)
    wrong = [episode("one", 0, 0.85, [-0.1, -0.9, -0.2]), episode("one", 1, 0.0, [-5.0, -0.3])]
    chosen = pool("best")
    chosen.learn(0, wrong)
    assert chosen.state() == []


def test_value_cuts_before_the_turn_in_which_the_value_falls_most():
    """By hand: the value of one#0 goes 0.5, 0.9, 0.2 and ends in reward 1: its second turn loses 0.7."""
    values = {"one#0@0": [0.5, 0.9, 0.2], "one#1@0": [0.5, 0.1], "two#0@0": [0.5, 0.5], "two#1@0": [0.5, 0.5]}
    samples = []
    for each in EPISODES[:4]:
        (sample,) = samples_from(each)
        value = np.zeros(len(sample.ids), np.float32)
        for call, number in zip(sample.calls, values[each.id], strict=True):
            value[call.start] = number
        object.__setattr__(sample, "value", value)
        samples.append(sample)
    chosen = pool("value")
    chosen.learn(0, EPISODES[:4], samples)
    assert chosen.state() == [["one#0@0", 1]]  # nothing of question two falls


def test_episodes_that_begin_at_a_prefix_are_not_chosen_again():
    for each in (again := [episode("one", 0, 1.0, [-0.1, -0.9]), episode("one", 1, 0.0, [-0.1, -0.9])]):
        each.replays = "one#0@0"
    chosen = pool("entropy")
    chosen.learn(1, again)
    assert chosen.state() == []


def test_a_state_is_restored_from_the_episodes():
    chosen, restored = pool("entropy"), pool("entropy")
    chosen.learn(0, EPISODES)
    restored.restore(chosen.state(), iter(EPISODES))
    assert restored.chosen == chosen.chosen
    with pytest.raises(DataError, match="lacks two#0@0, at which a group of the next step begins"):
        restored.restore(chosen.state(), iter(EPISODES[:2]))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["rollout.starts={share: 0.1}"], "share is 0.1: of 4 questions that is no group"),
        (["rollout.starts={share: 0.9}"], "share is 0.9: that leaves none of 4 questions"),
        (["rollout.starts={share: 0.5, by: value}"], "by value needs a critic"),
        (["log.episodes_every=2"], "needs log.episodes_every 1"),
        (["rollout.starts={share: 0.5, by: entrpy}"], "entropy"),
        (["method=rejection"], "rollout.starts acts in method policy only"),
    ],
)
def test_values_that_do_not_fit(values, message):
    with pytest.raises(CardError, match=message):
        load_recipe("tiny-grpo", [*VALUES, *values])


def resumed_and_whole(recipe, tmp_path):
    """Trains once, and once with a stop after step 2; checks that both are the same, and returns rows and episodes."""
    whole = train(recipe, tmp_path / "whole").rows

    def stop_after_2(row):
        if row["step"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "parts", report=stop_after_2)
    parts = train(recipe, tmp_path / "parts", resume=True).rows
    assert exact(parts) == exact(whole)
    for name in ("episodes.jsonl", "episodes.tokens.bin", "episodes.advantages.jsonl"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
    return whole, list(read_episodes(tmp_path / "whole" / "episodes.jsonl"))


@pytest.mark.slow
def test_a_run_with_starts_resumes_to_the_same_bits(tmp_path):
    whole, episodes = resumed_and_whole(load_recipe("tiny-grpo", VALUES), tmp_path)
    begun = [each for each in episodes if each.replays is not None]
    assert begun and all(each.replayed == 1 or each.replayed > 1 for each in begun)
    assert [row.get("starts/groups", 0) for row in whole[1:]] == [0, *(len(begun) and [2, 2])]
    by_id = {each.id: each for each in episodes}
    for each in begun:
        source = by_id[each.replays]
        for call in range(each.replayed):
            assert each.calls[call].text == source.calls[call].text
        (sample,) = samples_from(each)
        assert not sample.mask[: each.calls[each.replayed].start].any()
        assert {other.group_uid for other in begun if other.replays == each.replays} == {each.group_uid}
