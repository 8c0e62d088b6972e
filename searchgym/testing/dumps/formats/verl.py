"""Format ``verl``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from searchgym.errors import DataError
from searchgym.testing.dumps.files import Batch
from searchgym.testing.dumps.form import DumpFormat, after, cell, number, rows_of, total
from searchgym.testing.dumps.sample import DumpedSample, dumped_sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Verl(DumpFormat):
    """verl's `DataProto`: tensors of ``batch``, with ``uid`` and ``temperature`` beside them.

    Prompts are padded on the left and responses on the right. The loss weighs ``response_mask``.
    """

    version: ClassVar = "verl 0.9.1"
    required: ClassVar = ("responses", "prompts", "response_mask", "attention_mask")
    optional: ClassVar = (
        "position_ids", "old_log_probs", "rollout_log_probs", "advantages", "rm_scores", "token_level_scores",
        "token_level_rewards", "uid", "temperature",
    )  # fmt: skip
    added: ClassVar = ("sampled_ids",)
    ignored: ClassVar = ("input_ids", "ref_log_prob", "returns", "values", "entropys", "rollout_is_weights")
    estimators: ClassVar = {
        "grpo": "grpo", "grpo_vectorized": "grpo", "rloo": "rloo", "rloo_vectorized": "rloo",
        "reinforce_plus_plus": "reinforce++", "reinforce_plus_plus_baseline": "reinforce++-baseline",
    }  # fmt: skip

    @override
    def rows(self, batch: Batch) -> Iterator[DumpedSample]:
        temperature, width = number(batch, "temperature"), np.shape(batch.fields["prompts"])[1]
        for index, name in rows_of(batch, "responses"):
            scores = cell(batch, "token_level_scores", index)
            scores = cell(batch, "rm_scores", index) if scores is None else scores
            rewards = cell(batch, "token_level_rewards", index)
            positions, group = cell(batch, "position_ids", index), cell(batch, "uid", index)
            yield dumped_sample(
                name,
                np.concatenate([batch.fields["prompts"][index], batch.fields["responses"][index]]),
                after(width, batch.fields["response_mask"][index], 0),
                attended=batch.fields["attention_mask"][index],
                prompt=width,
                logps={
                    field: after(width, cell(batch, field, index)) for field in ("rollout_log_probs", "old_log_probs")
                },
                sampler="rollout_log_probs" if "rollout_log_probs" in batch.fields else None,
                sampled=cell(batch, "sampled_ids", index),
                advantage=after(width, cell(batch, "advantages", index)),
                token_reward=after(width, scores, 0),
                reward=total(scores if rewards is None else rewards),
                group=None if group is None else str(group),
                temperature=temperature,
                positions=positions if np.ndim(positions) == 1 else None,
            )

    @override
    def samples(self, batch: Batch) -> list[DumpedSample]:
        if {"input", "output", "score"} <= batch.fields.keys():
            reason = "a file of rollout_data_dir has texts, and neither ids nor masks: dump the DataProto"
            raise DataError(reason, batch.path, batch.line)
        return DumpFormat.samples(self, batch)
