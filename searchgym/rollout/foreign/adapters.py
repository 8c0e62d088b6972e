"""Adapters on a base model: reading, checking that weights fit the base and are finite, and merging."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

import regex
import torch
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from searchgym.errors import DataError, DataMissingError
from searchgym.rollout.folders import ADAPTER, ADAPTER_WEIGHTS, saved_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Shape = tuple[int, ...]
PREFIX: Final = "base_model.model."
"""Prefix of the name of each weight in peft's files."""
MATCH_SECONDS: Final = 2.0
"""Maximum seconds for matching a pattern with the names of all modules."""
_LAYER: Final = regex.compile(r".*\.[^.]*\.(\d+)\.")


def read_adapter(folder: Path, base: torch.nn.Module, name: str) -> tuple[dict[str, Tensor], list[str]]:
    """Reads an adapter's weights and checks them against its base model.

    Args:
        folder: Folder of the adapter.
        base: The base model; only names and sizes are used.
        name: Name of the base, for errors.

    Returns:
        Weights by peft's names, and the names of the adapted modules.

    Raises:
        DataMissingError: The folder has no adapter weights.
        DataError: A weight is missing, has no matching module, or is not finite; or the configuration cannot be used.
    """
    config = saved_config(folder)
    if missing := [key for key in ("r", "lora_alpha", "target_modules") if key not in config]:
        raise DataError(f"has no {missing[0]}", folder / ADAPTER)
    weights = read_weights(folder)
    adapted = dict(_adapted(base, config, folder))
    if not adapted:
        raise DataError(f"target_modules names no matrix of its base {name}", folder / ADAPTER)
    ranks = config.get("rank_pattern") or {}
    shapes: dict[str, Shape] = {}
    for module, (inputs, outputs) in adapted.items():
        ends = _ends(module)
        rank = next((ranks[key] for key in ranks if key in ends), config["r"])
        shapes[f"{PREFIX}{module}.lora_A.weight"] = (rank, inputs)
        shapes[f"{PREFIX}{module}.lora_B.weight"] = (outputs, rank)
        if config.get("use_dora"):
            shapes[f"{PREFIX}{module}.lora_magnitude_vector"] = (outputs,)
    check_fit(weights, shapes, folder, name)
    return weights, list(adapted)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Reads an adapter's weights.

    Raises:
        DataMissingError: The folder has none.
        DataError: The file cannot be read, or a number in it is not finite.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = folder / ADAPTER_WEIGHTS
    if not file.is_file():
        raise DataMissingError("an adapter without its weights", file)
    try:
        weights = load_file(file)
    except (SafetensorError, OSError) as error:
        raise DataError(f"cannot be read: {error}", file) from error
    for name, weight in weights.items():
        if not bool(torch.isfinite(weight.float()).all()):
            raise DataError(f"{name} holds numbers that are not finite", file)
    return weights


def check_fit(weights: Mapping[str, Tensor], shapes: Mapping[str, Shape], folder: Path, base: str) -> None:
    """Raises a DataError unless an adapter's weights have the expected names and shapes.

    Args:
        weights: Weights by peft's names.
        shapes: Expected shapes, by the same names.
        folder: Folder of the adapter.
        base: Name of its base model.
    """
    faults = [
        f"{len(names)} weights {what}, {min(names)} among them"
        for names, what in (
            (shapes.keys() - weights.keys(), "are missing"),
            (weights.keys() - shapes.keys(), "fit nothing"),
        )
        if names
    ]
    if faults:
        raise DataError(f"the adapter does not fit its base {base}: {'; '.join(faults)}", folder)
    for name, weight in weights.items():
        rank, width = (0, 1) if ".lora_A" in name else (-1, 0)  # A is (rank, width), B (width, rank)
        expected = shapes[name]
        if tuple(weight.shape) == expected:
            continue
        if weight.dim() == len(expected) and weight.shape[width] != expected[width]:
            why = f"{name} is {weight.shape[width]} wide there, {expected[width]} here"
        else:
            why = f"{name} has the shape {tuple(weight.shape)}, by {ADAPTER} it is {expected} (rank {expected[rank]})"
        raise DataError(f"the adapter does not fit its base {base}: {why}", folder)


def merge_adapter(model: PreTrainedModel, folder: Path, base: str) -> PreTrainedModel:
    """Merges an adapter into its base model's matrices.

    Args:
        model: The base model, changed in place.
        folder: Folder of the adapter.
        base: Name of the base, for errors.

    Returns:
        The model, in evaluation mode; all its weights can be trained.

    Raises:
        DataMissingError: See `read_adapter`.
        DataError: See `read_adapter`; or the sum is not finite.
    """
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

    weights, names = read_adapter(folder, model, base)
    config = saved_config(folder)
    field_names = ("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "fan_in_fan_out")
    options: dict[str, Any] = {name: config[name] for name in field_names if config.get(name) is not None}
    try:
        lora = LoraConfig(**options, target_modules=names, init_lora_weights=False, task_type="CAUSAL_LM")
        adapted: Any = get_peft_model(cast(Any, model), lora)
        loaded: Any = set_peft_model_state_dict(adapted, weights)
        if loaded.unexpected_keys:
            raise ValueError("peft has other names for its weights")
        merged: Any = adapted.merge_and_unload()
    except Exception as error:  # peft and torch raise many kinds on files that do not fit
        raise DataError(f"the adapter does not fit its base {base}: {error}", folder) from error
    for name in names:
        if not bool(torch.isfinite(merged.get_submodule(name).weight).all()):
            raise DataError(f"the adapter does not fit its base {base}: {name} is not finite with it", folder)
    whole: PreTrainedModel = merged.requires_grad_(True).eval()
    return whole


def _adapted(base: torch.nn.Module, config: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, Shape]]:
    """Yields the name and (inputs, outputs) of each module selected by an adapter's configuration, as in peft."""
    model: Any = base
    targets, layers = config["target_modules"], config.get("layers_to_transform")
    chosen = None if layers is None else {layers} if isinstance(layers, int) else set(layers)
    head = model.get_output_embeddings()
    linear = {
        name: module
        for name, module in base.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D) and (targets != "all-linear" or module is not head)
    }
    matching = set(linear) if targets == "all-linear" else _matching(list(linear), targets, folder)
    for name, module in linear.items():
        layer = _LAYER.match(name)
        exact = isinstance(targets, list) and name in targets
        if name in matching and (exact or chosen is None or (layer is not None and int(layer[1]) in chosen)):
            sizes = module.weight.shape if isinstance(module, Conv1D) else module.weight.shape[::-1]
            yield name, tuple(sizes)


def _matching(names: list[str], targets: str | list[str], folder: Path) -> set[str]:
    """Returns the names of modules that end with one of the listed names, or that match a pattern."""
    if isinstance(targets, list):
        return {name for name in names if not _ends(name).isdisjoint(targets)}
    end = monotonic() + MATCH_SECONDS
    try:
        pattern = regex.compile(targets)
        return {name for name in names if pattern.fullmatch(name, timeout=max(end - monotonic(), 1e-3))}
    except (regex.error, TimeoutError, MemoryError, RecursionError) as error:
        why = f"target_modules: the pattern {targets!r:.80} cannot be matched: {error or type(error).__name__}"
        raise DataError(f"{why}; list the names of the modules", folder / ADAPTER) from error


def _ends(name: str) -> set[str]:
    """Returns a module's name and its suffixes after each dot."""
    parts = name.split(".")
    return {".".join(parts[at:]) for at in range(len(parts))}
