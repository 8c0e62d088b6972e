"""Log-probs of dumped samples by a model, computed one sequence at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from searchgym.rollout.foreign.adapters import merge_adapter
from searchgym.rollout.loading import load_model
from searchgym.testing.dumps.logps import ModelLogps
from searchgym.testing.dumps.sample import DumpedSample, Floats

OTHERS: Final = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0)
"""Temperatures that are tried where the claimed one does not explain the log-probs."""


def model_logps(
    samples: Sequence[DumpedSample], model: str, adapter: str | None, temperature: float
) -> list[ModelLogps]:
    """Returns the log-probs of the tokens of samples.

    Args:
        samples: The samples.
        model: Folder or name of a model.
        adapter: Folder of an adapter of it. Default: none.
        temperature: Sampling temperature.

    Raises:
        SearchGymError: A model cannot be loaded.
    """
    others = [other for other in (*OTHERS, 1 / temperature) if abs(other - temperature) > 0.02]
    weights: Any = load_model(model)[0]
    base = None
    if adapter is not None:
        base = [_logps(weights, sample.ids, [temperature])[0] for sample in samples]
        weights = merge_adapter(weights, Path(adapter), model)
    rows = []
    for number, sample in enumerate(samples):
        first, *rest = _logps(weights, sample.ids, [temperature, *others])
        padded = None
        if sample.left_padding and sample.pad_id is not None:
            padding = np.full(sample.left_padding, sample.pad_id, np.int64)
            padded = _logps(weights, np.concatenate([padding, sample.ids]), [temperature])[0][sample.left_padding :]
        temperatures = dict(zip(others, rest, strict=True))
        rows.append(ModelLogps(first, None if base is None else base[number], temperatures, padded))
    return rows


def _logps(model: Any, ids: Any, temperatures: Sequence[float]) -> list[Floats]:
    """Returns the log-probs of a row's tokens at each temperature, each (T,) float64 with NaN at the first token."""
    with torch.no_grad():
        logits: Tensor = model(torch.from_numpy(np.asarray(ids))[None]).logits[0, :-1].double()
        following = torch.from_numpy(np.asarray(ids))[1:, None]
        rows = []
        for temperature in temperatures:
            logp = torch.log_softmax(logits / temperature, -1).gather(1, following)[:, 0]
            rows.append(np.concatenate([[np.nan], logp.numpy()]))
    return rows
