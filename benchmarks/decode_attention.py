"""Attention of one new token per row over cached keys and values: the sampler's, with transformers' as the baseline.

    python benchmarks/decode_attention.py [--rows 128] [--columns 300 700] [--runs 15] [--json]

A row of the table is one step of one layer on a CPU, with keys and values as the sampler keeps them (rows that end at
the same column, the columns before shorter ones masked). Both are timed in turns; milliseconds are medians.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from searchgym.cli.output import emit, emit_rows
from searchgym.rollout.transformers.kv_cache import grouped_attention

HEADS = {"tiny (4 heads)": (4, 4), "SmolLM2-135M (9 heads, 3 of keys)": (9, 3)}
"""Query heads and key-value heads."""
WIDTH = 64
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def main() -> None:
    """Times both and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--columns", type=int, nargs="+", default=[300, 700])
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    torch.manual_seed(0)
    print("one layer at a time ...", file=sys.stderr)
    rows = [
        measured(model, dtype, args.rows, columns, args.runs)
        for columns in args.columns
        for model, dtype in itertools.product(HEADS, DTYPES)
    ]
    if args.json:
        emit({"results": rows}, True)
    else:
        emit_rows(rows, False, "one step of one layer", f"{args.rows} rows, {torch.get_num_threads()} threads")


def measured(model: str, dtype: str, rows: int, columns: int, runs: int) -> dict[str, Any]:
    """Returns the median milliseconds of both for one model, and the difference of their outputs."""
    heads, shared = HEADS[model]
    query = torch.randn(rows, heads, 1, WIDTH).to(DTYPES[dtype])
    key, value = (torch.randn(rows, shared, columns + 64, WIDTH).to(DTYPES[dtype])[:, :, :columns] for _ in range(2))
    lengths = torch.randint(columns // 3, columns, (rows, 1))
    mask = (torch.arange(columns) >= columns - lengths)[:, None, None]
    layer: Any = SimpleNamespace(num_key_value_groups=heads // shared, is_causal=True)
    ways = {"transformers": sdpa_attention_forward, "searchgym": grouped_attention}
    found = {name: way(layer, query, key, value, mask)[0] for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _, (name, way) in itertools.product(range(runs), ways.items()):
        began = time.perf_counter()
        way(layer, query, key, value, mask)
        seconds[name].append(time.perf_counter() - began)
    medians = {name: round(1e3 * float(np.median(values)), 2) for name, values in seconds.items()}
    return (
        {"model": model, "dtype": dtype, "columns": columns}
        | {f"{name} ms": value for name, value in medians.items()}
        | {"ratio": round(medians["transformers"] / medians["searchgym"], 2)}
        | {"largest difference": (found["transformers"] - found["searchgym"]).abs().max().item()}
    )


if __name__ == "__main__":
    main()
