"""Starting vLLM engines as the options ask: one or several, as child processes or behind servers."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from searchgym.errors import DataError, EngineLostError, ModelError, UsageError
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
from searchgym.rollout.sampler_kind import SampledKey, SampledRun, Samplers
from searchgym.rollout.samplers.vllm import Vllm
from searchgym.rollout.transformers.sampler import response_ends
from searchgym.rollout.vllm.engine import DEATHS, Backend, VllmEngine
from searchgym.rollout.vllm.identity import identity_of
from searchgym.rollout.vllm.local import LocalVllm
from searchgym.rollout.vllm.replicas import Replicas
from searchgym.rollout.vllm.sampler import VllmSampler
from searchgym.rollout.vllm.server import ServedVllm

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def start_engine(
    model: str | Path, *, dtype: str, requests: int, options: Vllm, adapters: int = 0, rank: int = 8
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
                    gpus=options.gpus_of(number),
                )
            )

    def start(backend: Callable[[], Backend], deaths: int) -> VllmEngine:
        return VllmEngine(backend(), vocabulary=vocabulary, deaths=deaths)

    if len(backends) == 1:
        return start(backends[0], DEATHS)
    return Replicas(
        *([functools.partial(start, backend, 1) for backend in own] for own in (backends, again or backends))
    )


def open_samplers(options: Vllm, keys: Sequence[SampledKey], run: SampledRun) -> Samplers:
    """Starts the engines of a run's keys, or connects to their servers; see `SamplerKind.open`.

    Raises:
        UsageError: The keys sample from several models, and servers have one.
        SearchGymError: See `start_engine`.
    """
    adapter = run.adapter if options.separate() else None
    engines_of = options.together(keys, adapter is not None)
    if len(engines_of) > 1 and options.servers:
        raise UsageError(f"rollout.sampler.servers have one model, the recipe's keys sample from {len(engines_of)}")
    with ExitStack() as opened:
        samplers: dict[str, VllmSampler] = {}
        engines: list[VllmEngine | Replicas] = []
        resting: list[VllmEngine | Replicas] = []
        for together in engines_of:
            trained = sum(key.trained for key in together)
            engine = start_engine(
                together[0].base,
                dtype=options.computed_in(run),
                requests=run.requests,
                options=options,
                adapters=trained if adapter else 0,
                rank=int(run.adapter["r"]) if run.adapter else 1,
            )
            opened.callback(engine.close)
            engines.append(engine)
            resting += [engine] * (trained > 0)
            for key in together:
                ends, own = response_ends(key.model.generation_config, key.tokenizer), adapter if key.trained else None
                samplers[key.name] = VllmSampler(engine, ends=ends, adapter=own, shared=True)
        opened.pop_all()
    return Samplers(samplers, engines, resting, options.sleep)


def _check_transfer(options: Vllm, adapters: int) -> None:
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
    path: str | Path, dtype: str, *, requests: int, options: Vllm
) -> tuple[VllmSampler, PreTrainedTokenizerBase]:
    """Loads a model or an adapter as a vLLM sampler; see `Vllm.adapters`.

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
    if is_adapter(folder) and not options.separate():
        return _load_merged(folder, dtype, requests, options)
    config = saved_config(folder) if is_adapter(folder) else None
    base = folder if config is None else model_folder(adapter_base(folder))
    tokenizer = load_tokenizer(folder if (folder / "tokenizer_config.json").is_file() else base)
    check_vocabulary(folder, tokenizer, vocabulary_of(base))
    ends = response_ends(generation_settings(base), tokenizer)
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


def _load_merged(folder: Path, dtype: str, requests: int, options: Vllm) -> tuple[VllmSampler, PreTrainedTokenizerBase]:
    """Loads an adapter, merged into its base in float32, as a vLLM sampler; see `load_vllm`."""
    base = model_folder(adapter_base(folder))
    model, tokenizer = load_model(folder)
    check_vocabulary(folder, tokenizer, vocabulary_of(base))
    ends = response_ends(generation_settings(base), tokenizer)
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
