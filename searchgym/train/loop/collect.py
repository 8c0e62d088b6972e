"""Collects the data of a training step: episodes of the current weights with advantages, or demonstrations."""

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
    """Questions, demonstrations and credit of a run."""

    questions: Sequence[Question] | QuestionStream = ()
    """Questions to train on, or a source that generates or selects the questions of each step."""
    validation: Sequence[Question] = ()
    """Questions for validation, from which the recipe's number is sampled by kind."""
    demonstrations: Sequence[Sample] = ()
    """Samples to learn from with ``method: supervised``."""
    trained: Sequence[str] | None = None
    """Model keys that are trained; samples of other keys are dropped. Default: all keys."""
    credit: Credit = field(default_factory=Credit)
    """Credit that rewards the calls of episodes. Default: the outcome."""


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
    """Wall-clock seconds spent sampling the step."""
    questions: list[Question] = field(default_factory=list)
    """Questions that were generated for the step by a proposer; else empty."""
    source: dict[str, Any] = field(default_factory=dict)
    """State of the run's `QuestionStream` after the step."""


@dataclass(slots=True)
class _Attempts:
    """Attempts at the questions of a step, in the order in which they were drawn."""

    questions: list[Question]
    episodes: list[Episode]
    samples: list[list[Sample]]
    """Samples of each episode that count for the step."""
    rewards: list[list[float]]
    """Rewards of each episode's calls; zeros for episodes without credit."""


class Collector:
    """Collects the data that each step of a run learns from.

    Args:
        recipe: Recipe of the run.
        learner: Computes values and log-probs for the advantages.
        rollout: Runs episodes; None with ``method: supervised``.
        data: Questions or demonstrations, model keys and credit.

    Raises:
        UsageError: There are too few questions or demonstrations for a step, or no rollout.
    """

    def __init__(self, recipe: Recipe, learner: Learner, rollout: Rollout | None, data: TrainingData) -> None:
        self.recipe, self.learner, self._rollout = recipe, learner, rollout
        self.demonstrations = data.demonstrations
        self._trained, self._credit = data.trained, data.credit
        self._batch, self._least_reward = recipe.method.demonstrated, recipe.method.least_reward
        have, hint = len(self.demonstrations), "add more, or make the step smaller (method.batch)"
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

        Episodes whose retriever failed are dropped, which makes their group smaller.

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
        attempts = self._attempt(source.draw(step, recipe.rollout.questions), step)
        check_contexts(attempts.episodes, step + 1)
        resampled = self._resample(attempts, step) if recipe.method.compares and recipe.rollout.resample else {}
        samples = [sample for of_episode in attempts.samples for sample in of_episode]
        tokens, learnt = generated_tokens(attempts.episodes), source.learn(step, attempts.questions, attempts.episodes)
        spanning = 0  # episodes with calls of one model that were sampled from different weights
        for episode in attempts.episodes:
            weights = {(call.model_key, call.policy_version) for call in episode.calls}
            spanning += len(weights) > len({key for key, _ in weights})
        row = {f"rollout/{name}": value for name, value in rollout_metrics(attempts.episodes).items()} | {
            "rollout/tokens": float(tokens),
            "rollout/without_tokens": float(sum(not of_episode for of_episode in attempts.samples)),
            "rollout/spanning": spanning / max(len(attempts.episodes), 1),
            "retokenisation_mismatch": float(sum(map(retokenisation_mismatches, attempts.samples, attempts.episodes))),
        }
        by_role = role_metrics(attempts.episodes, attempts.rewards)
        row |= {f"role/{name}": value for name, value in by_role.items()} | resampled
        row |= {f"judge/{name}": count for name, count in self._credit.judged().items()}
        row |= {f"{source.name}/{name}": value for name, value in learnt.items()}
        if self._least_reward is not None:
            enough = np.float32(self._least_reward)  # rewards are float32; compare with the bound in float32
            trainable = self._trainable(samples)
            samples = [sample for sample in trainable if sample.reward.sum() >= enough]
            row["rejection/kept"] = len(samples) / max(len(trainable), 1)
        proposed = attempts.questions if source.proposes else []
        return StepData(samples, row, attempts.episodes, tokens, questions=proposed, source=source.state())

    def prepared(self, data: StepData) -> StepData:
        """Returns a step's data ready to learn from, with advantages if the method uses them."""
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
        """Runs the attempts at questions, and returns their episodes, samples and rewards."""
        attempts = self.recipe.rollout.attempts
        assert self._rollout is not None
        episodes = self._rollout(questions, attempts, step, False)
        if len(episodes) != len(questions) * attempts:
            expected = f"{attempts} attempts at {len(questions)} questions"
            raise UsageError(f"the rollout returned {len(episodes)} episodes for {expected}")
        results = _Attempts(questions, episodes, [], [])
        for episode, call_rewards in zip(episodes, self._credit.rewards(episodes), strict=True):
            samples = (
                []
                if call_rewards is None
                else samples_from(episode, rewards=call_rewards.total, local_rewards=call_rewards.local_rewards)
            )
            if not self._credit.trains_prefixes:  # drop samples that contain only prefix answers
                samples = [sample for sample in samples if not all(call.prefix for call in sample.calls)]
            results.samples.append(samples)
            results.rewards.append([0.0] * len(episode.calls) if call_rewards is None else call_rewards.total)
        return results

    def _trainable(self, samples: Sequence[Sample]) -> list[Sample]:
        """Returns the samples of the model keys that are trained."""
        return [s for s in samples if self._trained is None or s.model_key in self._trained]

    def _resample(self, attempts: _Attempts, step: int) -> Row:
        """Attempts further questions until each question of the step has a group with signal, or no round is left.

        Each round samples, with a separate random generator, one new question per missing group; no question occurs
        twice in a step. The results are added to `attempts`: metrics and budgets include groups without signal.

        Returns:
            Metrics: the number of rounds, of additional questions, and of groups still missing.
        """
        recipe, target, rounds = self.recipe, len(attempts.questions), 0
        while True:
            samples = [sample for of_episode in attempts.samples for sample in of_episode]
            missing = target - len(groups_with_signal(samples, recipe.advantage))
            last = missing <= 0 or rounds == recipe.rollout.resample
            fresh = [] if last else self.source.more(step, rounds + 1, missing, attempts.questions)
            if not fresh:
                return {
                    "rollout/resample_rounds": float(rounds),
                    "rollout/resampled": float(len(attempts.questions) - target),
                    "rollout/groups_missing": float(missing),
                }
            more = self._attempt(fresh, step)
            attempts.questions += more.questions
            attempts.episodes += more.episodes
            attempts.samples += more.samples
            attempts.rewards += more.rewards
            rounds += 1


def with_advantages(
    samples: Sequence[Sample], recipe: Recipe, learner: Learner, trained: Sequence[str] | None = None
) -> tuple[list[Sample], Row]:
    """Returns a step's samples with the recipe's advantages, and metrics of the groups.

    Args:
        samples: Samples of all model keys.
        recipe: The run's recipe.
        learner: Computes values and log-probs for the advantages.
        trained: Model keys whose samples are returned. Default: all keys. Samples of other keys still take part in
            comparisons within groups and in chains of episodes, unless advantages need values or log-probs, which are
            computed for trained keys only.
    """
    in_reward = recipe.loss.kl_coef if recipe.loss.kl_in == "reward" else 0.0
    estimator = recipe.advantage.estimator
    frozen = [s for s in samples if trained is not None and s.model_key not in trained]
    if estimator.critic or in_reward:
        samples = learner.prepare([s for s in samples if trained is None or s.model_key in trained])
    assigned, counts = estimator.assign(samples, recipe.advantage, in_reward, VALUED[recipe.critic.tokens], frozen)
    selected = [s for s in assigned if trained is None or s.model_key in trained]
    return selected, {} if counts is None else counts.metrics()


def advantage_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Computes metrics of the advantages of trained tokens.

    Returns:
        ``mean``, ``std`` (over n), ``min``, ``max`` and the share ``positive``; empty if no token is trained.
    """
    values = np.concatenate([np.zeros(0), *(sample.advantage[sample.mask] for sample in samples)])
    if not len(values):
        return {}
    measures = {"mean": values.mean(), "std": values.std(), "min": values.min(), "max": values.max()}
    return {name: float(value) for name, value in measures.items()} | {"positive": float((values > 0).mean())}


class ListedQuestions:
    """Question source over a fixed list: each epoch uses all questions in a new order.

    Args:
        questions: The questions.
        seed: Seed of the orders.
        batch: Questions per step.

    Raises:
        UsageError: There are fewer questions than a step needs.
    """

    name, proposes = "questions", False

    def __init__(self, questions: Sequence[Question], seed: int, batch: int) -> None:
        if len(questions) < batch:
            raise UsageError(
                f"{len(questions)} questions for {batch} per step: add more, or make the step smaller "
                "(rollout.questions)"
            )
        self._questions, self._seed = questions, seed

    def draw(self, step: int, count: int) -> list[Question]:
        """Returns the questions of a step; see `batch_of`."""
        return [self._questions[i] for i in batch_of(len(self._questions), count, step, self._seed)]

    def more(self, step: int, round: int, count: int, used: Sequence[Question]) -> list[Question]:
        """Returns further questions for a step, in a random order that depends on the round."""
        used_ids = {question.id for question in used}
        order = np.random.default_rng([self._seed, step, round]).permutation(len(self._questions))
        return [question for i in order if (question := self._questions[i]).id not in used_ids][:count]

    def learn(self, step: int, questions: Sequence[Question], episodes: Sequence[Episode]) -> dict[str, float]:
        """Returns no metrics: the list does not adapt."""
        return {}

    def state(self) -> dict[str, Any]:
        """Returns an empty state: the orders depend only on the seed."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Does nothing: there is no state."""


def batch_of(count: int, batch: int, step: int, seed: int) -> list[int]:
    """Returns the indices of a step's items; each epoch has a new order, and no item comes twice in a step.

    Args:
        count: Number of items, at least `batch`. The last items of an epoch, if fewer than a batch, are skipped.
        batch: Items per step.
        step: 0-based step.
        seed: Seed of the orders.
    """
    epoch, index = divmod(step, count // batch)
    order = np.random.default_rng([seed, epoch]).permutation(count)
    return [int(i) for i in order[index * batch : (index + 1) * batch]]
