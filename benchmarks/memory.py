"""Memory of a training update, planned and measured: with all weights trained, and with a LoRA adapter.

    python benchmarks/memory.py [--width 512] [--layers 8] [--vocabulary 16000] [--rank 16] [--tokens 1024] [--json]

A randomly initialised float32 decoder takes two GRPO updates of two full micro-batches; each way of training runs in a
separate process. Measured is the peak of the second update above the memory of the process after an update of a minimal
model (so that libraries are loaded), with glibc's allocator set to return freed memory. Planned is the sum of the
policy phase in ``searchgym train --plan``. On a machine with a GPU, both are GPU memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from searchgym.cli.output import emit_rows
from searchgym.rollout.loading import device_of
from searchgym.train import Recipe, load_recipe
from searchgym.train.algorithms.samples import Sample
from searchgym.train.learner.learner import LocalLearner, peak_gib, reset_peak
from searchgym.train.plan.plan import plan

ROW = 512
"""Number of tokens per row."""


def main() -> None:
    """Measures both ways of training and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512, help="width of the hidden states")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=16_000)
    parser.add_argument("--rank", type=int, default=16, help="rank of the adapter")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens per micro-batch")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        AutoConfig.for_model(
            "qwen2",
            hidden_size=args.width,
            intermediate_size=3 * args.width,
            num_hidden_layers=args.layers,
            num_attention_heads=args.width // 64,
            num_key_value_heads=max(1, args.width // 256),
            vocab_size=args.vocabulary,
            max_position_embeddings=ROW,
        ).save_pretrained(folder)
        rows = [row(name, args, Path(folder)) for name in ("all weights", "an adapter")]
    emit_rows(rows, args.json, "results", f"GiB of an update, micro-batches of {args.tokens} tokens")


def row(name: str, args: Any, folder: Path) -> dict[str, Any]:
    """Returns the planned and the measured memory of one way of training."""
    print(f"{name} ...", file=sys.stderr)
    settings = [f"model={folder}", f"optimizer.micro_batch_tokens={args.tokens}"]
    settings += [f"lora.rank={args.rank}"] if name == "an adapter" else []
    recipe = load_recipe("tiny-grpo", settings)
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    parts = [part for part in plan(recipe) if part.what.startswith("policy:") and "policy" in part.phases]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        measured, trained = pool.apply(measure, (recipe, args.tokens, args.vocabulary))
    planned = sum(part.gib for part in parts)
    found = {part.what.removeprefix("policy: "): part.gib for part in parts}
    return {"trained": name, "parameters": trained, "planned": planned, "measured": measured} | found


def measure(recipe: Recipe, tokens: int, vocabulary: int) -> tuple[float, int]:
    """Returns the peak GiB of the second update and the number of trained parameters; run in a fresh process."""
    samples = [sample(number, vocabulary) for number in range(2 * tokens // ROW)]
    small = AutoConfig.from_pretrained(
        recipe.model,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
    )
    LocalLearner(recipe, made(small)).learn(samples[:1], 0)
    reset_peak()
    before = peak_gib()
    learner = LocalLearner(recipe, made(AutoConfig.from_pretrained(recipe.model)))
    learner.learn(samples, 0)
    trained = sum(p.numel() for p in learner.policy.updater.model.parameters() if p.requires_grad)
    return learner.learn(samples, 1)["memory/learn"] - before, trained


def made(config: Any) -> Any:
    """Returns a randomly initialised model for a configuration."""
    with torch.device(device_of("auto")):
        return AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]


def sample(number: int, vocabulary: int) -> Sample:
    """Returns a sample of random ids, of which all but the first are trained."""
    ids = np.random.default_rng(number).integers(0, vocabulary, ROW).astype(np.int32)
    mask, zeros = np.arange(ROW) > 0, np.zeros(ROW, np.float32)
    logp = np.where(mask, -np.log(vocabulary), 0.0).astype(np.float32)
    return Sample(ids, mask, zeros, mask.astype(np.float32), logp, (), "policy", f"e{number}", "q", number, "g", 0)


if __name__ == "__main__":
    main()
