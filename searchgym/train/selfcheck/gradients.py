"""What a learner's updates are made of and do: gradients, weight by weight, and how far weights move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from torch import Tensor

from searchgym.train.learner.keyed_learner import KeyedLearner
from searchgym.train.learner.learner import Learner, LocalLearner
from searchgym.train.learner.updater import Updater
from searchgym.train.selfcheck.formulas.shadow import Gradient, State, Updated

FLOOR: Final = 1e-3
"""Share of all samples' gradients below which a weight's own is compared as if it were that long: attention's key
biases have a gradient of 0 and show rounding alone."""
CANCELS: Final = 0.1
"""Share of the length of its samples' gradients below which a gradient is compared as if it were that long."""


class GradientWatch:
    """Keeps clipped gradients by name: of the first and the last update since they were last taken.

    Args:
        updater: Makes the updates.
    """

    def __init__(self, updater: Updater) -> None:
        self._names = {id(weight): plain(name) for name, weight in updater.model.named_parameters()}
        self._kept: list[dict[str, Tensor]] = []
        updater.optimizer.register_step_pre_hook(self._keep)

    def _keep(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        weights = [weight for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None]
        found = {self._names[id(weight)]: weight.grad.detach().float().cpu().clone() for weight in weights}
        self._kept = [*self._kept[:1], found]

    def take(self) -> list[dict[str, Tensor]]:
        """Returns the gradients of the first and the last update, and forgets them."""
        kept, self._kept = self._kept, []
        return kept


def plain(name: str) -> str:
    """Returns the name of a weight as the self-check knows it: an adapter's as in peft's files."""
    return f"base_model.model.{name.replace('.default.', '.')}" if ".lora_" in name else name


def watch(learner: Learner, key: str) -> tuple[GradientWatch | None, GradientWatch | None]:
    """Watches the updates of a key's policy and of its critic; None where these are made by other processes."""
    own = learner.learners[key] if isinstance(learner, KeyedLearner) else learner
    if not isinstance(own, LocalLearner):
        return None, None
    critic = None if own.critic is None else GradientWatch(own.critic.updater)
    return GradientWatch(own.policy.updater), critic


def apart(found: Mapping[str, Tensor], right: Gradient) -> tuple[float, str]:
    """Returns how far a gradient is from the right one, in lengths of that, and the name of the weight it is worst at.

    Lengths are those of each weight's own gradient, or more where samples cancel or where it hardly counts.
    """
    worst = (0.0, "")
    for name, wanted in right.parts.items():
        off = float((found[name] - wanted).norm()) if name in found else float(wanted.norm())
        size = max(float(wanted.norm()) * max(1.0, CANCELS * right.excess[name]), FLOOR * _length(right))
        worst = max(worst, (off / max(size, 1e-30), name))
    extra = [name for name, given in found.items() if name not in right.parts and float(given.norm())]
    return (float("inf"), extra[0]) if extra else worst


def _length(gradient: Gradient) -> float:
    """Returns the length of a clipped gradient as if its samples were at right angles."""
    squares = [float(part.square().sum()) for part in gradient.parts.values()]
    clipped = float(np.sqrt(sum(squares)))
    return clipped * gradient.gross / max(gradient.norm, 1e-30)


def compare(kept: list[dict[str, Tensor]], updated: Updated) -> list[tuple[float, str]]:
    """Returns how far the first and the last update of a step are from the right ones; see `apart`."""
    if updated.first is None or updated.last is None:
        return []
    if not kept:
        return [(float("inf"), "no update was made")]
    return [apart(kept[0], updated.first), apart(kept[-1], updated.last)]


def way(names: Sequence[str], before: State, after: State, right: State) -> tuple[float, float]:
    """Returns how far weights moved from where they should be, in lengths of their right way, and that length."""
    steps = [
        (after[name].double() - before[name].double(), right[name].double() - before[name].double()) for name in names
    ]
    off, size = (
        float(np.sqrt(sum(float(part.square().sum()) for part in parts)))
        for parts in ([made - wanted for made, wanted in steps], [wanted for _, wanted in steps])
    )
    return off / size if size else float(off > 0), size
