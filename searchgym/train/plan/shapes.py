"""Sizes of language models, from their configurations alone: no weights are read."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from searchgym.errors import DataError, UsageError
from searchgym.options.cards import is_path
from searchgym.rollout.folders import ADAPTER, HUB_NAME, adapter_base, is_adapter, model_folder
from searchgym.rollout.foreign.configs import check_model_config
from searchgym.rollout.loading import meta_model, model_config
from searchgym.train.recipe.options import LoraOptions

_FIELDS: Final = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "tie_word_embeddings",
)
_QWEN: Final[dict[str, tuple[int | bool, ...]]] = {
    "0.5B": (896, 4864, 24, 14, 2, 151936, True),
    "1.5B": (1536, 8960, 28, 12, 2, 151936, True),
    "3B": (2048, 11008, 36, 16, 2, 151936, True),
    "7B": (3584, 18944, 28, 28, 4, 152064, False),
}
KNOWN: Final[dict[str, dict[str, Any]]] = {
    f"Qwen/Qwen2.5-{size}{kind}": dict(zip(_FIELDS, values, strict=True))
    for size, values in _QWEN.items()
    for kind in ("", "-Instruct")
}
"""Published sizes (from ``config.json``) of the models in shipped recipes, so that a plan needs no network. All have
the type ``qwen2``."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder-only language model."""

    parameters: int
    hidden: int
    intermediate: int
    layers: int
    kv_width: int
    """Number of key-value heads times the width of a head."""
    vocabulary: int
    tied: bool
    """True if the output head shares the embedding's weights."""


@functools.cache
def model_shape(name: str) -> Shape:
    """Returns a model's dimensions and number of parameters; reads its configuration, but no weights.

    Args:
        name: Folder or name of a model, or path of a ``config.json``.

    Raises:
        DataMissingError: The model does not exist.
        UsageError: The planner does not support the model's architecture.
    """
    config, model = _config(name), _model(name)
    text = config.get_text_config(decoder=True)
    try:
        heads = text.num_attention_heads
        width = getattr(text, "head_dim", None) or text.hidden_size // heads
        return Shape(
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            hidden=text.hidden_size,
            intermediate=text.intermediate_size,
            layers=text.num_hidden_layers,
            kv_width=(getattr(text, "num_key_value_heads", None) or heads) * width,
            vocabulary=text.vocab_size,
            tied=bool(text.tie_word_embeddings),
        )
    except AttributeError as error:
        raise UsageError(f"{name}: no plan for a {config.model_type} model: {error}") from error


def adapter_parameters(name: str, options: LoraOptions) -> int:
    """Returns the number of parameters of an adapter, from its base's configuration only."""
    model = _model(name)
    head = model.get_output_embeddings()
    matrices = [(name, m) for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head]
    if options.targets is not None:
        matrices = [(name, m) for name, m in matrices if name.rpartition(".")[2] in options.targets]
    return sum(options.rank * (m.in_features + m.out_features) for _, m in matrices)


@functools.cache
def _model(name: str) -> Any:
    """Returns a model on the meta device, without memory for its weights."""
    return meta_model(_config(name), name)


def _config(name: str) -> Any:
    """Returns a model's configuration from a folder, file, `KNOWN` or the hub; for an adapter, that of its base."""
    from transformers import AutoConfig

    path, hub = Path(name), HUB_NAME.fullmatch(name)
    if is_path(name) and path.is_file():
        check_model_config(path)
        try:
            return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # transformers raises many kinds on damaged files
            raise DataError(f"the configuration cannot be read: {error}", path) from error
    if match := re.fullmatch(r"qwen2\.5-coder-(0\.5b|1\.5b)", name):  # sizes of the card's model, unconverted
        return AutoConfig.for_model("qwen2", **KNOWN[f"Qwen/Qwen2.5-{match[1].upper()}"])
    if not path.is_dir() and hub is not None and hub[1] in KNOWN:
        return AutoConfig.for_model("qwen2", **KNOWN[hub[1]])
    folder = model_folder(name, ["config.json", ADAPTER])
    return _config(adapter_base(folder)) if is_adapter(folder) else model_config(folder)
