"""LoRA: a frozen model and, beside its matrices, the products of two small ones that are trained.

Source: arXiv 2106.09685, by peft. The model stays what it is to everyone else: weights that leave the learner are
merged (``W + alpha / rank * B A``) and have the model's own names, and the reference of the KL term is the model with
its adapter switched off, which takes no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from searchgym.errors import UsageError
from searchgym.rollout.loading import ADAPTER_WEIGHTS
from searchgym.train.recipe.options import LoraOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME: Final = "default"
"""Of the adapter within the model."""


def add_adapter(model: PreTrainedModel, options: LoraOptions, seed: int) -> PreTrainedModel:
    """Freezes a model and puts an adapter beside its matrices, in place: B is 0, so that it says what it said.

    Args:
        model: Plain.
        options: Rank at least 1.
        seed: Of A.

    Raises:
        UsageError: None of the matrices named is there.
    """
    from peft import LoraConfig

    config = LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,  # type: ignore[arg-type]  # any number
        target_modules=options.targets or "all-linear",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model.add_adapter(config, NAME)
        except ValueError as error:
            raise UsageError(f"lora.targets {options.targets} on {type(model).__name__}: {error}") from error
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            if ".lora_" not in name:
                raise UsageError(f"{name} would be trained beside the adapter")
            parameter.data = parameter.data.float()  # moments and updates of bfloat16 would be lost to rounding
    return model


def merged(state: Mapping[str, Tensor], options: LoraOptions) -> dict[str, Tensor]:
    """Returns the whole state of a model with its adapter merged in, under the plain model's names.

    Args:
        state: Of the model with its adapter.
        options: Those of `add_adapter`.
    """
    whole = {}
    for name, weight in state.items():
        if ".lora_" in name:
            continue
        head, base, tail = name.rpartition(".base_layer.")
        if base and tail == "weight":
            first, second = state[f"{head}.lora_A.{NAME}.weight"], state[f"{head}.lora_B.{NAME}.weight"]
            delta = options.alpha / options.rank * (second.float() @ first.float())
            weight = (weight.float() + delta).to(weight.dtype)
        whole[f"{head}.{tail}" if base else name] = weight
    return whole


def adapter_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the adapter's weights, under the names that peft writes them under.

    Args:
        state: Of the model with its adapter.
    """
    return {key: state[name] for name, key in _names(state).items()}


def load_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Takes over an adapter's weights as they were saved: through peft they would be rounded to the base's type."""
    from safetensors.torch import load_file

    saved = load_file(folder / ADAPTER_WEIGHTS)
    own = {name: saved[key] for name, key in _names(model.state_dict()).items()}
    model.load_state_dict(own, strict=False)


def _names(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Returns peft's name of each of the adapter's weights."""
    own = [name for name in state if ".lora_" in name]
    return {name: f"base_model.model.{name.replace(f'.{NAME}.', '.')}" for name in own}


def adapter_config(options: LoraOptions) -> dict[str, Any]:
    """Returns what peft's ``adapter_config.json`` says of an adapter, as far as it takes to sample from it."""
    targets = options.targets or "all-linear"
    return {"peft_type": "LORA", "r": options.rank, "lora_alpha": options.alpha, "target_modules": targets}


class WithoutAdapter:
    """A model as it is with its adapter switched off.

    Args:
        model: With an adapter.
        run: Runs it.
    """

    def __init__(self, model: Any, run: Callable[..., Any]) -> None:
        self.model, self._run = model, run
        self.get_output_embeddings = model.get_output_embeddings

    def __call__(self, **inputs: Any) -> Any:
        """Runs it."""
        self.model.disable_adapters()
        try:
            return self._run(**inputs)
        finally:
            self.model.enable_adapters()
