"""The samplers of a recipe's model keys, and the engines they run on."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from searchgym.errors import UsageError
from searchgym.rollout.folders import adapter_base, is_adapter, local_folder
from searchgym.rollout.loading import device_of, load_model
from searchgym.rollout.sampler import Sampler
from searchgym.rollout.transformers.sampler import TransformersSampler, response_ends
from searchgym.rollout.vllm.engine import VllmEngine
from searchgym.rollout.vllm.replicas import Replicas
from searchgym.rollout.vllm.sampler import VllmSampler
from searchgym.rollout.vllm.start import merges_adapters, samples_by_vllm, start_engine
from searchgym.train.learner.lora import adapter_config
from searchgym.train.recipe.keys import Key
from searchgym.train.recipe.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Loaded:
    """A key's tokenizer, and its model at the start of the run."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    adapter: Path | None = None
    """Folder of the adapter whose training goes on; the model is its base then."""


@dataclass(frozen=True, slots=True)
class Samplers:
    """The samplers of a run, one per key, and their engines."""

    by_key: Mapping[str, Sampler]
    """Samplers by the names of their keys."""
    engines: Sequence[VllmEngine | Replicas] = field(default_factory=list)
    """Engines of vLLM; several samplers may share an engine."""
    resting: Sequence[VllmEngine | Replicas] = field(default_factory=list)
    """Engines that can free their GPU while models learn; an update of their weights wakes them."""

    def close(self) -> None:
        """Closes the samplers and ends the engines."""
        with ExitStack() as ended:
            for sampler in self.by_key.values():
                ended.callback(sampler.close)
            for engine in self.engines:  # runs before the samplers close, even if requests are pending
                ended.callback(engine.close)


def load_keys(recipe: Recipe, keys: Iterable[Key]) -> dict[str, Loaded]:
    """Loads the models of keys; adapters on one base share its weights, and any other key has separate weights.

    Raises:
        SearchGymError: See `load_model`.
    """
    loaded: dict[str, Loaded] = {}
    bases: dict[str, Loaded] = {}
    for key in keys:
        name, adapter = start_of(recipe, key)
        if not recipe.lora.rank or name not in bases:
            bases[name] = Loaded(*load_model(name, recipe.learner.dtype))
            model = bases[name].model
        else:
            model = _sharing(bases[name].model)
        loaded[key.name] = Loaded(model, bases[name].tokenizer, adapter)
    return loaded


def start_of(recipe: Recipe, key: Key) -> tuple[str, Path | None]:
    """Returns the model that a key's weights start from, and the adapter on it whose training goes on, if any."""
    folder = local_folder(key.recipe.model)  # a plan, too, asks for it, and must not ask the hub
    if recipe.lora.rank and not key.frozen and folder is not None and is_adapter(folder):
        return adapter_base(folder), folder
    return key.recipe.model, None


def _sharing(model: PreTrainedModel) -> PreTrainedModel:
    """Returns a copy of a model that shares its weights but not its modules, so that it can get its own adapter."""
    model_: Any = model
    shared: PreTrainedModel = copy.deepcopy(model_, {id(t): t for t in (*model_.parameters(), *model_.buffers())})
    return shared


def start_samplers(recipe: Recipe, keys: Sequence[Key], loaded: Mapping[str, Loaded]) -> Samplers:
    """Starts a sampler for each key.

    Samplers hold their own copy of the weights, which changes only when a version is published. With vLLM, keys that
    are adapters or frozen share an engine with the other such keys on their base; but see `VllmOptions.adapters`.

    Raises:
        SearchGymError: See `start_engine`.
    """
    if not samples_by_vllm(recipe.rollout.sampler, ask=not recipe.rollout.vllm.servers):  # theirs is on their machines
        device = device_of(recipe.rollout.device)
        by_key: dict[str, Sampler] = {}
        for name, of_key in loaded.items():
            model: Any = copy.deepcopy(of_key.model)
            mixed = recipe.optimizer.autocast == "bfloat16"  # as the learner
            by_key[name] = TransformersSampler(model.to(device), of_key.tokenizer, mixed=mixed)
        return Samplers(by_key)
    engines_of = sharing(recipe, keys)
    if len(engines_of) > 1 and recipe.rollout.vllm.servers:
        raise UsageError(f"rollout.vllm.servers have one model, the recipe's keys sample from {len(engines_of)}")
    with ExitStack() as opened:
        samplers: dict[str, Sampler] = {}
        engines: list[VllmEngine | Replicas] = []
        resting: list[VllmEngine | Replicas] = []
        for together in engines_of:
            engine = _engine(recipe, together)
            opened.callback(engine.close)
            engines.append(engine)
            resting += [engine] * any(not key.frozen for key in together)
            for key in together:
                ends = response_ends(loaded[key.name].model, loaded[key.name].tokenizer)
                adapter = adapter_config(recipe.lora) if separate_adapters(recipe) and not key.frozen else None
                samplers[key.name] = VllmSampler(engine, ends=ends, adapter=adapter, shared=True)
        opened.pop_all()
    return Samplers(samplers, engines, resting)


def separate_adapters(recipe: Recipe, gpus: bool | None = None) -> bool:
    """Returns whether vLLM samples the trained keys as adapters beside their base; see `merges_adapters` for `gpus`."""
    return bool(recipe.lora.rank) and not merges_adapters(recipe.rollout.vllm, gpus)


def sharing(recipe: Recipe, keys: Iterable[Key], gpus: bool | None = None) -> list[list[Key]]:
    """Returns the keys in lists, one for each engine of vLLM that they sample from.

    Args:
        recipe: The run's recipe.
        keys: Its keys.
        gpus: Whether the engines are on GPUs. Default: as on this machine.
    """
    by_engine: dict[tuple[str, ...], list[Key]] = {}
    for key in keys:
        together, model = separate_adapters(recipe, gpus) or key.frozen, start_of(recipe, key)[0]
        by_engine.setdefault((model,) if together else (model, key.name), []).append(key)
    return list(by_engine.values())


def _engine(recipe: Recipe, keys: Sequence[Key]) -> VllmEngine | Replicas:
    """Starts the engine of keys that share it."""
    options = recipe.rollout
    return start_engine(
        start_of(recipe, keys[0])[0],
        dtype=sampled_in(recipe),
        requests=options.concurrency,
        options=options.vllm,
        adapters=sum(not key.frozen for key in keys) if separate_adapters(recipe) else 0,
        rank=max(1, recipe.lora.rank),
    )


def computed_in(recipe: Recipe) -> str:
    """Returns the number type of the learner's matrix products."""
    return recipe.optimizer.autocast or recipe.learner.dtype


def sampled_in(recipe: Recipe) -> str:
    """Returns the number type in which vLLM computes."""
    dtype = recipe.rollout.vllm.dtype
    return computed_in(recipe) if dtype == "auto" else dtype
