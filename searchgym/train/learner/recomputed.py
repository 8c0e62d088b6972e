"""Gradient checkpointing: activations that the backward pass computes again instead of keeping them.

``selective`` keeps the results of matrix products and of attention, and computes the norms, activation functions and
products of elements between them again, which takes little time; as Korthikanti et al., arXiv 2205.05198, section 5, do
for attention. ``full`` keeps the input of each layer only (Chen et al., arXiv 1604.06174).
"""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any, Final

from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from searchgym.errors import UsageError
from searchgym.train.recipe.options import Checkpointing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PRODUCTS: Final = ("mm", "addmm")
"""Names of the operations, except attention, whose results ``selective`` keeps."""


def _saves_products(_context: Any, operation: Any, *_args: Any, **_options: Any) -> CheckpointPolicy:
    """Returns whether the result of an operation is kept or computed again."""
    name = operation.overloadpacket.__name__
    is_product = name in PRODUCTS or "scaled_dot_product" in name
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


def recomputing(model: PreTrainedModel, mode: Checkpointing) -> PreTrainedModel:
    """Turns on gradient checkpointing of a model, and turns off its dropout, as checkpointing needs training mode.

    The config saved with the model keeps its dropout.

    Args:
        model: Changed in place, and returned.
        mode: Activations that the backward pass computes again; with ``none`` nothing is changed.

    Raises:
        UsageError: The model cannot recompute activations.
    """
    if mode == "none":
        return model
    from transformers import PreTrainedConfig

    if not model.supports_gradient_checkpointing:
        raise UsageError(f"{type(model).__name__} cannot recompute activations: learner.gradient_checkpointing")
    quiet: dict[int, PreTrainedConfig] = {}
    for module in model.modules():
        for name, value in vars(module).items():  # nn.Dropout calls it "p"; attention and layers use names with "drop"
            if isinstance(value, float) and (name == "p" or "drop" in name):
                setattr(module, name, 0.0)
        config = getattr(module, "config", None)
        if module is model or not isinstance(config, PreTrainedConfig):
            continue
        if id(config) not in quiet:
            quiet[id(config)] = copy.deepcopy(config)
            for name, value in vars(config).items():  # some layers read the config at run time (Falcon)
                if isinstance(value, float) and "drop" in name:
                    setattr(quiet[id(config)], name, 0.0)
        vars(module)["config"] = quiet[id(config)]
    options: dict[str, Any] = {"use_reentrant": False}
    if mode == "selective":
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _saves_products)
    model.gradient_checkpointing_enable(options)
    return model
