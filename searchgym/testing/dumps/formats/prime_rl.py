"""Format ``prime-rl``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from searchgym.testing.dumps.files import Batch
from searchgym.testing.dumps.form import DumpFormat, total
from searchgym.testing.dumps.sample import DumpedSample, dumped_sample, numbers_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimeRl(DumpFormat):
    """prime-rl's `TrainingSample`, one in each line, with one number for each of ``token_ids``.

    The loss weighs ``mask``, and ``rl_weights`` if there are any.
    """

    version: ClassVar = "prime-rl 0.8.0"
    required: ClassVar = ("token_ids", "mask", "logprobs")
    optional: ClassVar = ("temperatures", "advantages", "rl_weights")
    added: ClassVar = ("group", "reward", "sampled_ids")
    ignored: ClassVar = (
        "env_name", "ref_logprobs", "mm_kwargs", "routed_experts", "mm_token_type_ids", "ce_weights", "ref_kl_weights",
    )  # fmt: skip
    estimators: ClassVar = {"grpo": "grpo-no-std"}

    @override
    def rows(self, batch: Batch) -> Iterator[DumpedSample]:
        read: Any = batch.fields.get
        mask, weights, temperatures = numbers_of(batch.fields["mask"]), read("rl_weights"), read("temperatures")
        if weights is not None:
            mask = mask * numbers_of(weights)
        trained = numbers_of(temperatures)[: len(mask)] if temperatures else np.zeros(0)
        trained = trained[mask[: len(trained)] != 0]
        group = read("group")
        yield dumped_sample(
            batch.name or "sample",
            batch.fields["token_ids"],
            mask,
            logps={"logprobs": batch.fields["logprobs"]},
            sampler="logprobs",
            sampled=read("sampled_ids"),
            advantage=read("advantages"),
            reward=total(read("reward")),
            group=None if group is None else str(group),
            temperature=float(trained[0]) if len(trained) else None,
        )
