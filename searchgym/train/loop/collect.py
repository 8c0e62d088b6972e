"""Collects what a training step learns from: episodes of the present weights, with advantages, or demonstrations."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from searchgym.errors import UsageError
from searchgym.records import Episode, Question
from searchgym.train.algorithms.advantages import groups_with_signal
from searchgym.train.algorithms.samples import VALUED, Sample, retokenisation_mismatches, samples_from
from searchgym.train.credit.credit import Credit
from searchgym.train.learner.learner import Learner
from searchgym.train.loop.folder import Row
from searchgym.train.loop.rollout import Rollout, check_contexts, generated_tokens, role_metrics, rollout_metrics
from searchgym.train.recipe.recipe import Recipe
from searchgym.train.selfplay.kind import QuestionStream


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Data that a run learns from, and how its episodes are rewarded."""

    questions: Sequence[Question] | QuestionStream = ()
    """Questions to train on, or what gives each step its own."""
    validation: Sequence[Question] = ()
    """Questions to validate on, of which the recipe's number is drawn by kind."""
    demonstrations: Sequence[Sample] = ()
    """Samples to learn from with ``method: supervised``."""
    trained: Sequence[str] | None = None
    """Model keys that are trained; samples of other keys are left out. Default: all keys."""
    credit: Credit = field(default_factory=Credit)
    """Rewards the calls of an episode. Default: by the outcome alone."""


@dataclass(frozen=True, slots=True)
class StepData:
    """Samples that one step learns from, with the episodes and metrics they came with."""

    samples: list[Sample]
    """Samples to learn from."""
    row: Row = field(default_factory=dict)
    """Metrics of the episodes and samples."""
    episodes: list[Episode] = field(default_factory=list)
    """All episodes of the step; empty for demonstrations."""
    tokens: int = 0
    """Tokens that models generated in the episodes."""
    seconds: float = 0.0
    """Wall-clock seconds that drawing took."""
    questions: list[Question] = field(default_factory=list)
    """Questions of the step that no file has, because they were proposed for it."""
    source: dict[str, Any] = field(default_factory=dict)
    """State of the run's `QuestionStream` behind the step."""


@dataclass(slots=True)
class _Attempts:
    """Attempts at the questions of a step, in the order in which they were drawn."""

    questions: list[Question]
    episodes: list[Episode]
    samples: list[list[Sample]]
    """Samples of each episode that count for the step."""
    rewards: list[list[float]]
    """Rewards of each episode's calls; zeros where they were not rewarded."""


class Collector:
    """Collects the data that each step of a run learns from.

    Args:
        recipe: How episodes are sampled and samples prepared.
        learner: Computes values and log-probs for the advantages.
        rollout: Makes episodes; None with ``method: supervised``.
        data: Questions or demonstrations, model keys and credit.

    Raises:
        UsageError: Too few questions or demonstrations for a step, or no rollout.
    """

    def __init__(self, recipe: Recipe, learner: Learner, rollout: Rollout | None, data: TrainingData) -> None:
        self.recipe, self.learner, self._rollout = recipe, learner, rollout
        self.demonstrations = data.demonstrations
        self._trained, self._credit = data.trained, data.credit
        self._batch, self._least_reward = recipe.method.demonstrated, recipe.method.least_reward
        have, hint = len(self.demonstrations), "give more, or make the step smaller (method.batch)"
        if have < self._batch:
            raise UsageError(f"{have} demonstrations for {self._batch} per step: {hint}")
        if rollout is None and not self._batch:
            raise UsageError("training on questions needs a rollout")
        self.source: QuestionStream
        if isinstance(data.questions, Sequence):
            self.source = ListedQuestions(data.questions, recipe.seed, 0 if self._batch else recipe.rollout.questions)
        else:
            self.source = data.questions

    def draw(self, step: int) -> StepData:
        """Returns the data of a 0-based step, still without advantages; see `prepared`.

        Episodes whose retriever failed are left out of training, which makes their group smaller.

        Raises:
            TrainingError: See `check_contexts`.
        """
        started = time.perf_counter()
        if self._batch:
            picks = batch_of(len(self.demonstrations), self._batch, step, self.recipe.seed)
            data = StepData([self.demonstrations[i] for i in picks])
        else:
            data = self._sampled(step)
        return replace(data, seconds=time.perf_counter() - started)

    def _sampled(self, step: int) -> StepData:
        """Returns the episodes of a step, their samples and their metrics."""
        recipe, source = self.recipe, self.source
        drawn = self._attempt(source.draw(step, recipe.rollout.questions), step)
        check_contexts(drawn.episodes, step + 1)
        resampled = self._resample(drawn, step) if recipe.method.compares and recipe.rollout.resample else {}
        samples = [sample for of_episode in drawn.samples for sample in of_episode]
        tokens, learnt = generated_tokens(drawn.episodes), source.learn(step, drawn.questions, drawn.episodes)
        spanning = 0  # episodes with calls of one model that were sampled from different weights
        for episode in drawn.episodes:
            weights = {(call.model_key, call.policy_version) for call in episode.calls}
            spanning += len(weights) > len({key for key, _ in weights})
        row = {f"rollout/{name}": value for name, value in rollout_metrics(drawn.episodes).items()} | {
            "rollout/tokens": float(tokens),
            "rollout/without_tokens": float(sum(not of_episode for of_episode in drawn.samples)),
            "rollout/spanning": spanning / max(len(drawn.episodes), 1),
            "retokenisation_mismatch": float(sum(map(retokenisation_mismatches, drawn.samples, drawn.episodes))),
        }
        by_role = role_metrics(drawn.episodes, drawn.rewards)
        row |= {f"role/{name}": value for name, value in by_role.items()} | resampled
        row |= {f"judge/{name}": count for name, count in self._credit.judged().items()}
        row |= {f"{source.name}/{name}": value for name, value in learnt.items()}
        if self._least_reward is not None:
            enough = np.float32(self._least_reward)  # rewards are float32: 0.7 must not be below itself
            trainable = self._trainable(samples)
            samples = [sample for sample in trainable if sample.reward.sum() >= enough]
            row["rejection/kept"] = len(samples) / max(len(trainable), 1)
        proposed = drawn.questions if source.made else []
        return StepData(samples, row, drawn.episodes, tokens, questions=proposed, source=source.state())

    def prepared(self, data: StepData) -> StepData:
        """Returns the data of the step to learn from next, with advantages where the method has them."""
        row = data.row
        if data.episodes:
            ages = (self.learner.version_of(s.model_key) - s.policy_version for s in self._trainable(data.samples))
            row = row | {"rollout/staleness": float(max(ages, default=0))}
        if not self.recipe.method.compares:
            return replace(data, row=row)
        samples, groups = with_advantages(data.samples, self.recipe, self.learner, self._trained)
        advantages = {f"advantage/{name}": value for name, value in advantage_metrics(samples).items()}
        return replace(data, samples=samples, row=row | groups | advantages)

    def _attempt(self, questions: list[Question], step: int) -> _Attempts:
        """Runs the attempts at some questions, and returns their episodes, samples and rewards."""
        attempts = self.recipe.rollout.attempts
        assert self._rollout is not None
        episodes = self._rollout(questions, attempts, step, False)
        if len(episodes) != len(questions) * attempts:
            wanted = f"{attempts} attempts at {len(questions)} questions"
            raise UsageError(f"the rollout returned {len(episodes)} episodes for {wanted}")
        drawn = _Attempts(questions, episodes, [], [])
        for episode, given in zip(episodes, self._credit.rewards(episodes), strict=True):
            samples = (
                [] if given is None else samples_from(episode, rewards=given.total, local_rewards=given.local_rewards)
            )
            if not self._credit.trains_prefixes:  # samples of prefix answers alone are not rewarded
                samples = [sample for sample in samples if not all(call.prefix for call in sample.calls)]
            drawn.samples.append(samples)
            drawn.rewards.append([0.0] * len(episode.calls) if given is None else given.total)
        return drawn

    def _trainable(self, samples: Sequence[Sample]) -> list[Sample]:
        """Returns the samples of the model keys that are trained."""
        return [s for s in samples if self._trained is None or s.model_key in self._trained]

    def _resample(self, drawn: _Attempts, step: int) -> Row:
        """Attempts other questions until enough groups hold signal (one per question of the step) or rounds run out.

        Each round draws, by its own random generator, one new question per missing group, none twice in a step. The
        attempts are added to `drawn`: metrics and budgets include groups without signal.

        Returns:
            Metrics: the rounds, the additional questions, and the groups that are still missing.
        """
        recipe, wanted, rounds = self.recipe, len(drawn.questions), 0
        while True:
            samples = [sample for of_episode in drawn.samples for sample in of_episode]
            missing = wanted - len(groups_with_signal(samples, recipe.advantage))
            last = missing <= 0 or rounds == recipe.rollout.resample
            fresh = [] if last else self.source.more(step, rounds + 1, missing, drawn.questions)
            if not fresh:
                return {
                    "rollout/resample_rounds": float(rounds),
                    "rollout/resampled": float(len(drawn.questions) - wanted),
                    "rollout/groups_missing": float(missing),
                }
            more = self._attempt(fresh, step)
            drawn.questions += more.questions
            drawn.episodes += more.episodes
            drawn.samples += more.samples
            drawn.rewards += more.rewards
            rounds += 1


def with_advantages(
    samples: Sequence[Sample], recipe: Recipe, learner: Learner, trained: Sequence[str] | None = None
) -> tuple[list[Sample], Row]:
    """Returns a step's samples with the advantages that a recipe asks for, and metrics of the groups.

    Args:
        samples: Samples of all model keys.
        recipe: The run's recipe.
        learner: Computes values and log-probs for the advantages.
        trained: Model keys whose samples are returned. Default: all keys. Samples of other keys still take part in
            the comparison within groups and in the chains of episodes, unless advantages need values or log-probs,
            which only a learner has.
    """
    in_reward = recipe.loss.kl_coef if recipe.loss.kl_in == "reward" else 0.0
    estimator = recipe.advantage.estimator
    frozen = [s for s in samples if trained is not None and s.model_key not in trained]
    if estimator.critic or in_reward:
        samples = learner.prepare([s for s in samples if trained is None or s.model_key in trained])
    assigned, counts = estimator.assign(samples, recipe.advantage, in_reward, VALUED[recipe.critic.tokens], frozen)
    wanted = [s for s in assigned if trained is None or s.model_key in trained]
    return wanted, {} if counts is None else counts.metrics()


def advantage_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Describes the advantages of trained tokens: ``mean``, ``std`` (over n), ``min``, ``max``, share ``positive``.

    Returns:
        The figures; nothing if no token is trained.
    """
    values = np.concatenate([np.zeros(0), *(sample.advantage[sample.mask] for sample in samples)])
    if not len(values):
        return {}
    measures = {"mean": values.mean(), "std": values.std(), "min": values.min(), "max": values.max()}
    return {name: float(value) for name, value in measures.items()} | {"positive": float((values > 0).mean())}


class ListedQuestions:
    """A fixed list of questions: each epoch asks all of them in a new order.

    Args:
        questions: The questions.
        seed: Seed of the orders.
        batch: Questions per step.

    Raises:
        UsageError: There are fewer questions than a step needs.
    """

    name, made = "questions", False

    def __init__(self, questions: Sequence[Question], seed: int, batch: int) -> None:
        if len(questions) < batch:
            raise UsageError(
                f"{len(questions)} questions for {batch} per step: give more, or make the step smaller "
                "(rollout.questions)"
            )
        self._questions, self._seed = questions, seed

    def draw(self, step: int, count: int) -> list[Question]:
        """Returns the questions of a step; see `batch_of`."""
        return [self._questions[i] for i in batch_of(len(self._questions), count, step, self._seed)]

    def more(self, step: int, round: int, count: int, drawn: Sequence[Question]) -> list[Question]:
        """Returns further questions for a step, in an order of the round's own."""
        there = {question.id for question in drawn}
        order = np.random.default_rng([self._seed, step, round]).permutation(len(self._questions))
        return [question for i in order if (question := self._questions[i]).id not in there][:count]

    def learn(self, step: int, questions: Sequence[Question], episodes: Sequence[Episode]) -> dict[str, float]:
        """Learns nothing."""
        return {}

    def state(self) -> dict[str, Any]:
        """Returns nothing: the orders depend on the seed alone."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Needs nothing."""


def batch_of(count: int, batch: int, step: int, seed: int) -> list[int]:
    """Returns the indices of a step's items; each epoch has a new order, and no item comes twice in a step.

    Args:
        count: Number of items, at least `batch`. The rest of an epoch that is less than a batch is skipped.
        batch: Items per step.
        step: 0-based step.
        seed: Seed of the orders.
    """
    epoch, place = divmod(step, count // batch)
    order = np.random.default_rng([seed, epoch]).permutation(count)
    return [int(i) for i in order[place * batch : (place + 1) * batch]]
