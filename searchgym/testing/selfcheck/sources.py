"""Checks of question sources: whether every question is drawn, and when a curriculum changes its stage."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
FURTHER: Final = "further questions of a step are new to it"
EPOCHS: Final = 3
"""Number of epochs of questions to draw."""
MOST: Final = 2000
"""Maximum number of steps to draw."""


def check_sources(findings: Findings, recipe: Recipe, task: Task, learner: Learner, rollout: Rollout) -> None:
    """Draws the questions of many steps of a recipe, without running episodes, and checks them."""
    demonstrated = recipe.method.demonstrated
    if recipe.proposer is not None and not demonstrated:
        findings.skip(SET, "a proposer makes the questions: neither its choices nor its learning is checked")
    elif recipe.curriculum is not None and not demonstrated:
        with findings.stage(STAGES):
            _check_curriculum(findings, recipe, task)
        with findings.stage(FURTHER):
            options: Any = recipe.curriculum
            stages = curriculum_of(options, task, recipe.seed, recipe.rollout.questions, recipe.steps)
            _check_further(findings, recipe, stages, task.questions, options.stages[0].mix, options.by)
        if any(stage.harder for stage in recipe.curriculum.stages):
            findings.skip("noise and distractors of the curriculum's stages", "the hits of searches are not checked")
    elif demonstrated:
        demonstrations: Any = range(3 * demonstrated + 1)  # numbers are enough to see which ones are drawn
        collector = Collector(recipe, learner, None, TrainingData(demonstrations=demonstrations))
        with findings.stage(SET):
            _check_epochs(findings, lambda step: list(collector.draw(step).samples), list(demonstrations), demonstrated)
    else:
        batch, names = recipe.rollout.questions, [question.id for question in task.questions]
        source: Any = Collector(recipe, learner, rollout, TrainingData(task.questions)).source
        with findings.stage(FURTHER):
            _check_further(findings, recipe, source, task.questions, {}, "kind")
        with findings.stage(SET):
            _check_epochs(findings, lambda step: [question.id for question in source.draw(step, batch)], names, batch)


def _check_epochs(findings: Findings, draw: Callable[[int], list[Any]], names: list[Any], batch: int) -> None:
    """Checks draws by epochs: no item twice in an epoch, a new order in each, and no item that is never drawn."""
    length = len(names) // batch
    draws = [draw(step) for step in range(min(EPOCHS * length, MOST))]
    epochs = [[name for ids in draws[at : at + length] for name in ids] for at in range(0, len(draws), length)]
    twice = sum(len(epoch) - len(set(epoch)) for epoch in epochs)
    strange = sum(len(ids) != batch for ids in draws) + len({name for ids in draws for name in ids} - set(names))
    never = len(set(names) - {name for ids in draws for name in ids})
    expected = never_drawn(len(names), batch, len(draws))
    orders = [names, *(epoch for epoch in epochs if len(epoch) >= min(20, len(epochs[0])))]
    alike = sum(one[: len(two)] == two for one, two in pairwise(orders) if len(two) >= 20)
    left = never > expected + 6 * math.sqrt(expected)
    message = f"{len(draws)} steps of {batch} of {len(names)}: {twice} twice in an epoch, {never} never drawn where "
    message += f"{expected:.3g} are expected, {alike} epochs in the order of the previous one or of the file"
    findings.add(SET, not (twice or strange or left or alike), message)


def _check_further(
    findings: Findings, recipe: Recipe, source: Any, questions: Sequence[Question], mix: Mapping[Any, float], by: str
) -> None:
    """Draws questions that replace groups without signal in the first step.

    Args:
        findings: Receives the result.
        recipe: Recipe under test.
        source: Source of the questions, before its first step.
        questions: The source's questions in the order of their file.
        mix: Weights of the values of questions in the first stage; empty if questions of any value may come.
        by: Property of questions that has these values.
    """
    if not (rounds := recipe.rollout.resample):
        return
    used = list(source.draw(0, recipe.rollout.questions))
    old = strange = short = ordered = 0
    positions = {question.id: number for number, question in enumerate(questions)}
    for number in range(1, rounds + 1):
        ids = {question.id for question in used}
        due = 0 if mix else min(len(used), len(questions) - len(used))
        more = source.more(0, number, len(used), used)
        old += len(more) - len({question.id for question in more} - ids)
        strange += sum(value_of(question, by) not in {str(value) for value in mix} for question in more if mix)
        short += len(more) < due
        order = [positions[question.id] for question in more]
        ordered += len(order) > 5 and order in (sorted(order), sorted(order, reverse=True))
        used += more
    message = f"{rounds} rounds with {len(used)} questions: {old} repeated, {strange} outside the stage's mix, "
    message += f"{short} rounds with too few, {ordered} in the order of the file"
    findings.add(FURTHER, not (old or strange or short or ordered), message)


# -- curricula ------------------------------------------------------------------------------------------------------


def _check_curriculum(findings: Findings, recipe: Recipe, task: Task) -> None:
    """Runs a curriculum on made-up pass rates and checks its stages, their mixes, and a resume."""
    options: Any = recipe.curriculum
    batch, rule = recipe.rollout.questions, kind_name(options)
    if rule == "steps":
        rates = [0.5] * min(recipe.steps, MOST)
        expected_stages = stages_by_steps([stage.share for stage in options.stages], recipe.steps)[: len(rates)]
    elif rule == "pass-rate":
        rates = _rates(len(options.stages), options.up, options.down, options.window)
        expected_stages = stages_by_rates(rates, len(options.stages), options.up, options.down, options.window)
    else:
        findings.skip(STAGES, f"no second implementation of the rule of curriculum {rule}")
        return
    source, other = (curriculum_of(options, task, recipe.seed, batch, recipe.steps) for _ in range(2))
    mix = _Mix(options, task, batch)
    wrong, resumed = 0, True
    for step, (rate, stage) in enumerate(zip(rates, expected_stages, strict=True)):
        if step == len(rates) // 2:
            other.restore(json.loads(json.dumps(source.state())))
        questions = source.draw(step, batch)
        mix.count(questions, stage)
        attempts = [Episode(q.id, q.id, "", "", scores={"em": rate}, stop_reason="answer") for q in questions]
        failed: Any = {"scores": {"em": 1 - rate}, "stop_reason": "retriever_error"}  # must not count
        attempts.append(Episode("failed", questions[0].id, "", "", **failed))
        if step >= len(rates) // 2:
            again = other.draw(step, batch)
            resumed = resumed and again == questions
            other.learn(step, questions, attempts)
        row = source.learn(step, questions, attempts)
        expected = options.stages[stage]
        wrong += (row["stage"], row["noise"], row["distractors"]) != (stage, expected.noise, expected.distractors)
    moves = sum(one != two for one, two in pairwise(expected_stages))
    message = f"{len(rates)} steps with {moves} changes of stage by {rule}, {wrong} in another stage than by its rule"
    message += "" if resumed else "; after a resume other questions are drawn"
    findings.add(STAGES, not wrong and resumed, message)
    mix.check(findings)


def _rates(stages: int, up: float, down: float, window: int) -> list[float]:
    """Returns made-up pass rates, one per step, with periods above, between and below the bounds."""
    middle = (up + down) / 2
    wave = [1.0] * (window + 1) + [middle] * window + [1.0] * window + [0.0] * (window + 1) + [middle, 1.0] * window
    return [min(rate, 1.0) for rate in wave * (stages + 1)]


class _Mix:
    """Counter of the questions that a curriculum draws, by the values that its mixes weight."""

    def __init__(self, options: Schedule, task: Task, batch: int) -> None:
        self._options, self._batch = options, batch
        self._value = {question.id: value_of(question, options.by) for question in task.questions}
        self._sizes = Counter(self._value.values())
        self._drawn_ids: dict[str, list[str]] = {value: [] for value in self._sizes}
        self._first: dict[str, list[str]] = {value: [] for value in self._sizes}
        self._exact, self._odd = dict.fromkeys(self._sizes, 0.0), 0
        self._steps = 0

    def count(self, questions: Sequence[Question], stage: int) -> None:
        """Counts the questions of a step that should be in the given stage."""
        self._steps += 1
        mix = {str(value): weight for value, weight in self._options.stages[stage].mix.items()} or self._sizes
        self._odd += len({question.id for question in questions}) != self._batch
        for value, ids in self._drawn_ids.items():
            new = [question.id for question in questions if self._value.get(question.id) == value]
            exact = self._batch * mix.get(value, 0) / sum(mix.values())
            self._odd += abs(len(new) - exact) >= 1 + 1e-9 or (not exact and bool(new))
            self._exact[value] += exact
            ids += new
            if len(ids) <= self._sizes[value]:  # whole steps of the first epoch
                self._first[value] += new

    def check(self, findings: Findings) -> None:
        """Compares the counts with the mixes of the stages; the questions of each value must come by epochs."""
        off = max(abs(len(ids) - self._exact[value]) for value, ids in self._drawn_ids.items())
        twice = sum(len(epoch) - len(set(epoch)) for epoch in self._first.values())
        twofold = {value: ids for value, ids in self._drawn_ids.items() if len(ids) >= 2 * self._sizes[value]}
        never = sum(self._sizes[value] - len(set(ids)) for value, ids in twofold.items())
        message = (
            f"{self._steps} steps, {self._odd} shares more than one question off, {off:.3g} off in total at most; "
        )
        message += f"{twice} repeated within an epoch, {never} missing in two epochs"
        steady = off <= 1 + 3 * math.sqrt(self._steps)  # each step rounds at random
        findings.add(MIXED, steady and not (self._odd or twice or never), message)


# -- the rules, from their definitions ------------------------------------------------------------------------------


def stages_by_steps(shares: Sequence[float], steps: int) -> list[int]:
    """Returns the index of each step's stage, if every stage has its share of the steps."""
    numbers: list[int] = []
    for number in range(len(shares)):
        end = round(steps * sum(shares[: number + 1]) / sum(shares))
        numbers += [number] * (end - len(numbers))
    return numbers + [len(shares) - 1] * (steps - len(numbers))


def stages_by_rates(rates: Sequence[float], stages: int, up: float, down: float, window: int) -> list[int]:
    """Returns the index of each step's stage, given the pass rate of each step.

    After `window` or more steps of a stage, the next stage begins if the mean of the last `window` rates is at least
    `up`, and the previous one if it is below `down`; the first and the last stage have no neighbour on one side.
    """
    stage, since, numbers = 0, 0, list[int]()
    for step in range(len(rates)):
        numbers.append(stage)
        if step + 1 - since < window:
            continue
        mean = sum(rates[step + 1 - window : step + 1]) / window
        beyond = stage + (mean >= up) - (mean < down)
        if 0 <= beyond < stages and beyond != stage:
            stage, since = beyond, step + 1
    return numbers


def never_drawn(count: int, batch: int, steps: int) -> float:
    """Returns the expected number of items, of `count`, that are in none of `steps` batches drawn by epochs.

    Each epoch has a new random order and drops the items that do not fill a batch.
    """
    epochs, more = divmod(steps, count // batch)
    return count * ((count % batch) / count) ** epochs * (1 - more * batch / count)
