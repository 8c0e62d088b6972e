"""Set-up of vLLM engines, and identities to check that a sampling server matches a training."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.files import sha256_file
from searchgym.errors import UsageError
from searchgym.rollout.folders import TOKENIZERS
from searchgym.rollout.samplers.vllm import Vllm, vllm_version
from searchgym.rollout.vllm.client import PROCESSES, SERVES
from searchgym.rollout.vllm.launch.versions import RANGE, has_server_option, is_accepted, vllm_folder
from searchgym.version import __version__

RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Maximum adapter ranks that vLLM can be configured with."""

SAMPLE: Final = 1 << 20
"""Number of bytes at the start, middle and end of a weight file that identify it; reading all takes too long."""
WORDS: Final = {"config": "another model", "weights": "other weights", "tokenizer": "another tokenizer"}
"""Descriptions, for messages, of differing digests of a model's files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """Model and limits of an engine, in child processes or behind a server."""

    folder: Path
    """Folder of the base model, in Hugging Face format."""
    dtype: str
    """Type of weights and computation."""
    requests: int
    """Maximum number of concurrent requests; further ones wait."""
    options: Vllm
    """Options of the engines."""
    adapters: int = 0
    """Maximum number of adapters in use at once; 0 disables adapters."""
    rank: int = 8
    """Maximum rank of an adapter."""

    def arguments(self) -> dict[str, Any]:
        """Returns the keyword arguments of vLLM's `EngineArgs`, which are the flags of ``vllm serve`` too."""
        import torch

        options = self.options
        arguments: dict[str, Any] = {
            "model": str(self.folder),
            "dtype": self.dtype,
            "generation_config": "vllm",
            "logprobs_mode": "processed_logprobs",
            "enable_prefix_caching": True,
            "max_model_len": options.max_context,
            "max_num_seqs": self.requests,
            "gpu_memory_utilization": options.gpu_share,
            "tensor_parallel_size": options.tensor_parallel,
            "enforce_eager": options.eager,
            "worker_extension_cls": "searchgym.rollout.transfer.receiver.Receiver",
            "enable_sleep_mode": options.sleep > 0,
            "seed": 0,
        }
        if not torch.cuda.is_available():
            arguments["enable_chunked_prefill"] = False  # with seeds it crashes a CPU engine
        if self.adapters:  # a new version is loaded before the old one is dropped
            loras = {
                "max_loras": self.adapters,
                "max_cpu_loras": 2 * self.adapters,
                "max_lora_rank": rank_for(self.rank),
            }
            arguments |= {"enable_lora": True, **loras}
        return arguments


def rank_for(rank: int) -> int:
    """Returns the smallest maximum rank supported by vLLM that is enough for adapters of a rank."""
    return next((supported for supported in RANKS if supported >= rank), rank)


def visible(gpus: Sequence[int]) -> str:
    """Returns ``CUDA_VISIBLE_DEVICES`` for a child process that may use some of this process's GPUs.

    Args:
        gpus: Indices among the GPUs that this process sees, counted from 0.

    Raises:
        UsageError: This process does not see that many GPUs.
    """
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen is None:
        return ",".join(map(str, gpus))
    names = seen.split(",")
    if max(gpus) >= len(names):
        raise UsageError(f"there is no GPU {max(gpus)}: CUDA_VISIBLE_DEVICES is {seen}, counted from 0")
    return ",".join(names[gpu] for gpu in gpus)


def serve_command(
    setup: EngineSetup, address: str, tools: Mapping[str, Any] | None = None
) -> tuple[list[str], dict[str, str]]:
    """Returns the command that starts a vLLM server for training, and the environment variables to add for it.

    Requests and responses are token ids, with log-probabilities after the temperature; a `ServerGate` checks every
    call.

    Args:
        setup: Set-up of the engine.
        address: Address to listen on, ``http://HOST:PORT``.
        tools: Further options, for tool calls (`tool_flags`).
    """
    host, _, port = address.rpartition("//")[2].partition(":")
    flags = setup.arguments() | {
        "host": host,
        "port": port or "8000",
        "disable-uvicorn-access-log": True,
        "middleware": "searchgym.rollout.vllm.gate.ServerGate",
        **(tools or {}),
    }
    folder = vllm_folder()
    if folder is None or has_server_option(folder, "enable_scale_out"):  # old versions always take token ids
        flags["enable-scale-out"] = True
    # the module that ``vllm serve`` runs; the command itself does not start with the CPU build
    command = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"]
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            command += [f"--{flag}", str(value)]
    served = identity_of(setup.folder, setup.dtype, setup.adapters, setup.rank)
    return command, {
        "VLLM_SERVER_DEV_MODE": "1",  # enables the calls that load weights: not for untrusted networks
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_CPU_KVCACHE_SPACE": str(setup.options.cache_gib),
        "VLLM_NO_USAGE_STATS": "1",
        SERVES: json.dumps(asdict(served)),
        PROCESSES: str(setup.options.tensor_parallel),
    }


# -- what is served ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of what a server serves, or of what a training needs."""

    model: str
    """Folder of the base model, for messages."""
    config: str
    """SHA-256 of the model's ``config.json``."""
    weights: str
    """SHA-256 over names, sizes and samples of the model's weight files."""
    tokenizer: str
    """SHA-256 over the model's tokenizer files."""
    dtype: str
    """Type of weights and computation."""
    adapters: int
    """Number of adapters that can be in use at once."""
    rank: int
    """Maximum rank of an adapter; 0 without adapters."""
    searchgym: str = __version__
    """Version of this package."""
    vllm: str | None = None
    """Version of vLLM; None if it is not installed."""


def identity_of(folder: Path, dtype: str, adapters: int = 0, rank: int = 0) -> Identity:
    """Returns the identity of a base model with the set-up of its engine; see `EngineSetup`."""
    weights = hashlib.sha256()
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]):
        size = file.stat().st_size
        weights.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as content:
            for start in (0, max(0, size // 2 - SAMPLE // 2), max(0, size - SAMPLE)):
                content.seek(start)
                weights.update(content.read(SAMPLE))
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


def check_identity(needed: Identity, served: Mapping[str, Any], address: str) -> None:
    """Checks that a server serves what a training needs; warns on standard error about a vLLM that is not accepted.

    Args:
        needed: Identity that the training needs.
        served: Fields of the server's `Identity`.
        address: Address of the server, for messages.

    Raises:
        UsageError: The server differs; the message names every difference, and what to start instead.
    """
    faults = []
    if (version := served.get("searchgym")) != needed.searchgym:
        faults.append(f"searchgym {version}, here it is {needed.searchgym}: install the same version on both machines")
    for name, word in WORDS.items():
        if served.get(name) != getattr(needed, name):
            faults.append(f"{word} ({served.get('model')}, here it is {needed.model})")
    if served.get("dtype") != needed.dtype:
        faults.append(f"{served.get('dtype')}, the recipe samples in {needed.dtype}")
    if served.get("adapters", 0) < needed.adapters or served.get("rank", 0) < needed.rank:
        have = f"{served.get('adapters', 0)} adapters of rank {served.get('rank', 0)}"
        faults.append(f"{have}, the recipe samples {needed.adapters} of rank {needed.rank}")
    if faults:
        raise UsageError(f"{address} serves {'; '.join(faults)}; start it by `searchgym serve model` with this recipe")
    if not is_accepted(str(served.get("vllm"))):
        accepted = f"accepted are {RANGE}"
        sys.stderr.write(f"{address} has vLLM {served.get('vllm')}, {accepted}: watch probe/difference\n")


def _digest(files: Iterable[Path]) -> str:
    """Returns one SHA-256 over the names and contents of those files that exist."""
    digest = hashlib.sha256()
    for file in files:
        if file.is_file():
            digest.update(f"{file.name}\n".encode() + bytes.fromhex(sha256_file(file)))
    return digest.hexdigest()
