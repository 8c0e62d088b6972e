"""Collects the data of a training step: episodes of the current weights with advantages, or demonstrations."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from searchgym.errors import UsageError
from searchgym.records import Episode, Question
from searchgym.rollout.replay.prefix import Start
from searchgym.rollout.storage import read_episodes
from searchgym.train.algorithms.advantages import groups_with_signal
from searchgym.train.algorithms.samples import VALUED, Sample, retokenisation_mismatches, samples_from
from searchgym.train.credit.credit import Credit
from searchgym.train.curriculum.forks import TreeOptions, grow
from searchgym.train.curriculum.listed import ListedQuestions, batch_of
from searchgym.train.curriculum.solved import SolvedPool
from searchgym.train.curriculum.starts import StartPool, first_values
from searchgym.train.learner.learner import Learner
from searchgym.train.loop.folder import Row
from searchgym.train.loop.partial import PartialRollout
from searchgym.train.loop.rollout import (
    ContinuingRollout,
    Rollout,
    check_contexts,
    generated_tokens,
    role_metrics,
    rollout_metrics,
)
from searchgym.train.recipe.recipe import Recipe
from searchgym.train.selfplay.kind import QuestionStream

STATE: Final = ("source", "starts", "solved", "pending")
"""Fields of `StepData` that a checkpoint has."""


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
    starts: list[list[str | int]] = field(default_factory=list)
    """Prefixes at which groups of the next step begin; see `StartPool.state`."""
    solved: list[str] = field(default_factory=list)
    """Solutions of hard questions; see `SolvedPool.state`."""
    pending: list[list[int | str]] = field(default_factory=list)
    """Groups that still run; see `PartialRollout.pending`."""
    step: int = 0
    """0-based step that the data were drawn for."""


@dataclass(slots=True)
class _Attempts:
    """Attempts at the questions of a step, in the order in which they were drawn."""

    questions: list[Question]
    episodes: list[Episode]
    samples: list[list[Sample]]
    """Samples of each episode that count for the step."""
    rewards: list[list[float]]
    """Rewards of each episode's calls; zeros for episodes without credit."""
    continued: list[Episode] = field(default_factory=list)
    """Episodes that begin at prefixes; `samples` and `rewards` have theirs after those of `episodes`."""


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
        starts = recipe.rollout.starts
        self._submitted = 0
        """Number of steps whose groups were started, with ``rollout.partial``."""
        self.starts = None if starts is None else StartPool(starts, recipe.rollout.questions, recipe.seed)
        self.solved = SolvedPool() if recipe.rollout.tree is not None and recipe.rollout.tree.solved else None

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
        recipe, source, pool = self.recipe, self.source, self.starts
        fresh = recipe.rollout.questions - (0 if pool is None else pool.count)
        if recipe.rollout.partial:
            attempts = self._completed(step)
        else:
            attempts = self._attempt(source.draw(step, fresh), step)
        check_contexts(attempts.episodes, step + 1)
        resampled = self._resample(attempts, step) if recipe.method.compares and recipe.rollout.resample else {}
        resampled |= self._continue(attempts, step)
        samples = [sample for of_episode in attempts.samples for sample in of_episode]
        learnt = source.learn(step, attempts.questions, attempts.episodes)
        episodes = [*attempts.episodes, *attempts.continued]
        tokens = generated_tokens(episodes)
        spanning = 0  # episodes with calls of one model that were sampled from different weights
        for episode in episodes:
            weights = {(call.model_key, call.policy_version) for call in episode.calls}
            spanning += len(weights) > len({key for key, _ in weights})
        row = {f"rollout/{name}": value for name, value in rollout_metrics(attempts.episodes).items()} | {
            "rollout/tokens": float(tokens),
            "rollout/without_tokens": float(sum(not of_episode for of_episode in attempts.samples)),
            "rollout/spanning": spanning / max(len(episodes), 1),
            "retokenisation_mismatch": float(sum(map(retokenisation_mismatches, attempts.samples, episodes))),
        }
        by_role = role_metrics(episodes, attempts.rewards)
        row |= {f"role/{name}": value for name, value in by_role.items()} | resampled
        row |= {f"judge/{name}": count for name, count in self._credit.judged().items()}
        row |= {f"{source.name}/{name}": value for name, value in learnt.items()}
        if self._least_reward is not None:
            enough = np.float32(self._least_reward)  # rewards are float32; compare with the bound in float32
            trainable = self._trainable(samples)
            samples = [sample for sample in trainable if sample.reward.sum() >= enough]
            row["rejection/kept"] = len(samples) / max(len(trainable), 1)
        proposed = attempts.questions if source.proposes else []
        data = StepData(samples, row, episodes, tokens, questions=proposed, source=source.state(), step=step)
        if recipe.rollout.partial:
            data = replace(data, pending=self._partial.pending())
        if self.solved is not None:
            self.solved.learn(episodes)
            data = replace(data, solved=self.solved.state())
        by_value = self.starts is not None and self.starts.options.by == "value"  # of values that `prepared` computes
        return data if by_value else self._chosen(data)

    def _chosen(self, data: StepData) -> StepData:
        """Returns a step's data with the prefixes at which groups of the next step begin."""
        if self.starts is None:
            return data
        self.starts.learn(data.step, data.episodes, data.samples)
        return replace(data, starts=self.starts.state())

    def prepared(self, data: StepData) -> StepData:
        """Returns a step's data ready to learn from, with advantages if the method uses them."""
        row = data.row
        if data.episodes:
            ages = (self.learner.version_of(s.model_key) - s.policy_version for s in self._trainable(data.samples))
            row = row | {"rollout/staleness": float(max(ages, default=0))}
        if not self.recipe.method.compares:
            return replace(data, row=row)
        samples, groups = with_advantages(data.samples, self.recipe, self.learner, self._trained)
        if self.starts is not None and self.starts.options.by == "value":
            data = self._chosen(replace(data, samples=samples))
        advantages = {f"advantage/{name}": value for name, value in advantage_metrics(samples).items()}
        return replace(data, samples=samples, row=row | groups | advantages)

    def _attempt(self, questions: list[Question], step: int) -> _Attempts:
        """Runs the attempts at questions, and returns their episodes, samples and rewards."""
        tree, attempts = self.recipe.rollout.tree, self.recipe.rollout.attempts
        assert self._rollout is not None
        roots = attempts if tree is None else tree.roots
        episodes = self._rollout(questions, roots, step, False)
        if len(episodes) != len(questions) * roots:
            expected = f"{roots} attempts at {len(questions)} questions"
            raise UsageError(f"the rollout returned {len(episodes)} episodes for {expected}")
        if tree is not None:
            episodes = self._grown(episodes, tree, step)
        results = _Attempts(questions, episodes, [], [])
        self._credited(results, episodes)
        return results

    def _grown(self, roots: list[Episode], tree: TreeOptions, step: int) -> list[Episode]:
        """Returns the attempts of a step: those that begin at questions, and their forks."""
        rollout = self._rollout
        if not isinstance(rollout, ContinuingRollout):
            raise UsageError("rollout.tree needs the rollout of the episode engine")

        def values(episodes: Sequence[Episode]) -> Mapping[str, float]:
            return first_values(self.learner.prepare([s for episode in episodes for s in samples_from(episode)]))

        def run(starts: Sequence[Start]) -> list[Episode]:
            return rollout.continued(starts, step) if starts else []

        rng = np.random.default_rng([self.recipe.seed, step, 65])
        by_critic = values if tree.by == "value" else None
        solved = None if self.solved is None else self.solved.episodes
        return grow(roots, tree, self.recipe.rollout.attempts, rng, run, by_critic, solved)

    @property
    def _partial(self) -> PartialRollout:
        """The rollout of a run whose episodes may outlast their step."""
        if not isinstance(self._rollout, PartialRollout):
            raise UsageError("rollout.partial needs the rollout of the episode engine")
        return self._rollout

    def _completed(self, step: int) -> _Attempts:
        """Starts the groups of the next steps, and returns those that a step learns from."""
        options, rollout = self.recipe.rollout, self._partial
        end = min(step + options.partial + 1, self.recipe.steps)
        for later in range(max(self._submitted, step), end):
            rollout.submit(self.source.draw(later, options.questions), options.attempts, later)
        self._submitted = end
        groups = rollout.completed(options.questions, step - options.partial)
        episodes = [episode for group in groups for episode in group.episodes.result()]
        results = _Attempts([group.question for group in groups], episodes, [], [])
        self._credited(results, episodes)
        return results

    def restore(self, state: Mapping[str, Any], episodes: Path) -> None:
        """Restores what a checkpoint has of the source, of prefixes and of groups that ran on.

        Args:
            state: State of the checkpoint.
            episodes: Episodes of the run.
        """
        if state["source"]:
            self.source.restore(state["source"])
        if self.starts is not None and state.get("starts"):
            self.starts.restore(state["starts"], read_episodes(episodes))
        if self.solved is not None and state.get("solved"):
            self.solved.restore(state["solved"], read_episodes(episodes))
        if pending := state.get("pending"):
            self._partial.restore(pending, self.recipe.rollout.attempts)
            self._submitted = max(int(step) for step, _ in pending) + 1

    def _continue(self, attempts: _Attempts, step: int) -> Row:
        """Adds a step's groups that begin at prefixes to its attempts; returns their metrics."""
        if self.starts is None or not self.starts.chosen:
            return {}
        assert isinstance(self._rollout, ContinuingRollout)
        chosen, branches = self.starts.chosen, range(self.recipe.rollout.attempts)
        starts = [Start(episode, turns, branch) for episode, turns in chosen for branch in branches]
        attempts.continued = self._rollout.continued(starts, step)
        self._credited(attempts, attempts.continued)
        return {
            "starts/groups": float(len(chosen)),
            "starts/turns": float(np.mean([turns for _, turns in chosen])),
            "starts/reward": float(np.mean([episode.reward for episode in attempts.continued])),
        }

    def _credited(self, results: _Attempts, episodes: list[Episode]) -> None:
        """Adds the samples and rewards of episodes to a step's attempts."""
        begun = self.recipe.rollout.starts or self.recipe.rollout.tree
        again = begun is not None and begun.replayed
        for episode, call_rewards in zip(episodes, self._credit.rewards(episodes), strict=True):
            samples = list[Sample]()
            if call_rewards is not None:
                totals, local_rewards = call_rewards.total, call_rewards.local_rewards
                samples = samples_from(episode, rewards=totals, local_rewards=local_rewards, replayed=again)
            if not self._credit.trains_prefixes:  # drop samples that contain only prefix answers
                samples = [sample for sample in samples if not all(call.prefix for call in sample.calls)]
            results.samples.append(samples)
            results.rewards.append([0.0] * len(episode.calls) if call_rewards is None else call_rewards.total)

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
