"""Format ``trl``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from searchgym.testing.dumps.files import Batch
from searchgym.testing.dumps.form import DumpFormat, after, cell, number, rows_of, total
from searchgym.testing.dumps.sample import DumpedSample, dumped_sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Trl(DumpFormat):
    """The inputs of the loss of TRL's `GRPOTrainer`; the loss weighs ``completion_mask * tool_mask``.

    A completion whose whole ``completion_mask`` is 0 counts as cut off (``mask_truncated_completions``).
    """

    version: ClassVar = "trl 1.16"
    required: ClassVar = ("completion_ids", "prompt_ids", "prompt_mask", "completion_mask", "advantages")
    optional: ClassVar = ("tool_mask", "old_per_token_logps", "sampling_per_token_logps")
    added: ClassVar = ("rewards", "num_generations", "temperature", "sampled_ids")
    ignored: ClassVar = (
        "num_items_in_batch", "importance_sampling_ratio", "ref_per_token_logps", "pixel_values", "image_grid_thw",
        "pixel_attention_mask", "spatial_shapes", "image_sizes", "token_type_ids", "mm_token_type_ids",
        "image_position_ids", "num_images", "num_tiles",
    )  # fmt: skip
    estimators: ClassVar = {"group": "grpo", "none": "grpo-no-std", "batch": "grpo-batch-std"}
    epsilon: ClassVar = 1e-4

    @override
    def rows(self, batch: Batch) -> Iterator[DumpedSample]:
        size, width = number(batch, "num_generations"), np.shape(batch.fields["prompt_ids"])[1]
        for index, name in rows_of(batch, "completion_ids"):
            inside, tools = np.asarray(batch.fields["completion_mask"][index]), cell(batch, "tool_mask", index)
            truncated = not inside.any()
            yield dumped_sample(
                name,
                np.concatenate([batch.fields["prompt_ids"][index], batch.fields["completion_ids"][index]]),
                after(width, inside if tools is None else inside * np.asarray(tools), 0),
                attended=np.concatenate([batch.fields["prompt_mask"][index], inside]),
                prompt=width,
                logps={
                    field: after(width, cell(batch, field, index))
                    for field in ("sampling_per_token_logps", "old_per_token_logps")
                },
                sampler="sampling_per_token_logps" if "sampling_per_token_logps" in batch.fields else None,
                sampled=cell(batch, "sampled_ids", index),
                advantage=float(batch.fields["advantages"][index]),
                reward=total(cell(batch, "rewards", index)),
                group=None if size is None else f"{batch.name} group {index // int(size) + 1}".strip(),
                temperature=number(batch, "temperature"),
                truncated=truncated,
            )
