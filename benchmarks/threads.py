"""Small models on a CPU with one thread or several: seconds of sampling and of an update, by the model's size.

    python benchmarks/threads.py [--widths 64 128 256 384 576 896] [--threads 2] [--busy 1] [--runs 5] [--json]

The models are of Qwen2's shape with random weights: four layers, as the shipped ``tiny`` (of width 256), and a
vocabulary of 2,048. Sampling is of 16 requests of 200 tokens that get 16 tokens each; an update is one of GRPO on 8
rows of 256 tokens. With ``--busy`` that many other processes count in a loop meanwhile. Kinds take turns. The minimum
of the runs is reported, with the system's load average, since other programs slow the runs down.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from searchgym.cli.output import emit_rows
from searchgym.rollout import SampleRequest, Sampling, load_tokenizer
from searchgym.rollout.transformers.sampler import TransformersSampler
from searchgym.train.algorithms.loss_options import LossOptions
from searchgym.train.algorithms.samples import Sample
from searchgym.train.learner.policy import Policy
from searchgym.train.learner.trained_model import Updater
from searchgym.train.recipe.options import OptimizerOptions

VOCABULARY, PROMPT, RESPONSE, ROWS, ROW = 2048, 200, 16, 8, 256


def main() -> None:
    """Measures each width and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 384, 576, 896])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2, help="compared with one")
    parser.add_argument("--busy", type=int, default=0, help="processes that count in a loop beside it")
    parser.add_argument("--runs", type=int, default=5, help="number of runs of each kind, after one warm-up run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    before = torch.get_num_threads()
    with busy(args.busy):
        rows = [measured(width, args) for width in args.widths]
    torch.set_num_threads(before)
    load = os.getloadavg()[0]
    title = f"1 and {args.threads} threads, {args.busy} busy processes beside it, load average {load:.1f}"
    emit_rows(rows, args.json, "results", title)


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Runs processes that use a core each while the block runs."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measured(width: int, args: Any) -> dict[str, Any]:
    """Returns the seconds of both kinds of work with both numbers of threads."""
    model = made(width, args.layers)
    work = {"sample": sampling(model), "update": updating(model)}
    least: dict[tuple[str, int], float] = {}
    for number in range(args.runs + 1):
        print(f"width {width}, run {number} of {args.runs} ...", file=sys.stderr)
        for threads in (1, args.threads):
            torch.set_num_threads(threads)
            for name, run in work.items():
                began = time.perf_counter()
                run()
                if number:
                    took = time.perf_counter() - began
                    least[name, threads] = min(took, least.get((name, threads), took))
    row: dict[str, Any] = {"width": width, "parameters": sum(p.numel() for p in model.parameters())}
    for name in work:
        one, several = least[name, 1], least[name, args.threads]
        row |= {f"{name}, 1": one, f"{name}, {args.threads}": several, f"{name}, ratio": one / several}
    return row


def made(width: int, layers: int) -> PreTrainedModel:
    """Returns a model with random weights."""
    torch.manual_seed(0)
    heads = max(2, width // 64)
    config = Qwen2Config(
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        vocab_size=VOCABULARY,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    model: Any = Qwen2ForCausalLM
    return model(config)  # type: ignore[no-any-return]


def sampling(model: PreTrainedModel) -> Any:
    """Returns a function that samples responses; none of its work is kept."""
    sampler, rng = TransformersSampler(model, load_tokenizer("tiny"), ends=()), np.random.default_rng(0)
    prompts = [rng.integers(0, VOCABULARY, PROMPT).astype(np.int32) for _ in range(2 * ROWS)]
    asked = [SampleRequest(ids, Sampling(RESPONSE), seed) for seed, ids in enumerate(prompts)]

    def run() -> None:
        sampler.forget()
        sampler.sample(asked)

    return run


def updating(model: PreTrainedModel) -> Any:
    """Returns a function that makes an update."""
    options, rng = OptimizerOptions(lr=0.0, micro_batch_tokens=2048), np.random.default_rng(0)
    policy, flat = Policy(Updater(model, options, steps=10**6), LossOptions(), options), np.zeros(ROW, np.float32)
    samples = [
        Sample(
            episode_id=str(row),
            question_id=str(row),
            group_uid=str(row),
            model_key="policy",
            attempt=0,
            ids=rng.integers(0, VOCABULARY, ROW).astype(np.int32),
            mask=np.arange(ROW) >= ROW // 2,
            reward=flat,
            advantage=flat + (row % 2 - 0.5),
            sampler_logp=flat - 7.6,
            policy_version=0,
            calls=(),
        )
        for row in range(ROWS)
    ]
    return lambda: policy.policy_step(samples, 0)


if __name__ == "__main__":
    main()
