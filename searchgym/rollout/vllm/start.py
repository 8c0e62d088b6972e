"""From options to vLLM's engines: one or several, here or behind servers."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from searchgym.corpora.files import read_json
from searchgym.errors import DataError, EngineLostError, ModelError, UnknownNameError, UsageError
from searchgym.rollout.loading import (
    ADAPTER,
    adapter_base,
    check_vocabulary,
    generation_settings,
    is_adapter,
    load_tokenizer,
    model_config,
    model_folder,
    read_adapter,
)
from searchgym.rollout.sampler import VllmOptions
from searchgym.rollout.transformers.sampler import ends_of
from searchgym.rollout.vllm.engine import DEATHS, TESTED, Backend, VllmEngine, vllm_version
from searchgym.rollout.vllm.local import LocalVllm
from searchgym.rollout.vllm.replicas import Replicas
from searchgym.rollout.vllm.sampler import VllmSampler
from searchgym.rollout.vllm.server import ServedVllm

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


SAMPLERS: Final = ("transformers", "vllm", "auto")


def start_engine(
    model: str | Path, *, dtype: str, requests: int, options: VllmOptions, adapters: int = 0, rank: int = 8
) -> VllmEngine | Replicas:
    """Starts the engines of a model, or goes to the servers that have it.

    Args:
        model: Folder or name of the base model.
        dtype: Of weights and computation.
        requests: Most requests under way at once in each engine.
        options: See `VllmOptions`.
        adapters: Adapters that are sampled from at once; 0: none can be used.
        rank: Largest rank of an adapter.

    Raises:
        UsageError: vLLM is not installed, or the options do not fit each other.
        ModelError: An engine does not start, a server does not answer.
    """
    folder = model_folder(model)
    vocabulary = vocabulary_of(folder)
    backends: list[Callable[[], Backend]] = []
    if options.servers:
        backends = [functools.partial(ServedVllm, address, requests=requests) for address in options.servers]
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
    return Replicas([functools.partial(start, backend, 1) for backend in backends])


def load_vllm(
    path: str | Path, dtype: str, *, requests: int, options: VllmOptions
) -> tuple[VllmSampler, PreTrainedTokenizerBase]:
    """Loads a model folder as a sampler; from an adapter it samples beside its base.

    Args:
        path: The folder, in Hugging Face format; or a name.
        dtype: Of weights and computation.
        requests: Most requests under way at once.
        options: See `VllmOptions`.

    Raises:
        SearchGymError: See `start_engine` and `load_tokenizer`.
    """
    folder = model_folder(path)
    config = read_json(folder / ADAPTER) if is_adapter(folder) else None
    base = folder if config is None else model_folder(adapter_base(folder))
    tokenizer = load_tokenizer(folder if (folder / "tokenizer_config.json").is_file() else base)
    check_vocabulary(folder, tokenizer, vocabulary_of(base))
    ends = ends_of(generation_settings(base), tokenizer)
    rank = 1 if config is None else int(config["r"])
    weights = None if config is None else read_adapter(folder, base)
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


def vocabulary_of(folder: Path) -> int:
    """Returns the token ids that a model knows."""
    return int(model_config(folder).get_text_config(decoder=True).vocab_size)


def gpus_of(options: VllmOptions, replica: int) -> list[int] | None:
    """Returns the GPUs of one of the replicas; None for all that there are.

    Raises:
        UsageError: There are fewer than the replicas take.
    """
    each = options.tensor_parallel
    if options.gpus is None:
        return None if options.replicas == 1 else list(range(replica * each, (replica + 1) * each))
    if len(options.gpus) != each * options.replicas:
        want = f"{options.replicas} replicas on {each} each take {each * options.replicas}"
        raise UsageError(f"rollout.vllm.gpus names {len(options.gpus)} GPUs: {want}")
    return options.gpus[replica * each : (replica + 1) * each]


def samples_by_vllm(wanted: str, ask: bool = True) -> bool:
    """Says whether vLLM samples, given ``transformers``, ``vllm`` or ``auto``; speaks up if its version is untested.

    Args:
        wanted: ``rollout.sampler``.
        ask: Look at what is installed; else, for another machine's plan, vLLM is.

    Raises:
        UsageError: It must, and is not installed.
        UnknownNameError: It is none of these.
    """
    if wanted not in SAMPLERS:
        raise UnknownNameError("sampler", wanted, SAMPLERS)
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
