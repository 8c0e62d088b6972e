"""Format ``openrlhf``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from searchgym.testing.dumps.files import Batch
from searchgym.testing.dumps.form import DumpFormat, after, cell, number, rows_of, total
from searchgym.testing.dumps.sample import DumpedSample, dumped_sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Openrlhf(DumpFormat):
    """OpenRLHF's `Experience`: A numbers of ``action_mask`` and others belong to the last A of ``sequences``' tokens.

    With ``n_samples_per_prompt``, consecutive numbers of ``index`` form groups.
    """

    version: ClassVar = "openrlhf 0.11.2"
    required: ClassVar = ("sequences", "attention_mask", "action_mask")
    optional: ClassVar = ("action_log_probs", "rollout_log_probs", "advantages", "rewards", "index", "truncated")
    added: ClassVar = ("n_samples_per_prompt", "temperature", "sampled_ids")
    ignored: ClassVar = (
        "base_action_log_probs", "values", "returns", "kl", "scores", "response_length", "total_length", "prompts",
        "labels", "images", "mm_train_inputs", "info",
    )  # fmt: skip
    estimators: ClassVar = {
        "group_norm": "grpo", "dr_grpo": "grpo-no-std", "rloo": "rloo", "reinforce": "reinforce++",
        "reinforce_baseline": "reinforce++-baseline",
    }  # fmt: skip
    epsilon: ClassVar = 1e-9

    @override
    def rows(self, batch: Batch) -> Iterator[DumpedSample]:
        size = number(batch, "n_samples_per_prompt")
        for index, name in rows_of(batch, "sequences"):
            ids, actions = batch.fields["sequences"][index], batch.fields["action_mask"][index]
            before, attempt = len(ids) - len(actions), cell(batch, "index", index)
            if before < 0:
                raise ValueError(f"action_mask has {len(actions)} numbers for {len(ids)} tokens of sequences")

            def behind(field: str, row: int = index, blank: int = before) -> Any:
                return after(blank, cell(batch, field, row))

            yield dumped_sample(
                name,
                ids,
                after(before, actions, 0),
                attended=batch.fields["attention_mask"][index],
                logps={field: behind(field) for field in ("rollout_log_probs", "action_log_probs")},
                sampler="rollout_log_probs" if batch.fields.get("rollout_log_probs") is not None else None,
                sampled=cell(batch, "sampled_ids", index),
                advantage=behind("advantages"),
                reward=total(cell(batch, "rewards", index)),
                group=None if size is None or attempt is None else f"index {int(attempt) // int(size)}",
                temperature=number(batch, "temperature"),
                truncated=bool(np.any(cell(batch, "truncated", index))),
            )
