"""The identity of a served model: what a training and its sampling servers must have in common."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.files import sha256_file
from searchgym.errors import UsageError
from searchgym.rollout.folders import TOKENIZERS
from searchgym.rollout.samplers.vllm import TESTED, is_tested, vllm_version
from searchgym.version import __version__

SAMPLE: Final = 1 << 20
"""Bytes at the start, the middle and the end of a weight file that identify it; reading all of it takes too long."""
WORDS: Final = {"config": "another model", "weights": "other weights", "tokenizer": "another tokenizer"}
"""What a differing digest of a model's files means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a server serves, or what a training needs."""

    model: str
    """Folder of the base model, for messages."""
    config: str
    """SHA-256 of its ``config.json``."""
    weights: str
    """SHA-256 over names, sizes and samples of its weight files."""
    tokenizer: str
    """SHA-256 over its tokenizer files."""
    dtype: str
    """Type of weights and computation."""
    adapters: int
    """Number of adapters that can be in use at once."""
    rank: int
    """Largest rank of an adapter; 0 without adapters."""
    searchgym: str = __version__
    """Version of this package."""
    vllm: str | None = None
    """Version of vLLM; None if it is not installed."""


def identity_of(folder: Path, dtype: str, adapters: int = 0, rank: int = 0) -> Identity:
    """Returns the identity of a base model with the set-up of its engine.

    Args:
        folder: Folder of the base model.
        dtype: Type of weights and computation.
        adapters: Maximum number of adapters in use at once.
        rank: Maximum rank of an adapter.
    """
    weights = hashlib.sha256()
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]):
        weights.update(f"{file.name} {file.stat().st_size}\n".encode() + _samples(file))
    return Identity(
        model=str(folder.resolve()),
        config=_digest([folder / "config.json"]),
        weights=weights.hexdigest(),
        tokenizer=_digest(folder / name for name in TOKENIZERS),
        dtype=dtype,
        adapters=adapters,
        rank=rank if adapters else 0,
        vllm=vllm_version(),
    )


def check_identity(wanted: Identity, served: Mapping[str, Any], address: str) -> None:
    """Checks that a server serves what a training needs; warns on standard error of an untested vLLM.

    Args:
        wanted: What the training needs.
        served: Fields of the server's `Identity`.
        address: Address of the server, for messages.

    Raises:
        UsageError: Names every difference, and what to start instead.
    """
    found = []
    if (version := served.get("searchgym")) != wanted.searchgym:
        found.append(f"searchgym {version}, here it is {wanted.searchgym}: install the same version on both machines")
    for name, word in WORDS.items():
        if served.get(name) != getattr(wanted, name):
            found.append(f"{word} ({served.get('model')}, here it is {wanted.model})")
    if served.get("dtype") != wanted.dtype:
        found.append(f"{served.get('dtype')}, the recipe samples in {wanted.dtype}")
    if served.get("adapters", 0) < wanted.adapters or served.get("rank", 0) < wanted.rank:
        have = f"{served.get('adapters', 0)} adapters of rank {served.get('rank', 0)}"
        found.append(f"{have}, the recipe samples {wanted.adapters} of rank {wanted.rank}")
    if found:
        raise UsageError(f"{address} serves {'; '.join(found)}; start it by `searchgym engine` with this recipe")
    if not is_tested(str(served.get("vllm"))):
        tested = ", ".join(f"{prefix}x" for prefix in TESTED)
        sys.stderr.write(f"{address} has vLLM {served.get('vllm')}, tested is {tested}: watch probe/difference\n")


def as_fields(identity: Identity) -> dict[str, Any]:
    """Returns an identity as plain values for JSON."""
    return dataclasses.asdict(identity)


def _digest(files: Iterable[Path]) -> str:
    """Returns one SHA-256 over the names and contents of those files that exist."""
    digest = hashlib.sha256()
    for file in files:
        if file.is_file():
            digest.update(f"{file.name}\n".encode() + bytes.fromhex(sha256_file(file)))
    return digest.hexdigest()


def _samples(file: Path) -> bytes:
    """Returns the bytes of a file by which it is told from others."""
    size = file.stat().st_size
    with file.open("rb") as content:
        parts = []
        for start in (0, max(0, size // 2 - SAMPLE // 2), max(0, size - SAMPLE)):
            content.seek(start)
            parts.append(content.read(SAMPLE))
    return b"".join(parts)
