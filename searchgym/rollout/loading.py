"""Loading of models and tokenizers from folders in Hugging Face format; `rollout.folders` finds the folders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from searchgym.errors import DataError, DataMissingError, UnknownNameError, UsageError
from searchgym.rollout.folders import (
    ADAPTER,
    adapter_base,
    check_config,
    check_tokenizer,
    check_weights,
    has_tokenizer,
    has_weights,
    is_adapter,
    model_folder,
    quiet_libraries,
)
from searchgym.rollout.foreign.adapters import merge_adapter
from searchgym.rollout.foreign.sizes import bounded, check_layers
from searchgym.rollout.sampler import Dtype
from searchgym.threads import choose_threads

GENERATION: Final = "generation_config.json"
"""File name of a model's generation settings."""
DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
LOCAL: Final[dict[str, Any]] = {"local_files_only": True, "trust_remote_code": False}
"""Options with which transformers neither downloads files nor runs code from a folder."""


@contextmanager
def _reading(failure: str, where: str | Path) -> Iterator[None]:
    """Converts errors of transformers, which raises many types on damaged files, to a DataError."""
    try:
        yield
    except Exception as error:
        raise DataError(f"{failure}: {error}", where) from error


def load_tokenizer(path: str | Path, *, chat: bool = False) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a model.

    Args:
        path: Folder or name of a model. For an adapter without a tokenizer, its base's tokenizer is loaded.
        chat: If True, a tokenizer without a chat template is refused.

    Raises:
        DataMissingError: The folder, its tokenizer or the required chat template does not exist.
        DataError: The tokenizer cannot be read.
    """
    folder = model_folder(path)
    if is_adapter(folder) and not has_tokenizer(folder):
        return load_tokenizer(adapter_base(folder), chat=chat)
    check_tokenizer(folder)
    with _reading("the tokenizer cannot be read", folder):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, **LOCAL)
    if chat and not tokenizer.chat_template:
        raise DataMissingError(
            "the tokenizer has no chat template: add chat_template.jinja, or use the model as a base model", folder
        )
    return tokenizer


def load_model(
    path: str | Path, dtype: Dtype = "float32", *, device: str = "cpu", chat: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads a causal language model and its tokenizer; an adapter is merged into its base.

    It also sets the number of torch's threads; see `choose_threads`.

    Args:
        path: Folder or name of a model, or folder of an adapter (with ``adapter_config.json``, which names its base).
        dtype: Type of the weights in memory, regardless of their type on disk.
        device: Torch device for the weights.
        chat: If True, a tokenizer without a chat template is refused.

    Returns:
        The model, in evaluation mode, and its tokenizer.

    Raises:
        UsageError: The dtype is unknown, or the tokenizer has more tokens than the model's vocabulary.
        DataMissingError: The folder or one of its files does not exist.
        DataError: A file cannot be read, or lacks weights.
    """
    if dtype not in DTYPES:
        raise UnknownNameError("dtype", dtype, DTYPES)
    folder = model_folder(path)
    if is_adapter(folder):
        return _load_adapted(folder, dtype, device, chat)
    model_config(folder)
    check_weights(folder)
    tokenizer = load_tokenizer(folder, chat=chat)
    with _reading("the model cannot be read", folder), quiet_libraries(), bounded(folder):
        # Adapters of this model use this name for their base; `is_path` must accept it.
        name = folder if folder.is_absolute() else f"./{folder}"
        loaded: Any = AutoModelForCausalLM.from_pretrained(name, dtype=DTYPES[dtype], output_loading_info=True, **LOCAL)
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise DataError(f"{len(missing)} weights are missing, {missing[0]} among them", folder)
    check_vocabulary(folder, tokenizer, model.get_input_embeddings().weight.shape[0])
    choose_threads(model.num_parameters())
    return model.to(device), tokenizer


def model_config(folder: Path) -> PretrainedConfig:
    """Returns a model's configuration.

    Raises:
        DataMissingError: The folder has no ``config.json``.
        DataError: The configuration cannot be read.
    """
    check_config(folder)
    with _reading("the configuration cannot be read", folder):
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, **LOCAL)
    if has_weights(folder):
        check_layers(folder, config)
    return config


def meta_model(config: PretrainedConfig, where: str | Path) -> PreTrainedModel:
    """Returns a model built from a configuration on the meta device, without memory for its weights.

    Args:
        config: The configuration.
        where: Source of the configuration, for errors.

    Raises:
        DataError: No model can be built from the configuration.
    """
    with _reading("no model can be built from its configuration", where), torch.device("meta"), bounded():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return model


def generation_settings(folder: Path) -> GenerationConfig:
    """Returns a model's generation settings, from ``generation_config.json`` or else from its configuration.

    Raises:
        DataMissingError: The folder has neither.
        DataError: The file cannot be read.
    """
    if not (folder / GENERATION).is_file():
        return GenerationConfig.from_model_config(model_config(folder))
    with _reading("the settings cannot be read, remove the file", folder / GENERATION):
        return GenerationConfig.from_pretrained(folder, local_files_only=True)


def check_vocabulary(folder: Path, tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    """Raises a UsageError if a tokenizer has more tokens than the model's vocabulary."""
    if len(tokenizer) > size:
        raise UsageError(
            f"{folder}: the tokenizer has {len(tokenizer)} tokens, the model {size}: they do not belong together"
        )


def _load_adapted(
    folder: Path, dtype: Dtype, device: str, chat: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads an adapter and its base as one model."""
    base = adapter_base(folder)
    try:
        model, _ = load_model(base, dtype, device=device)
    except (DataMissingError, UsageError) as error:
        raise DataMissingError(f"its base {base!r} cannot be loaded: {error}", folder / ADAPTER) from error
    tokenizer = load_tokenizer(folder, chat=chat)
    embeddings: Any = model.get_input_embeddings()
    check_vocabulary(folder, tokenizer, embeddings.weight.shape[0])
    return merge_adapter(model, folder, base), tokenizer


def device_of(name: str) -> str:
    """Returns the torch device for ``auto``, ``cpu`` or ``cuda`` on this machine.

    If it is a GPU, attention by cuDNN is turned off in this process, because cuDNN makes a plan for every new shape. A
    cache that grows token by token has a new shape at each step, and so have the rows of updates; planning took ten
    times as long as everything else (studies/log).

    Raises:
        UsageError: A GPU is requested but torch finds none.
    """
    available = torch.cuda.is_available()
    if name.startswith("cuda") and not available:
        raise UsageError(f"device {name}: torch {torch.__version__} finds no GPU here (searchgym doctor)")
    device = name if name != "auto" else "cuda" if available else "cpu"
    if device.startswith("cuda"):
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device
