"""An estimate of how long the stages of a pipeline take on this machine, from a few seconds of the model's own work."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from searchgym.cli.pipeline.pipeline import Pipeline
from searchgym.rollout.loading import device_of
from searchgym.rollout.sampler import Dtype, SampleRequest, Sampling
from searchgym.rollout.transformers.precision import emulates_bfloat16
from searchgym.rollout.transformers.sampler import load_sampler

CONTEXT: Final = 256
"""Tokens of a sequence that is timed."""
ROWS: Final = 8
NEW: Final = 24
"""Tokens that each timed sequence is continued by."""
EPISODE_READ: Final = 900
"""Tokens that an episode reads: the prompt, and the pages of about two searches of 150 words each."""
EPISODE_WRITTEN: Final = 60
READING: Final = 350
"""Tokens of a context of reading practice."""
IN_FLOAT32: Final = "optimizer.autocast=null"
"""Value of a recipe; a later value replaces it."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens per second of a model on this machine."""

    read: float
    """Tokens of prompts."""
    written: float
    """Sampled tokens."""
    learnt: float
    """Tokens of a forward and a backward pass."""

    def episodes(self, count: float) -> float:
        """Returns the seconds that episodes take."""
        return count * (EPISODE_READ / self.read + EPISODE_WRITTEN / self.written)


def for_this_machine(pipeline: Pipeline) -> Pipeline:
    """Returns a pipeline that trains in float32 where a CPU only emulates bfloat16, unless its values say otherwise."""
    if not emulates_bfloat16():
        return pipeline
    demonstrations, reinforce = pipeline.demonstrations, pipeline.reinforce
    return dataclasses.replace(
        pipeline,
        demonstrations=dataclasses.replace(demonstrations, values=_in_float32(demonstrations.values)),
        reinforce=dataclasses.replace(reinforce, values=_in_float32(reinforce.values)),
    )


def _in_float32(values: list[str]) -> list[str]:
    """Returns the values of a recipe with float32 before them; a resumed pipeline's have it already."""
    return values if IN_FLOAT32 in values else [IN_FLOAT32, *values]


def measure(model: str, dtype: Dtype) -> Speeds:
    """Times a model in a data type: it reads, writes and learns for a few seconds."""
    sampler, tokenizer = load_sampler(model, dtype, device=device_of("auto"))
    try:
        rng = np.random.default_rng(0)
        ids = rng.integers(100, len(tokenizer) - 100, (ROWS, CONTEXT)).astype(np.int32)

        def sample(rows: Any, tokens: int) -> tuple[float, int]:
            began = time.perf_counter()
            replies = sampler.sample([SampleRequest(row, Sampling(tokens, 1.0)) for row in rows])
            return time.perf_counter() - began, sum(len(reply.ids) for reply in replies)

        sample(np.roll(ids[:2], 1, axis=1), 2)  # the first pass allocates
        reading, _ = sample(ids, 1)
        writing, written = sample(ids, NEW)  # what was read is kept: only the new tokens take time
        network: Any = sampler.model
        rows = torch.from_numpy(ids[:2].astype(np.int64)).to(network.device)
        learning = 0.0
        for _ in range(2):  # the first one allocates
            began = time.perf_counter()
            network(input_ids=rows, labels=rows).loss.backward()
            if rows.is_cuda:
                torch.cuda.synchronize()
            learning = time.perf_counter() - began
            network.zero_grad(set_to_none=True)
    finally:
        sampler.close()
    return Speeds(ROWS * CONTEXT / reading, written / writing, 2 * CONTEXT / learning)


def expected(pipeline: Pipeline, speeds: Speeds) -> dict[str, float]:
    """Returns the seconds that each stage should take, by stage; those that compute little have none."""
    demonstrations, choice, recipe = pipeline.demonstrations, pipeline.selection, pipeline.recipe
    episodes = recipe.rollout.questions * recipe.rollout.attempts
    validations = 1 + recipe.steps // recipe.validation.every if recipe.validation.every else 0
    step = speeds.episodes(episodes) + episodes * EPISODE_READ / speeds.learnt
    return {
        "filler": demonstrations.masked * EPISODE_READ / speeds.learnt,
        "reader": demonstrations.reading * READING / speeds.learnt,
        "searcher": demonstrations.searching * EPISODE_READ / speeds.learnt,
        "selected": speeds.episodes(1.5 * choice.pool * choice.attempts),  # half of them are measured twice
        "reinforced": recipe.steps * step + validations * speeds.episodes(recipe.validation.questions),
        "scores": speeds.episodes(3 * pipeline.tests),  # the row without searches is short
    }
