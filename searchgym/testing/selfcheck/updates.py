"""Checks of one model key: log-probs of sampler and trainer, losses, gradients, updates, the critic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from searchgym.rollout.loading import load_model
from searchgym.testing.reference.advantages import Floats
from searchgym.testing.reference.losses import (
    departures,
    likelihood_loss,
    mean_gap,
    policy_loss,
    shortfalls,
    trained_tokens,
    value_loss,
    value_of,
)
from searchgym.testing.reference.update import Gradient, ReferenceModel, RowLoss, compare, way
from searchgym.testing.selfcheck.findings import Findings
from searchgym.testing.selfcheck.small import key_recipe
from searchgym.testing.selfcheck.watched import Exchange, GradientWatch, watch
from searchgym.train.algorithms.samples import Sample
from searchgym.train.learner.batching import Metrics
from searchgym.train.learner.critic import load_critic, make_critic
from searchgym.train.learner.learner import Learner
from searchgym.train.loop.publish import allowed_difference
from searchgym.train.loop.samplers import computed_in
from searchgym.train.recipe.keys import Key
from searchgym.train.recipe.recipe import Recipe

AGREE: Final = "log-probs of sampler and trainer agree"
ARRIVE: Final = "new weights reach the sampler"
DRAWN: Final = "tokens are drawn from the model's distribution"
PREPARED: Final = "log-probs of policy and reference"
LOSS: Final = "the loss is the recipe's"
GRADIENT: Final = "the gradient is the loss's"
ELEMENTS: Final = "gradients are right element by element"
UPDATE: Final = "the update is AdamW's"
VALUES: Final = "values are the critic's"
CRITIC: Final = "the critic learns its returns"
EVERY: Final = (AGREE, LOSS, GRADIENT, ELEMENTS)
"""Names of the checks that apply to every recipe."""
REASONS: Final = {
    DRAWN: "top_p is below 1",
    ARRIVE: "the updates moved the log-probs too little to tell",
    UPDATE: "the samples' gradients cancel: rounding is left",
}
"""Reasons why the other checks may have no result."""
OFF: Final = {"float32": 5e-4, "bfloat16": 0.08}
"""Maximum relative difference of losses and gradient norms, by number type."""
ASTRAY: Final = {"float32": 0.02, "bfloat16": 0.6}
"""Maximum relative error of an update, by number type: AdamW scales up rounding in small gradients."""
CANCELLED: Final = 0.01
"""Minimum norm of an update's gradient, as a share of its gross norm: below it, mostly rounding would be compared."""
ALIKE: Final = {"float32": 1e-3, "bfloat16": 0.25}
"""Maximum relative error of each weight's gradient in the first update of a step, by number type."""
STALE: Final = 0.3
"""Maximum error of the sampler's log-probs, as a share of their change by the last update."""


class KeyCheck:
    """Checks of one trained model key in all steps, by comparison with a second trainer.

    Args:
        key: Model key.
        recipe: Recipe of the run, which contains the options of the key.
        learner: Learner under test; its weights are read and its gradients are watched.
        findings: Receives the results.
    """

    def __init__(self, key: Key, recipe: Recipe, learner: Learner, findings: Findings) -> None:
        recipe = key_recipe(recipe, key.name)
        self.key, self._learner, self._findings, self.recipe = key, learner, findings, recipe
        self._adapter = recipe.lora.rank > 0
        # an adapter's base is in float32, rounded as the learner's
        model: Any = load_model(recipe.model, "float32" if self._adapter else recipe.learner.dtype)[0]
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(weight.to(getattr(torch, recipe.learner.dtype)))
        self._policy = ReferenceModel(model, recipe, recipe.optimizer, recipe.lora.rank)
        if not self._adapter:
            self._policy.freeze(recipe.learner.frozen_layers)
        self._start = _copied(model.state_dict()) if recipe.loss.kl_coef else {}
        self._critic: ReferenceModel | None = None
        if recipe.has_critic:
            path = recipe.critic.model
            loss = recipe.critic.loss
            body: Any = load_critic(path, loss, recipe.learner.dtype) if path else make_critic(model, loss)
            self._critic = ReferenceModel(body, recipe, recipe.critic.optimizer)
        self._watched, self._watched_critic = watch(learner, key.name)
        self._before: dict[str, Tensor] = {}
        self._rounded = recipe.learner.dtype == "bfloat16" and not self._adapter
        """Whether the learner returns rounded weights; if so, only the sum of all updates is compared."""
        self._previous: dict[str, Tensor] = {}
        self._noise = 0.0
        self._old: list[Floats] = []
        self._reference: list[Floats] | None = None
        self._limit = "float32" if computed_in(recipe) == "float32" else "bfloat16"
        """Number type of the learner's computations."""

    def likeliest(self, exchanges: Sequence[Exchange]) -> list[tuple[float, float, float]]:
        """Compares sampled tokens with the likeliest ones under the learner's weights; see `shortfalls`."""
        self._policy.load(self._present())
        rows: list[tuple[float, float, float]] = []
        for request, reply in exchanges:
            positions, ids = len(request.ids) + np.arange(len(reply.ids)), torch.from_numpy(reply.ids.astype(np.int64))
            with torch.no_grad():
                logits = self._policy.logits(np.concatenate([request.ids, reply.ids]), positions)
            rows += shortfalls(logits, ids, torch.from_numpy(reply.logp), self.recipe.rollout.temperature)
        return rows

    def _present(self) -> dict[str, Tensor]:
        """Returns a copy of the learner's weights of the whole model."""
        trained = _copied(self._learner.weights_of(self.key.name, self._adapter))
        return dict(self._policy.merged(trained))

    def _logp(self, state: Mapping[str, Tensor], samples: Sequence[Sample]) -> list[Floats]:
        """Returns the log-probs of the trained tokens under the given weights."""
        self._policy.load(state)
        return [row[0] for row in self._policy.look(samples)]

    # -- sampled tokens --------------------------------------------------------------------------------------------

    def check_sampled(self, samples: Sequence[Sample]) -> None:
        """Checks that the sampler has the learner's weights and draws from their distribution."""
        present = self._present()
        self._policy.load(present)
        rows = self._policy.look(samples)
        now = [row[0] for row in rows]
        allowed, off = allowed_difference(self.recipe), mean_gap(now, [s.sampler_logp[s.mask] for s in samples])
        self._findings.within(AGREE, off, allowed, f"{off:.2g} nats apart on average")
        if self.recipe.rollout.top_p == 1:
            far, message = max(departures(rows), key=lambda departure: abs(departure[0]))
            self._findings.within(DRAWN, abs(far), 6, message)
        if not self._previous:
            self._noise = off
        else:
            moved = mean_gap(now, self._logp(self._previous, samples))
            if STALE * moved > 2 * self._noise:
                message = f"{off:.2g} nats off, after an update that moved them by {moved:.2g}"
                self._findings.within(ARRIVE, off, STALE * moved, message)
        self._previous = present

    # -- inputs of advantages --------------------------------------------------------------------------------------

    def prepared(self, samples: Sequence[Sample]) -> None:
        """Checks the log-probs and critic values that were added to samples before their advantages."""
        if not samples:
            return
        present = self._present()
        for name, state in (("old_logp", present), ("ref_logp", self._start)):
            rows = [getattr(sample, name) for sample in samples]
            if any(row is not None for row in rows):
                expected, pairs = self._logp(state, samples), zip(samples, rows, strict=True)
                stored = [np.full(int(s.mask.sum()), np.inf) if r is None else r[s.mask] for s, r in pairs]
                off = mean_gap(expected, stored)
                self._findings.within(PREPARED, off, allowed_difference(self.recipe), f"{off:.2g} nats off")
        if self._critic is not None:
            self._values(samples, self._critic)

    def _values(self, samples: Sequence[Sample], critic: ReferenceModel) -> None:
        """Checks the critic's values, which are 0 before its first update."""
        gap, size = [], []
        for sample in samples:
            positions = self._valued_positions(sample)
            with torch.no_grad():
                expected = value_of(critic.logits(sample.ids, positions), self.recipe.critic.loss).numpy()
            value = np.full(len(sample.ids), np.inf) if sample.value is None else sample.value
            gap.append(np.abs(np.delete(value, positions)).max(initial=0))
            gap.append(np.abs(value[positions] - expected).max(initial=0))
            size.append(np.abs(expected).max(initial=0))
        off, scale = float(max(gap)), max(1.0, float(max(size)))
        message = f"off by {off:.2g} at most, where they reach {max(size):.2g}"
        self._findings.within(VALUES, off, ASTRAY[self._limit] * scale, message)

    def _valued_positions(self, sample: Sample) -> Any:
        """Returns the positions that have a value."""
        positions = trained_tokens(sample)
        return np.arange(positions[0], positions[-1] + 1) if self.recipe.critic.tokens == "response" else positions

    # -- the update ------------------------------------------------------------------------------------------------

    def before_update(self, samples: Sequence[Sample]) -> None:
        """Records the weights and log-probs before an update, which the losses and comparisons need."""
        present = self._present()
        self._reference = None
        for watched in (self._watched, self._watched_critic):
            if watched is not None:
                watched.take()
        if self.recipe.method.compares:
            if self.recipe.loss.kl_coef and self.recipe.loss.kl_in == "loss":
                self._reference = self._logp(self._start, samples)
            self._old = self._logp(present, samples)
        self._policy.load(present)
        if not (self._rounded and self._before):
            self._before = _copied(self._learner.weights_of(self.key.name, self._adapter))

    def after_update(self, samples: Sequence[Sample], step: int, metrics: Metrics) -> None:
        """Repeats an update with the second trainer and compares losses, gradients and weights."""
        recipe = self.recipe
        if recipe.has_critic and step < recipe.critic.warmup_steps:
            after = self._learner.weights_of(self.key.name, self._adapter)
            moved = sum(not torch.equal(weight, after[name].cpu()) for name, weight in self._before.items())
            self._findings.add(UPDATE, not moved, f"{moved} weights moved although only the critic is trained")
            self._value_update(samples, step, metrics)
            return
        if recipe.method.compares:
            scale = float(np.mean(np.abs(np.concatenate([s.advantage[s.mask] for s in samples]))))
            reported, sampler_logp = (
                self._metric(metrics, "sampler_difference"),
                [s.sampler_logp[s.mask] for s in samples],
            )
            expected = mean_gap(self._old, sampler_logp)
            message = f"the trainer reports {reported:.2g} nats, {expected:.2g} is right"
            self._findings.add(AGREE, abs(reported - expected) <= allowed_difference(recipe), message)
        else:
            if recipe.method.every_token:
                samples = [replace(s, mask=np.arange(len(s.ids)) > 0) for s in samples]
            scale = 0.0

        def loss(rows: Sequence[int]) -> RowLoss:
            batch = [samples[i] for i in rows]
            if not recipe.method.compares:
                return likelihood_loss(self._policy, batch)
            reference = None if self._reference is None else [self._reference[i] for i in rows]
            return policy_loss(self._policy, batch, [self._old[i] for i in rows], reference)

        updated = self._policy.update(len(samples), loss, step, None if self._rounded else self._before)
        self._compare(LOSS, GRADIENT, updated, metrics, "", scale)
        self._elements(ELEMENTS, self._watched, updated)
        self._weights(updated)
        self._value_update(samples, step, metrics)

    def _elements(self, name: str, watched: GradientWatch | None, updated: Sequence[Gradient]) -> None:
        """Compares the first and the last gradient of a step with the learner's."""
        if watched is None:
            self._findings.skip(ELEMENTS, "the learner runs in other processes: gradients are compared by norm")
        for number, (off, where) in enumerate(compare(watched.take(), updated) if watched else ()):
            # the last gradient contains the rounding of earlier updates; two critics diverge slightly
            exact = name == ELEMENTS and not number
            allowed = (ALIKE if exact else ASTRAY)[self._limit]
            self._findings.within(name, off, allowed, f"off by {off:.2g} of its length at most, at {where}")

    def _value_update(self, samples: Sequence[Sample], step: int, metrics: Metrics) -> None:
        """Repeats the critic's update, if the recipe has a critic, and compares losses and gradients."""
        if (critic := self._critic) is not None:
            positions = [self._valued_positions(sample) for sample in samples]

            def loss(rows: Sequence[int]) -> RowLoss:
                return value_loss(critic, [samples[i] for i in rows], [positions[i] for i in rows])

            of_critic = critic.update(len(samples), loss, step)
            self._compare(CRITIC, CRITIC, of_critic, metrics, "critic/", 0.0)
            self._elements(CRITIC, self._watched_critic, of_critic)

    def _compare(
        self, loss: str, gradient: str, updated: Sequence[Gradient], metrics: Metrics, prefix: str, scale: float
    ) -> None:
        """Compares losses and gradient norms; losses relative to `scale`, since advantages of both signs cancel."""
        allowed = OFF[self._limit] * (5 if prefix else 1)  # two critics diverge slightly
        right, reported = float(np.mean([update.loss for update in updated])), self._metric(metrics, f"{prefix}loss")
        near = abs(reported - right) <= allowed * max(scale, abs(right), 1e-6)
        self._findings.add(loss, near, f"loss {reported:.6g}, by its formula {right:.6g}")
        right, gross = (float(np.mean([getattr(update, name) for update in updated])) for name in ("norm", "whole"))
        norm = self._metric(metrics, f"{prefix}gradient_norm")
        near = abs(norm - right) <= allowed * max(right, 0.1 * gross) and (right > 0 or bool(prefix))
        message = f"gradient norm {norm:.6g}, by its formula {right:.6g}" + ": nothing would be learnt" * (right == 0)
        self._findings.add(gradient, near, message)

    def _metric(self, metrics: Metrics, name: str) -> float:
        """Returns a metric of this key; NaN if the learner reports none."""
        kind, slash, rest = name.partition("/")
        of_key = f"{kind}/{self.key.name}/{rest}" if slash else f"learner/{self.key.name}/{name}"
        return metrics.get(name, metrics.get(of_key, float("nan")))

    def _weights(self, updated: Sequence[Gradient]) -> None:
        """Compares the changes of the weights with the right ones."""
        after = _copied(self._learner.weights_of(self.key.name, self._adapter))
        expected: Mapping[str, Tensor] = dict(self._policy.model.state_dict()) | self._policy.trained
        if self._adapter:
            handed = self._learner.weights_of(self.key.name)
            merged = self._policy.merged(after)
            gaps = [
                (handed[name].cpu().float() - merged[name].float()).abs().max() for name in merged if name in handed
            ]
            worst = float(max(gaps))
            self._findings.within(UPDATE, worst, 1e-4 if self._limit == "float32" else 0.05, f"merged {worst:.2g} off")
        if sum(each.norm for each in updated) <= CANCELLED * sum(each.whole for each in updated):
            return
        for matrices in (True,) if self._rounded else (True, False):  # norms and biases are few, and have no decay
            names = [name for name, weight in self._before.items() if (weight.ndim > 1) == matrices]
            off, size = way(names, self._before, after, expected)
            message = f"{'matrices' if matrices else 'norms and biases'} moved {size:.3g}, off by {off:.2g} of that"
            self._findings.within(UPDATE, off, ASTRAY[self._limit], message)


def _copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight.detach().cpu().clone() for name, weight in state.items()}
