"""Log-probs of trained tokens in tiles, beside whole logits: seconds and memory of forward and backward pass.

    python benchmarks/head.py [--tokens 2048] [--width 896] [--vocabulary 151936] [--runs 3] [--json]

The baseline is `token_logp` on the logits of a float32 output layer, as the learner computed them before. Each way runs
in turn, in this process; memory is the peak above what is in memory before.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from searchgym.cli.output import emit_rows
from searchgym.train.algorithms.losses import token_logp
from searchgym.train.learner.head import head_scores
from searchgym.train.learner.learner import peak_gib, reset_peak


def main() -> None:
    """Measures each way and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=896)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    head = torch.nn.Linear(args.width, args.vocabulary, bias=False, device=device)
    hidden = torch.randn(args.tokens, args.width, device=device, requires_grad=True)
    targets = torch.randint(0, args.vocabulary, (args.tokens,), device=device)
    ways: dict[str, Callable[[], Any]] = {
        "whole logits, float32": lambda: token_logp(head(hidden), targets),
        "tiles, float32": lambda: head_scores(hidden, head, targets),
        "tiles, mixed": lambda: head_scores(hidden, head, targets, mixed=True),
    }
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(args.runs + 1):
        for name, way in ways.items():
            result = once(way, device, [hidden, *head.parameters()])
            if number:  # the first run of each visits its shapes
                measured[name].append(result)
    baseline = statistics.median(seconds for seconds, _ in measured["whole logits, float32"])
    rows = []
    for name, results in measured.items():
        seconds = statistics.median(seconds for seconds, _ in results)
        rows.append({"way": name, "s": seconds, "times as fast": baseline / seconds, "GiB": max(g for _, g in results)})
    emit_rows(rows, args.json, "results", f"{args.tokens} tokens, width {args.width}, vocabulary {args.vocabulary}")


def once(way: Callable[[], Any], device: str, trained: list[Tensor]) -> tuple[float, float]:
    """Returns seconds and GiB of one forward and backward pass."""
    for parameter in trained:
        parameter.grad = None
    reset_peak()
    before, began = peak_gib(), time.perf_counter()
    way()[0].sum().backward()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, peak_gib() - before


if __name__ == "__main__":
    main()
