"""Updates of one model in plain torch: backward passes, gradient clipping, AdamW, its schedule and state."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from searchgym.errors import TrainingError
from searchgym.rollout.folders import ADAPTER_WEIGHTS
from searchgym.train.learner.lora import load_adapter
from searchgym.train.recipe.options import OptimizerOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def lr_scale(step: int, steps: int, options: OptimizerOptions) -> float:
    """Returns the factor on the learning rate in a 0-based step: linear warm-up, then constant or half a cosine."""
    if step < options.warmup_steps:
        return (step + 1) / options.warmup_steps
    if options.schedule == "constant":
        return 1.0
    done = (step - options.warmup_steps) / max(steps - options.warmup_steps, 1)
    return options.min_lr_ratio + (1 - options.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def make_optimizer(model: PreTrainedModel, options: OptimizerOptions) -> torch.optim.AdamW:
    """Returns AdamW with weight decay on matrices only."""
    named = [p for p in model.parameters() if p.requires_grad]
    dimensions = [len(getattr(p, "ds_shape", p.shape)) for p in named]  # DeepSpeed flattens a sharded parameter
    groups = [
        {"params": [p for p, n in zip(named, dimensions, strict=True) if n >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p, n in zip(named, dimensions, strict=True) if n < 2], "weight_decay": 0.0},
    ]
    first, second = options.betas
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=options.lr, betas=(first, second), eps=options.eps)


class Updater:
    """Computes gradients of a model and updates it with AdamW, in this process.

    Args:
        model: Trained in place; its weights keep their type and device.
        options: Options of the optimizer.
        steps: Number of steps of the whole run, for the schedule.
    """

    def __init__(self, model: PreTrainedModel, options: OptimizerOptions, steps: int) -> None:
        self.model, self.options, self.steps = model, options, steps
        self.version = 0
        """Number of updates made so far."""
        self.optimizer = make_optimizer(model, options)

    def __call__(self, **inputs: Any) -> Any:
        """Runs the model."""
        return self.model(**inputs)

    def backward(self, loss: Tensor) -> None:
        """Accumulates the gradient of a micro-batch's share of the loss."""
        loss.backward()  # type: ignore[no-untyped-call]

    def clear(self) -> None:
        """Clears the accumulated gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def apply(self, step: int) -> dict[str, float]:
        """Clips the gradients, makes one optimizer update and clears the gradients.

        If all gradients are exactly 0, no update is made: momentum and weight decay alone would move the weights.

        Args:
            step: 0-based step of the run.

        Returns:
            ``gradient_norm`` (before clipping), ``learning_rate``, and ``updates`` (1 or 0).

        Raises:
            TrainingError: A gradient is not finite; the weights are unchanged.
        """
        rate = self.options.lr * lr_scale(step, self.steps, self.options)
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options.max_grad_norm or math.inf))
        try:
            if not math.isfinite(norm):
                raise TrainingError(f"the gradient's norm is {norm} in step {step + 1}: no update was made")
            if norm > 0:
                for group in self.optimizer.param_groups:
                    group["lr"] = rate
                self.optimizer.step()
                self.version += 1
        finally:
            self.clear()
        return {"gradient_norm": norm, "learning_rate": rate, "updates": float(norm > 0)}

    # -- state -----------------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """Returns the state of the model by name, without copying it."""
        return dict(self.model.state_dict())

    def save(self, folder: Path) -> None:
        """Writes the model in Hugging Face format, and the optimizer's state and the version to ``optimizer.pt``."""
        self.model.save_pretrained(folder)
        torch.save({"optimizer": self.optimizer.state_dict(), "version": self.version}, folder / "optimizer.pt")

    def load(self, folder: Path) -> None:
        """Restores model, optimizer and version from a folder that `save` wrote for a model of the same shape.

        Raises:
            ValueError: The file of the optimizer is another model's, or damaged.
        """
        if (folder / ADAPTER_WEIGHTS).is_file():
            load_adapter(self.model, folder)
        else:
            saved = type(self.model).from_pretrained(folder, dtype=self.model.dtype)
            self.model.load_state_dict(saved.state_dict())
        state = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True)
        own = self.optimizer.state_dict()["param_groups"]  # the recipe's, not the file's
        self.optimizer.load_state_dict({"state": copy.deepcopy(state["optimizer"]["state"]), "param_groups": own})
        for parameter, moments in self.optimizer.state.items():
            shapes = {name: value.shape for name, value in moments.items() if name != "step"}
            if shapes != dict.fromkeys(("exp_avg", "exp_avg_sq"), parameter.shape) or moments["step"].numel() != 1:
                raise ValueError(f"optimizer.pt holds moments of shapes {shapes} for a weight of {parameter.shape}")
        if type(state["version"]) is not int:
            raise ValueError(f"optimizer.pt names version {state['version']!r}, expected a number of updates")
        self.version = state["version"]

    def check_weights(self) -> None:
        """Raises a TrainingError if a weight is not finite."""
        for name, parameter in self.model.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise TrainingError(f"{name} holds a weight that is not finite")
