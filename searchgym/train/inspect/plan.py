"""Estimate of the memory that a recipe needs on each device, without loading weights (models on the meta device).

Estimates, for decoders whose layers are attention and a gated MLP. Counted are weights, gradients, the optimizer's
state, saved activations, logits, keys and values, what CUDA keeps for each process; not the allocator's waste and
retrievers. The step's worst case is meant: full micro-batches, full running batches, every token of a
micro-batch trained.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from searchgym.agents.base import read_agent
from searchgym.errors import UsageError
from searchgym.rollout.loading import DTYPES, device_of
from searchgym.rollout.transformers.sampler import BATCH_TOKENS, most_tokens
from searchgym.rollout.vllm.start import gpus_of, samples_by_vllm
from searchgym.train.inspect.shapes import Shape, adapter_parameters, model_shape
from searchgym.train.memory import GIB
from searchgym.train.recipe.keys import Key, keys_of
from searchgym.train.recipe.options import LearnerOptions, OptimizerOptions
from searchgym.train.recipe.preflight import vectors_gib
from searchgym.train.recipe.recipe import Recipe
from searchgym.train.run.samplers import separate_adapters, sharing

CONTEXT: Final = 0.6
"""GiB that the CUDA context of a process takes on a GPU."""
GPU_GIB: Final = 79.0
"""Memory that a GPU of 80 GB reports."""
BUCKET: Final = 5e8
"""Number of gradients that DeepSpeed reduces at once by default."""
PHASES: Final = ("draw", "policy", "critic")
"""Phases of a step: episodes are sampled, the policy is updated, the critic is updated."""
LIVE_LOGITS: Final = 3
"""Number of float32 copies of a micro-batch's logits that exist at once: logits, log-softmax and gradient."""


@dataclass(frozen=True, slots=True)
class Part:
    """One item that takes memory on a device."""

    device: str
    """``cpu``, or ``cuda:0`` and so on."""
    what: str
    gib: float
    phases: tuple[str, ...] = PHASES
    """Phases in which the memory is in use."""


def plan(recipe: Recipe, gpus: int | None = None, gpu_gib: float = GPU_GIB) -> list[Part]:
    """Returns the items that take memory on each device.

    Args:
        recipe: Recipe to plan; only the configurations of its models are read.
        gpus: Number of GPUs to plan for; this machine's if None.
        gpu_gib: GiB of memory of each of `gpus`.

    Raises:
        SearchGymError: See `model_shape`; also if GPUs are missing, or vLLM's share is too small for the model.
    """
    learner = recipe.learner
    keys = keys_of(recipe, read_agent(recipe.agent)[1], recipe.agent)
    count = torch.cuda.device_count() if gpus is None else gpus
    if gpus is None and count:
        gpu_gib = memory_here()["cuda:0"]
    devices = _devices(learner.device, learner.ranks, count, learner.gpus)
    if samples_by_vllm(recipe.rollout.sampler, ask=gpus is None):
        engines = [_stays(own) for own in sharing(recipe, keys, bool(count))]
        parts = [part for own in engines for part in _engines(own, model_shape(own.model), count, gpu_gib)]
    else:
        device = _devices(recipe.rollout.device, 1, count)[0]
        parts = [part for key in keys for part in _sampler(key.recipe, model_shape(key.recipe.model), device, gpu_gib)]
    ranks = {device: devices.count(device) for device in devices}
    for device, number in ranks.items():
        if device != "cpu":
            parts.append(Part(device, "CUDA's own", CONTEXT * number))
        parts += _learners([key for key in keys if not key.frozen], device, number)
    vectors = vectors_gib(recipe)
    return parts + ([Part("cpu", "retriever: vectors", vectors)] if vectors else [])


def _stays(keys: Sequence[Key]) -> Recipe:
    """Returns the recipe of an engine's keys: where none is trained it does not sleep, as no update would wake it."""
    recipe = keys[0].recipe
    if not all(key.frozen for key in keys):
        return recipe
    vllm = dataclasses.replace(recipe.rollout.vllm, sleep=0)
    return dataclasses.replace(recipe, rollout=dataclasses.replace(recipe.rollout, vllm=vllm))


def _learners(keys: Sequence[Key], device: str, ranks: int) -> list[Part]:
    """Returns what the models of all trained keys take on a device: they are updated one after the other.

    What an update needs for its own time counts once, for the key that needs most.
    """
    parts: list[Part] = []
    passing: dict[str, list[Part]] = {}
    bases: set[str] = set()
    for key in keys:
        recipe, before = key.recipe, f"{key.name} " if len(keys) > 1 else ""
        models = [("policy", recipe.model, recipe.optimizer)]
        if recipe.has_critic:
            models.append(("critic", recipe.critic.model or recipe.model, recipe.critic.optimizer))
        for role, name, options in models:
            shared = role == "policy" and recipe.lora.rank > 0 and name in bases
            own = _trained(recipe, role, model_shape(name), options, device, ranks, shared)
            own = [dataclasses.replace(part, what=before + part.what) for part in own]
            parts += [part for part in own if part.phases == PHASES]
            update = [part for part in own if part.phases != PHASES]
            passing[role] = max(passing.get(role, []), update, key=lambda found: sum(part.gib for part in found))
        bases.add(recipe.model)
        if recipe.loss.kl_coef and not recipe.lora.rank:
            size = ranks * model_shape(recipe.model).parameters * _bytes(recipe.learner.dtype) / GIB
            parts.append(Part(device, f"{before}reference: weights", size))
    return parts + [part for update in passing.values() for part in update]


def check_plan(parts: Sequence[Part], memory: Mapping[str, float], phases: Sequence[str] = PHASES) -> list[str]:
    """Returns a message for each device and phase that needs more memory than the device has.

    Args:
        parts: Items as `plan` returns them.
        memory: GiB by device; a device that is left out is not checked.
        phases: Phases that the training has; without a critic the last one is not among them.
    """
    found = []
    for device in dict.fromkeys(part.device for part in parts):
        for phase in phases:
            need = sum(part.gib for part in parts if part.device == device and phase in part.phases)
            if need > memory.get(device, math.inf):
                name = "main memory" if device == "cpu" else device
                found.append(f"{name} has {memory[device]:.1f} GiB, phase {phase} needs {need:.1f}")
    return found


def memory_here() -> dict[str, float]:
    """Returns GiB by device of this machine: total memory of GPUs, available memory of ``cpu``."""
    found = {f"cuda:{i}": torch.cuda.mem_get_info(i)[1] / GIB for i in range(torch.cuda.device_count())}
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return found | {"cpu": free / 2**20}


def _devices(name: str, ranks: int, gpus: int, numbers: Sequence[int] | None = None) -> list[str]:
    """Returns the device of each rank."""
    if name == "cpu" or (name == "auto" and not gpus):
        return ["cpu"] * ranks
    if not gpus:
        device_of("cuda")
    if ranks > gpus:
        raise UsageError(f"learner.ranks is {ranks}, there are {gpus} GPUs: each rank has one of its own")
    chosen = list(range(ranks)) if numbers is None else list(numbers)
    if missing := [number for number in chosen if number >= gpus]:
        raise UsageError(f"learner.gpus names GPU {missing[0]}, there are {gpus}, from 0 on")
    return [f"cuda:{number}" for number in chosen]


def _bytes(dtype: str) -> int:
    return torch.empty(0, dtype=DTYPES[dtype]).element_size()


def _sampler(recipe: Recipe, shape: Shape, device: str, gpu_gib: float) -> list[Part]:
    """Returns what the sampler takes; its weights are there all the time, keys and values while it samples."""
    size = _bytes(recipe.learner.dtype)
    weights = shape.parameters * size / GIB
    per_token = 2 * shape.layers * shape.kv_width * size / GIB
    tokens = BATCH_TOKENS if device == "cpu" else most_tokens(per_token, gpu_gib, on_gpu=True)
    kept = tokens * per_token
    logits = recipe.rollout.concurrency * shape.vocabulary * 4 * LIVE_LOGITS / GIB
    return [
        Part(device, "sampler: weights", weights),
        Part(device, "sampler: keys and values, running", kept + logits, ("draw",)),
        Part(device, "sampler: keys and values, remembered", kept),
    ]


def _engines(recipe: Recipe, shape: Shape, count: int, gpu_gib: float) -> list[Part]:
    """Returns what vLLM takes: its share of each of its GPUs, whatever it needs of that."""
    options = recipe.rollout.vllm
    # the next ones come before those are gone; a tied head travels by both its names
    whole = 2 * (shape.parameters + shape.tied * shape.vocabulary * shape.hidden) * _bytes(recipe.learner.dtype)
    alone = separate_adapters(recipe, bool(count))
    sent = 3 * 4 * adapter_parameters(recipe.model, recipe.lora) if alone else whole
    way = Part("cpu", "weights on their way to vLLM", sent / GIB)
    if options.servers:
        return [way]
    weights, need = engine_gib(recipe, shape)
    if not count:
        return [way, Part("cpu", "vLLM: weights, keys and values", options.replicas * (weights + options.cache_gib))]
    parts = [way]
    share, phases = options.gpu_share * gpu_gib, ("draw",) if options.sleep else PHASES
    if need > share:
        why = f"its weights and one full context take {need:.1f} GiB"
        raise UsageError(f"rollout.vllm.gpu_share {options.gpu_share:g} is {share:.1f} GiB of a GPU, too little: {why}")
    for replica in range(options.replicas):
        for gpu in gpus_of(options, replica) or range(options.tensor_parallel):
            if gpu >= count:
                raise UsageError(f"vLLM's replica {replica} takes GPU {gpu}, there are {count}, from 0 on")
            parts.append(Part(f"cuda:{gpu}", "vLLM: its share", share, phases))
            parts.append(Part(f"cuda:{gpu}", "CUDA's own", CONTEXT))
    if options.sleep == 1:
        asleep = options.replicas * options.tensor_parallel * weights
        parts.append(Part("cpu", "vLLM: weights, asleep", asleep, ("policy", "critic")))
    return parts


def engine_gib(recipe: Recipe, shape: Shape) -> tuple[float, float]:
    """Returns the GiB that an engine's weights take on each of its GPUs, and weights with keys of one full context."""
    options = recipe.rollout.vllm
    size = 2 if recipe.optimizer.autocast == "bfloat16" or options.dtype == "bfloat16" else _bytes(recipe.learner.dtype)
    weights = shape.parameters * size / options.tensor_parallel / GIB
    per_token = 2 * shape.layers * shape.kv_width * size / options.tensor_parallel / GIB
    return weights, weights + per_token * (options.max_context or BATCH_TOKENS)


def _trained(
    recipe: Recipe, role: str, shape: Shape, options: OptimizerOptions, device: str, ranks: int, shared: bool = False
) -> list[Part]:
    """Returns what a trained model takes on a device that has so many of its ranks; `shared`: its base is there.

    ZeRO shares out the optimizer's state (1), gradients too (2), weights too (3).
    """
    learner, size = recipe.learner, _bytes(recipe.learner.dtype)
    share = 1 / learner.ranks if learner.zero == 3 else 1.0
    trained, adapted = shape.parameters, role == "policy" and recipe.lora.rank > 0
    kept, passing = _optimizer_bytes(learner, size)
    if adapted:  # kept in float32
        trained, (kept, passing) = adapter_parameters(recipe.model, recipe.lora), _optimizer_bytes(learner, 4)
    weights = ranks * (shape.parameters * size * (not shared) + 4 * trained * adapted) * share / GIB
    gradients = ranks * trained * passing / GIB
    optimizer = ranks * trained * kept / GIB
    tokens = options.micro_batch_tokens
    activations = ranks * tokens * _per_token(shape, size, learner.gradient_checkpointing) / GIB
    outputs = shape.vocabulary if role == "policy" else 1
    logits = ranks * tokens * outputs * (size + 4 * LIVE_LOGITS) / GIB
    parts = [
        Part("cpu" if learner.offload_parameters else device, f"{role}: weights", weights),
        Part("cpu" if learner.offload_optimizer else device, f"{role}: optimizer", optimizer),
        Part(device, f"{role}: gradients", gradients, (role,)),
        Part(device, f"{role}: activations", activations, (role,)),
        Part(device, f"{role}: logits", logits, (role,)),
    ]
    if learner.offload_parameters or learner.zero == 3:  # two layers are whole at a time
        layer = (shape.parameters - shape.vocabulary * shape.hidden) // shape.layers
        whole = ranks * (2 * layer + shape.vocabulary * shape.hidden) * size / GIB
        parts.append(Part(device, f"{role}: layers made whole", whole, (role,)))
    if learner.backend == "deepspeed":  # gradients on their way between ranks, as they are and in float32
        bucket = ranks * min(BUCKET, trained) * 8 / GIB
        parts.append(Part(device, f"{role}: DeepSpeed's bucket", bucket, (role,)))
    return parts


def _optimizer_bytes(learner: LearnerOptions, size: int) -> tuple[float, float]:
    """Returns the bytes per parameter that an optimizer keeps, and those of gradients in the model's own phase.

    Read off DeepSpeed 0.19, not measured: two moments; a copy of the weights in float32, unless they are and nothing
    is shared out or offloaded. Gradients are added up in float32: with ZeRO 1 all of them, beside a micro-batch's in
    bfloat16; from ZeRO 2 on a rank's share, which ZeRO 3 keeps. Offloaded, the update's copy lies with the moments.
    """
    zero, part = learner.zero, 1 / learner.ranks
    kept = 8 + (4 if size == 2 or zero in (1, 2) or learner.offload_optimizer else 0)
    if zero == 0:
        return kept, 4
    if learner.offload_optimizer:
        whole, own = (6, 4 * part) if size == 2 else (4, 0.0)
        return (kept + (8 if zero == 3 else 6)) * part, {1: whole, 2: own, 3: 0.0}[zero]
    if zero == 1:
        return kept * part, 6 if size == 2 else 4 + 4 * part
    return (kept * part, (4 if size == 2 else 8) * part) if zero == 2 else ((kept + 4) * part, 4 * part)


def _per_token(shape: Shape, size: int, checkpointing: bool) -> float:
    """Returns the bytes that a token's forward pass leaves for the backward pass.

    Of a layer: what goes into its two norms, is scaled (in float32) and comes out of them (6 hidden), queries, keys and
    values, the latter two repeated for every head of queries (3 hidden), the output of attention in two orders (2
    hidden), the gate, its activation, the other half and their product (4 intermediate).
    """
    layer = size * (9 * shape.hidden + 4 * shape.intermediate) + 4 * 2 * shape.hidden
    if checkpointing:  # every layer's input, and one layer's own at a time
        return size * shape.layers * shape.hidden + layer
    return float(shape.layers * layer)
