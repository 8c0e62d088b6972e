"""Runs a few steps of a recipe in the real training loop and recomputes each stage.

Each stage is compared with formulas on its actual input, so that a fault is reported for the stage where it occurs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from searchgym.envs.core import State
from searchgym.envs.reward import checked_reward
from searchgym.records import Answer, Episode, Question
from searchgym.testing.selfcheck import bookkeeping, environments, stages, updates
from searchgym.testing.selfcheck.credit import CREDIT, REWARDS, CreditCheck
from searchgym.testing.selfcheck.findings import CheckFailed, Findings
from searchgym.testing.selfcheck.small import STEPS, small_recipe
from searchgym.testing.selfcheck.sources import check_sources
from searchgym.testing.selfcheck.watched import Exchange, WatchedLearner, WatchedRollout, WatchedSampler, by_episode
from searchgym.train.algorithms.samples import Sample
from searchgym.train.learner.batching import Metrics
from searchgym.train.loop.assembly import Assembly, assemble, trainer_of
from searchgym.train.loop.collect import Collector, StepData, TrainingData
from searchgym.train.loop.trainer import Trainer, TrainResult
from searchgym.train.recipe.recipe import Recipe

IMAGINED: Final = 40
"""Approximate number of questions for which episodes are made up, so that every credit term has an effect."""
COUNTED: Final = "every generated token is counted"
FRESH: Final = "random numbers are fresh"
QUESTIONS: Final = "questions are drawn by epochs"
LOOP: Final = "steps run to their end"
NO_SEARCH: Final = "no search of a retriever that has one corpus"


def check_steps(recipe: Recipe, out: Path, findings: Findings) -> None:
    """Runs a few small steps of a recipe and checks every stage of them.

    Args:
        recipe: Recipe to check; its models are loaded.
        out: Folder for files of the run; must be empty or absent.
        findings: Receives the results.

    Raises:
        SearchGymError: The recipe's parts cannot be loaded.
    """
    small = small_recipe(recipe)
    parts = assemble(small, out, WatchedSampler)  # pyright: ignore[reportArgumentType]  # forwards unknown attributes
    with closing(parts):
        with suppress(CheckFailed):
            check_sources(findings, recipe, parts.task, parts.learner, parts.rollout)
        with suppress(CheckFailed), findings.stage(LOOP):
            steps = _Steps(small, parts, findings)
            steps.finished(steps.trainer(out / "steps").run())
            findings.add(LOOP, True, f"{STEPS} steps of {small.rollout.questions} x {small.rollout.attempts} episodes")
    _name_the_rest(findings, recipe, small)


def _name_the_rest(findings: Findings, recipe: Recipe, small: Recipe) -> None:
    """Records each check that applies to the recipe but has no result, with the reason."""
    ended = any(check.name == LOOP and check.state == "ok" for check in findings.checks())
    policy, validates = recipe.method.compares, bool(recipe.validation.every)
    reasons = dict.fromkeys((*stages.EVERY, *bookkeeping.EVERY, REWARDS, CREDIT, *updates.EVERY), "")
    reasons |= {environments.HITS: NO_SEARCH} | updates.REASONS
    reasons |= {stages.ADVANTAGES: ""} if policy else {}
    reasons |= {updates.VALUES: "", updates.CRITIC: ""} if recipe.has_critic else {}
    reasons |= {stages.RESAMPLED: "no group was without signal"} if policy and recipe.rollout.resample else {}
    reasons |= {environments.CORPUS: NO_SEARCH} | environments.REASONS if validates else {}
    for name, why in reasons.items():
        findings.skip(name, why or "nothing to check" if ended else "the steps ended before this check")
    if recipe.curriculum is not None or recipe.proposer is not None:
        findings.skip("where the questions continue after a resume", "the run that is resumed has a plain list of them")
    if recipe.rollout.staleness:
        findings.skip("steps that are sampled ahead", "rollout.staleness is 0 in the steps and in the bandit")
    if recipe.rollout.partial:
        findings.skip("episodes that outlast their step", "rollout.partial is 0 in the steps and in the bandit")
    if recipe.rollout.tree is not None:
        findings.skip("attempts that fork from others", "rollout.tree is null in the steps and in the bandit")
    if recipe.rollout.starts is not None:
        findings.skip("groups that begin at prefixes", "rollout.starts is null in the steps and in the bandit")
    options = [recipe.optimizer, *([recipe.critic.optimizer] if recipe.has_critic else [])]
    if small.optimizer.epochs == 1 and any(each.minibatch_samples or each.minibatches > 1 for each in options):
        why = "in half precision two trainers diverge: check with learner.dtype=float32 optimizer.autocast=null too"
        findings.skip("minibatches after the first", why)


class _Steps:
    """Checks of one run, called by the watched parts of its training loop.

    Args:
        recipe: Recipe of the checked steps.
        parts: Loaded parts of the recipe.
        findings: Receives the results.
    """

    def __init__(self, recipe: Recipe, parts: Assembly, findings: Findings) -> None:
        self._recipe, self._parts, self._findings = recipe, parts, findings
        penalties = {name: role.penalty for name, role in parts.rollout.agent.roles.items()}
        self._credit = CreditCheck(recipe, penalties, self.score)
        self._rollout = WatchedRollout(parts.rollout, recipe, self._validated)
        self._learner = WatchedLearner(parts.learner, self._learnt)
        self._question_ids: list[set[str]] = []
        self._tokens = 0
        self._keys = {
            key.name: updates.KeyCheck(key, recipe, parts.learner, findings) for key in parts.keys if not key.frozen
        }
        self._seeds: Counter[int] = Counter()
        self._metrics: dict[int, dict[str, float]] = {}
        """Metrics of each step by 1-based number, recomputed."""
        self._validation = environments.ValidationCheck(recipe, self._keys, findings)

    def trainer(self, out: Path) -> Trainer:
        """Returns a trainer whose parts are watched."""
        watched = replace(self._parts, rollout=self._rollout, learner=self._learner)  # type: ignore[arg-type]
        trainer = trainer_of(self._recipe, watched, out)
        self._source = trainer.collector.source
        data = TrainingData(self._source, trained=self._parts.trained, credit=self._parts.credit)
        collector = trainer.collector = _WatchedCollector(self._recipe, self._learner, self._rollout, data)  # pyright: ignore
        collector.steps, collector.findings = self, self._findings
        return trainer

    def score(self, episode: Episode, text: str) -> float:
        """Returns the environment's reward for an answer."""
        state = State(self._rollout.questions[episode.question_id], answer=Answer(text), stop_reason="answer")
        return checked_reward(self._parts.task.reward, state)

    def of_key(self, samples: Sequence[Sample], key: str) -> list[Sample]:
        """Returns the samples of a model key."""
        return [sample for sample in samples if sample.model_key == key]

    def _exchanges(self) -> dict[str, list[Exchange]]:
        """Returns the requests and replies of each model key's sampler since the last call."""
        by_key = {}
        for name, model in self._parts.models.items():
            assert isinstance(model.sampler, WatchedSampler)
            by_key[name], model.sampler.exchanges = model.sampler.exchanges, []
        return by_key

    def _validated(self, questions: Sequence[Question], episodes: list[Episode]) -> None:
        """Checks a validation."""
        exchanges = self._exchanges()
        with self._findings.stage(bookkeeping.SETTINGS):
            every = [exchange for of_key in exchanges.values() for exchange in of_key]
            bookkeeping.check_settings(self._findings, every, self._recipe, greedy=True)
        self._validation.validated(questions, episodes, exchanges)

    def check_sampled(self, data: StepData) -> None:
        """Checks the samples of a step against its episodes."""
        exchanges = [exchange for of_key in self._exchanges().values() for exchange in of_key]
        keys = {role: key.name for key in self._parts.keys for role in key.roles}
        rollout, task = self._rollout, self._parts.task
        questions = (rollout.questions, task.questions, rollout.rounds)
        sampled = stages.SampledStep(by_episode(exchanges), rollout.episodes, data.samples, keys, *questions)
        stages.check_sampled(self._findings, sampled, self._recipe)
        with self._findings.stage(bookkeeping.SETTINGS):
            bookkeeping.check_settings(self._findings, exchanges, self._recipe, greedy=False)
        with self._findings.stage(bookkeeping.METRICS):
            self._metrics[len(self._metrics) + 1] = bookkeeping.step_metrics(rollout.episodes)
        with self._findings.stage(REWARDS):
            self._credit.check_samples(self._findings, sampled)
        with self._findings.stage(CREDIT):
            if not self._question_ids:
                imagined = rollout.imagined(task.questions[:: max(1, len(task.questions) // IMAGINED)])
                self._credit.check_imagined(self._findings, sampled, imagined, self._parts.credit)
        self._questions()
        tokens = sum(len(reply.ids) for _, reply in exchanges)
        self._tokens += tokens
        self._findings.add(COUNTED, data.tokens == tokens, f"{data.tokens} tokens of a step, {tokens} were sampled")
        self._seeds.update(request.seed for request, _ in exchanges)
        twice = sum(count > 1 for count in self._seeds.values())
        message = f"{self._seeds.total()} responses, {twice} seeds were used twice"
        self._findings.add(FRESH, not twice, message)
        environments.check_scores(
            self._findings, task, [rollout.questions[episode.question_id] for episode in rollout.sampled]
        )
        environments.check_hits(self._findings, environments.HITS, task, rollout.sampled)
        self._learner.prepared = None
        with self._findings.stage(updates.AGREE):
            for name, check in self._keys.items():
                if key_samples := self.of_key(data.samples, name):
                    check.check_sampled(key_samples)
        rollout.begin()

    def _questions(self) -> None:
        """Checks that questions come from the recipe's source, in the right number, and none twice in an epoch."""
        self._question_ids.append({question.id for question in self._rollout.rounds[0]})
        total, here = len(self._parts.task.questions), self._recipe.rollout.questions
        by = "proposer" if self._recipe.proposer else "curriculum" if self._recipe.curriculum else "questions"
        epoch = self._question_ids[: total // here] if by == "questions" else []
        repeated = sum(map(len, epoch)) - len(set().union(*epoch))
        short = sum(len(ids) != here for ids in self._question_ids)
        message = f"{len(self._question_ids)} steps of {total} questions, {repeated} repeated within an epoch"
        message += f", by {self._source.name} instead of the recipe's {by}" * (self._source.name != by)
        self._findings.add(QUESTIONS, not (repeated or short) and self._source.name == by, message)

    def prepared(self, data: StepData, prepared: StepData) -> StepData:
        """Checks the samples' versions, log-probs, values and advantages, and returns the data to learn from."""
        with self._findings.stage(bookkeeping.VERSIONS):
            versions = {name: self._learner.version_of(name) for name in self._keys}
            bookkeeping.check_versions(self._findings, data.samples, versions, prepared.row)
        if not self._recipe.method.compares:
            return prepared
        samples = data.samples if self._learner.prepared is None else self._learner.prepared
        frozen = [sample for sample in data.samples if sample.model_key not in self._keys]
        with self._findings.stage(updates.PREPARED):
            for name, check in self._keys.items():
                check.prepared(self.of_key(samples, name))
        with self._findings.stage(stages.ADVANTAGES):
            stages.check_advantages(self._findings, samples, prepared.samples, self._recipe, frozen)
        cap, count = self._recipe.loss.importance_cap, len(prepared.samples)
        return replace(prepared, samples=[_apart(s, 1 + i / count, cap) for i, s in enumerate(prepared.samples)])

    def finished(self, result: TrainResult) -> None:
        """Checks the token counter and the validations of the whole run."""
        spent = result.progress.generated_tokens
        self._findings.add(COUNTED, spent == self._tokens, f"{spent} tokens of the run, {self._tokens} were sampled")
        with self._findings.stage(bookkeeping.METRICS):
            bookkeeping.check_metrics(self._findings, result.rows, self._metrics)
        with self._findings.stage(environments.REPORTED):
            self._validation.reported(result)

    def _learnt(self, samples: Sequence[Sample], step: int, update: Callable[[], Metrics]) -> Metrics:
        """Runs the learner's updates and checks them."""
        by_key = {name: mine for name in self._keys if (mine := self.of_key(samples, name))}
        for name, mine in by_key.items():
            self._keys[name].before_update(mine)
        critic_only = self._recipe.has_critic and step < self._recipe.critic.warmup_steps
        if not (critic_only or self._recipe.models):  # the policy reads nothing; several keys have no common counter
            tokens = self._recipe.optimizer.epochs * sum(len(sample.ids) for sample in samples)
            self._metrics[step + 1] |= {"learner/tokens_read": float(tokens)}
        with self._findings.stage(updates.LOSS):
            metrics = update()
        with self._findings.stage(updates.UPDATE):
            for name, mine in by_key.items():
                self._keys[name].after_update(mine, step, metrics)
        return metrics


class _WatchedCollector(Collector):
    """A collector whose results are checked."""

    steps: _Steps
    findings: Findings

    def draw(self, step: int) -> StepData:
        """Returns the data of a step, checked; see `Collector.draw`."""
        with self.findings.stage("episodes become samples"):
            data = super().draw(step)
        self.steps.check_sampled(data)
        return data

    def prepared(self, data: StepData) -> StepData:
        """Returns the data of the step with advantages, checked; see `Collector.prepared`."""
        with self.findings.stage(stages.ADVANTAGES):
            prepared = super().prepared(data)
        return self.steps.prepared(data, prepared)


def _apart(sample: Sample, factor: float, cap: float | None) -> Sample:
    """Returns a copy of a sample with a larger advantage and, if weights are capped, other sampler log-probs.

    Similar attempts would cancel in the gradient and leave only rounding to compare. And where sampler and trainer
    agree, every importance weight is 1, which would hide faults: here weights lie above the cap, at 1 and below.
    """
    shift = 0.0 if cap is None else np.array([-np.log(cap) - 0.5, 0.0, 0.5])[np.arange(len(sample.ids)) % 3]
    logp = np.where(sample.mask, sample.sampler_logp + shift, 0.0).astype(np.float32)
    return replace(sample, advantage=(sample.advantage * factor).astype(np.float32), sampler_logp=logp)
