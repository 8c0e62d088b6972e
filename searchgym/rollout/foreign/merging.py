"""Averages of checkpoints, tensor by tensor, and averaging weights equivalent to a learning-rate decay."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from searchgym.corpora.files import sha256_file
from searchgym.errors import DataError, RunExistsError, UnknownNameError, UsageError
from searchgym.reading import leads_out
from searchgym.rollout.folders import (
    ADAPTER,
    ADAPTER_SCALES,
    ADAPTER_WEIGHTS,
    TOKENIZERS,
    check_config,
    check_weights,
    is_adapter,
    model_folder,
    new_folder,
)
from searchgym.rollout.foreign.configs import read_adapter_config, read_object

if TYPE_CHECKING:
    import torch

WEIGHTS: Final = "model.safetensors"
RECORD: Final = "merge.json"
"""File in a merged folder that lists the averaged checkpoints."""
COPIED: Final = ("*.json", "*.jinja", "*.model", "*.txt")
"""Files that are copied from the last checkpoint."""
LEFT_OUT: Final = ("*.index.json", "trainer_state.json", "state.json", RECORD)
_ADAPTER_FIELDS: Final = (
    "base_model_name_or_path", "r", "lora_alpha", "target_modules", "peft_type", *ADAPTER_SCALES,
)  # fmt: skip
_CONFIG_FIELDS: Final = (
    "model_type", "architectures", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "rope_theta",
)  # fmt: skip
DECAYS: Final[dict[str, Callable[[float], float]]] = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
    "sqrt": lambda x: 1 - math.sqrt(x),
}
"""Shapes of a decay from 1 at x = 0 to 0 at x = 1, by name; ``sqrt`` is 1 - sqrt(x)."""


def merge_checkpoints(checkpoints: Sequence[str | Path], weights: Sequence[float], out: Path) -> Path:
    """Writes the weighted average of checkpoints as a checkpoint.

    Sums are computed in float32 (float64 for float64 weights) and stored in the type of the last checkpoint; integer
    tensors must be equal. Adapters are averaged matrix by matrix: the average of A and of B, not of their products B A,
    which would have a larger rank. Configuration and tokenizer are those of the last checkpoint.

    Source: MergeMix averages models trained on different data (read in notes, without a formula for the weights); WSM
    averages consecutive checkpoints.

    Args:
        checkpoints: Folders or names of models, or of adapters; at least two.
        weights: Weight of each checkpoint, with sum 1.
        out: Folder to create.

    Returns:
        `out`.

    Raises:
        UsageError: There are fewer than two checkpoints, adapters are mixed with models, or checkpoints are
            incompatible.
        RunExistsError: `out` exists.
        DataError: A file cannot be read or written, or a tensor is not finite.
    """
    from safetensors.torch import save_file

    if len(checkpoints) < 2 or len(weights) != len(checkpoints):
        raise UsageError(f"an average needs two checkpoints or more, each with a weight; got {len(checkpoints)}")
    if out.exists():
        raise RunExistsError(f"{out} already exists: give another folder")
    folders = [model_folder(checkpoint) for checkpoint in checkpoints]
    kinds = {is_adapter(folder) for folder in folders}
    if len(kinds) > 1:
        raise UsageError("adapters and whole models cannot be averaged: `searchgym model export` the adapters first")
    adapters = kinds.pop()
    _check_alike(folders, adapters)
    copied = _copied(folders[-1])
    merged = _average([_tensors(folder, adapters) for folder in folders], weights, folders)
    parts = [{"checkpoint": folder.name, "weight": weight} for folder, weight in zip(folders, weights, strict=True)]
    with new_folder(out) as building:
        tensors = {name: tensor.contiguous() for name, tensor in merged.items()}
        save_file(tensors, building / (ADAPTER_WEIGHTS if adapters else WEIGHTS), metadata={"format": "pt"})
        (building / RECORD).write_text(json.dumps({"average_of": parts}, indent=2) + "\n", encoding="utf-8")
        for file in copied:
            shutil.copyfile(file, building / file.name)
    return out


def _check_alike(folders: Sequence[Path], adapters: bool) -> None:
    """Raises an error for checkpoints with different shapes or tokenizers, or adapters with different bases."""
    for folder in () if adapters else folders:
        check_config(folder)
        check_weights(folder)
    name, fields = (ADAPTER, _ADAPTER_FIELDS) if adapters else ("config.json", _CONFIG_FIELDS)
    read = read_adapter_config if adapters else read_object
    first, *others = [read(folder / name) for folder in folders]
    for folder, other in zip(folders[1:], others, strict=True):
        for field in fields:
            one, two = (config.get(field) or None for config in (first, other))  # a missing entry equals false or empty
            if isinstance(one, list) and isinstance(two, list):  # target modules, in any order
                one, two = sorted(map(str, one)), sorted(map(str, two))
            if one != two:
                raise UsageError(f"{folder}: {field} is {two!r:.60}, that of {folders[0]} is {one!r:.60}: not averaged")
        for file in TOKENIZERS[:3]:
            there = [(parent / file).is_file() for parent in (folders[0], folder)]
            if all(there) and sha256_file(folders[0] / file) != sha256_file(folder / file):
                raise UsageError(f"{folder}: {file} differs from that of {folders[0]}: other tokens, not averaged")
            if any(there) and not all(there):
                raise UsageError(f"{folder} and {folders[0]}: only one of them has {file}: not averaged")


def _tensors(folder: Path, adapter: bool) -> Mapping[str, torch.Tensor]:
    """Returns the tensors of a checkpoint by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = [folder / ADAPTER_WEIGHTS] if adapter else sorted(folder.glob("*.safetensors"))
    if not files or not files[0].is_file():
        raise DataError(
            "has no safetensors weights, the only supported format: `searchgym model export` it first", folder
        )
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise DataError(f"cannot be read: {error}", file) from error
    return tensors


def _average(
    loaded: Sequence[Mapping[str, torch.Tensor]], weights: Sequence[float], folders: Sequence[Path]
) -> dict[str, torch.Tensor]:
    """Returns the weighted average of each tensor."""
    import torch

    last = loaded[-1]
    for folder, tensors in zip(folders, loaded, strict=True):
        if odd := sorted(tensors.keys() ^ last.keys()):
            raise UsageError(f"{folder} and {folders[-1]}: only one of them has {odd[0]}: not averaged")
        for name, tensor in tensors.items():
            if tensor.shape != last[name].shape:
                shapes = f"{tuple(tensor.shape)} and {tuple(last[name].shape)}"
                raise UsageError(f"{folder} and {folders[-1]}: {name} has the shapes {shapes}: not averaged")
    merged: dict[str, torch.Tensor] = {}
    for name, like in last.items():
        if not like.is_floating_point():
            if not all(torch.equal(tensors[name], like) for tensors in loaded):
                raise UsageError(f"{name} holds integers that differ between the checkpoints: not averaged")
            merged[name] = like
            continue
        wide = torch.float64 if like.dtype == torch.float64 else torch.float32
        total = torch.zeros(like.shape, dtype=wide)
        for tensors, weight in zip(loaded, weights, strict=True):
            total += weight * tensors[name].to(wide)
        if not torch.isfinite(total).all():
            raise DataError(f"{name} of the average is not finite: one of the checkpoints is broken", folders[-1])
        merged[name] = total.to(like.dtype)
    return merged


def _copied(folder: Path) -> list[Path]:
    """Returns the files of a checkpoint to copy.

    Raises:
        DataError: A file is a link that leads out of the folder, possibly to a private file.
    """
    left_out = {file for pattern in LEFT_OUT for file in folder.glob(pattern)}
    files = sorted({file for pattern in COPIED for file in folder.glob(pattern)} - left_out)
    for file in files:
        if leads_out(file, folder):
            raise DataError("is a link that leads out of the checkpoint: remove it, or put the file there", file)
    return [file for file in files if file.is_file()]


def scheduled(name: str, count: int) -> list[float]:
    """Returns weights of consecutive checkpoints whose average is equivalent to a decay of the learning rate.

    Checkpoint i is the first one plus the updates up to it, so an average with weights c_0 .. c_k scales the updates
    between checkpoints i - 1 and i by ``w_i = c_i + ... + c_k``. Hence ``c_0 = 1 - w_1``, ``c_i = w_i - w_(i+1)`` and
    ``c_k = w_k``, with w_i the decay at x = i / (k + 1). ``mean`` gives all checkpoints the same weight; so does
    ``linear``.

    Source: WSM, arXiv 2507.17634, which replaces the decay at the end of a training by an average of its checkpoints,
    by this relation. The points x at which the shapes are evaluated are ours.

    Args:
        name: ``mean``, ``linear``, ``cosine`` or ``sqrt``.
        count: Number of checkpoints, from the earliest to the latest, at least 2.
    """
    if name != "mean" and name not in DECAYS:
        raise UnknownNameError("schedule", name, ["mean", *DECAYS])
    if name == "mean":
        return [1 / count] * count
    scales = [1.0, *(DECAYS[name](i / count) for i in range(1, count)), 0.0]
    return [one - after for one, after in itertools.pairwise(scales)]


def given_weights(text: str, count: int) -> list[float]:
    """Parses weights from the command line, such as ``0.2,0.3,0.5``, and divides them by their sum.

    Raises:
        UsageError: There is not one number of at least 0 per checkpoint, or all are 0.
    """
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError:
        weights = []
    if len(weights) != count or not all(w >= 0 for w in weights) or not 0 < sum(weights) < math.inf:
        expected = f"expected {count} numbers from 0 up with a finite sum above 0, such as 0.5,0.5"
        raise UsageError(f"--weights {text!r}: {expected}")
    whole = math.fsum(weights)
    return [weight / whole for weight in weights]
