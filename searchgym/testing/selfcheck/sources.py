"""Checks of where questions come from: whether all of a set are drawn, and when a curriculum moves on."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

from searchgym.envs.task import Task
from searchgym.options import kind_name
from searchgym.records import Episode, Question
from searchgym.testing.selfcheck.findings import Findings
from searchgym.train.curriculum.source import curriculum_of, value_of
from searchgym.train.curriculum.stages import Schedule
from searchgym.train.learner.learner import Learner
from searchgym.train.loop.collect import Collector, TrainingData
from searchgym.train.loop.rollout import Rollout
from searchgym.train.recipe.recipe import Recipe

SET: Final = "every question of the set has its turn"
STAGES: Final = "the curriculum's stages follow their rule"
MIXED: Final = "the curriculum's questions are in their stage's mix"
EPOCHS: Final = 3
"""Epochs that are drawn."""
MOST: Final = 2000
"""Most steps that are drawn."""


def check_sources(findings: Findings, recipe: Recipe, task: Task, learner: Learner, rollout: Rollout) -> None:
    """Draws the questions of many steps of a recipe, without asking them, and checks which these are."""
    demonstrated = recipe.method.demonstrated
    if recipe.proposer is not None and not demonstrated:
        findings.skip(SET, "a proposer makes the questions: its choice, and what it learns, are not looked at")
    elif recipe.curriculum is not None and not demonstrated:
        with findings.stage(STAGES):
            _check_curriculum(findings, recipe, task)
        if any(stage.harder for stage in recipe.curriculum.stages):
            findings.skip("noise and distractors of the curriculum's stages", "what searches find is not looked at")
    elif demonstrated:
        shown: Any = range(3 * demonstrated + 1)  # which are drawn is all that counts
        collector = Collector(recipe, learner, None, TrainingData(demonstrations=shown))
        with findings.stage(SET):
            _check_epochs(findings, lambda step: list(collector.draw(step).samples), list(shown), demonstrated)
    else:
        batch, names = recipe.rollout.questions, [question.id for question in task.questions]
        source = Collector(recipe, learner, rollout, TrainingData(task.questions)).source
        with findings.stage(SET):
            _check_epochs(findings, lambda step: [own.id for own in source.draw(step, batch)], names, batch)


def _check_epochs(findings: Findings, draw: Callable[[int], list[Any]], names: list[Any], batch: int) -> None:
    """Checks draws by epochs: nothing twice in an epoch, each in an order of its own, and nothing left out for ever."""
    length = len(names) // batch
    asked = [draw(step) for step in range(min(EPOCHS * length, MOST))]
    epochs = [[name for own in asked[at : at + length] for name in own] for at in range(0, len(asked), length)]
    twice = sum(len(epoch) - len(set(epoch)) for epoch in epochs)
    strange = sum(len(own) != batch for own in asked) + len({name for own in asked for name in own} - set(names))
    never = len(set(names) - {name for own in asked for name in own})
    expected = never_drawn(len(names), batch, len(asked))
    orders = [names, *(epoch for epoch in epochs if len(epoch) >= min(20, len(epochs[0])))]
    alike = sum(one[: len(two)] == two for one, two in pairwise(orders) if len(two) >= 20)
    left = never > expected + 6 * math.sqrt(expected)
    said = f"{len(asked)} steps of {batch} of {len(names)}: {twice} twice in an epoch, {never} never drawn where "
    said += f"{expected:.3g} are expected, {alike} epochs in the order of the one before or of the file"
    findings.add(SET, not (twice or strange or left or alike), said)


# -- curricula ------------------------------------------------------------------------------------------------------


def _check_curriculum(findings: Findings, recipe: Recipe, task: Task) -> None:
    """Goes through a curriculum with made-up pass rates: its stages, its mixes, and whether it can be resumed."""
    options: Any = recipe.curriculum
    batch, rule = recipe.rollout.questions, kind_name(options)
    if rule == "steps":
        rates = [0.5] * min(recipe.steps, MOST)
        wanted = stages_by_steps([stage.share for stage in options.stages], recipe.steps)[: len(rates)]
    elif rule == "pass-rate":
        rates = _rates(len(options.stages), options.up, options.down, options.window)
        wanted = stages_by_rates(rates, len(options.stages), options.up, options.down, options.window)
    else:
        findings.skip(STAGES, f"curriculum {rule} has a rule of its own")
        return
    source, other = (curriculum_of(options, task, recipe.seed, batch, recipe.steps) for _ in range(2))
    mix = _Mix(options, task, batch)
    wrong, resumed = 0, True
    for step, (rate, stage) in enumerate(zip(rates, wanted, strict=True)):
        if step == len(rates) // 2:
            other.restore(json.loads(json.dumps(source.state())))
        drawn = source.draw(step, batch)
        mix.drawn(drawn, stage)
        attempts = [Episode(q.id, q.id, "", "", scores={"em": rate}, stop_reason="answer") for q in drawn]
        failed: Any = {"scores": {"em": 1 - rate}, "stop_reason": "retriever_error"}  # which does not count
        attempts.append(Episode("failed", drawn[0].id, "", "", **failed))
        if step >= len(rates) // 2:
            again = other.draw(step, batch)
            resumed = resumed and again == drawn
            other.learn(step, drawn, attempts)
        row = source.learn(step, drawn, attempts)
        own = options.stages[stage]
        wrong += (row["stage"], row["noise"], row["distractors"]) != (stage, own.noise, own.distractors)
    moves = sum(one != two for one, two in pairwise(wanted))
    said = f"{len(rates)} steps with {moves} moves by {rule}, {wrong} in another stage than by its rule"
    said += "" if resumed else "; after a resume other questions are drawn"
    findings.add(STAGES, not wrong and resumed, said)
    mix.check(findings)


def _rates(stages: int, up: float, down: float, window: int) -> list[float]:
    """Returns made-up pass rates of the steps to go through: high, between the bounds, and low for a while each."""
    middle = (up + down) / 2
    wave = [1.0] * (window + 1) + [middle] * window + [1.0] * window + [0.0] * (window + 1) + [middle, 1.0] * window
    return [min(rate, 1.0) for rate in wave * (stages + 1)]


class _Mix:
    """Counts the questions that a curriculum draws in each stage."""

    def __init__(self, options: Schedule, task: Task, batch: int) -> None:
        self._options, self._batch = options, batch
        self._value = {question.id: value_of(question, options.by) for question in task.questions}
        self._sizes = Counter(self._value.values())
        self._asked: dict[str, list[str]] = {value: [] for value in self._sizes}
        self._first: dict[str, list[str]] = {value: [] for value in self._sizes}
        self._exact, self._odd = dict.fromkeys(self._sizes, 0.0), 0
        self._steps = 0

    def drawn(self, questions: Sequence[Question], stage: int) -> None:
        """Takes the questions of a step that should be in a stage."""
        self._steps += 1
        mix = {str(value): weight for value, weight in self._options.stages[stage].mix.items()} or self._sizes
        self._odd += len({question.id for question in questions}) != self._batch
        for value, ids in self._asked.items():
            own = [question.id for question in questions if self._value.get(question.id) == value]
            exact = self._batch * mix.get(value, 0) / sum(mix.values())
            self._odd += abs(len(own) - exact) >= 1 + 1e-9 or (not exact and bool(own))
            self._exact[value] += exact
            ids += own
            if len(ids) <= self._sizes[value]:  # whole steps of the first epoch
                self._first[value] += own

    def check(self, findings: Findings) -> None:
        """Compares the counts with the stages' mixes; within a value, questions come by epochs."""
        off = max(abs(len(ids) - self._exact[value]) for value, ids in self._asked.items())
        twice = sum(len(epoch) - len(set(epoch)) for epoch in self._first.values())
        twofold = {value: ids for value, ids in self._asked.items() if len(ids) >= 2 * self._sizes[value]}
        never = sum(self._sizes[value] - len(set(ids)) for value, ids in twofold.items())
        said = f"{self._steps} steps, {self._odd} shares more than one question off, {off:.3g} off in total at most; "
        said += f"{twice} asked again within an epoch, {never} never asked in two"
        steady = off <= 1 + 3 * math.sqrt(self._steps)  # each step's rounding is drawn anew
        findings.add(MIXED, steady and not (self._odd or twice or never), said)


# -- the rules, from their definitions ------------------------------------------------------------------------------


def stages_by_steps(shares: Sequence[float], steps: int) -> list[int]:
    """Returns the number of each step's stage, where every stage has its share of the steps."""
    made: list[int] = []
    for number in range(len(shares)):
        end = round(steps * sum(shares[: number + 1]) / sum(shares))
        made += [number] * (end - len(made))
    return made + [len(shares) - 1] * (steps - len(made))


def stages_by_rates(rates: Sequence[float], stages: int, up: float, down: float, window: int) -> list[int]:
    """Returns the number of each step's stage, given the pass rate of each step.

    A stage is left after a step if the mean of its last `window` rates, all of this stage, is at least `up` or below
    `down`.
    """
    stage, since, made = 0, 0, list[int]()
    for step in range(len(rates)):
        made.append(stage)
        if step + 1 - since < window:
            continue
        mean = sum(rates[step + 1 - window : step + 1]) / window
        beyond = stage + (mean >= up) - (mean < down)
        if 0 <= beyond < stages and beyond != stage:
            stage, since = beyond, step + 1
    return made


def never_drawn(count: int, batch: int, steps: int) -> float:
    """Returns how many of `count` items are expected not to be among those of `steps` batches, drawn by epochs.

    Each epoch has a new order and leaves out the rest that is no whole batch.
    """
    epochs, more = divmod(steps, count // batch)
    return count * ((count % batch) / count) ** epochs * (1 - more * batch / count)
