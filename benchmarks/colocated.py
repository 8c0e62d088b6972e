"""Sampler and learner taking turns on one GPU: seconds and tokens per second of each phase of a step.

    python benchmarks/colocated.py [--shape 1.5b] [--steps 5] [--questions 64] [--attempts 8] [--sleep 1] [--json]

A randomly initialised model with a shape of Qwen2.5 and the tiny model's tokenizer is trained by GRPO in bfloat16 with
float32 weights (on a CPU in float32) and sampled by vLLM, which frees its memory for the learner while it learns if
``--sleep`` is 1 or 2. Reported are medians over all steps but the first. The outputs of a random model are nonsense,
and so are its rewards. ``probe`` is the largest mean difference in log-probability between vLLM and the learner after
an update.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from counts import SHAPES
from gpu_jobs import random_model

from searchgym.cli.output import emit
from searchgym.rollout import load_tokenizer
from searchgym.train import load_recipe, train


def main() -> None:
    """Runs the training and prints seconds and tokens per second of each phase."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="1.5b", choices=SHAPES)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--questions", type=int, default=64, help="questions per step")
    parser.add_argument("--attempts", type=int, default=8, help="episodes per question")
    parser.add_argument("--concurrency", type=int, default=256, help="maximum number of concurrent episodes")
    parser.add_argument("--sleep", type=int, default=1, help="0, 1 or 2: see rollout.sampler.sleep")
    parser.add_argument("--gpu-share", type=float, default=0.5, help="fraction of the GPU's memory for vLLM")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:  # DeepSpeed prints
        model = Path(folder) / args.shape
        random_model(SHAPES[args.shape], "float32").save_pretrained(model)
        load_tokenizer("tiny").save_pretrained(model)
        recipe = load_recipe("tiny-grpo", [f"model={model}", *settings(args)])
        rows = train(recipe, Path(folder) / "run", report=say).rows[2:]
    names = ("time/draw", "time/draw_tokens_per_second", "time/learn", "time/learn_tokens_per_second")
    found = {name.removeprefix("time/"): statistics.median(row[name] for row in rows) for name in names}
    found["probe"] = max(row["probe/difference"] for row in rows)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    emit({"shape": args.shape, "device": device} | found, args.json, "medians of a step")


def settings(args: Any) -> list[str]:
    """Returns the recipe values that the arguments change, as ``KEY=VALUE``."""
    own = ["rollout.sampler=vllm", "validation.every=0", "log.tensorboard=false", "checkpoint.every=0"]
    own += [f"steps={args.steps}", f"rollout.questions={args.questions}", f"rollout.attempts={args.attempts}"]
    own += [f"rollout.concurrency={args.concurrency}", f"rollout.sampler.gpu_share={args.gpu_share}"]
    own += ["advantage.drop_zero_variance=false", "learner.gradient_checkpointing=full"]
    own += ["optimizer.micro_batch_tokens=16384"]
    if torch.cuda.is_available():
        return [*own, "optimizer.autocast=bfloat16", f"rollout.sampler.sleep={args.sleep}"]
    return [*own, "rollout.sampler.eager=true", "rollout.sampler.cache_gib=1"]


def say(row: Any) -> None:
    """Prints the step's number to standard error, as a sign of progress."""
    print(f"step {row['step']:.0f} ...", file=sys.stderr)


if __name__ == "__main__":
    main()
