"""Starts vLLM engines by the options: one or several, as child processes or on servers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

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
from searchgym.rollout.sampler import Samplers
from searchgym.rollout.sampler_kind import SampledKey, SampledRun
from searchgym.rollout.samplers.vllm import Vllm
from searchgym.rollout.transformers.sampler import response_ends
from searchgym.rollout.vllm.backend import EngineBackend
from searchgym.rollout.vllm.engine import DEATHS, VllmEngine
from searchgym.rollout.vllm.local import LocalVllm
from searchgym.rollout.vllm.replicas import Replicas
from searchgym.rollout.vllm.sampler import VllmSampler
from searchgym.rollout.vllm.server import ServedVllm
from searchgym.rollout.vllm.setup import EngineSetup, identity_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def start_engine(
    model: str | Path, *, dtype: str, requests: int, options: Vllm, adapters: int = 0, rank: int = 8
) -> VllmEngine | Replicas:
    """Starts the vLLM engines of a model, or connects to servers of the model.

    Args:
        model: Folder or name of the base model.
        dtype: Type of weights and computation.
        requests: Maximum number of concurrent requests per engine.
        options: Set-up of the engines.
        adapters: Maximum number of adapters in use at once; 0 disables adapters.
        rank: Maximum rank of an adapter.

    Raises:
        UsageError: vLLM is not installed, or options are incompatible.
        ModelError: An engine does not start, or a server does not reply.
    """
    if options.transfer != "folder":
        if not options.servers:
            raise UsageError(f"transfer {options.transfer} is for sending weights to servers, and none is named")
        if adapters:
            raise UsageError(f"transfer {options.transfer} sends whole models: set adapters to merged")
        if options.transfer == "nccl" and not torch.cuda.is_available():
            raise UsageError("transfer nccl sends from a GPU, and this machine has none: set it to gloo")
    folder = model_folder(model)
    vocabulary = vocabulary_of(folder)
    setup = EngineSetup(folder=folder, dtype=dtype, requests=requests, options=options, adapters=adapters, rank=rank)
    backends: Sequence[Callable[[], EngineBackend]]
    again: Sequence[Callable[[], EngineBackend]]
    if options.servers:
        needed, run = identity_of(folder, dtype, adapters, rank), uuid.uuid4().hex
        servers = [partial(ServedVllm, address, setup, needed=needed, run=run) for address in options.servers]
        # without patience, so that other servers need not wait
        backends, again = servers, [partial(server, patience=0.0) for server in servers]
    else:
        backends = again = [partial(LocalVllm, setup, options.gpus_of(number)) for number in range(options.replicas)]

    def start(backend: Callable[[], EngineBackend], deaths: int) -> VllmEngine:
        return VllmEngine(backend(), vocabulary=vocabulary, deaths=deaths)

    if len(backends) == 1:
        return start(backends[0], DEATHS)
    return Replicas(*([partial(start, backend, 1) for backend in which] for which in (backends, again)))


def open_samplers(options: Vllm, keys: Sequence[SampledKey], run: SampledRun) -> Samplers:
    """Starts the engines of a run's keys, or connects to their servers; see `SamplerKind.open`.

    Raises:
        UsageError: The keys sample from several models, but servers have only one.
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
                ends, key_adapter = (
                    response_ends(key.model.generation_config, key.tokenizer),
                    adapter if key.trained else None,
                )
                samplers[key.name] = VllmSampler(engine, ends=ends, adapter=key_adapter, shared=True)
        opened.pop_all()
    return Samplers(samplers, engines, resting, options.sleep)


def load_vllm(
    path: str | Path, dtype: str, *, requests: int, options: Vllm
) -> tuple[VllmSampler, PreTrainedTokenizerBase]:
    """Loads a model or an adapter as a vLLM sampler; see `Vllm.adapters`.

    Args:
        path: Folder in Hugging Face format, or the name of a model.
        dtype: Type of weights and computation; an adapter is merged in float32.
        requests: Maximum number of concurrent requests.
        options: Set-up of the engine.

    Returns:
        The sampler and the tokenizer.

    Raises:
        SearchGymError: See `start_engine` and `load_tokenizer`.
    """
    folder = model_folder(path)
    adapted = is_adapter(folder)
    base = model_folder(adapter_base(folder)) if adapted else folder
    config: dict[str, Any] | None = None
    weights: Mapping[str, Tensor] | None = None
    if adapted and not options.separate():
        model, tokenizer = load_model(folder)
        weights = model.state_dict()
    else:
        tokenizer = load_tokenizer(folder if (folder / "tokenizer_config.json").is_file() else base)
    check_vocabulary(folder, tokenizer, vocabulary_of(base))
    ends = response_ends(generation_settings(base), tokenizer)
    if adapted and weights is None:
        config = saved_config(folder)
        weights, _ = read_adapter(folder, meta_model(model_config(base), base), str(base))
    adapters, rank = (0, 1) if config is None else (1, config["r"])
    engine = start_engine(base, dtype=dtype, requests=requests, options=options, adapters=adapters, rank=rank)
    sampler = VllmSampler(engine, ends=ends, adapter=config)
    try:
        if weights is not None:
            sampler.update(weights, 0)
    except BaseException as error:
        sampler.close()
        if config is not None and isinstance(error, ModelError) and not isinstance(error, EngineLostError):
            raise DataError(f"the adapter does not fit its base {base}: {error}", folder) from error
        raise
    return sampler, tokenizer


def vocabulary_of(folder: Path) -> int:
    """Returns the number of token ids in a model's vocabulary."""
    return int(model_config(folder).get_text_config(decoder=True).vocab_size)
