"""Files of a model under training: weights in Hugging Face format, and the optimizer's state."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from searchgym.rollout.folders import ADAPTER_WEIGHTS
from searchgym.train.learner.lora import load_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OPTIMIZER: Final = "optimizer.pt"
"""File of the optimizer's state and the number of updates made."""


def save_state(model: PreTrainedModel, optimizer: torch.optim.Optimizer, version: int, folder: Path) -> None:
    """Writes a model in Hugging Face format, and its optimizer's state and version to `OPTIMIZER`."""
    model.save_pretrained(folder)
    torch.save({"optimizer": optimizer.state_dict(), "version": version}, folder / OPTIMIZER)


def load_state(model: PreTrainedModel, optimizer: torch.optim.Optimizer, folder: Path) -> int:
    """Restores a model and its optimizer from a folder written by `save_state` for a model of the same shape.

    Returns:
        The version: the number of updates made.

    Raises:
        ValueError: The optimizer's file is damaged or belongs to another model.
    """
    if (folder / ADAPTER_WEIGHTS).is_file():
        load_adapter(model, folder)
    else:
        saved = type(model).from_pretrained(folder, dtype=model.dtype)
        model.load_state_dict(saved.state_dict())
    state = torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True)
    recipe_groups = optimizer.state_dict()["param_groups"]  # the recipe's, not the file's
    optimizer.load_state_dict({"state": copy.deepcopy(state["optimizer"]["state"]), "param_groups": recipe_groups})
    for parameter, moments in optimizer.state.items():
        shapes = {name: value.shape for name, value in moments.items() if name != "step"}
        if shapes != dict.fromkeys(("exp_avg", "exp_avg_sq"), parameter.shape) or moments["step"].numel() != 1:
            raise ValueError(f"{OPTIMIZER} holds moments of shapes {shapes} for a weight of {parameter.shape}")
    if type(version := state["version"]) is not int:
        raise ValueError(f"{OPTIMIZER} names version {version!r}, expected a number of updates")
    return version
