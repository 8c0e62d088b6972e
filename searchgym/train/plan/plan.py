"""Estimates the memory that a recipe needs on each device, without loading weights (models on the meta device).

The estimate is for decoders whose layers consist of attention and a gated MLP. It counts weights, gradients, the
optimizer's state, saved activations, logits, keys and values, CUDA's memory per process and vectors of retrievers. It
is the worst case of a step: full micro-batches, full running batches, and every token of a micro-batch trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import torch

from searchgym.agents.base import read_agent
from searchgym.errors import UsageError
from searchgym.rollout.loading import device_of
from searchgym.rollout.sampler_kind import CONTEXT, LIVE_LOGITS, PHASES, Need, Part, SampledKey, bytes_of
from searchgym.train.learner.head import TILES
from searchgym.train.plan.activations import activation_bytes, numbers_of
from searchgym.train.plan.sampled import sampled_keys, sampled_run
from searchgym.train.plan.shapes import Shape, adapter_parameters, model_shape
from searchgym.train.recipe.backend import Sharding
from searchgym.train.recipe.keys import Key, keys_of
from searchgym.train.recipe.options import OptimizerOptions
from searchgym.train.recipe.preflight import vectors_gib
from searchgym.train.recipe.recipe import Recipe

GIB: Final = 2**30
GPU_GIB: Final = 79.0
"""Memory reported by an 80 GB GPU, in GiB."""
LIBRARIES: Final = 0.6
"""Memory of a process that has loaded torch and the other libraries, in GiB."""
ALLOCATED: Final = 1.1
"""Bytes that an allocator takes for a byte of activations: 1.0 to 1.2 in updates of SmolLM2 and Qwen2.5-0.5B."""
BUCKET: Final = 5e8
"""DeepSpeed's default number of gradients per reduction."""


def plan(recipe: Recipe, gpus: int | None = None, gpu_gib: float = GPU_GIB) -> list[Part]:
    """Returns the items that use memory on each device.

    Args:
        recipe: Recipe to plan; only the configurations of its models are read.
        gpus: Number of GPUs to plan for. Default: the GPUs of this machine.
        gpu_gib: GiB of memory of each of `gpus`.

    Raises:
        SearchGymError: See `model_shape`; also if there are too few GPUs, or vLLM's share is too small for the model.
    """
    learner = recipe.learner
    keys = keys_of(recipe, read_agent(recipe.agent)[1], recipe.agent)
    count = torch.cuda.device_count() if gpus is None else gpus
    if gpus is None and count:
        gpu_gib = memory_here()["cuda:0"]
    sharding = learner.backend.sharding
    if learner.device == "cpu" or (learner.device == "auto" and not count):
        ranks = {"cpu": sharding.ranks}
    else:
        if not count:
            device_of("cuda")  # raises the error about a missing GPU
        if sharding.ranks > count:
            raise UsageError(f"learner.backend.ranks is {sharding.ranks}, there are {count} GPUs: each rank needs one")
        chosen = list(range(sharding.ranks)) if sharding.gpus is None else sharding.gpus
        if missing := [number for number in chosen if number >= count]:
            raise UsageError(f"learner.backend names GPU {missing[0]}, there are {count}, from 0 on")
        ranks = {f"cuda:{number}": chosen.count(number) for number in chosen}
    sampler, recipes = recipe.rollout.sampler.chosen(ask=gpus is None), {key.name: key.recipe for key in keys}
    controllers = recipe.rollout.controllers
    processes = controllers + sharding.ranks * learner.backend.apart
    parts = [Part("cpu", "Python and libraries", LIBRARIES * processes)]
    for together in sampler.together(sampled_keys(recipe, keys), recipe.lora.rank > 0, bool(count)):
        first = recipes[together[0].name]
        needed = list(sampler.memory(need_of(first, together, model_shape(first.model)), count, gpu_gib))
        if controllers > 1:
            others = [part for part in needed if part.device == "cpu"]
            needed += [
                replace(part, what=f"other controllers: {part.what}", gib=(controllers - 1) * part.gib)
                for part in others
            ]
        # a sampler that runs ahead samples while models learn
        parts += [replace(part, phases=PHASES) for part in needed] if recipe.rollout.staleness else needed
    for device, number in ranks.items():
        if device != "cpu":
            parts.append(Part(device, "learner: CUDA context", CONTEXT * number))
        parts += _learners([key for key in keys if not key.frozen], device, number)
    for device, gib in vectors_gib(recipe, count).items():
        if device != "cpu" and (device not in ranks or learner.backend.apart):  # else in the learner's process
            parts.append(Part(device, "retriever: CUDA context", CONTEXT))
        parts += [Part(device, "retriever: vectors", gib)] if gib else []
    return parts


def _learners(keys: Sequence[Key], device: str, ranks: int) -> list[Part]:
    """Returns the memory of all trained keys' models on a device; the keys are updated one after the other.

    Memory that is used only during an update counts once, for the key that needs most.
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
            # ranks of other keys are other processes, with a base of their own
            shared = role == "policy" and recipe.lora.rank > 0 and name in bases and not recipe.learner.backend.apart
            update = list[Part]()
            for part in _trained(recipe, role, model_shape(name), options, device, ranks, shared):
                named = replace(part, what=before + part.what)
                (parts if part.phases == PHASES else update).append(named)
            passing[role] = max(passing.get(role, []), update, key=lambda items: sum(part.gib for part in items))
        bases.add(recipe.model)
        if recipe.loss.kl_coef and not recipe.lora.rank:
            size = ranks * model_shape(recipe.model).parameters * bytes_of(recipe.learner.dtype) / GIB
            parts.append(Part(device, f"{before}reference: weights", size))
    return parts + [part for update in passing.values() for part in update]


def check_plan(parts: Sequence[Part], memory: Mapping[str, float], phases: Sequence[str] = PHASES) -> list[str]:
    """Returns a message for each device and phase that needs more memory than the device has.

    Args:
        parts: Items as `plan` returns them.
        memory: GiB by device; a device that is left out is not checked.
        phases: Phases of the training; without a critic, all but the last.
    """
    problems = []
    for device, needs in needs_of(parts).items():
        for phase in phases:
            if needs[phase] > memory.get(device, math.inf):
                name = "main memory" if device == "cpu" else device
                problems.append(f"{name} has {memory[device]:.1f} GiB, phase {phase} needs {needs[phase]:.1f}")
    return problems


def needs_of(parts: Sequence[Part]) -> dict[str, dict[str, float]]:
    """Returns the required memory of a plan in GiB, by device and phase."""
    return {
        device: {
            phase: sum(part.gib for part in parts if part.device == device and phase in part.phases) for phase in PHASES
        }
        for device in dict.fromkeys(part.device for part in parts)
    }


def memory_here() -> dict[str, float]:
    """Returns the memory of this machine in GiB by device: total for GPUs, available for ``cpu``."""
    gpus = {f"cuda:{i}": torch.cuda.mem_get_info(i)[1] / GIB for i in range(torch.cuda.device_count())}
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return gpus | {"cpu": free / 2**20}


def need_of(recipe: Recipe, keys: Sequence[SampledKey], shape: Shape) -> Need:
    """Returns the requirements of keys that share a copy of weights, for their sampler's memory estimate."""
    # new weights arrive before the old are freed; a tied head is sent under both names
    whole = 2 * (shape.parameters + shape.tied * shape.vocabulary * shape.hidden) * bytes_of(recipe.learner.dtype)
    return Need(
        run=sampled_run(recipe),
        parameters=shape.parameters,
        head=shape.vocabulary * shape.hidden,
        tied=shape.tied,
        per_token=2 * shape.layers * shape.kv_width,
        vocabulary=shape.vocabulary,
        whole=whole / GIB,
        adapter=3 * 4 * adapter_parameters(recipe.model, recipe.lora) / GIB if recipe.lora.rank else 0.0,
        trained=any(key.trained for key in keys),
    )


def _trained(
    recipe: Recipe, role: str, shape: Shape, options: OptimizerOptions, device: str, ranks: int, shared: bool = False
) -> list[Part]:
    """Returns the memory of a trained model on a device with `ranks` ranks, without its base if that is `shared`.

    ZeRO shards the optimizer state (1), gradients too (2), weights too (3).
    """
    learner, size = recipe.learner, bytes_of(recipe.learner.dtype)
    sharding = recipe.learner.backend.sharding
    share = 1 / sharding.ranks if sharding.zero == 3 else 1.0
    trained, adapted = shape.parameters, role == "policy" and recipe.lora.rank > 0
    persistent, passing = _optimizer_bytes(sharding, size)
    if adapted:  # adapters are kept in float32
        trained, (persistent, passing) = adapter_parameters(recipe.model, recipe.lora), _optimizer_bytes(sharding, 4)
    weights = ranks * (shape.parameters * size * (not shared) + 4 * trained * adapted) * share / GIB
    gradients = ranks * trained * passing / GIB
    optimizer = ranks * trained * persistent / GIB
    tokens = options.pass_tokens
    numbers = numbers_of(learner.dtype, options.autocast)
    saved = activation_bytes(shape, numbers, learner.recomputed, adapted)
    activations = ranks * tokens * saved * ALLOCATED / GIB
    if numbers == "mixed":  # the layers' matrices in bfloat16
        activations += ranks * 2 * (shape.parameters - (2 - shape.tied) * shape.vocabulary * shape.hidden) / GIB
    logits = ranks * tokens * (size + 4 * LIVE_LOGITS) / GIB  # a critic's values
    if role == "policy":  # tiles of the logits, and the gradient of the head, which is added up beside the summed one
        most, entries = TILES["cuda" if device.startswith("cuda") else "cpu"]
        tile = min(tokens, most) * min(shape.vocabulary, entries)
        logits = ranks * 4 * (LIVE_LOGITS * tile + shape.vocabulary * shape.hidden * (not adapted)) / GIB
    parts = [
        Part("cpu" if sharding.offload_parameters else device, f"{role}: weights", weights),
        Part("cpu" if sharding.offload_optimizer else device, f"{role}: optimizer", optimizer),
        Part(device, f"{role}: gradients", gradients, (role,)),
        Part(device, f"{role}: activations", activations, (role,)),
        Part(device, f"{role}: logits", logits, (role,)),
    ]
    if sharding.offload_parameters or sharding.zero == 3:  # two layers are whole at a time
        weights_of_layer = (shape.parameters - shape.vocabulary * shape.hidden) // shape.layers
        whole = ranks * (2 * weights_of_layer + shape.vocabulary * shape.hidden) * size / GIB
        parts.append(Part(device, f"{role}: layers made whole", whole, (role,)))
    if recipe.learner.backend.apart:  # gradients on their way between ranks, as they are and in float32
        bucket = ranks * min(BUCKET, trained) * 8 / GIB
        parts.append(Part(device, f"{role}: DeepSpeed's bucket", bucket, (role,)))
    return parts


class ZeroBytes(NamedTuple):
    """Bytes per parameter under a ZeRO stage, in addition to two moments and a copy of the weights."""

    state: int
    """Bytes stored with the moments, for the parameters of a rank's share."""
    bfloat16: tuple[int, int]
    """Bytes of gradients of bfloat16 weights during the model's updates: for each parameter, and for those of a rank's
    share."""
    float32: tuple[int, int]
    """Bytes of gradients of float32 weights, as in `bfloat16`."""


ZERO_BYTES: Final[Mapping[tuple[int, bool], ZeroBytes]] = {
    (0, False): ZeroBytes(0, (4, 0), (4, 0)),
    (1, False): ZeroBytes(0, (6, 0), (4, 4)),
    (2, False): ZeroBytes(0, (0, 4), (0, 8)),
    (3, False): ZeroBytes(4, (0, 4), (0, 4)),
    (1, True): ZeroBytes(6, (6, 0), (4, 0)),
    (2, True): ZeroBytes(6, (0, 4), (0, 0)),
    (3, True): ZeroBytes(8, (0, 0), (0, 0)),
}
"""Bytes by ZeRO stage and offloading of the optimizer; from the code of DeepSpeed 0.19, not measured.

Gradients are summed in float32: with ZeRO 1 all of them, in addition to a micro-batch's in bfloat16; with ZeRO 2 and 3
a rank's share, which ZeRO 3 keeps between updates. With offloading, the update's copy is stored with the moments.
"""


def _optimizer_bytes(sharding: Sharding, size: int) -> tuple[float, float]:
    """Returns the bytes per parameter of an optimizer's state, and of gradients during the model's updates.

    The state is two moments, and a float32 copy of the weights, unless these are float32 and nothing is sharded or
    offloaded.
    """
    zero, offloaded = sharding.zero, bool(sharding.offload_optimizer)
    share = 1 / sharding.ranks if zero else 1
    stage_bytes = ZERO_BYTES[zero, offloaded and zero > 0]
    whole, shared = stage_bytes.bfloat16 if size == 2 else stage_bytes.float32
    copy = 4 if size == 2 or zero in (1, 2) or offloaded else 0
    return (8 + copy + stage_bytes.state) * share, whole + shared * share
