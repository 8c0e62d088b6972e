"""Loading of models and tokenizers from folders in Hugging Face format; where the folders are: `rollout.folders`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

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
    ADAPTER_WEIGHTS,
    adapter_base,
    check_config,
    check_tokenizer,
    check_weights,
    has_tokenizer,
    is_adapter,
    model_folder,
)
from searchgym.rollout.quiet import quiet_libraries
from searchgym.rollout.sampler import Dtype

GENERATION: Final = "generation_config.json"
"""File name of a model's generation settings."""
DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


def load_tokenizer(path: str | Path, *, chat: bool = False) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a model.

    Args:
        path: A folder, or the name of a model. An adapter without a tokenizer of its own has that of its base.
        chat: Whether to refuse a tokenizer without a chat template.

    Raises:
        DataMissingError: The folder, its tokenizer or the required chat template does not exist.
        DataError: The tokenizer cannot be read.
    """
    folder = model_folder(path)
    if is_adapter(folder) and not has_tokenizer(folder):
        return load_tokenizer(adapter_base(folder), chat=chat)
    check_tokenizer(folder)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # transformers raises many kinds on damaged files
        raise DataError(f"the tokenizer cannot be read: {error}", folder) from error
    if chat and not tokenizer.chat_template:
        raise DataMissingError(
            "the tokenizer has no chat template: add chat_template.jinja, or use the model as a base model", folder
        )
    return tokenizer


def load_model(
    path: str | Path, dtype: Dtype = "float32", *, device: str = "cpu", chat: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads a causal language model and its tokenizer; an adapter is merged into its base.

    Args:
        path: A folder, or the name of a model. A folder with an adapter (``adapter_config.json``) names its base.
        dtype: Type of the weights in memory, regardless of their type on disk.
        device: Torch device for the weights.
        chat: Whether to refuse a tokenizer without a chat template.

    Returns:
        The model, in evaluation mode, and its tokenizer.

    Raises:
        UsageError: The dtype is unknown, or the tokenizer has ids beyond the model's vocabulary.
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
    try:
        with quiet_libraries():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=DTYPES[dtype], local_files_only=True, output_loading_info=True, trust_remote_code=False
            )
    except Exception as error:  # transformers raises many kinds on damaged files
        raise DataError(f"the model cannot be read: {error}", folder) from error
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise DataError(f"{len(missing)} weights are missing, {missing[0]} among them", folder)
    check_vocabulary(folder, tokenizer, model.get_input_embeddings().weight.shape[0])
    return model.to(device), tokenizer


def model_config(folder: Path) -> PretrainedConfig:
    """Returns a model's configuration.

    Raises:
        DataMissingError: The folder has no ``config.json``.
        DataError: The configuration cannot be read.
    """
    check_config(folder)
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises many kinds on damaged files
        raise DataError(f"the configuration cannot be read: {error}", folder) from error
    return config


def generation_settings(folder: Path) -> GenerationConfig:
    """Returns a model's generation settings, from ``generation_config.json`` or else from its configuration.

    Raises:
        DataMissingError: The folder has neither.
        DataError: The file cannot be read.
    """
    if not (folder / GENERATION).is_file():
        return GenerationConfig.from_model_config(model_config(folder))
    try:
        return GenerationConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers raises many kinds on damaged files
        raise DataError(f"the settings cannot be read: {error}; remove the file", folder / GENERATION) from error


def check_vocabulary(folder: Path, tokenizer: PreTrainedTokenizerBase, known: int) -> None:
    """Raises a UsageError if a tokenizer has more tokens than the model knows."""
    if len(tokenizer) > known:
        raise UsageError(
            f"{folder}: the tokenizer has {len(tokenizer)} tokens, the model knows {known}: they do not belong together"
        )


def read_adapter(folder: Path, base: Path) -> dict[str, torch.Tensor]:
    """Reads an adapter's weights and checks their sizes against its base model.

    Args:
        folder: Folder of the adapter.
        base: Folder of its base model, of which only the configuration is read.

    Returns:
        Weights by peft's names.

    Raises:
        DataMissingError: The folder has no adapter weights.
        DataError: The weights do not fit the base; vLLM would silently accept smaller ones.
    """
    from safetensors.torch import load_file

    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise DataMissingError("an adapter without its weights", folder / ADAPTER_WEIGHTS)
    weights = load_file(folder / ADAPTER_WEIGHTS)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(model_config(base))  # type: ignore[no-untyped-call]
    sizes = {name: weight.shape for name, weight in model.state_dict().items()}
    for name, weight in weights.items():
        place, _, side = name.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".")
        size = sizes.get(f"{place}.weight")
        if side not in ("lora_A", "lora_B") or size is None:
            raise DataError(f"the adapter does not fit its base {base}, which has no weight for {name}", folder)
        width, wanted = (weight.shape[1], size[1]) if side == "lora_A" else (weight.shape[0], size[0])
        if width != wanted:
            raise DataError(
                f"the adapter does not fit its base {base}: {name} is {width} wide there, {wanted} here", folder
            )
    return weights


def _load_adapted(
    folder: Path, dtype: Dtype, device: str, chat: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads an adapter and its base as one model."""
    from peft import PeftModel

    base = adapter_base(folder)
    try:
        model, _ = load_model(base, dtype, device=device)
    except (DataMissingError, UsageError) as error:
        raise DataMissingError(f"its base {base!r} cannot be loaded: {error}", folder / ADAPTER) from error
    tokenizer = load_tokenizer(folder, chat=chat)
    try:
        adapted: Any = PeftModel.from_pretrained(cast(Any, model), str(folder))
    except Exception as error:  # peft and torch raise many kinds on files that do not fit
        raise DataError(f"the adapter does not fit its base {base}: {error}", folder) from error
    return adapted.merge_and_unload().requires_grad_(True), tokenizer  # peft froze it: it may be trained on as a whole


def device_of(name: str) -> str:
    """Returns the torch device for ``auto``, ``cpu`` or ``cuda`` on this machine.

    Before a GPU is used, attention by cuDNN is turned off in this process: it plans every new shape anew. A cache that
    grows token by token has a new shape at each, and so have the rows of updates; planning them took ten times as long
    as all the rest (docs/log.md).

    Raises:
        UsageError: A GPU is requested but torch finds none.
    """
    found = torch.cuda.is_available()
    if name.startswith("cuda") and not found:
        raise UsageError(f"device {name}: torch {torch.__version__} finds no GPU here (searchgym doctor)")
    device = name if name != "auto" else "cuda" if found else "cpu"
    if device.startswith("cuda"):
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device
