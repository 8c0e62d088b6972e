"""Sizes micro-batches by the memory of the learner's GPUs, for ``micro_batch_tokens: auto``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

import torch

from searchgym.train.plan.plan import check_plan, needs_of, plan
from searchgym.train.recipe.extension import with_micro_batches
from searchgym.train.recipe.recipe import Recipe

SIZES: Final = tuple(1024 * 2**power for power in range(7, -1, -1))
"""Tokens of a micro-batch to choose from, the most first: 131,072 to 1,024."""
MARGIN: Final = 0.85
"""Share of the free memory to plan for: the allocator wastes some of the rest."""


def sized(recipe: Recipe, gpus: int | None = None, memory: Mapping[str, float] | None = None) -> Recipe:
    """Returns the recipe with as many tokens in a micro-batch as fit into the GPUs' memory, where it says ``auto``.

    Without a GPU, ``auto`` is always the same number, so that a run on a CPU does not depend on the machine. A run
    records the number, and a resumed run takes the recorded one.

    Args:
        recipe: Recipe of the training.
        gpus: Number of GPUs to plan for. Default: those of this machine.
        memory: GiB by device. Default: what is free on this machine's GPUs.

    Raises:
        SearchGymError: See `plan`.
    """
    if not recipe.sizes_itself:
        return recipe
    count = torch.cuda.device_count() if gpus is None else gpus
    if not count or recipe.learner.device == "cpu":
        return with_micro_batches(recipe, recipe.optimizer.pass_tokens, recipe.critic.optimizer.pass_tokens)
    if memory is None:
        memory = {f"cuda:{i}": torch.cuda.mem_get_info(i)[0] / 2**30 for i in range(count)}
    limits = {device: MARGIN * gib for device, gib in memory.items() if device != "cpu"}
    gib = min(limits.values()) / MARGIN
    for tokens in SIZES[:-1]:
        if not check_plan(plan(with_micro_batches(recipe, tokens, tokens), count, gib), limits):
            break
    else:
        tokens = SIZES[-1]
    changed = with_micro_batches(recipe, tokens, tokens)
    parts = plan(changed, count, gib)
    fullest = max(max(needs.values()) for device, needs in needs_of(parts).items() if device != "cpu")
    sys.stderr.write(f"micro_batch_tokens: {tokens} (auto: {fullest:.1f} of {gib:.1f} GiB planned)\n")
    return changed
