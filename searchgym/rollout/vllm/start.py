"""Starting vLLM engines as the options ask: one or several, as child processes or behind servers."""

from __future__ import annotations

import functools
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import torch

from searchgym.errors import DataError, EngineLostError, ModelError, UnknownNameError, UsageError
from searchgym.rollout.folders import adapter_base, is_adapter, model_folder, saved_config
from searchgym.rollout.foreign.adapters import read_adapter
from searchgym.rollout.loading import (
    check_vocabulary,
    generation_settings,
    load_model,
    load_tokenizer,
    meta_model,
    model_config,
)
from searchgym.rollout.sampler import SamplerName, VllmOptions
from searchgym.rollout.transformers.sampler import ends_of
from searchgym.rollout.vllm.engine import DEATHS, TESTED, Backend, VllmEngine, vllm_version
from searchgym.rollout.vllm.identity import identity_of
from searchgym.rollout.vllm.local import LocalVllm
from searchgym.rollout.vllm.replicas import Replicas
from searchgym.rollout.vllm.sampler import VllmSampler
from searchgym.rollout.vllm.server import ServedVllm

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def start_engine(
    model: str | Path, *, dtype: str, requests: int, options: VllmOptions, adapters: int = 0, rank: int = 8
) -> VllmEngine | Replicas:
    """Starts the vLLM engines of a model, or connects to the servers that have it.

    Args:
        model: Folder or name of the base model.
        dtype: Type of weights and computation.
        requests: Maximum number of concurrent requests per engine.
        options: Set-up of the engines.
        adapters: Maximum number of adapters in use at once; 0 disables adapters.
        rank: Maximum rank of an adapter.

    Raises:
        UsageError: vLLM is not installed, or the options contradict each other.
        ModelError: An engine does not start, or a server does not answer.
    """
    _check_transfer(options, adapters)
    folder = model_folder(model)
    vocabulary = vocabulary_of(folder)
    backends: list[Callable[[], Backend]] = []
    again: list[Callable[[], Backend]] = []
    if options.servers:
        wanted, run = identity_of(folder, dtype, adapters, rank), uuid.uuid4().hex
        for address in options.servers:
            server = functools.partial(ServedVllm, address, requests=requests, wanted=wanted, run=run, options=options)
            backends.append(server)
            again.append(functools.partial(server, patience=0.0))  # the others need not wait for it
    else:
        for number in range(options.replicas):
            backends.append(
                functools.partial(
                    LocalVllm,
                    folder,
                    dtype=dtype,
                    requests=requests,
                    options=options,
                    adapters=adapters,
                    rank=rank,
                    gpus=gpus_of(options, number),
                )
            )

    def start(backend: Callable[[], Backend], deaths: int) -> VllmEngine:
        return VllmEngine(backend(), vocabulary=vocabulary, deaths=deaths)

    if len(backends) == 1:
        return start(backends[0], DEATHS)
    return Replicas(
        *([functools.partial(start, backend, 1) for backend in own] for own in (backends, again or backends))
    )


def _check_transfer(options: VllmOptions, adapters: int) -> None:
    """Raises a UsageError if weights cannot be sent by the process group that the options name."""
    if options.transfer == "folder":
        return
    if not options.servers:
        raise UsageError(f"transfer {options.transfer} is for weights on their way to servers, and none is named")
    if adapters:
        raise UsageError(f"transfer {options.transfer} sends whole models: set adapters to merged")
    if options.transfer == "nccl" and not torch.cuda.is_available():
        raise UsageError("transfer nccl sends from a GPU, and this machine has none: set it to gloo")


def load_vllm(
    path: str | Path, dtype: str, *, requests: int, options: VllmOptions
) -> tuple[VllmSampler, PreTrainedTokenizerBase]:
    """Loads a model or an adapter as a vLLM sampler; see `VllmOptions.adapters`.

    Args:
        path: Folder in Hugging Face format, or the name of a model.
        dtype: Type of weights and computation.
        requests: Maximum number of concurrent requests.
        options: Set-up of the engine.

    Returns:
        The sampler and the tokenizer.

    Raises:
        SearchGymError: See `start_engine` and `load_tokenizer`.
    """
    folder = model_folder(path)
    if is_adapter(folder) and merges_adapters(options):
        return _load_merged(folder, dtype, requests, options)
    config = saved_config(folder) if is_adapter(folder) else None
    base = folder if config is None else model_folder(adapter_base(folder))
    tokenizer = load_tokenizer(folder if (folder / "tokenizer_config.json").is_file() else base)
    check_vocabulary(folder, tokenizer, vocabulary_of(base))
    ends = ends_of(generation_settings(base), tokenizer)
    weights = None if config is None else read_adapter(folder, meta_model(model_config(base), base), str(base))[0]
    rank = 1 if config is None else config["r"]
    engine = start_engine(
        base, dtype=dtype, requests=requests, options=options, adapters=int(config is not None), rank=rank
    )
    sampler = VllmSampler(engine, ends=ends, adapter=config)
    if weights is not None:
        try:
            sampler.update(weights, 0)
        except BaseException as error:
            sampler.close()
            if isinstance(error, ModelError) and not isinstance(error, EngineLostError):
                raise DataError(f"the adapter does not fit its base {base}: {error}", folder) from error
            raise
    return sampler, tokenizer


def merges_adapters(options: VllmOptions, gpus: bool | None = None) -> bool:
    """Returns whether engines sample adapters merged into their base.

    Args:
        options: Set-up of the engines.
        gpus: Whether they are on GPUs. Default: as on this machine.
    """
    if options.adapters != "auto":
        return options.adapters == "merged"
    return not options.servers and not (torch.cuda.is_available() if gpus is None else gpus)


def _load_merged(
    folder: Path, dtype: str, requests: int, options: VllmOptions
) -> tuple[VllmSampler, PreTrainedTokenizerBase]:
    """Loads an adapter, merged into its base in float32, as a vLLM sampler; see `load_vllm`."""
    base = model_folder(adapter_base(folder))
    model, tokenizer = load_model(folder)
    check_vocabulary(folder, tokenizer, vocabulary_of(base))
    ends = ends_of(generation_settings(base), tokenizer)
    sampler = VllmSampler(start_engine(base, dtype=dtype, requests=requests, options=options), ends=ends)
    try:
        sampler.update(model.state_dict(), 0)
    except BaseException:
        sampler.close()
        raise
    return sampler, tokenizer


def vocabulary_of(folder: Path) -> int:
    """Returns the number of token ids that a model knows."""
    return int(model_config(folder).get_text_config(decoder=True).vocab_size)


def gpus_of(options: VllmOptions, replica: int) -> list[int] | None:
    """Returns the GPU indices of one replica; None for all GPUs.

    Args:
        options: Set-up of the engines.
        replica: Number of the replica, from 0.

    Raises:
        UsageError: `options.gpus` does not name as many GPUs as the replicas need.
    """
    each = options.tensor_parallel
    if options.gpus is None:
        return None if options.replicas == 1 else list(range(replica * each, (replica + 1) * each))
    if len(options.gpus) != each * options.replicas:
        want = f"{options.replicas} replicas on {each} each take {each * options.replicas}"
        raise UsageError(f"rollout.vllm.gpus names {len(options.gpus)} GPUs: {want}")
    return options.gpus[replica * each : (replica + 1) * each]


def samples_by_vllm(wanted: str, ask: bool = True) -> bool:
    """Returns whether to sample with vLLM; warns on standard error if its version is untested.

    Args:
        wanted: Value of ``rollout.sampler``: ``transformers``, ``vllm`` or ``auto``.
        ask: Whether to check the installed vLLM; if not (in a plan for another machine), a tested one is assumed.

    Raises:
        UsageError: ``vllm`` is wanted but not installed.
        UnknownNameError: `wanted` is none of the three.
    """
    if wanted not in get_args(SamplerName):
        raise UnknownNameError("sampler", wanted, get_args(SamplerName))
    if not ask:
        return wanted != "transformers"
    version = None if wanted == "transformers" else vllm_version()
    tested = version is not None and version.startswith(TESTED)
    if wanted == "vllm":
        if version is None:
            raise UsageError("rollout.sampler is vllm, which is not installed: searchgym doctor says how to get it")
        if not tested:
            sys.stderr.write(
                f"vLLM {version} has not been tested here ({', '.join(TESTED)}x has): watch probe/difference\n"
            )
    elif wanted == "auto" and not tested:
        why = (
            "is not installed" if version is None else f"{version} has not been tested here ({', '.join(TESTED)}x has)"
        )
        sys.stderr.write(f"rollout.sampler auto: vLLM {why}, transformers samples\n")
    return wanted != "transformers" and (wanted == "vllm" or tested)
