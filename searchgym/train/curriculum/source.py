"""Questions for training by a curriculum, whose stages advance by step or by measured pass rate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from searchgym.envs.task import Task
from searchgym.errors import UsageError, did_you_mean
from searchgym.records import Episode, Question
from searchgym.retrieval.retriever import Retriever
from searchgym.train.curriculum.retriever import StagedRetriever
from searchgym.train.curriculum.stages import Schedule, StageOptions, Tally


class Curriculum:
    """A source of questions that follows the stages of a curriculum.

    The weights of the stage's mix, or those that `Schedule.weigh` computes from them and from measured pass rates,
    divide the questions of a step among the values of `Schedule.by`: each number is within one of the exact share, and
    exact in expectation. Questions of a value are used in epochs, each in a new order; none occurs twice in a step.

    Source: the paper SearchGym (arXiv 2601.14615) trains from single actions to long plans but does not state its
    schedule; stages, weights and the two rules for advancing are ours.

    Args:
        questions: All questions of the training.
        options: Stages, and the rule for advancing.
        seed: Seed of the orders.
        batch: Questions per step.
        steps: Number of steps of the training.
        attempts: Attempts at each question.

    Raises:
        UsageError: A stage needs questions that do not exist, or more in a step than there are; or see
            `Schedule.weigh`.
    """

    name, proposes = "curriculum", False

    def __init__(
        self, questions: Sequence[Question], options: Schedule, seed: int, batch: int, steps: int, attempts: int = 2
    ) -> None:
        self._options, self._seed, self._steps, self._attempts = options, seed, steps, attempts
        groups: dict[str, list[Question]] = {}
        for question in questions:
            groups.setdefault(value_of(question, options.by), []).append(question)
        self._groups = dict(sorted(groups.items()))
        self._numbers = {value: number for number, value in enumerate(self._groups)}
        self._orders = dict[str, tuple[int, npt.NDArray[np.int64]]]()  # of the epoch that each value is in
        self._stage, self._window = 0, list[float]()
        self._drawn = dict.fromkeys(self._groups, 0)
        self._stages = dict[int, int]()  # step to the number of its stage, from its draw on
        self._tallies = dict[str, list[Tally]]()  # of each value's last steps
        for number, stage in enumerate(options.stages):
            self._check(number, self._mix(stage), batch)

    def _check(self, number: int, mix: Mapping[str, float], batch: int) -> None:
        """Raises a UsageError if a step of a stage can need more questions of a value than there are."""
        counts = {value: len(group) for value, group in self._groups.items()}
        for value in mix:
            learnt = {other: Tally(1.0, 1) for other in mix if other != value}  # then the value's weight is largest
            weights = self._options.weigh(mix, learnt, self._attempts)
            most = math.ceil(weights[value] / sum(weights.values()) * batch - 1e-9)
            if counts.get(value, 0) < most:
                have = ", ".join(f"{value} ({count:,})" for value, count in counts.items())
                raise UsageError(
                    f"curriculum.stages[{number}] needs up to {most} questions of {self._options.by} {value} a step, "
                    f"there are {have}: change its mix, or add questions"
                    f"{'' if value in counts else did_you_mean(value, counts)}"
                )

    def _mix(self, stage: StageOptions) -> dict[str, float]:
        """Returns the mix of a stage; without one, the number of questions of each value."""
        if not stage.mix:
            return {value: float(len(group)) for value, group in self._groups.items()}
        return {str(value): weight for value, weight in stage.mix.items() if weight}

    def _weights(self, number: int) -> Mapping[str, float]:
        """Returns the weight of each value in a stage, given the answers so far."""
        return self._options.weigh(self._mix(self._options.stages[number]), self._pooled(), self._attempts)

    def _pooled(self) -> dict[str, Tally]:
        """Returns the tally of each measured value over its last steps."""
        return {
            value: Tally(sum(tally.right for tally in tallies), sum(tally.answers for tally in tallies))
            for value, tallies in self._tallies.items()
        }

    def stage_at(self, step: int) -> int:
        """Returns the 0-based number of a step's stage, which by pass rates is fixed when `draw` is called."""
        planned = self._options.planned(step, self._steps)
        return self._stages.get(step, self._stage) if planned is None else planned

    def draw(self, step: int, count: int) -> list[Question]:
        """Returns the questions of a step, in the mix of its stage."""
        self._stages[step] = self.stage_at(step)
        return self._mixed(step, 0, count, ())

    def more(self, step: int, round: int, count: int, used: Sequence[Question]) -> list[Question]:
        """Returns further questions in the mix of the step's stage, except those in `used`."""
        return self._mixed(step, round, count, used)

    def _mixed(self, step: int, round: int, count: int, used: Sequence[Question]) -> list[Question]:
        """Returns questions in the mix of a step's stage; fewer if a value has no more questions."""
        rng = np.random.default_rng([self._seed, step, round])
        weights = self._weights(self._stages[step])
        shares = shared_out(count, list(weights.values()), float(rng.random()))
        used_ids, chosen = {question.id for question in used}, list[Question]()
        for value, share in zip(weights, shares, strict=True):
            group, whole = self._groups[value], len(chosen) + share
            for _ in range(len(group)):  # consider each question once
                if len(chosen) == whole:
                    break
                epoch, index = divmod(self._drawn[value], len(group))
                if self._orders.get(value, (-1,))[0] != epoch:  # shuffle a value's questions once per epoch
                    rng_of_epoch = np.random.default_rng([self._seed, self._numbers[value], epoch])
                    self._orders[value] = epoch, rng_of_epoch.permutation(len(group))
                question = group[int(self._orders[value][1][index])]
                self._drawn[value] += 1
                if question.id not in used_ids:
                    used_ids.add(question.id)
                    chosen.append(question)
        return [chosen[index] for index in rng.permutation(len(chosen))]

    def learn(self, step: int, questions: Sequence[Question], episodes: Sequence[Episode]) -> dict[str, float]:
        """Changes the stage if the pass rates require it; returns the step's metrics.

        Returns:
            ``stage`` (from 0), ``noise``, ``distractors``, ``share/VALUE`` of each value among the step's questions,
            and ``pass_rate``: the share of right answers, unless every retrieval failed. If pass rates by value are
            measured, also ``pass_rate/VALUE`` over the value's last steps, and ``weight/VALUE``: its share in the next
            step.
        """
        number = self._stages[step]
        stage, by = self._options.stages[number], self._options.by
        values = [value_of(question, by) for question in questions]
        shares = {f"share/{value}": values.count(value) / max(len(values), 1) for value in self._groups}
        row = {"stage": float(number), "noise": stage.noise, "distractors": float(stage.distractors), **shares}
        answered = [e for e in episodes if e.stop_reason != "retriever_error" and "em" in e.scores]
        if answered:
            rate = float(np.mean([episode.scores["em"] for episode in answered]))
            row["pass_rate"] = rate
            if self._options.planned(step, self._steps) is None and number == self._stage:
                self._advance(rate)
        return row | self._measure(step, dict(zip([q.id for q in questions], values, strict=True)), answered)

    def _measure(self, step: int, values: Mapping[str, str], answered: Sequence[Episode]) -> dict[str, float]:
        """Counts right answers by value; returns pass rates and next shares, or nothing if they are not measured.

        Args:
            step: The 0-based step.
            values: Value of each question of the step, by id.
            answered: The step's episodes that have an EM.
        """
        last = self._options.measured_steps
        if not last:
            return {}
        for value in self._groups:
            if ems := [episode.scores["em"] for episode in answered if values[episode.question_id] == value]:
                self._tallies[value] = [*self._tallies.get(value, ()), Tally(sum(ems), len(ems))][-last:]
        weights = self._weights(self.stage_at(step + 1))
        rates = {f"pass_rate/{value}": tally.right / tally.answers for value, tally in self._pooled().items()}
        return rates | {f"weight/{value}": weight / sum(weights.values()) for value, weight in weights.items()}

    def _advance(self, rate: float) -> None:
        """Records a step's pass rate, and moves to the next or previous stage if the rates require it."""
        self._window.append(rate)
        stage = min(max(self._stage + self._options.move(self._window), 0), len(self._options.stages) - 1)
        if stage != self._stage:
            self._stage, self._window = stage, []

    def state(self) -> dict[str, Any]:
        """Returns the stage, its pass rates so far, and each value's number of used questions and last tallies."""
        tallies = {value: [list(tally) for tally in tallies] for value, tallies in self._tallies.items()}
        return {"stage": self._stage, "window": list(self._window), "drawn": dict(self._drawn), "tallies": tallies}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores a state that `state` returned."""
        self._stage, self._window = int(state["stage"]), [float(rate) for rate in state["window"]]
        self._drawn |= {value: int(count) for value, count in state["drawn"].items() if value in self._drawn}
        tallies = state.get("tallies", {})  # checkpoints of earlier versions have none
        self._tallies = {
            value: [Tally(float(right), int(answers)) for right, answers in each]
            for value, each in tallies.items()
            if value in self._groups
        }


def curriculum_of(options: Schedule, task: Task, seed: int, batch: int, steps: int, attempts: int = 2) -> Curriculum:
    """Returns a curriculum over a task's questions; see `Curriculum` for the parameters.

    Raises:
        UsageError: A stage needs questions or passages that the environment does not have.
    """
    most = max(stage.distractors for stage in options.stages)
    if most >= task.rules.top_k:
        hits = task.rules.top_k
        raise UsageError(
            f"curriculum: {most} distractors among {hits} hits: set fewer distractors, or more hits (top_k)"
        )
    return Curriculum(task.questions, options, seed, batch, steps, attempts)


def staged(task: Task, curriculum: Curriculum, options: Schedule, seed: int) -> Task:
    """Returns the task with a retriever that follows the curriculum, if a stage has noise or distractors.

    Raises:
        UsageError: Noise needs a corpus on this machine, and the retriever has none.
    """
    stages = options.stages
    if not any(stage.harder for stage in stages):
        return task
    if not isinstance(task.retriever, Retriever):
        raise UsageError(
            "curriculum: noise and distractors need a corpus for all questions: leave distractors=True out"
        )
    retriever = StagedRetriever(task.retriever, lambda step: stages[curriculum.stage_at(step)], seed)
    return dataclasses.replace(task, retriever=retriever)


def value_of(question: Question, by: str) -> str:
    """Returns the property by which a curriculum distinguishes questions; ``?`` if the question has none.

    Args:
        question: The question.
        by: ``kind``, ``level``, ``hops`` (from the metadata, the gold decomposition or the number of gold pages), or a
            key of the question's metadata.
    """
    if by in ("kind", "level"):
        return str(getattr(question, by) or "?")
    value = question.metadata.get(by)
    if value is None and by == "hops":
        value = len(question.hops or question.gold_titles or ()) or None
    return "?" if value is None else str(value)


def shared_out(count: int, weights: Sequence[float], start: float) -> list[int]:
    """Divides `count` into whole numbers, each within one of its exact share, by systematic sampling.

    Args:
        count: Sum of the numbers.
        weights: Weights of the shares, at least 0 and not all 0.
        start: Random number in [0, 1); if it is uniform, each number equals its exact share in expectation.
    """
    ends = np.concatenate([[0.0], np.cumsum(weights) / np.sum(weights) * count])
    ends[-1] = count
    bounds = np.floor(ends + start)
    return [int(number) for number in np.diff(bounds)]
