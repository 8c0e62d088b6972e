"""Rollouts whose long episodes run on beside later steps."""

import asyncio
import concurrent.futures
import dataclasses
import json
import threading

import pytest
from support import CARD, TitleRetriever

from searchgym.agents.base import LoadedAgent
from searchgym.envs.task import load_task
from searchgym.errors import CardError, UnknownNameError
from searchgym.records import Answer, Question
from searchgym.rollout.storage import read_episodes
from searchgym.train import load_recipe, train
from searchgym.train.loop.partial import PartialRollout
from searchgym.train.recipe.recipe import Recipe

QUESTIONS = [Question(f"q{number}", "Alpha?", ("x",)) for number in range(12)]
AHEAD = ["rollout.staleness=1", "loss.importance_cap=2"]


class Gated:
    """Answers at once, unless the question waits until a test lets it go on."""

    def __init__(self):
        self.gates = {}

    async def run(self, question, io):
        if question.id in self.gates:
            await asyncio.wrap_future(self.gates[question.id])
        await io.step(Answer("x"))


def recipe(**rollout) -> Recipe:
    whole = load_recipe("tiny-grpo", [*AHEAD, "rollout.partial=1"])
    return dataclasses.replace(whole, rollout=dataclasses.replace(whole.rollout, **rollout))


@pytest.fixture
def rollout():
    task = load_task(CARD, questions=QUESTIONS, retriever=TitleRetriever())
    partial = PartialRollout(recipe(), LoadedAgent("gated", Gated()), {}, task, task, canonical=False)
    yield partial
    partial.close()


def gate(rollout, *ids):
    """Makes questions wait; returns what lets them go on."""
    rollout.agent.workflow.gates |= {id: concurrent.futures.Future() for id in ids}
    return rollout.agent.workflow.gates


def ids(groups):
    return [(group.step, group.question.id) for group in groups]


def test_a_step_gets_the_groups_that_end_first(rollout):
    gates = gate(rollout, "q1")
    rollout.submit(QUESTIONS[:2], 2, 0)
    rollout.submit(QUESTIONS[2:4], 2, 1)
    first = rollout.completed(2, -1)
    assert len(first) == 2 and (0, "q1") not in ids(first)
    (left,) = {(0, "q0"), (1, "q2"), (1, "q3")} - set(ids(first))
    assert sorted(rollout.pending()) == sorted([[0, "q1"], [*left]])
    gates["q1"].set_result(None)
    assert sorted(ids(rollout.completed(9, -1))) == sorted([(0, "q1"), left])
    assert rollout.pending() == []


def test_a_group_keeps_its_attempts_and_its_step(rollout):
    rollout.submit(QUESTIONS[:1], 3, 4)
    (group,) = rollout.completed(1, 0)
    episodes = group.episodes.result()
    assert [(e.id, e.group_uid) for e in episodes] == [(f"q0#{n}@4", "4/q0") for n in range(3)]
    assert {e.seed for e in episodes} == {rollout._engine(4, False).seed}


def test_groups_are_ordered_by_step_and_question_not_by_their_ends(rollout):
    gates = gate(rollout, "q0", "q1")
    rollout.submit(QUESTIONS[:2], 1, 0)
    rollout.submit(QUESTIONS[2:4], 1, 1)
    gates["q1"].set_result(None)
    gates["q0"].set_result(None)
    assert ids(rollout.completed(4, -1)) == [(0, "q0"), (0, "q1"), (1, "q2"), (1, "q3")]


def test_an_overdue_group_is_waited_for(rollout):
    gates = gate(rollout, "q1")
    rollout.submit(QUESTIONS[:2], 1, 0)
    rollout.submit(QUESTIONS[2:6], 1, 1)
    results = []
    thread = threading.Thread(target=lambda: results.extend(ids(rollout.completed(2, 0))))
    thread.start()
    while len(rollout._ended) < 5:  # all but the overdue one
        thread.join(0.001)
    thread.join(0.05)
    assert results == []
    gates["q1"].set_result(None)
    thread.join()
    assert results == [(0, "q0"), (0, "q1")]


def test_an_error_of_an_episode_ends_the_wait(rollout):
    gates = gate(rollout, "q1")
    rollout.submit(QUESTIONS[:2], 1, 0)
    gates["q1"].set_exception(ValueError("broken agent"))
    with pytest.raises(ValueError, match="broken agent"):
        rollout.completed(2, 0)


def test_giving_up_ends_the_wait(rollout):
    gate(rollout, "q1")
    rollout.submit(QUESTIONS[:2], 1, 0)
    timer = threading.Timer(0.05, rollout.give_up)
    timer.start()
    with pytest.raises(concurrent.futures.CancelledError):
        rollout.completed(2, 0)
    timer.join()


def test_validation_runs_beside_groups_that_have_not_ended(rollout):
    gates = gate(rollout, "q1")
    rollout.submit(QUESTIONS[:2], 1, 0)
    assert [e.question_id for e in rollout(QUESTIONS[4:6], 1, 0, True)] == ["q4", "q5"]
    gates["q1"].set_result(None)
    assert len(rollout.completed(2, 0)) == 2


def test_groups_of_a_checkpoint_start_again(rollout):
    rollout.restore(json.loads(json.dumps([[3, "q1"], [4, "q2"]])), 2)
    assert ids(rollout.completed(2, 4)) == [(3, "q1"), (4, "q2")]
    with pytest.raises(UnknownNameError, match="question id"):
        rollout.restore([[3, "gone"]], 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["rollout.partial=1"], "rollout.partial is 1: it needs rollout.staleness, 1 or more"),
        ([*AHEAD, "rollout.partial=1", "rollout.resample=1"], "rollout.partial and rollout.resample: choose one"),
        ([*AHEAD, "rollout.partial=1", "rollout.starts={share: 0.5}"], "rollout.partial and rollout.starts: choose"),
        ([*AHEAD, "rollout.partial=1", "rollout.durable=steps"], "rollout.partial and rollout.durable steps: choose"),
        (["method=rejection", "rollout.partial=1"], "rollout.partial acts in method policy only"),
    ],
)
def test_values_that_do_not_fit(values, message):
    with pytest.raises(CardError, match=message):
        load_recipe("tiny-grpo", values)


@pytest.mark.slow
def test_every_group_is_trained_on_once_and_none_is_too_old(tmp_path):
    small = ["steps=5", "rollout.questions=2", "rollout.attempts=2", "validation.every=2", "validation.questions=2"]
    rows = train(load_recipe("tiny-grpo", [*AHEAD, "rollout.partial=1", *small]), tmp_path / "run").rows
    episodes = list(read_episodes(tmp_path / "run" / "episodes.jsonl"))
    steps = [int(e.group_uid.split("/")[0]) for e in episodes]
    assert sorted(steps) == [step for step in range(5) for _ in range(4)]
    assert len({e.id for e in episodes}) == len(episodes)
    assert max(row.get("rollout/staleness", 0) for row in rows) <= 2
