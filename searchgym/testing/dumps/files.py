"""Reads the files of dumps: JSON, JSON lines, torch tensors, NumPy and safetensors. No file's code is run."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from searchgym.errors import DataError, DataMissingError

SUFFIXES: Final = (".jsonl", ".json", ".pt", ".pth", ".npz", ".safetensors")
PLAIN: Final = "save a dict of tensors, lists, numbers and texts"
"""What a file of torch may contain."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Fields of one batch, or of one sample, as lists, arrays, numbers and texts."""

    name: str
    """Name of the batch for people, such as ``line 3``; empty if the file has only one."""
    fields: Mapping[str, Any]
    """Values by the name of the framework's field."""
    path: Path
    """The file."""
    line: int | None
    """1-based line, if the file has lines."""


def read_batches(path: Path) -> list[Batch]:
    """Returns the batches of a file: one object, a list of them, or one in each line.

    Raises:
        DataMissingError: The file does not exist.
        DataError: The file is empty, damaged, of another type, or contains something else than plain data.
    """
    if not path.is_file():
        raise DataMissingError("no such file", path)
    if path.suffix in (".pkl", ".pickle", ".bin"):
        raise DataError(f"{path.suffix} files run code or name no fields: {PLAIN} by torch.save(...)", path)
    if path.suffix not in SUFFIXES:
        raise DataError(f"a dump is a file of type {', '.join(SUFFIXES)}", path)
    if not path.stat().st_size:
        raise DataError("the file is empty", path)
    if path.suffix == ".jsonl":
        batches = list(_lines(path))
    else:
        content = _content(path)
        objects = content if isinstance(content, list) else [content]
        many = len(objects) > 1
        batches = [Batch(f"batch {n}" if many else "", each, path, None) for n, each in enumerate(objects, 1)]
    for batch in batches:
        if not isinstance(batch.fields, Mapping):
            raise DataError(f"expected an object with fields, got {type(batch.fields).__name__}", path, batch.line)
    if not batches:
        raise DataError("the file has no batch", path)
    return batches


def _lines(path: Path) -> Iterator[Batch]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield Batch(f"line {number}", json.loads(line), path, number)
                except ValueError as error:
                    raise DataError(f"not one JSON object, or half of one: {error}", path, number) from None


def _content(path: Path) -> Any:
    """Returns what a file other than JSON lines contains."""
    if path.suffix == ".json":
        try:
            return json.loads(path.read_bytes())
        except ValueError as error:
            raise DataError(f"not JSON, or half of it: {error}", path) from None
    if path.suffix == ".safetensors":
        return _safetensors(path)
    if not zipfile.is_zipfile(path):
        raise DataError("half a file, or one of an old format: write it again", path)
    return _arrays(path) if path.suffix == ".npz" else _tensors(path)


def _arrays(path: Path) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name].item() if not arrays[name].ndim else arrays[name] for name in arrays.files}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise DataError(f"arrays must have numbers or texts of one length: {error}", path) from None


def _safetensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise DataError(f"half a file, or not safetensors: {error}", path) from None


def _tensors(path: Path) -> Any:
    """Returns the content of a file of torch, of which only tensors and plain Python values are read."""
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).strip().splitlines()[-1][:200]
        raise DataError(f"not only tensors and plain values: {PLAIN} ({reason})", path) from None

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            value = value.detach()
            value = value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
            return value.numpy() if value.ndim else value.item()
        if isinstance(value, Mapping):
            return {str(name): plain(inner) for name, inner in value.items()}
        return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    return plain(content)
