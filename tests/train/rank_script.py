"""Trains with DeepSpeed on one rank of several: ``rank_script.py RANK WORLD MEETING OUT CASE ...``.

The cases, of `CASES` and `ROUGH`, run in the same processes, one after the other; the first rank writes metrics and
weights.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from made_models import tiny_qwen2
from test_critic import critic_model
from test_learner import random_samples
from toy_training import toy_recipe

from searchgym.rollout.loading import DTYPES
from searchgym.train.algorithms.samples import Sample
from searchgym.train.distributed.rank_learner import RankLearner
from searchgym.train.learner.learner import LocalLearner
from searchgym.train.loop.collect import with_advantages

SGD = {"lr": 1e10, "betas": [0.0, 0.0], "eps": 1e8, "max_grad_norm": 0.0}
"""AdamW that moves weights by 100 times the gradient: its eps outweighs any of them."""
ADAM = {"lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1, "max_grad_norm": 0.5, "warmup_steps": 2}

CASES: dict[str, dict[str, Any]] = {
    **{f"sgd, ZeRO {zero}": {"zero": zero, "optimizer": SGD} for zero in range(4)},
    **{f"adam, ZeRO {zero}": {"zero": zero, "optimizer": ADAM} for zero in range(4)},
    "adam, ZeRO 2, one row at a time": {"zero": 2, "optimizer": ADAM | {"micro_batch_tokens": 64}},
    "adam, ZeRO 2, minibatches and KL": {
        "zero": 2,
        "optimizer": ADAM | {"minibatches": 2},
        "loss": {"kl_coef": 0.1},
    },
    **{f"PPO, ZeRO {zero}": {"zero": zero, "optimizer": ADAM, "gae": True} for zero in (0, 2, 3)},
    "ZeRO 3, offloaded": {"zero": 3, "optimizer": ADAM, "offload_optimizer": True, "offload_parameters": True},
}
LORA: dict[str, Any] = {"optimizer": ADAM | {"eps": 1e-3, "lr": 1e-2}, "lora": {"rank": 4, "alpha": 8.0}}
"""An adapter, whose update does not scale up rounding: eps outweighs the smallest gradients."""
ADAPTERS: dict[str, dict[str, Any]] = {
    **{f"LoRA, ZeRO {zero}": LORA | {"zero": zero} for zero in range(4)},
    **{f"LoRA, ZeRO {zero}, bfloat16": LORA | {"zero": zero, "dtype": "bfloat16"} for zero in (2, 3)},
    "LoRA, ZeRO 3, KL": LORA | {"zero": 3, "loss": {"kl_coef": 0.5}},
    "LoRA, ZeRO 3, critic": LORA | {"zero": 3, "gae": True},
    "LoRA, ZeRO 3, continued": LORA | {"zero": 3, "loss": {"kl_coef": 0.5}},
    "LoRA, ZeRO 2, frozen layer": LORA | {"zero": 2, "frozen_layers": 1},
    "LoRA, ZeRO 3, recomputed": LORA | {"zero": 3, "gradient_checkpointing": "full"},
    "LoRA, ZeRO 2, offloaded": LORA | {"zero": 2, "offload_optimizer": True},
    "LoRA, ZeRO 3, offloaded": LORA | {"zero": 3, "offload_optimizer": True, "offload_parameters": True},
    "frozen layer, ZeRO 2": LORA | {"zero": 2, "frozen_layers": 1, "lora": {"rank": 0}},
}
CASES |= ADAPTERS
EARLIER = "earlier"
"""Folder, below that of the results, of the adapter that is continued."""
ROUGH: dict[str, dict[str, Any]] = {
    f"bfloat16, ZeRO {zero}": {"zero": zero, "optimizer": ADAM | {"micro_batch_tokens": 1}, "dtype": "bfloat16"}
    for zero in (1, 2, 3)
}
ROUGH |= {f"{name}, offloaded": case | {"offload_optimizer": True} for name, case in ROUGH.items()}
"""Weights in bfloat16, every row by itself."""


def recipe_of(case: dict[str, Any], backend: str = "torch") -> Any:
    """The recipe of a case: 7 samples of unequal lengths and turns are 4 and 3 for two ranks."""
    gae = {"advantage": {"estimator": "gae"}, "critic": {"optimizer": ADAM}} if case.get("gae") else {}
    names = ("frozen_layers", "gradient_checkpointing")
    learner: dict[str, Any] = {"backend": backend} | {name: case[name] for name in names if name in case}
    if backend == "deepspeed":
        names = ("zero", "offload_optimizer", "offload_parameters")
        options = {"kind": backend, "ranks": 2} | {name: case[name] for name in names if name in case}
        learner |= {"backend": options} | {name: case[name] for name in ("dtype",) if name in case}
    optimizer = {"micro_batch_tokens": 256} | case["optimizer"]
    parts = {name: case[name] for name in ("loss", "lora") if name in case}
    given = {"optimizer": optimizer, "learner": learner, "steps": 20} | parts | gae
    return toy_recipe(**given)


def samples_of(step: int) -> list[Sample]:
    """Recorded episodes of a step."""
    samples = random_samples(7, seed=step)
    for number, sample in enumerate(samples):
        sample.reward[-1] = number % 2
    return samples


def copies(number: int) -> list[Sample]:
    """One episode, as often as asked for."""
    return [dataclasses.replace(samples_of(0)[1], episode_id=str(i)) for i in range(number)]


def steps_of(case: dict[str, Any]) -> int:
    """One step shows a gradient, ten a trajectory."""
    return 1 if case["optimizer"] is SGD else 10


def advance(learner: LocalLearner, recipe: Any, steps: range) -> list[dict[str, float]]:
    """Makes steps; returns their metrics."""
    found = []
    for step in steps:
        samples = samples_of(step)
        if recipe.advantage.estimator.critic:
            samples, _ = with_advantages(samples, recipe, learner)
        found.append(learner.learn(samples, step))
    return found


def make(case: dict[str, Any], backend: str, adapter: Path | None = None) -> tuple[LocalLearner, Any]:
    """The learner of a case, with models that are the same everywhere, on this rank or alone."""
    recipe = recipe_of(case, backend)
    critic = critic_model().to(DTYPES[case.get("dtype", "float32")]) if case.get("gae") else None
    model = tiny_qwen2(vocabulary=50, sharp=0.2).to(DTYPES[case.get("dtype", "float32")])
    make_learner = LocalLearner if backend == "torch" else RankLearner
    return make_learner(recipe, model, critic, adapter=adapter), recipe


def earlier(name: str, out: Path) -> Path | None:
    """The folder of the adapter that a case continues, if any."""
    return out / EARLIER if name.endswith("continued") else None


def main() -> None:
    rank, world, meeting, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    asked = sys.argv[5:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    found: dict[str, Any] = {}
    for name, case in ((name, CASES[name]) for name in asked if name in CASES):
        learner, recipe = make(case, "deepspeed", earlier(name, out))
        rows = advance(learner, recipe, range(steps_of(case)))
        found[name] = {"rows": rows, "weights": dict(learner.weights()), "logp": logp_of(learner)}
        if "lora" in case:
            found[name] |= {"adapter": learner.weights(adapter=True)} if case["lora"]["rank"] else {}
            found[name] |= resumed(name, case, out, rank)
        elif "offloaded" in name or name == "adam, ZeRO 2":
            found[name] |= resumed(name, case, out, rank)
    for name, case in ((name, ROUGH[name]) for name in asked if name in ROUGH):
        few, many = (make(case, "deepspeed")[0].learn(copies(number), 0)["gradient_norm"] for number in (2, 64))
        learner, recipe = make(case, "deepspeed")
        rows = advance(learner, recipe, range(steps_of(case)))
        found[name] = {"few": few, "many": many, "rows": rows, "weights": learner.weights()}
        found[name] |= resumed(name, case, out, rank)
    if rank == 0:
        torch.save(found, out / "found.pt")
    dist.barrier()
    dist.destroy_process_group()


def logp_of(learner: LocalLearner) -> torch.Tensor:
    """The log-probs of some samples under the present weights, one after the other."""
    return torch.cat([torch.from_numpy(row) for row in learner.logp(samples_of(100))])


def resumed(name: str, case: dict[str, Any], out: Path, rank: int) -> dict[str, Any]:
    """The same steps with a stop in the middle, taken up by another learner."""
    learner, recipe = make(case, "deepspeed", earlier(name, out))
    folder, half = out / name, steps_of(case) // 2
    rows = advance(learner, recipe, range(half))
    if rank == 0:
        folder.mkdir()
    dist.barrier()
    learner.save(folder)
    other, _ = make(case, "deepspeed", earlier(name, out))
    other.load(folder)
    rows += advance(other, recipe, range(half, 2 * half))
    return {"resumed rows": rows, "resumed weights": dict(other.weights()), "version": other.version}


if __name__ == "__main__":
    main()
