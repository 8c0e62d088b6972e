"""Compares two runs of one recipe to the bit: metrics, episodes, and every checkpoint's weights and optimizers.

    python benchmarks/same_bits.py FIRST SECOND [--json]

FIRST and SECOND are run folders of ``searchgym train``, written by two versions of the code, or twice by one. Metrics
of time and memory are left out, since they differ from run to run. Each row of the result is one file: the number of
its parts (steps, lines or tensors), how many of them are equal, and the first that is not. The status is 1 if anything
differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from searchgym.cli.output import emit, table

VARYING = ("time/", "memory/")
"""Prefixes of the metrics that differ from run to run."""
LINES = ("episodes.jsonl", "episodes.advantages.jsonl", "proposed.jsonl")
"""Files of one JSON object per line that are equal in equal runs."""
BYTES = ("episodes.tokens.bin",)
"""Files without parts that are equal in equal runs."""
TENSORS = (".safetensors", ".pt")
"""Endings of the files of a checkpoint that hold tensors."""

Parts = dict[str, Any]
"""The parts of a file by name, in their order."""


def main() -> None:
    """Compares and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path, help="run folder")
    parser.add_argument("second", type=Path, help="run folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    for folder in (args.first, args.second):
        if not (folder / "metrics.jsonl").is_file():
            parser.error(f"{folder} holds no run")
    rows = compare(args.first, args.second)
    equal = all(row["equal"] == row["parts"] for row in rows)
    if args.json:
        emit({"same_bits": equal, "results": rows}, True)
    else:
        head = ("file", "parts", "equal", "first difference")
        table(head, [tuple(str(row[name.replace(" ", "_")]) for name in head) for row in rows], "the same bits")
    sys.exit(0 if equal else 1)


def compare(first: Path, second: Path) -> list[dict[str, Any]]:
    """Returns one row per file that either run has, with the number of its parts and of those that are equal."""
    names = list(dict.fromkeys([*files_of(first), *files_of(second)]))
    rows = []
    for name in names:
        print(f"{name}...", file=sys.stderr)
        parts = [parts_of(folder / name) for folder in (first, second)]
        found = dict(differences(*parts))
        total = len(parts[0].keys() | parts[1].keys())
        shown = next((f"{part}: {what}" for part, what in found.items()), "")
        rows.append({"file": name, "parts": total, "equal": total - len(found), "first_difference": shown})
    return rows


def files_of(run: Path) -> Iterator[str]:
    """Yields the names of the files of a run that are equal in equal runs; links are left out."""
    for name in ("metrics.jsonl", *LINES, *BYTES):
        if (run / name).exists():
            yield name
    for checkpoint in sorted((run / "checkpoints").glob("step-*")):
        for file in sorted(checkpoint.rglob("*")):
            if file.suffix in TENSORS:
                yield str(file.relative_to(run))


def parts_of(file: Path) -> Parts:
    """Returns the parts of a file by name; empty if it does not exist."""
    if not file.exists():
        return {}
    if file.suffix == ".safetensors":
        return dict(load_file(file))
    if file.suffix == ".pt":
        return dict(_leaves(torch.load(file, map_location="cpu", weights_only=True)))
    if file.suffix != ".jsonl":
        return {"bytes": file.read_bytes()}
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    if file.name == "metrics.jsonl":
        rows = [{name: value for name, value in row.items() if not name.startswith(VARYING)} for row in rows]
    return {f"row {number}": row for number, row in enumerate(rows)}


def digests(run: Path) -> dict[str, str]:
    """Returns the SHA-256 of each file's contents in a run; equal if `compare` finds no difference."""
    found = {}
    for name in files_of(run):
        digest = hashlib.sha256()
        for part, value in parts_of(run / name).items():
            digest.update(part.encode())
            digest.update(_bytes(value))
        found[name] = digest.hexdigest()
    return found


def _bytes(value: Any) -> bytes:
    """Returns the bytes of a part, with the type and shape of a tensor."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {list(value.shape)}".encode() + _bits(value).numpy().tobytes()
    return value if isinstance(value, bytes) else repr(value).encode()


def _bits(tensor: Tensor) -> Tensor:
    """Returns (numbers, bytes of one number) uint8."""
    flat = tensor.contiguous().view(-1)
    return flat.view(torch.uint8).view(flat.numel(), flat.element_size())


def differences(first: Parts, second: Parts) -> Iterator[tuple[str, str]]:
    """Yields (name of a part, how it differs) for every part that is not the same in both."""
    for name in dict.fromkeys([*first, *second]):
        if name not in first or name not in second:
            yield name, f"only in the {'first' if name in first else 'second'} run"
        elif (what := _difference(first[name], second[name])) is not None:
            yield name, what


def _difference(first: Any, second: Any) -> str | None:
    """Returns how two values differ, None if they are the same bits."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return _tensor_difference(first, second)
    if isinstance(first, dict) and isinstance(second, dict):
        return next((f"{name}: {what}" for name, what in differences(first, second)), None)
    if isinstance(first, list) and isinstance(second, list):
        numbered = [{f"[{number}]": value for number, value in enumerate(own)} for own in (first, second)]
        return _difference(*numbered)
    if repr(first) == repr(second):  # as NaN is NaN, and -0.0 is not 0.0
        return None
    if isinstance(first, bytes) and isinstance(second, bytes):
        at = next(
            (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
        )
        return f"{len(first)} and {len(second)} bytes, not the same from byte {at}"
    return f"{first!r:.60} and {second!r:.60}"


def _tensor_difference(first: Tensor, second: Tensor) -> str | None:
    """Returns how two tensors differ, None if they are the same bits."""
    kinds = [f"{own.dtype} {list(own.shape)}" for own in (first, second)]
    if kinds[0] != kinds[1]:
        return " and ".join(kinds)
    count = int((_bits(first) != _bits(second)).any(dim=1).sum())
    if not count:
        return None
    largest = float((first.double() - second.double()).abs().max())
    return f"{count} of {first.numel()} numbers, by {largest:.3g} at most"


def _leaves(state: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of nested dictionaries and lists, with their paths."""
    inner: Mapping[Any, Any] | None = None
    if isinstance(state, Mapping):
        inner = state
    elif isinstance(state, (list, tuple)):
        inner = dict(enumerate(state))
    if inner is None:
        yield name or "value", state
    else:
        for key, value in inner.items():
            yield from _leaves(value, f"{name}/{key}" if name else str(key))


if __name__ == "__main__":
    main()
