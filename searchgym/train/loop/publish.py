"""Sends the learner's weights to the samplers, and checks that they arrived and replaced the old ones."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from searchgym.errors import TrainingError
from searchgym.rollout.models import Model
from searchgym.rollout.sampler import FingerprintedSampler, Sampler, SampleRequest, Sampling, SpreadSampler
from searchgym.rollout.tokens import TokenFormat
from searchgym.train.algorithms.samples import Sample, SampleCall
from searchgym.train.learner.learner import Learner
from searchgym.train.loop.controllers import Controllers
from searchgym.train.loop.folder import Row
from searchgym.train.loop.samplers import computed_in, separate_adapters
from searchgym.train.plan.sampled import sampled_run
from searchgym.train.recipe.keys import POLICY
from searchgym.train.recipe.recipe import Recipe

ALLOWED: Final = {"float32": 1e-3, "bfloat16": 0.02}
"""Maximum mean difference of log-probs between sampler and trainer, in nats, by number type."""
TOKENS: Final = 16
"""Maximum number of tokens in a probe's response."""
SAMPLES_A_PROMPT: Final = 8
"""Number of samples of a step for which one prompt is probed: with few samples, four prompts took a quarter of a step's
time."""
AGAIN: Final = 8
"""Number of responses to each prompt in the second measurement, made if the first is above the limit."""


class Publisher:
    """Sends a learner's weights to the samplers of its keys, and checks that they arrived.

    Args:
        recipe: Recipe with the options of sampling and of the probe.
        learner: Learner with the weights.
        models: The trained models by key.
        others: Further controllers, whose samplers get the weights, too.
    """

    def __init__(
        self, recipe: Recipe, learner: Learner, models: Mapping[str, Model], others: Controllers | None = None
    ) -> None:
        self._learner, self._models, self._others = learner, models, others
        self._lora, self._rollout, self._allowed = recipe.lora, recipe.rollout, allowed_difference(recipe)
        self._alone = separate_adapters(recipe)  # otherwise samplers get the model with the adapter merged
        self._arrived: set[str] = set()
        self._sent: dict[str, dict[str, int]] = {}
        """Version of each fingerprint that was sent, by key."""

    def publish(self, version: int) -> None:
        """Sends the weights of all keys to their samplers."""
        for key, model in self._models.items():
            weights, number = self._learner.weights_of(key, self._alone), self._learner.version_of(key)
            if self._alone and self._rollout.probe and key not in self._arrived:
                assert isinstance(model.format, TokenFormat)
                prompt, gain = model.format.prompt_ids("Which page tells it?"), self._lora.alpha / self._lora.rank
                check_arrival(model.sampler, weights, number, prompt, key=key, gain=gain)
                self._arrived.add(key)
            else:
                model.sampler.update(weights, number)
            if self._others is not None:
                self._others.update(key, weights, number)
            if self._rollout.probe and isinstance(model.sampler, FingerprintedSampler):
                self._compare(model.sampler, weights, number, key)

    def _compare(self, sampler: FingerprintedSampler, weights: Mapping[str, Tensor], version: int, key: str) -> None:
        """Compares the fingerprints of the weights that were sent and of those that each engine has.

        Unlike `probe`, it sees updates of any size that did not arrive, but not old caches or what an engine makes of
        its weights; `searchgym.rollout.transfer.fingerprint` says what a fingerprint does not see.

        Raises:
            TrainingError: An engine has other weights; the message names the key, the engine and the version.
        """
        pairs = sampler.fingerprints(weights)
        if not pairs and key not in self._sent:
            why = "the sampler's weights cannot be read: only log-probs show if they arrived"
            sys.stderr.write(f"note: {key}: {why}\n")
        versions = self._sent.setdefault(key, {})
        for name, (expected, actual) in pairs.items():
            versions.setdefault(expected, version)
            if actual == expected:
                continue
            instead = f"those of version {versions[actual]}" if actual in versions else "others" if actual else "none"
            raise TrainingError(
                f"{key}: the weights of version {version} did not arrive in {name}, which has {instead}, by the "
                "fingerprints of the weights on both sides"
            )

    def probe(self, samples: Sequence[Sample]) -> Row:
        """Checks that every sampler has the learner's weights; see `probe`.

        Returns:
            The largest of each metric over the keys.
        """
        options, rows = self._rollout, list[Row]()
        for key, model in self._models.items():
            key_samples = [sample for sample in samples if sample.model_key == key]
            temperature, count = options.temperature, min(options.probe, -(-len(key_samples) // SAMPLES_A_PROMPT))
            allowed = self._allowed
            rows.append(
                probe(
                    model.sampler,
                    self._learner,
                    key_samples,
                    key,
                    temperature=temperature,
                    count=count,
                    allowed=allowed,
                )
            )
        return {name: max(row[name] for row in rows if name in row) for row in rows for name in row}


def allowed_difference(recipe: Recipe) -> float:
    """Returns the maximum mean difference, in nats, between log-probs of sampler and trainer."""
    sampled_in = recipe.rollout.sampler.computed_in(sampled_run(recipe))
    return max(ALLOWED[computed_in(recipe)], ALLOWED[sampled_in])


def probe(
    sampler: Sampler,
    learner: Learner,
    samples: Sequence[Sample],
    key: str = POLICY,
    *,
    temperature: float,
    count: int,
    allowed: float,
) -> Row:
    """Compares log-probs of sampler and learner on responses to prompts that the sampler has processed before.

    Missing weights, and prompt caches of older weights, cause a difference in log-probs. In bfloat16 single tokens
    differ a lot, so that the mean over a few dozen is imprecise near the limit: if it is above the limit, the
    difference is measured again on further responses to each prompt, and the second result decides. If a sampler has
    several engines, each is checked separately.

    Args:
        sampler: Sampler that has just received the learner's weights.
        learner: Computes the log-probs to compare with.
        samples: Samples of the step before the update; the last calls of the longest samples are continued.
        key: Model key of all samples.
        temperature: Temperature of both.
        count: Maximum number of prompts.
        allowed: Maximum mean difference, in nats.

    Returns:
        ``probe/difference`` and ``probe/max_difference`` in nats, the largest of all engines; nothing if the sampler
        wrote no token.

    Raises:
        TrainingError: The mean difference of an engine is above `allowed`.
    """
    longest = sorted((s for s in samples if s.calls), key=lambda s: -s.calls[-1].start)[:count]
    pins = sampler.pins() if isinstance(sampler, SpreadSampler) else {"": ""}
    measured = _differences(sampler, learner, longest, temperature, range(len(longest)), list(pins))
    rows = []
    for (episode, name), apart in zip(pins.items(), measured, strict=True):
        if not len(apart):
            continue
        if not apart.mean() <= allowed:
            again = [sample for sample in longest for _ in range(AGAIN)]
            seeds = range(len(longest), len(longest) + len(again))
            (apart,) = _differences(sampler, learner, again, temperature, seeds, [episode])
        mean, most = float(apart.mean()), float(apart.max())
        if not mean <= allowed:
            where = f" on {name}" if len(pins) > 1 else ""
            raise TrainingError(
                f"{key}: after update {learner.version_of(key)}, log-probs of sampler and trainer differ by {mean:.3g} "
                f"nats on average{where} ({len(apart)} tokens, {allowed:g} is allowed): the sampler has other weights, "
                "or still uses caches of old ones"
            )
        rows.append({"probe/difference": mean, "probe/max_difference": most})
    return {name: max(row[name] for row in rows) for name in (rows[0] if rows else {})}


def check_arrival(
    sampler: Sampler,
    weights: Mapping[str, Tensor],
    version: int,
    prompt: npt.NDArray[np.int32],
    *,
    key: str,
    gain: float,
) -> None:
    """Checks that a sampler uses the adapters it receives, with a test adapter that changes the model's output.

    `probe` cannot detect this while updates are small: after 60 updates at a rate of 1e-7, a missing adapter changes
    log-probs by only 3e-4 nats. After the check the sampler has the given weights.

    Args:
        sampler: Sampler that applies an adapter to its base model.
        weights: The adapter's weights by peft's names.
        version: Policy version of the weights.
        prompt: (T,) int32 token ids to continue.
        key: Model key of the adapter.
        gain: Scale of the adapter's matrix product, ``lora_alpha / rank``.

    Raises:
        TrainingError: An engine's output is the same with the test adapter.
    """
    noise = torch.Generator().manual_seed(0)
    loud = {
        name: w + torch.randn(w.shape, generator=noise) / (gain * w.shape[1] ** 0.5) if ".lora_B." in name else w
        for name, w in ((name, weight.detach().float().cpu()) for name, weight in weights.items())
    }
    pins = sampler.pins() if isinstance(sampler, SpreadSampler) else {"": ""}
    requests = [SampleRequest(prompt, Sampling(TOKENS, 0.0), 0, episode) for episode in pins]
    replies = []
    for state in (loud, weights):
        sampler.update(state, version)
        replies.append(sampler.sample(requests))
    for name, one, two in zip(pins.values(), *replies, strict=True):
        if np.array_equal(one.ids, two.ids) and np.allclose(one.logp, two.logp, rtol=0, atol=1e-4):
            where = f" on {name}" if len(pins) > 1 else ""
            raise TrainingError(
                f"{key}: adapters do not reach the sampler{where}: its output is the same, within 1e-4 nats, "
                "with one that changes every matrix; set rollout.sampler.adapters to merged"
            )


def _differences(
    sampler: Sampler,
    learner: Learner,
    prompted: Sequence[Sample],
    temperature: float,
    seeds: Sequence[int],
    episodes: Sequence[str],
) -> list[npt.NDArray[np.float32]]:
    """Returns the differences of log-probs between sampler and learner on responses to the samples' prompts.

    Args:
        sampler: Sampler that generates the responses.
        learner: Computes the log-probs to compare with.
        prompted: Samples whose prompts are used.
        temperature: Temperature of both.
        seeds: One seed per sample.
        episodes: One episode id per engine; each gets all prompts.

    Returns:
        (n,) float32 for each episode id: differences in nats for the tokens of its responses.
    """
    requests, owners, likes = list[SampleRequest](), list[int](), list[Sample]()
    for owner, episode in enumerate(episodes):
        for seed, like in zip(seeds, prompted, strict=True):
            prompt = like.ids[: like.calls[-1].start]
            requests.append(SampleRequest(prompt, Sampling(TOKENS, temperature), seed, episode))
            owners.append(owner)
            likes.append(like)
    answered = [
        reply for reply in zip(owners, requests, likes, sampler.sample(requests), strict=True) if len(reply[3].ids)
    ]
    responses = []
    for _, request, like, reply in answered:
        start, end = len(request.ids), len(request.ids) + len(reply.ids)
        responses.append(
            dataclasses.replace(
                like,
                ids=np.concatenate([request.ids, reply.ids]),
                mask=np.arange(end) >= start,
                reward=np.zeros(end, np.float32),
                advantage=np.zeros(end, np.float32),
                sampler_logp=np.concatenate([np.zeros(start, np.float32), reply.logp]),
                calls=(SampleCall(0, start, end, like.calls[-1].role, like.calls[-1].turn),),
                old_logp=None,
                ref_logp=None,
                value=None,
                returns=None,
            )
        )
    expected = learner.logp(responses) if responses else []
    apart: list[list[npt.NDArray[np.float32]]] = [[np.zeros(0, np.float32)] for _ in episodes]
    for (owner, _, _, reply), expected_logp in zip(answered, expected, strict=True):
        apart[owner].append(np.abs(np.asarray(expected_logp) - reply.logp))
    return [np.concatenate(parts) for parts in apart]
