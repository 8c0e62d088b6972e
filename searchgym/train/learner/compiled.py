"""Compiled layers: torch fuses the operations between a layer's matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.fx.experimental._config as shapes

from searchgym.errors import UsageError
from searchgym.train.learner.lora import decoder_layers
from searchgym.train.learner.recomputed import recomputing
from searchgym.train.recipe.options import LearnerOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def with_layers(model: PreTrainedModel, options: LearnerOptions) -> PreTrainedModel:
    """Sets how the layers of a model run: compiled or not, with which activations kept for the backward pass.

    Args:
        model: Changed in place, and returned.
        options: See `LearnerOptions.gradient_checkpointing` and `LearnerOptions.compile`.

    Raises:
        UsageError: See `recomputing` and `compiled`.
    """
    mode = options.gradient_checkpointing
    if options.compile and mode == "selective":
        mode = "none"  # torch's compiler itself computes again what lies between products
    return compiled(recomputing(model, mode), options.compile)


def compiled(model: PreTrainedModel, on: bool) -> PreTrainedModel:
    """Compiles the layers of a model, for any number and length of rows.

    All layers share a few graphs: with and without gradients, and for a single row. Sizes are symbols from the start,
    so the graph of a shape does not depend on the shapes before it, and a resumed run computes the same bits. A layer
    that torch cannot compile runs as it is; torch then names it once on standard error.

    Args:
        model: Changed in place, and returned.
        on: If False, nothing is changed.

    Raises:
        UsageError: The model runs on a CPU, and there is no C++ compiler.
    """
    if not on:
        return model
    if model.device.type == "cpu":
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            get_cpp_compiler()
        except InvalidCxxCompiler as error:
            raise UsageError("learner.compile on a CPU needs a C++ compiler: install g++, or leave it out") from error
    shapes.use_duck_shape = False  # equal sizes by chance would make graphs of their own
    for layer in decoder_layers(model):
        layer.compile(dynamic=True)
    return model
