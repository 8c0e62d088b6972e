"""Supervised training without predictable tokens, from the middle of a run on."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt
from annotated_types import Gt, Interval

from searchgym.options import Options
from searchgym.train.algorithms.samples import Sample, model_targets

FRAME: Final = 0.5
"""Share of the sequences of a step above which a token that they contain counts as part of their form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropOptions(Options):
    """Options of the share of predictable tokens that a step does not learn."""

    most: Annotated[float, Interval(gt=0, lt=1)]
    """Greatest share of the tokens, which the schedule approaches."""
    midpoint: Annotated[float, Interval(ge=0, le=1)] = 0.5
    """Share of the run's steps after which half of `most` is dropped."""
    slope: Annotated[float, Gt(0)] = 10.0
    """Steepness of the schedule; 10: from 1 % to 99 % of `most` over nine tenths of the run."""

    def share(self, step: int, steps: int) -> float:
        """Returns the share to drop in a 0-based step out of `steps`."""
        return self.most / (1 + math.exp(-self.slope * ((step + 1) / steps - self.midpoint)))


def without_predictable(
    samples: Sequence[Sample], entropies: Sequence[npt.NDArray[np.float32]], share: float
) -> list[Sample]:
    """Returns samples whose masks leave out the tokens that the model predicts with the least doubt.

    Of all trained tokens of a step that are not part of the sequences' form (`frame_tokens`), the given share with the
    lowest entropy is left out of the loss; it remains in the input.

    Source: EntroDrop, arXiv 2512.23422, by notes: low-entropy tokens are masked in supervised training over several
    epochs, a share that rises by a sigmoid. Inferred: that targets are masked, not inputs; that tokens are compared
    within a step; midpoint and slope. The exemption of the form is ours: demonstrations are templates, whose tags are
    their most predictable tokens, and a model that does not write them makes no legal action.

    Args:
        samples: Samples of a step, at least one.
        entropies: (n,) float32 entropy in nats of each trained token's distribution, one array per sample.
        share: Share to leave out, in [0, 1).
    """
    frames, flat = frame_tokens(samples), np.concatenate(entropies)
    exempt = np.concatenate([np.isin(s.ids[s.mask], list(frames[_roles(s)])) for s in samples])
    candidates = np.flatnonzero(~exempt)
    lowest = candidates[np.argsort(flat[candidates], kind="stable")[: math.floor(share * len(candidates))]]
    learnt = np.ones(len(flat), bool)
    learnt[lowest] = False
    left = []
    for sample, keep in zip(samples, np.split(learnt, np.cumsum([len(e) for e in entropies])[:-1]), strict=True):
        mask = sample.mask.copy()
        mask[model_targets(sample)] = keep
        left.append(dataclasses.replace(sample, mask=mask))
    return left


def frame_tokens(samples: Sequence[Sample]) -> dict[tuple[str, ...], set[int]]:
    """Returns the token ids that more than half of the sequences of the same roles train on, by these roles."""
    groups: dict[tuple[str, ...], list[Sample]] = {}
    for sample in samples:
        groups.setdefault(_roles(sample), []).append(sample)
    frames = {}
    for roles, group in groups.items():
        counts = Counter(id for sample in group for id in np.unique(sample.ids[sample.mask]).tolist())
        frames[roles] = {id for id, count in counts.items() if count > FRAME * len(group)}
    return frames


def _roles(sample: Sample) -> tuple[str, ...]:
    """Returns the roles whose calls a sample trains on, each once."""
    return tuple(sorted({call.role for call in sample.calls}))
