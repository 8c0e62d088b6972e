"""The learner of one rank among several, whose models DeepSpeed updates."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from torch import Tensor
from transformers import PreTrainedModel
from typing_extensions import override

from searchgym.train.distributed.deepspeed_updater import DeepSpeedUpdater
from searchgym.train.learner.batching import ProcessRanks
from searchgym.train.learner.learner import LocalLearner
from searchgym.train.learner.lora import adapter_weights
from searchgym.train.recipe.recipe import Recipe


class RankLearner(LocalLearner):
    """Learner of one rank of the process group; the ranks call its methods together.

    Args:
        recipe: Options of the training.
        model: The policy, equal on every rank.
        critic: See `LocalLearner`.
        adapter: See `LocalLearner`.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: PreTrainedModel,
        critic: PreTrainedModel | None = None,
        adapter: Path | None = None,
    ) -> None:
        updater = functools.partial(DeepSpeedUpdater, sharding=recipe.learner.backend.sharding)
        super().__init__(recipe, model, critic, ProcessRanks(), updater, adapter)

    @override
    def weights(self, adapter: bool = False) -> Mapping[str, Tensor]:
        """Returns the weights on the first rank; see `Learner.weights`. With `adapter`, no rank gathers the base."""
        if not adapter:
            return super().weights()
        return adapter_weights(cast(DeepSpeedUpdater, self.policy.updater).weights(adapter=True))
