"""The data of a training step: episodes sampled from the present weights, with advantages, or demonstrations."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from searchgym.errors import UsageError
from searchgym.records import Episode, Question
from searchgym.train.algorithms.advantages import groups_with_signal
from searchgym.train.algorithms.samples import VALUED, Sample, retokenisation_mismatches, samples_from
from searchgym.train.credit.credit import Credit
from searchgym.train.learner.learner import Learner
from searchgym.train.loop.folder import Row
from searchgym.train.loop.metrics import (
    advantage_metrics,
    check_contexts,
    generated_tokens,
    role_metrics,
    rollout_metrics,
)
from searchgym.train.recipe.recipe import Recipe
from searchgym.train.selfplay.source import ListedQuestions, QuestionStream, batch_of


class Rollout(Protocol):
    """A function that runs episodes with the present weights."""

    def __call__(self, questions: Sequence[Question], attempts: int, step: int, greedy: bool) -> list[Episode]:
        """Returns `attempts` episodes per question.

        Args:
            questions: Each once.
            attempts: Episodes per question; the attempts at a question share a `group_uid` that no other call uses.
            step: 0-based step; with the recipe's seed it determines every random number.
            greedy: Take the likeliest token each time, as in validation.
        """
        ...


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
    """Episodes of a step, and the samples in each that count for it."""

    questions: list[Question]
    """The questions, in the order in which they were drawn."""
    episodes: list[Episode]
    """The attempts at these questions."""
    samples: list[list[Sample]]
    """Samples of each episode."""
    rewards: list[list[float]]
    """Rewards of each episode's calls; zeros where they were not rewarded."""


class Drawer:
    """Draws the data that each step of a run learns from.

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
        have, need = len(self.demonstrations), recipe.method.demonstrated
        if have < need:
            hint = "give more, or make the step smaller (method.batch)"
            raise UsageError(f"{have} demonstrations for {need} per step: {hint}")
        if rollout is None and not need:
            raise UsageError("training on questions needs a rollout")
        self.source: QuestionStream
        if isinstance(data.questions, Sequence):
            self.source = ListedQuestions(data.questions, recipe.seed, 0 if need else recipe.rollout.questions)
        else:
            self.source = data.questions

    def draw(self, step: int) -> StepData:
        """Returns the data of a 0-based step, still without advantages; see `prepared`.

        Episodes whose retriever failed are left out of training, which makes their group smaller.

        Raises:
            TrainingError: See `check_contexts`.
        """
        started = time.perf_counter()
        data = self._demonstrated(step) if self.recipe.method.demonstrated else self._sampled(step)
        return replace(data, seconds=time.perf_counter() - started)

    def _demonstrated(self, step: int) -> StepData:
        """Returns the demonstrations of a step."""
        picks = batch_of(len(self.demonstrations), self.recipe.method.demonstrated, step, self.recipe.seed)
        return StepData([self.demonstrations[i] for i in picks])

    def _sampled(self, step: int) -> StepData:
        """Returns the episodes of a step, their samples and their metrics."""
        recipe = self.recipe
        drawn = self._attempt(self.source.draw(step, recipe.rollout.questions), step)
        check_contexts(drawn.episodes, step + 1)
        resampled = self._resample(drawn, step) if recipe.method.compares and recipe.rollout.resample else {}
        samples = [sample for of_episode in drawn.samples for sample in of_episode]
        tokens = generated_tokens(drawn.episodes)
        row = {f"rollout/{name}": value for name, value in rollout_metrics(drawn.episodes).items()} | {
            "rollout/tokens": float(tokens),
            "rollout/without_tokens": float(sum(not of_episode for of_episode in drawn.samples)),
            "rollout/spanning": sum(map(_spans, drawn.episodes)) / max(len(drawn.episodes), 1),
            "retokenisation_mismatch": float(sum(map(retokenisation_mismatches, drawn.samples, drawn.episodes))),
        }
        by_role = role_metrics(drawn.episodes, drawn.rewards)
        row |= {f"role/{name}": value for name, value in by_role.items()} | resampled
        row |= {f"judge/{name}": count for name, count in self._credit.judged().items()}
        learnt = self.source.learn(step, drawn.questions, drawn.episodes)
        row |= {f"{self.source.name}/{name}": value for name, value in learnt.items()}
        if recipe.method.least_reward is not None:
            samples, share = self._accepted(samples, recipe.method.least_reward)
            row["rejection/kept"] = share
        proposed = drawn.questions if self.source.made else []
        return StepData(samples, row, drawn.episodes, tokens, questions=proposed, source=self.source.state())

    def _accepted(self, samples: Sequence[Sample], least: float) -> tuple[list[Sample], float]:
        """Returns the trained keys' samples that earned enough reward, and their share of those keys' samples."""
        enough = np.float32(least)  # rewards are float32: 0.7 must not be below itself
        trainable = self._trainable(samples)
        accepted = [s for s in trainable if s.reward.sum() >= enough]
        return accepted, len(accepted) / max(len(trainable), 1)

    def prepared(self, data: StepData) -> StepData:
        """Returns the data of the step to learn from next, with advantages where the method has them."""
        if data.episodes:
            ages = (self.learner.version_of(s.model_key) - s.policy_version for s in self._trainable(data.samples))
            data = replace(data, row=data.row | {"rollout/staleness": float(max(ages, default=0))})
        if not self.recipe.method.compares:
            return data
        samples, groups = with_advantages(data.samples, self.recipe, self.learner, self._trained)
        advantages = {f"advantage/{name}": value for name, value in advantage_metrics(samples).items()}
        return replace(data, samples=samples, row=data.row | groups | advantages)

    def _attempt(self, questions: list[Question], step: int) -> _Attempts:
        """Runs the attempts at some questions, and returns their episodes, samples and rewards."""
        attempts = self.recipe.rollout.attempts
        assert self._rollout is not None
        episodes = self._rollout(questions, attempts, step, False)
        if len(episodes) != len(questions) * attempts:
            wanted = f"{attempts} attempts at {len(questions)} questions"
            raise UsageError(f"the rollout returned {len(episodes)} episodes for {wanted}")
        rewards = self._credit.rewards(episodes)
        samples = [
            []
            if given is None
            else [s for s in samples_from(e, rewards=given.total, kept=given.kept) if self._counts(s)]
            for e, given in zip(episodes, rewards, strict=True)
        ]
        numbers = [
            [0.0] * len(e.calls) if given is None else given.total for e, given in zip(episodes, rewards, strict=True)
        ]
        return _Attempts(questions, episodes, samples, numbers)

    def _counts(self, sample: Sample) -> bool:
        """Tells whether a sample belongs to the step, as prefix answers do only if the credit rewards them."""
        return self._credit.trains_prefixes or not all(call.prefix for call in sample.calls)

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


def _spans(episode: Episode) -> bool:
    """Tells whether an episode holds calls of one model that were sampled from different weights."""
    return len({(c.model_key, c.policy_version) for c in episode.calls}) > len({c.model_key for c in episode.calls})


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
