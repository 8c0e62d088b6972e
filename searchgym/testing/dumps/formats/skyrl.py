"""Format ``skyrl``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from searchgym.testing.dumps.files import Batch
from searchgym.testing.dumps.form import DumpFormat, after, cell, number, rows_of, total
from searchgym.testing.dumps.sample import DumpedSample, dumped_sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Skyrl(DumpFormat):
    """SkyRL's `GeneratorOutput`: lists of lists, without padding; the loss weighs ``loss_masks``."""

    version: ClassVar = "skyrl 0.3.0"
    required: ClassVar = ("response_ids", "prompt_token_ids", "loss_masks", "rewards")
    optional: ClassVar = ("rollout_logprobs", "stop_reasons", "trajectory_ids")
    added: ClassVar = ("uids", "advantages", "temperature", "sampled_ids")
    ignored: ClassVar = (
        "rollout_metrics", "trajectory_generation_times", "trajectory_time_splits", "rollout_expert_indices",
        "is_last_step", "env_metrics", "pixel_values", "image_grid_thw",
    )  # fmt: skip
    estimators: ClassVar = {"grpo": "grpo", "rloo": "rloo", "reinforce++": "reinforce++"}

    @override
    def rows(self, batch: Batch) -> Iterator[DumpedSample]:
        for index, name in rows_of(batch, "response_ids"):
            prompt, response = batch.fields["prompt_token_ids"][index], batch.fields["response_ids"][index]
            rewards, advantage = batch.fields["rewards"][index], cell(batch, "advantages", index)
            trajectory, uid = cell(batch, "trajectory_ids", index), cell(batch, "uids", index)
            if isinstance(trajectory, Mapping):
                trajectory = trajectory["instance_id"]
            group = trajectory if uid is None else uid
            yield dumped_sample(
                name,
                [*prompt, *response],
                after(len(prompt), batch.fields["loss_masks"][index], 0),
                prompt=len(prompt),
                logps={"rollout_logprobs": after(len(prompt), cell(batch, "rollout_logprobs", index))},
                sampler="rollout_logprobs" if batch.fields.get("rollout_logprobs") is not None else None,
                sampled=cell(batch, "sampled_ids", index),
                advantage=advantage if np.ndim(advantage) == 0 else after(len(prompt), advantage),
                token_reward=after(len(prompt), rewards, 0) if np.ndim(rewards) else None,
                reward=total(rewards),
                group=None if group is None else str(group),
                temperature=number(batch, "temperature"),
                truncated=cell(batch, "stop_reasons", index) == "length",
                finished=cell(batch, "stop_reasons", index) == "stop",
            )
