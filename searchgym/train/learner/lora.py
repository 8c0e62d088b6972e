"""LoRA adapters: the model is frozen, and products of two small trained matrices are added to its matrices.

Source: arXiv 2106.09685, implemented with peft. Outside the learner the adapter is invisible: weights are returned
merged (``W + alpha / rank * B A``) under the plain model's names. The reference of the KL term is the model with its
adapter switched off, which needs no extra memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from searchgym.errors import UsageError
from searchgym.rollout.folders import ADAPTER_SCALES, saved_config
from searchgym.rollout.foreign.adapters import PREFIX, check_fit, read_weights
from searchgym.train.recipe.options import LoraOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME: Final = "default"
"""Name of the adapter within the model."""
ADAPTER_PART: Final = ".lora_"
"""Part of the names of an adapter's weights, and of no other weight's."""


def adapted(
    model: PreTrainedModel, options: LoraOptions, seed: int, frozen_layers: int, earlier: Path | None = None
) -> None:
    """Freezes the untrained weights of a model in place, and adds a LoRA adapter if the options have a rank.

    Args:
        model: A model without adapter.
        options: See `add_adapter`; with rank 0 no adapter is added.
        seed: Seed of the random initial values of A.
        frozen_layers: See `freeze_lower` and `add_adapter`.
        earlier: Folder of an adapter to continue training; see `continue_adapter`.
    """
    if options.rank:
        add_adapter(model, options, seed, frozen_layers)
    else:
        freeze_lower(model, frozen_layers)
    if earlier is not None:
        continue_adapter(model, earlier, options)


def freeze_lower(model: PreTrainedModel, count: int) -> None:
    """Freezes the embeddings and the lowest layers of a model.

    Args:
        model: A decoder; an output matrix tied to the embeddings is frozen with them.
        count: Number of layers; 0 freezes nothing.

    Raises:
        UsageError: The model has at most `count` layers.
    """
    if count:
        model.get_input_embeddings().requires_grad_(False)
        for layer in decoder_layers(model, count)[:count]:
            layer.requires_grad_(False)


def decoder_layers(model: PreTrainedModel, frozen: int = 0) -> Any:
    """Returns the layers of a decoder, lowest first.

    Raises:
        UsageError: The model has at most `frozen` layers.
    """
    count = int(model.config.get_text_config(decoder=True).num_hidden_layers)
    if frozen >= count:
        raise UsageError(
            f"learner.frozen_layers is {frozen}: the model has {count} layers, and at least one must be trained"
        )
    return next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count)


def add_adapter(model: PreTrainedModel, options: LoraOptions, seed: int, frozen_layers: int = 0) -> PreTrainedModel:
    """Freezes the model and adds a LoRA adapter in place. B starts at zero, so outputs do not change.

    Args:
        model: A model without adapter.
        options: Rank (at least 1), alpha and target matrices.
        seed: Seed of the random initial values of A.
        frozen_layers: Number of the lowest layers that get no adapter.

    Returns:
        The same model.

    Raises:
        UsageError: The model has none of the target matrices, or other weights than the adapter would be trained.
    """
    from peft import LoraConfig

    targets: str | list[str] = options.targets or "all-linear"
    chosen = None
    if frozen_layers:  # peft accepts layer numbers only with names of matrices
        layers = decoder_layers(model, frozen_layers)
        linear = {name.rpartition(".")[2] for name, m in layers.named_modules() if isinstance(m, torch.nn.Linear)}
        targets, chosen = options.targets or sorted(linear), list(range(frozen_layers, len(layers)))
    config = LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,  # type: ignore[arg-type]  # peft annotates int, but takes any number
        target_modules=targets,
        layers_to_transform=chosen,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model.add_adapter(config, NAME)
        except ValueError as error:
            raise UsageError(f"lora.targets {options.targets} on {type(model).__name__}: {error}") from error
    config_in_model: Any = model.peft_config[NAME]
    # peft saves its set in an order that changes between processes
    config_in_model.target_modules = sorted(config_in_model.target_modules)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            if ADAPTER_PART not in name:
                raise UsageError(f"{name} would be trained in addition to the adapter")
            parameter.data = parameter.data.float()  # in bfloat16, small updates would be lost to rounding
    return model


def merged(state: Mapping[str, Tensor], options: LoraOptions) -> dict[str, Tensor]:
    """Returns the state of a model with its adapter merged into the weights, under the plain model's names.

    Args:
        state: State of the model with its adapter.
        options: The options given to `add_adapter`.
    """
    whole = {}
    for name, weight in state.items():
        if ADAPTER_PART in name:
            continue
        head, base, tail = name.rpartition(".base_layer.")
        if base and tail == "weight":
            first, second = state[f"{head}.lora_A.{NAME}.weight"], state[f"{head}.lora_B.{NAME}.weight"]
            delta = options.alpha / options.rank * (second.float() @ first.float())
            weight = (weight.float() + delta).to(weight.dtype)
        whole[f"{head}.{tail}" if base else name] = weight
    return whole


def adapter_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the adapter's weights under the names of peft's file format.

    Args:
        state: State of the model with its adapter.
    """
    return {key: state[name] for name, key in _names(state).items()}


def load_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Loads a saved adapter into a model that has one, in float32; peft would round it to the base model's type.

    Raises:
        DataMissingError: The folder has no adapter weights.
        DataError: A weight is missing, has no matching matrix, or is not finite.
    """
    _set_adapter(model, read_weights(folder), folder)


def _set_adapter(model: PreTrainedModel, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Sets the weights of a model's adapter to those of a file in a folder, which must fit."""
    state = model.state_dict()
    names = _names(state)
    shapes = {key: tuple(state[name].shape) for name, key in names.items()}
    check_fit(weights, shapes, folder, type(model).__name__)
    model.load_state_dict({name: weights[key] for name, key in names.items()}, strict=False)  # the base stays as it is


def continue_adapter(model: PreTrainedModel, folder: Path, options: LoraOptions) -> None:
    """Sets a model's new adapter to the weights of an adapter that was trained before.

    Args:
        model: A model with an adapter of the same form, added by `add_adapter`.
        folder: Folder of the earlier adapter.
        options: Options of the new adapter.

    Raises:
        UsageError: The earlier adapter has another rank or scale, a rank or scale per matrix, or other matrices.
        DataMissingError: The earlier adapter has no weights.
        DataError: A weight has another shape or is not finite, or the configuration cannot be used.
    """
    config = saved_config(folder)
    if other := [name for name in ADAPTER_SCALES if config.get(name)]:
        raise UsageError(
            f"{folder} is an adapter with {other[0]}, which the trainer does not support: "
            "`searchgym model export` it first"
        )
    form = {"rank": config.get("r"), "alpha": config.get("lora_alpha")}
    if form != (expected := {"rank": options.rank, "alpha": options.alpha}):
        raise UsageError(f"{folder} is an adapter of {form}, the recipe's lora has {expected}: they must be equal")
    weights = read_weights(folder)
    names = set(_names(model.state_dict()).values())
    if odd := weights.keys() ^ names:
        where = "the earlier one alone" if min(odd) in weights else "the new one alone"
        raise UsageError(f"{folder}: {min(odd)} is in {where}: use its lora.targets and learner.frozen_layers")
    _set_adapter(model, weights, folder)


def _names(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Maps the name of each adapter weight in the model to its name in peft's file format."""
    adapter = [name for name in state if ADAPTER_PART in name]
    return {name: f"{PREFIX}{name.replace(f'.{NAME}.', '.')}" for name in adapter}


def adapter_config(options: LoraOptions) -> dict[str, Any]:
    """Returns the entries of peft's ``adapter_config.json`` that are needed to sample from an adapter."""
    targets = options.targets or "all-linear"
    return {"peft_type": "LORA", "r": options.rank, "lora_alpha": options.alpha, "target_modules": targets}


class WithoutAdapter:
    """Callable that runs a model with its adapter switched off.

    Args:
        model: A model with an adapter.
        run: Callable that runs the model, such as its updater.
    """

    def __init__(self, model: Any, run: Callable[..., Any]) -> None:
        self.model, self._run = model, run
        self.get_output_embeddings = model.get_output_embeddings

    def __call__(self, **inputs: Any) -> Any:
        """Runs the model; the adapter is on again afterwards, even after an error."""
        self.model.disable_adapters()
        try:
            return self._run(**inputs)
        finally:
            self.model.enable_adapters()
