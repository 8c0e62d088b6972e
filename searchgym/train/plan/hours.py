"""Predicts the seconds of a training step from what devices were measured to do, and the hours of a run.

Drawing takes time for each generated token, learning for each token that the learner reads; both take a fixed time and
one in proportion to the weights that the token passes through. `DEVICES` has the speeds, as `benchmarks/speeds.py`
measures them. What an episode generates and reads depends on the model and the questions: without `Lengths` that are
given, those of a recorded step are assumed. A run's own first steps replace all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import torch

from searchgym.agents.base import read_agent
from searchgym.corpora.files import iter_jsonl
from searchgym.errors import DataError
from searchgym.train.plan.shapes import model_shape
from searchgym.train.recipe.keys import keys_of
from searchgym.train.recipe.recipe import Recipe

FIRST: Final = 3
"""Number of steps of a run whose mean time replaces a prediction; the first one, which compiles and warms up, is left
out as soon as there is another."""
SIGNAL: Final = 18 / 32
"""Share of groups that are learnt where attempts are compared, as in a recorded step: the others are all alike."""


class Lengths(NamedTuple):
    """Mean tokens of an episode."""

    generated: int
    read: int
    """Tokens of prompts and observations."""


TYPICAL: Final = Lengths(110, 250)
"""Lengths of a recorded step: `search-r1` with a model of 1.5 billion parameters, 2.2 turns."""


class Speed(NamedTuple):
    """Seconds per token: a fixed time, and one for each billion of weights that the token passes through."""

    fixed: float
    per_billion: float

    def seconds(self, weights: float) -> float:
        """Returns the seconds per token of a model."""
        return self.fixed + self.per_billion * weights / 1e9


class Device(NamedTuple):
    """Speeds of a device."""

    sample: Speed
    """Seconds per generated token of an engine with all rows at work; reading prompts and observations is included."""
    learn: Speed
    """Seconds per token that an update reads, all weights trained."""
    measured: bool
    """False if the speeds are computed from those of another device."""


H200: Final = Device(Speed(2e-5, 1.8e-4), Speed(1.3e-5, 5.05e-5), True)
"""One H200 with vLLM. Measured before the update was made faster: 3,400 tokens a second sampled and 11,000 learnt with
1.54 billion weights, 26,000 learnt with 0.49 (see the page Platforms)."""


def slower(device: Device, products: float, bandwidth: float) -> Device:
    """Returns a device with other shares of a device's products (learning) and bandwidth (sampling), never measured."""
    sample, learn = device.sample, device.learn
    return Device(
        Speed(sample.fixed, sample.per_billion / bandwidth), Speed(learn.fixed, learn.per_billion / products), False
    )


DEVICES: Final[dict[str, Device]] = {
    "cpu": Device(Speed(2.8e-4, 9.8e-2), Speed(1.6e-4, 5.1e-2), True),
    "h200": H200,
    "h100": slower(H200, 1.0, 3.35 / 4.8),
    "a100": slower(H200, 312 / 989, 2.04 / 4.8),
}
"""Speeds by device. ``cpu``: two cores of an AMD EPYC with AVX-512, transformers, float32. What was never measured is
scaled by the products and bandwidth that NVIDIA states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds of a step, and how sure they are."""

    seconds: float
    """Seconds of a step."""
    draw: float | None = None
    """Seconds of drawing episodes, validation included; None if only the sum is given."""
    learn: float | None = None
    """Seconds of updates."""
    basis: Literal["given", "run", "prediction"]
    """What the estimate rests on."""
    factor: float
    """The true seconds are expected between ``seconds / factor`` and ``seconds * factor``."""
    why: str = ""
    """Why they may be so far off."""

    @property
    def limit(self) -> str:
        """What takes most of a step."""
        return "" if self.draw is None or self.learn is None else "drawing" if self.draw > self.learn else "learning"


def device_here(recipe: Recipe) -> str | None:
    """Returns the name of the device of this machine that a recipe would learn on; None if it is not in `DEVICES`."""
    if recipe.learner.device == "cpu" or not torch.cuda.is_available():
        return "cpu"
    name = torch.cuda.get_device_name().lower()
    return next((device for device in DEVICES if device != "cpu" and device in name), None)


def estimate(
    recipe: Recipe,
    device: str | None,
    step_seconds: float | None = None,
    run: Path | None = None,
    tokens: Lengths | None = None,
) -> Estimate | None:
    """Returns the estimated seconds of a step: given, a run's, or a prediction; None if there is none of these.

    Args:
        recipe: Recipe of the training.
        device: A name in `DEVICES`.
        step_seconds: Seconds of a step.
        run: File of metrics of an earlier run.
        tokens: Mean tokens of an episode. Default: `TYPICAL`.
    """
    if step_seconds is not None:
        return Estimate(seconds=step_seconds, basis="given", factor=1.0)
    if run is not None and run.is_file() and (spent := _spent(run)):
        steps = spent[1:] or spent
        draw, learn = (sum(step[i] for step in steps) / len(steps) for i in (0, 1))
        enough = len(spent) >= FIRST
        return Estimate(
            seconds=draw + learn, draw=draw, learn=learn, basis="run", factor=1.25 if enough else 2.0,
            why="" if enough else f"it rests on {len(spent)} step{'s' * (len(spent) > 1)}",
        )  # fmt: skip
    draws = not recipe.method.demonstrated  # the lengths of demonstrations are not known without reading them
    return _predicted(recipe, device, tokens) if draws and device is not None else None


def _predicted(recipe: Recipe, name: str, tokens: Lengths | None) -> Estimate:
    """Returns the prediction for a device."""
    device, rollout = DEVICES[name], recipe.rollout
    lengths = TYPICAL if tokens is None else tokens
    weights = trained_weights(recipe)
    episodes = rollout.questions * rollout.attempts
    validated = recipe.validation.questions / recipe.validation.every if recipe.validation.every else 0.0
    engines = max(1, rollout.sampler.chosen(ask=False).engines)
    draw = (episodes + validated) * lengths.generated * device.sample.seconds(weights) / engines
    share = 1.0 if recipe.has_critic or not recipe.method.compares else SIGNAL
    work = (4 / 6 if recipe.lora.rank else 1.0) * (4 / 3 if recipe.learner.gradient_checkpointing == "full" else 1.0)
    # A critic is a second model, and its values are computed before; a reference computes log-probs.
    work += (4 / 3 if recipe.has_critic else 0.0) + (1 / 3 if recipe.loss.kl_coef else 0.0)
    read = episodes * share * (lengths.generated + lengths.read)
    learn = read * work * device.learn.seconds(weights) / recipe.learner.backend.sharding.ranks
    reasons = [] if device.measured else [f"{name} was never measured"]
    reasons += [] if tokens is not None else ["lengths of episodes are assumed (--episode-tokens)"]
    return Estimate(
        seconds=draw + learn, draw=draw, learn=learn, basis="prediction", factor=(1.25, 2.0, 3.0)[len(reasons)],
        why=" and ".join(reasons),
    )  # fmt: skip


def trained_weights(recipe: Recipe) -> int:
    """Returns the number of weights that a token passes through in the largest trained model.

    An embedding table is looked up; it counts only where it is the head, too.
    """
    keys = keys_of(recipe, read_agent(recipe.agent)[1], recipe.agent)
    shapes = [model_shape(key.recipe.model) for key in keys if not key.frozen]
    return max(shape.parameters - (not shape.tied) * shape.hidden * shape.vocabulary for shape in shapes)


def _is_step(row: dict[str, Any], metrics: Path, number: int) -> bool:
    """Returns whether a row has the times of a step; raises a DataError if it cannot be one of a run."""
    times = [row[name] for name in ("time/waited", "time/draw", "time/learn", "time/validation") if name in row]
    if not all(isinstance(value, int | float) and value >= 0 for value in (row.get("step"), *times)):
        raise DataError("not the metrics of a step: its step and times must be numbers", metrics, number)
    return bool(row["step"] and times)


def _spent(metrics: Path) -> Sequence[tuple[float, float]]:
    """Returns the seconds of drawing (validation included) and of learning of each step of a run."""
    rows = [row for number, row in iter_jsonl(metrics) if _is_step(row, metrics, number)]
    # when sampling runs ahead, only the wait counts
    draws = [row.get("time/waited", row.get("time/draw", 0.0)) + row.get("time/validation", 0.0) for row in rows]
    return list(zip(draws, (row.get("time/learn", 0.0) for row in rows), strict=True))
