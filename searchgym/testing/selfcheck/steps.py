"""A few steps of a recipe by the training loop itself, each stage recomputed from what went into it.

Since each stage is compared with formulas on its actual input, a fault is reported by the stage that it is in.
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
from searchgym.testing.selfcheck import environments, stages, updates
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
"""Questions to which attempts are imagined, so that every credit term has its say."""
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
        findings: Takes the results.

    Raises:
        SearchGymError: The recipe's parts cannot be loaded.
    """
    small = small_recipe(recipe)
    parts = assemble(small, out, WatchedSampler)  # pyright: ignore[reportArgumentType]  # it hands on what it lacks
    with closing(parts):
        with suppress(CheckFailed):
            check_sources(findings, recipe, parts.task, parts.learner, parts.rollout)
        with suppress(CheckFailed), findings.stage(LOOP):
            steps = _Steps(small, parts, findings)
            steps.finished(steps.trainer(out / "steps").run())
            findings.add(LOOP, True, f"{STEPS} steps of {small.rollout.questions} x {small.rollout.attempts} episodes")
    _name_the_rest(findings, recipe, small)


def _name_the_rest(findings: Findings, recipe: Recipe, small: Recipe) -> None:
    """Records what had no result: why it was not checked, where it belongs to the recipe."""
    ended = any(check.name == LOOP and check.state == "ok" for check in findings.checks())
    policy, validates = recipe.method.compares, bool(recipe.validation.every)
    reasons = dict.fromkeys((*stages.EVERY, REWARDS, CREDIT, *updates.EVERY), "")
    reasons |= {environments.HITS: NO_SEARCH} | updates.REASONS
    reasons |= {stages.ADVANTAGES: ""} if policy else {}
    reasons |= {updates.VALUES: "", updates.CRITIC: ""} if recipe.has_critic else {}
    reasons |= {stages.RESAMPLED: "no group was without signal"} if policy and recipe.rollout.resample else {}
    reasons |= {environments.FOUND: NO_SEARCH} | environments.REASONS if validates else {}
    for name, why in reasons.items():
        findings.skip(name, why or "nothing to check" if ended else "the steps ended before it")
    if recipe.curriculum is not None or recipe.proposer is not None:
        findings.skip("where the questions go on after a resume", "the run that is resumed has a plain list of them")
    if recipe.rollout.staleness:
        findings.skip("steps that are sampled ahead", "rollout.staleness is 0 in the steps and in the bandit")
    options = [recipe.optimizer, *([recipe.critic.optimizer] if recipe.has_critic else [])]
    if small.optimizer.epochs == 1 and any(own.minibatch_samples or own.minibatches > 1 for own in options):
        why = "in half precision two trainers part: check with learner.dtype=float32 optimizer.autocast=null too"
        findings.skip("minibatches after the first", why)


class _Steps:
    """The checks of one run, called by the parts of its loop.

    Args:
        recipe: The small recipe.
        parts: What it was loaded into.
        findings: Takes the results.
    """

    def __init__(self, recipe: Recipe, parts: Assembly, findings: Findings) -> None:
        self._recipe, self._parts, self._findings = recipe, parts, findings
        penalties = {name: role.penalty for name, role in parts.rollout.agent.roles.items()}
        self._credit = CreditCheck(recipe, penalties, self.score)
        self._rollout = WatchedRollout(parts.rollout, recipe, self._validated)
        self._learner = WatchedLearner(parts.learner, self._learnt)
        self._asked: list[set[str]] = []
        self._tokens = 0
        self._keys = {
            key.name: updates.KeyCheck(key, recipe, parts.learner, findings) for key in parts.keys if not key.frozen
        }
        self._seeds: Counter[int] = Counter()
        self._validation = environments.ValidationCheck(recipe, self._keys, findings)

    def trainer(self, out: Path) -> Trainer:
        """Returns the run's trainer, whose parts are watched."""
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
        """Returns, for each model key, what its sampler was asked and replied since the last call."""
        taken = {}
        for name, model in self._parts.models.items():
            assert isinstance(model.sampler, WatchedSampler)
            taken[name], model.sampler.exchanges = model.sampler.exchanges, []
        return taken

    def _validated(self, questions: Sequence[Question], episodes: list[Episode]) -> None:
        """Checks a validation."""
        self._validation.validated(questions, episodes, self._exchanges())

    def drawn(self, data: StepData) -> None:
        """Checks the samples that were made of the step's episodes."""
        exchanges = [exchange for of_key in self._exchanges().values() for exchange in of_key]
        keys = {role: key.name for key in self._parts.keys for role in key.roles}
        rollout, task = self._rollout, self._parts.task
        asked = (rollout.questions, task.questions, rollout.rounds)
        drawn = stages.Drawn(by_episode(exchanges), rollout.episodes, data.samples, keys, *asked)
        stages.check_drawn(self._findings, drawn, self._recipe)
        with self._findings.stage(REWARDS):
            self._credit.check_samples(self._findings, drawn)
        with self._findings.stage(CREDIT):
            if not self._asked:
                made = rollout.imagined(task.questions[:: max(1, len(task.questions) // IMAGINED)])
                self._credit.check_imagined(self._findings, drawn, made, self._parts.credit)
        self._questions()
        tokens = sum(len(reply.ids) for _, reply in exchanges)
        self._tokens += tokens
        self._findings.add(COUNTED, data.tokens == tokens, f"{data.tokens} tokens of a step, {tokens} were sampled")
        self._seeds.update(request.seed for request, _ in exchanges)
        twice = sum(count > 1 for count in self._seeds.values())
        said = f"{self._seeds.total()} responses, {twice} seeds were used twice"
        self._findings.add(FRESH, not twice, said)
        environments.check_scores(
            self._findings, task, [rollout.questions[episode.question_id] for episode in rollout.sampled]
        )
        environments.check_hits(self._findings, environments.HITS, task, rollout.sampled)
        self._learner.prepared = None
        with self._findings.stage(updates.AGREE):
            for name, check in self._keys.items():
                if own := self.of_key(data.samples, name):
                    check.drawn(own)
        rollout.begin()

    def _questions(self) -> None:
        """Checks that questions come from the recipe's source, as many as it asks for, and none twice in an epoch."""
        self._asked.append({question.id for question in self._rollout.rounds[0]})
        known, here = len(self._parts.task.questions), self._recipe.rollout.questions
        by = "proposer" if self._recipe.proposer else "curriculum" if self._recipe.curriculum else "questions"
        epoch = self._asked[: known // here] if by == "questions" else []
        repeated = sum(map(len, epoch)) - len(set().union(*epoch))
        short = sum(len(asked) != here for asked in self._asked)
        said = f"{len(self._asked)} steps of {known} questions, {repeated} repeated within an epoch"
        said += f", by {self._source.name} where the recipe asks for {by}" * (self._source.name != by)
        self._findings.add(QUESTIONS, not (repeated or short) and self._source.name == by, said)

    def prepared(self, data: StepData, made: StepData) -> StepData:
        """Checks what was added to the samples, and their advantages; returns what is learnt from."""
        if not self._recipe.method.compares:
            return made
        given = data.samples if self._learner.prepared is None else self._learner.prepared
        frozen = [sample for sample in data.samples if sample.model_key not in self._keys]
        with self._findings.stage(updates.PREPARED):
            for name, check in self._keys.items():
                check.prepared(self.of_key(given, name))
        with self._findings.stage(stages.ADVANTAGES):
            stages.check_advantages(self._findings, given, made.samples, self._recipe, frozen)
        cap, count = self._recipe.loss.importance_cap, len(made.samples)
        return replace(made, samples=[_apart(s, 1 + i / count, cap) for i, s in enumerate(made.samples)])

    def finished(self, result: TrainResult) -> None:
        """Checks the counters and the validations of the whole run."""
        spent = result.progress.generated_tokens
        self._findings.add(COUNTED, spent == self._tokens, f"{spent} tokens of the run, {self._tokens} were sampled")
        with self._findings.stage(environments.REPORTED):
            self._validation.reported(result)

    def _learnt(self, samples: Sequence[Sample], step: int, update: Callable[[], Metrics]) -> Metrics:
        """Lets the learner make its updates, and checks them."""
        own = {name: mine for name in self._keys if (mine := self.of_key(samples, name))}
        for name, mine in own.items():
            self._keys[name].before_update(mine)
        with self._findings.stage(updates.LOSS):
            metrics = update()
        with self._findings.stage(updates.UPDATE):
            for name, mine in own.items():
                self._keys[name].after_update(mine, step, metrics)
        return metrics


class _WatchedCollector(Collector):
    """A collector whose results are checked as they are made."""

    steps: _Steps
    findings: Findings

    def draw(self, step: int) -> StepData:
        """Returns the data of a step, checked; see `Collector.draw`."""
        with self.findings.stage("episodes become samples"):
            data = super().draw(step)
        self.steps.drawn(data)
        return data

    def prepared(self, data: StepData) -> StepData:
        """Returns the data of the step with advantages, checked; see `Collector.prepared`."""
        with self.findings.stage(stages.ADVANTAGES):
            made = super().prepared(data)
        return self.steps.prepared(data, made)


def _apart(sample: Sample, factor: float, cap: float | None) -> Sample:
    """Returns a sample with a larger advantage, and drawn as if by another engine where importance is weighed.

    Attempts that are alike would cancel in the gradient, and leave rounding to compare. Where sampler and trainer
    agree, every importance weight is 1, whatever the recipe does with it: here they are above the cap, 1, and below.
    """
    shift = 0.0 if cap is None else np.array([-np.log(cap) - 0.5, 0.0, 0.5])[np.arange(len(sample.ids)) % 3]
    logp = np.where(sample.mask, sample.sampler_logp + shift, 0.0).astype(np.float32)
    return replace(sample, advantage=(sample.advantage * factor).astype(np.float32), sampler_logp=logp)
