"""Draws ahead of what is learnt from: their order, their bound, their errors, and trainings that stand on them."""

import asyncio
import copy
import dataclasses
import threading

import pytest
from toy_training import BanditRollout, toy_model, toy_recipe, toy_trainer

from searchgym.errors import CardError, EngineLostError, RetrieverError
from searchgym.train.loop.ahead import Ahead
from searchgym.train.loop.assembly import assemble, train
from searchgym.train.loop.collect import StepData
from searchgym.train.recipe.load import load_recipe

STALE = {"rollout": {"questions": 4, "attempts": 8, "staleness": 2}, "loss": {"importance_cap": 2.0}}


class Draws:
    """Says which draw was begun when, and lets each end when it is told."""

    def __init__(self):
        self.begun, self.gates, self.started = [], {}, threading.Condition()

    def __call__(self, step):
        with self.started:
            self.begun.append(step)
            gate = self.gates.setdefault(step, threading.Event())
            self.started.notify_all()
        gate.wait()
        if gate.given_up if hasattr(gate, "given_up") else False:
            raise asyncio.CancelledError
        return StepData([], tokens=step)

    def end(self, step):
        with self.started:
            self.started.wait_for(lambda: step in self.begun)
            self.gates[step].set()

    def give_up(self):
        with self.started:
            for gate in self.gates.values():
                gate.given_up = True
                gate.set()


def test_steps_are_drawn_in_order_and_never_further_ahead_than_allowed():
    draws = Draws()
    ahead = Ahead(draws, 3, 8, 2, draws.give_up)
    for step in (3, 4, 5):
        draws.end(step)
    assert [ahead.take(step).tokens for step in (3, 4, 5)] == [3, 4, 5]
    assert draws.begun == [3, 4, 5]  # step 6 needs weights that have learnt from step 3
    ahead.learnt(4)
    draws.end(6)
    assert ahead.take(6).tokens == 6
    assert draws.begun == [3, 4, 5, 6]
    ahead.learnt(7)
    draws.end(7)
    assert ahead.take(7).tokens == 7
    ahead._thread.join()  # there is no step 8
    ahead.close()


def test_an_error_of_a_draw_is_raised_after_the_steps_drawn_before_it():
    def draw(step):
        if step == 1:
            raise RetrieverError("gone")
        return StepData([])

    ahead = Ahead(draw, 0, 9, 4, lambda: None)
    ahead._thread.join()
    ahead.take(0)
    with pytest.raises(RetrieverError, match="gone"):
        ahead.take(1)
    ahead.close()


def test_a_draw_that_is_not_needed_any_more_is_given_up():
    draws = Draws()
    ahead = Ahead(draws, 0, 9, 1, draws.give_up)
    with draws.started:
        draws.started.wait_for(lambda: draws.begun)
    ahead.close()
    assert not ahead._thread.is_alive()
    assert draws.begun == [0]


def test_nothing_is_drawn_while_it_is_paused():
    draws, inside = Draws(), threading.Event()
    ahead = Ahead(draws, 0, 9, 4, draws.give_up)

    def pause():
        with ahead.paused():
            inside.set()
            resume.wait()

    resume = threading.Event()
    thread = threading.Thread(target=pause)
    thread.start()
    with draws.started:
        draws.started.wait_for(lambda: draws.begun)
    while not ahead._paused:
        thread.join(0.001)
    assert not inside.is_set()  # the draw that is under way ends first
    draws.end(0)
    inside.wait()
    assert ahead.take(0).tokens == 0  # what was drawn can be had
    assert draws.begun == [0]
    resume.set()
    thread.join()
    draws.end(1)
    assert ahead.take(1).tokens == 1
    ahead.close()


@pytest.mark.slow
def test_a_sampler_that_is_gone_leaves_a_checkpoint_of_the_last_step(tmp_path):
    class Dying(BanditRollout):
        def __call__(self, questions, attempts, step, greedy):
            if step == 5:
                raise EngineLostError("vLLM's engine ended 3 times in a row")
            return super().__call__(questions, attempts, step, greedy)

    model = toy_model()
    recipe = toy_recipe(steps=9, validation={"every": 0}, checkpoint={"every": 0})
    with pytest.raises(EngineLostError, match=r"3 times in a row; checkpoint: .*step-0*5"):
        toy_trainer(tmp_path / "run", recipe, model=model, rollout=Dying(model)).run()
    rows = toy_trainer(tmp_path / "run", recipe, model=model, resume=True).run().rows
    assert [row["step"] for row in rows] == list(range(10))


class Lagging(BanditRollout):
    """A bandit whose sampler has weights of its own, as a real one has."""

    def __init__(self, model):
        super().__init__(copy.deepcopy(model))
        self._learnt = model

    def publish(self, version):
        self.model.load_state_dict(self._learnt.state_dict())
        super().publish(version)


@pytest.mark.slow
def test_a_bandit_is_learnt_from_stale_samples_within_the_bound(tmp_path):
    model = toy_model()
    rollout = Lagging(model)
    recipe = toy_recipe(steps=60, **STALE)
    trainer = toy_trainer(tmp_path / "run", recipe, model=model, rollout=rollout, publish=rollout.publish)
    rows = trainer.run().rows
    assert rows[-1]["validation/em"] > 0.9 > rows[0]["validation/em"]
    stale = [row["rollout/staleness"] for row in rows[1:] if row["learner/updates"]]
    assert max(stale) == 2
    assert {"time/waited", "time/draw", "learner/importance"} <= rows[1].keys()


@pytest.mark.slow
def test_a_run_goes_on_after_its_last_checkpoint(tmp_path):
    model = toy_model()
    for steps in (6, 12):
        rollout = Lagging(model)
        recipe = toy_recipe(steps=12, checkpoint={"every": 3}, **STALE)
        made = {"model": model, "rollout": rollout, "publish": rollout.publish, "resume": steps == 12}
        trainer = toy_trainer(tmp_path / "run", recipe, **made)
        trainer.recipe = dataclasses.replace(recipe, steps=steps)
        rows = trainer.run().rows
    assert [row["step"] for row in rows] == list(range(13))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["rollout.staleness=1"], r"rollout.staleness is 1: .*; set loss.importance_cap"),
        (["rollout.staleness=-1", "loss.importance_cap=2"], "rollout.staleness"),
        (["method=rejection", "rollout.staleness=1"], "rollout.staleness is 1: method rejection alternates"),
    ],
)
def test_recipes_that_cannot_be_stale(settings, said):
    with pytest.raises(CardError, match=said):
        load_recipe("tiny-grpo", settings)


SMALL = [
    "rollout.questions=4",
    "rollout.attempts=4",
    "rollout.concurrency=4",
    "rollout.staleness=1",
    "loss.importance_cap=2",
    "validation.every=2",
    "validation.questions=4",
    "steps=4",
]


@pytest.mark.slow
def test_episodes_go_on_while_the_model_learns_and_name_their_weights(tmp_path):
    result = train(load_recipe("tiny-grpo", SMALL), tmp_path / "run")
    rows = result.rows[1:]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(row["retokenisation_mismatch"] == 0 for row in rows)
    assert {row["rollout/staleness"] for row in rows} <= {0.0, 1.0}
    assert all(0 <= row["rollout/spanning"] <= 1 for row in rows)


@pytest.mark.slow
def test_a_rollout_that_is_given_up_ends_at_once(tmp_path):
    parts = assemble(load_recipe("tiny-grpo", SMALL), tmp_path)
    entered, errors = threading.Event(), []
    sample = parts.sampler._forward

    def slow(*arguments):
        entered.set()
        return sample(*arguments)

    parts.sampler._forward = slow

    def run():
        try:
            parts.rollout(parts.task.questions[:400], 4, 0, False)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    entered.wait()
    parts.rollout.give_up()
    thread.join(timeout=60)
    assert [type(error) for error in errors] == [asyncio.CancelledError]
    assert len(parts.rollout(parts.task.questions[:1], 1, 1, True)) == 1  # the next one is served
