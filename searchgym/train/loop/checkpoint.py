"""Checkpoints: folders that `from_pretrained` loads, with the state for resuming a run.

``step-000040/`` contains the model and the tokenizer in Hugging Face format, the optimizer's moments (``optimizer.pt``,
or DeepSpeed's files), a critic's model and moments in ``critic/``, and ``trainer.json`` (counters). The folder has a
temporary name until it is complete and on disk. ``last`` and ``best`` are links.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from searchgym.corpora.files import read_json
from searchgym.errors import DataError, SearchGymError, TrainingError
from searchgym.options import Options, read
from searchgym.rollout.folders import quiet_libraries

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from searchgym.train.learner.learner import Learner

PART = ".part"
"""Suffix of a folder or link that is being written or deleted."""


@dataclass(slots=True)
class Progress(Options):
    """Counters of a run, saved with each checkpoint."""

    step: int = 0
    """Number of finished steps."""
    generated_tokens: int = 0
    """Tokens sampled for training so far, not counting validation."""
    read_tokens: int = 0
    """Tokens processed by the learner so far, without those of a critic."""
    best_step: int | None = None
    """Step with the best validation score; None before the first validation."""
    best_score: float | None = None
    """The best validation score; None before the first validation."""


def checkpoint_name(step: int) -> str:
    """Returns the folder name of a step's checkpoint."""
    return f"step-{step:06d}"


def list_checkpoints(folder: Path) -> dict[int, Path]:
    """Returns ``{step: folder}`` of the complete checkpoints, oldest first."""
    return {int(path.name[5:]): path for path in sorted(folder.glob("step-*")) if path.name[5:].isdigit()}


def save_checkpoint(
    path: Path, learner: Learner, tokenizer: PreTrainedTokenizerBase | None, progress: Mapping[str, Any]
) -> None:
    """Writes a checkpoint; if that fails, nothing is left.

    Args:
        path: Folder of the checkpoint; must not exist.
        learner: Learner that writes models and optimizers.
        tokenizer: Tokenizer to save; None if the learner saves the tokenizers of its models.
        progress: Counters and file sizes, as plain JSON.

    Raises:
        TrainingError: The checkpoint cannot be written, or a weight is not finite.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PART}")
    try:
        part.mkdir(parents=True)
        with quiet_libraries():
            learner.save(part)
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
        (part / "trainer.json").write_text(json.dumps(progress, indent=1) + "\n", encoding="utf-8")
        for file in [*part.rglob("*"), part]:
            _sync(file)
        part.rename(path)
        _sync(path.parent)
    except SearchGymError:
        raise
    except Exception as error:  # on a full disk torch, safetensors and tokenizers raise errors of different types
        free = shutil.disk_usage(path.parent).free / 2**20
        raise TrainingError(
            f"{path}: the checkpoint cannot be written ({error}; {free:.0f} MiB free); earlier checkpoints are complete"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def load_checkpoint(path: Path, learner: Learner) -> dict[str, Any]:
    """Loads a checkpoint's weights and optimizers into a learner with models of the same shape.

    Returns:
        The saved progress, lengths of files, and the state of the run's source of questions.

    Raises:
        DataError: A file is missing or damaged, or the model has another shape.
        CardError: The progress has other fields, or values of other types.
    """
    try:
        with quiet_libraries():
            learner.load(path)
    except SearchGymError:
        raise
    except Exception as error:  # torch and transformers raise many types on damaged files
        raise DataError(f"not a checkpoint of this model: {error}", path) from error
    record = path / "trainer.json"
    state = read_json(record)
    sizes = state.get("files") if isinstance(state, dict) else None
    if not isinstance(sizes, dict) or not all(type(size) is int and size >= 0 for size in sizes.values()):
        raise DataError("damaged: expected progress and the lengths of files; continue from another checkpoint", record)
    read(Progress, state.get("progress"), f"{record}: progress")
    return {"source": {}, **state}


def link_checkpoint(link: Path, step: int) -> None:
    """Points a link in the checkpoint folder at a step's checkpoint, atomically."""
    part = link.with_name(f".{link.name}.{secrets.token_hex(4)}{PART}")
    part.symlink_to(checkpoint_name(step), target_is_directory=True)
    part.replace(link)


def keep_checkpoints(folder: Path, last: int, best: int | None, count: int) -> None:
    """Points the links ``last`` and ``best`` at their checkpoints, and deletes old checkpoints.

    Args:
        folder: Folder of the checkpoints.
        last: Step of the newest checkpoint.
        best: Step with the best validation score, which is kept too; None if nothing was validated.
        count: Number of newest checkpoints to keep.
    """
    link_checkpoint(folder / "last", last)
    keep = list(list_checkpoints(folder))[-count:]
    if best is not None:
        link_checkpoint(folder / "best", best)
        keep.append(best)
    remove_checkpoints(folder, keep)


def remove_checkpoints(folder: Path, keep: Iterable[int]) -> None:
    """Deletes the checkpoints of all steps that are not in `keep`, and the remains of interrupted writes."""
    kept_steps = set(keep)
    for step, path in list_checkpoints(folder).items():
        if step not in kept_steps:
            # renamed first: a half-deleted folder must not look like a checkpoint
            path.rename(path.with_name(f".{path.name}.{secrets.token_hex(4)}{PART}"))
    for part in folder.glob(f".*{PART}"):
        if part.is_symlink():
            part.unlink()
        else:
            shutil.rmtree(part, ignore_errors=True)


def _sync(path: Path) -> None:
    """Flushes a file or a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
