"""Tries DeepSpeed as training uses it: one rank makes one update of a tiny model, by ZeRO 2.

    python -m searchgym.train.distributed.trial

prints `WORKS`, or `FAILS` and the reason, and ends with status 1.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any, Final

WORKS: Final = "DeepSpeed works"
FAILS: Final = "DeepSpeed fails: "


def main() -> None:
    """Runs the trial in this process."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}  # which DeepSpeed reads
    try:
        with tempfile.TemporaryDirectory(prefix="searchgym-") as folder:
            update_once(f"file://{folder}/ranks")
    except Exception as error:  # whatever a broken installation raises is the report
        reason = str(error).strip().splitlines()[:1]
        sys.stdout.write(f"{FAILS}{': '.join([type(error).__name__, *reason])}\n")
        sys.exit(1)
    sys.stdout.write(f"{WORKS}\n")


def update_once(rendezvous: str) -> None:
    """Makes one update of a tiny model, on a GPU if torch can use one.

    Args:
        rendezvous: Address at which the only rank meets itself, as torch takes it.

    Raises:
        TrainingError: The weights stay as they were.
    """
    import torch
    import torch.distributed as dist

    from searchgym.errors import TrainingError
    from searchgym.train.distributed.deepspeed_updater import DeepSpeedUpdater
    from searchgym.train.recipe.backend import Sharding
    from searchgym.train.recipe.options import OptimizerOptions

    device = "cuda" if torch.cuda.is_available() else "cpu"
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, init_method=rendezvous, rank=0, world_size=1)
    try:
        model: Any = torch.nn.Linear(2, 2, device=device)
        before = model.weight.detach().clone()
        updater = DeepSpeedUpdater(model, OptimizerOptions(lr=0.1), 1, Sharding(zero=2))
        updater.backward(updater(input=torch.ones(1, 2, device=device)).sum())
        updater.apply(0)
        if torch.equal(before, model.weight):
            raise TrainingError("an update leaves the weights as they were")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
