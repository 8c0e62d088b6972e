"""Checkpoints: a folder that `from_pretrained` loads, and beside the weights what a resume needs.

``step-000040/`` holds the model and the tokenizer in Hugging Face format, the optimizer's moments (``optimizer.pt``, or
DeepSpeed's files), the same of a critic in ``critic/``, and ``trainer.json`` (counters). It has another name until it
is whole and on disk. ``last`` and ``best`` are links.
"""

from __future__ import annotations

import json
import os
import pickle
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers
from safetensors import SafetensorError

from searchgym.corpora.files import read_json
from searchgym.errors import DataError, TrainingError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from searchgym.train.learner.learner import Learner

PART = ".part"


def checkpoint_name(step: int) -> str:
    """Returns the folder name of a step's checkpoint."""
    return f"step-{step:06d}"


def list_checkpoints(folder: Path) -> dict[int, Path]:
    """Returns ``{step: folder}`` of the whole checkpoints, oldest first."""
    return {int(path.name[5:]): path for path in sorted(folder.glob("step-*")) if path.name[5:].isdigit()}


def save_checkpoint(
    path: Path, learner: Learner, tokenizer: PreTrainedTokenizerBase | None, progress: Mapping[str, Any]
) -> None:
    """Writes a checkpoint, all or nothing.

    Args:
        path: Its folder, which must not be there.
        learner: Writes models and optimizers.
        tokenizer: Saved beside them; None where the learner saves those of its models.
        progress: Counters and positions; plain JSON.

    Raises:
        TrainingError: It cannot be written, or a weight is not finite; nothing is left of it.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PART}")
    try:
        part.mkdir(parents=True)
        with _no_progress_bars():
            learner.save(part)
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
        (part / "trainer.json").write_text(json.dumps(progress, indent=1) + "\n", encoding="utf-8")
        for file in [*part.rglob("*"), part]:
            _sync(file)
        part.rename(path)
        _sync(path.parent)
    except (OSError, RuntimeError, SafetensorError) as error:  # torch.save turns a full disk into a RuntimeError
        free = shutil.disk_usage(path.parent).free / 2**20
        raise TrainingError(
            f"{path}: the checkpoint cannot be written ({error}; {free:.0f} MiB free); the ones before it are whole"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def load_checkpoint(path: Path, learner: Learner) -> dict[str, Any]:
    """Puts a checkpoint's weights and optimizers into a learner of the same shape.

    Returns:
        The progress, as it was saved.

    Raises:
        DataError: A file is missing or damaged, or the model has another shape.
    """
    try:
        with _no_progress_bars():
            learner.load(path)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError, SafetensorError) as error:
        raise DataError(f"not a checkpoint of this model: {error}", path) from error
    return dict(read_json(path / "trainer.json"))


def link_checkpoint(link: Path, step: int) -> None:
    """Points a link beside the checkpoints at one of them, in one go."""
    part = link.with_name(f".{link.name}.{secrets.token_hex(4)}{PART}")
    part.symlink_to(checkpoint_name(step), target_is_directory=True)
    part.replace(link)


def remove_checkpoints(folder: Path, keep: Iterable[int]) -> None:
    """Deletes every checkpoint but those of the steps in `keep`, and what interrupted writes left."""
    kept = set(keep)
    for step, path in list_checkpoints(folder).items():
        if step not in kept:
            gone = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PART}")
            path.rename(gone)  # a half-deleted folder must not look like a checkpoint
    for part in folder.glob(f".*{PART}"):
        if part.is_symlink():
            part.unlink()
        else:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keeps transformers from drawing bars: a checkpoint is not what a user waits for."""
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            transformers.utils.logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _sync(path: Path) -> None:
    """Flushes a file or a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
