"""Training updates of models of known shapes: tokens per second, share of the device's peak speed, memory.

    python benchmarks/gpu.py [--shapes 0.5b 1.5b 7b] [--row-tokens 4096] [--step-tokens 65536] [--runs 5] [--json]
                             [--checkpointing] [--micro-batch-tokens 16384]

Shapes are Qwen2.5's; weights are random. A step is a GRPO update in plain torch: forward and backward of full rows,
half of whose tokens are trained, in bfloat16 with float32 weights, gradient clipping, AdamW. The peak speed is measured
on the device: the best of some large matrix products in bfloat16 (float32 on a CPU). The share counts 6 operations per
parameter and token, plus 6 x layers x width x row for attention; recomputed activations are not counted. Memory is the
peak of each phase.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from searchgym.cli.output import emit_rows
from searchgym.train.algorithms.loss_options import LossOptions
from searchgym.train.algorithms.samples import Sample
from searchgym.train.learner.learner import peak_gib, reset_peak
from searchgym.train.learner.policy import Policy
from searchgym.train.learner.trained_model import Updater
from searchgym.train.recipe.options import OptimizerOptions

SHAPES: dict[str, tuple[int, int, int, int, int, int]] = {
    "mini": (64, 128, 2, 2, 1, 2000),
    "0.5b": (896, 4864, 24, 14, 2, 151936),
    "1.5b": (1536, 8960, 28, 12, 2, 151936),
    "7b": (3584, 18944, 28, 28, 4, 152064),
}
"""Model name to (width, MLP width, layers, query heads, key-value heads, vocabulary size)."""


def main() -> None:
    """Measures each shape and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["0.5b", "1.5b", "7b"], choices=SHAPES)
    parser.add_argument("--row-tokens", type=int, default=4096)
    parser.add_argument("--step-tokens", type=int, default=65_536)
    parser.add_argument("--micro-batch-tokens", type=int, default=16_384)
    parser.add_argument(
        "--checkpointing", action="store_true", help="recompute activations in the backward pass (7b needs it)"
    )
    parser.add_argument("--runs", type=int, default=5, help="number of steps, after one warm-up step")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    peak = best_product(device)
    rows = [measured(name, device, peak, args) for name in args.shapes]
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    emit_rows(rows, args.json, "results", f"{name}: {peak / 1e12:.2f} TFLOP/s in matrix products")


def measured(name: str, device: str, peak: float, args: argparse.Namespace) -> dict[str, Any]:
    """Measures one shape and returns its row of the table."""
    print(f"{name} ...", file=sys.stderr)
    reset_peak()
    model = random_model(name, device)
    if args.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    options = OptimizerOptions(
        micro_batch_tokens=args.micro_batch_tokens, autocast="bfloat16" if device == "cuda" else None
    )
    policy = Policy(Updater(model, options, steps=10**6), LossOptions(), options)
    loaded = peak_gib()
    samples = full_rows(args.step_tokens // args.row_tokens, args.row_tokens, SHAPES[name][-1])
    seconds, updated = [], 0.0
    for number in range(args.runs + 1):
        reset_peak()
        began = now(device)
        policy.policy_step(samples, number)
        took = now(device) - began
        if number:
            seconds.append(took)
            updated = max(updated, peak_gib())
    tokens = sum(len(sample.ids) for sample in samples)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    width, _, layers, *_ = SHAPES[name]
    work = tokens * (6 * parameters + 6 * layers * width * args.row_tokens)
    middle = statistics.median(seconds)
    return {
        "shape": name,
        "parameters": parameters,
        "tokens/s": tokens / middle,
        "share of peak": work / middle / peak,
        "seconds": [min(seconds), middle, max(seconds)],
        "GiB loaded": loaded,
        "GiB in an update": updated,
    }


def random_model(name: str, device: str) -> PreTrainedModel:
    """Returns a randomly initialised model of a shape, created on the device."""
    width, inner, layers, heads, groups, vocabulary = SHAPES[name]
    config = AutoConfig.for_model(
        "qwen2",
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        vocab_size=vocabulary,
        tie_word_embeddings=name != "7b",
    )
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return model


def full_rows(count: int, length: int, vocabulary: int) -> list[Sample]:
    """Returns samples of random ids, the second half of which is trained."""
    rng = np.random.default_rng(0)
    mask = np.arange(length) >= length // 2
    zeros = np.zeros(length, np.float32)
    return [
        Sample(
            ids=rng.integers(0, vocabulary, length).astype(np.int32),
            mask=mask,
            reward=zeros,
            advantage=np.where(mask, np.float32(rng.choice([-1, 1])), zeros),
            sampler_logp=zeros,
            calls=(),
            model_key="policy",
            episode_id=str(number),
            question_id=str(number),
            attempt=0,
            group_uid="0",
            policy_version=0,
        )
        for number in range(count)
    ]


def best_product(device: str) -> float:
    """Returns the highest measured speed of a matrix product, in floating-point operations per second."""
    size, dtype = (8192, torch.bfloat16) if device == "cuda" else (1024, torch.float32)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(10):
        began = now(device)
        for _ in range(5):
            torch.matmul(left, right)
        best = min(best, (now(device) - began) / 5)
    return 2 * size**3 / best


def now(device: str) -> float:
    """Waits for the device to finish its work and returns the time in seconds."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
