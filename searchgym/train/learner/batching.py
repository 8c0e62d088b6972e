"""Micro-batches: which samples share a forward pass, and their tensors.

*Padded* rows end at a multiple of 64 tokens and share a pass only with rows of the same padded length, so that few
shapes occur and little is padded. Attention is causal: what stands right of a row's end reaches none of its tokens, and
no attention mask is needed. *Packed* samples stand one after the other in a single row; each begins at position 0
again, by which the model tells them apart. Padded rows are faster on a CPU, packed ones on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from searchgym.train.algorithms.samples import Sample, Targets, model_targets

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MULTIPLE = 64
"""Padded lengths are multiples of this many tokens: a new shape is slow on its first visit."""


def padded_length(length: int) -> int:
    """Returns the length of a row after padding."""
    return -(-length // MULTIPLE) * MULTIPLE


def pack(lengths: Sequence[int], max_tokens: int, packed: bool = False) -> list[list[int]]:
    """Groups rows into micro-batches, the same way each time.

    Args:
        lengths: Tokens of each row.
        max_tokens: Padded tokens of a micro-batch at most; a row longer than this is alone.
        packed: Rows stand one after the other and may have any lengths.

    Returns:
        Indices of `lengths`, each once, shortest rows first.
    """
    batches: list[list[int]] = []
    length = total = 0
    if packed:
        for i in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
            total += lengths[i]
            if not batches or padded_length(total) > max_tokens:
                batches.append([])
                total = lengths[i]
            batches[-1].append(i)
        return batches
    for i in sorted(range(len(lengths)), key=lambda i: (padded_length(lengths[i]), i)):
        own = padded_length(lengths[i])
        if batches and own == length and (len(batches[-1]) + 1) * own <= max_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
            length = own
    return batches


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """B rows of T padded tokens with N trained tokens in row order; packed, B is 1 and a row of numbers a sample."""

    ids: Tensor
    """(B, T) int64; 0 where padded."""
    keep: Tensor
    """(B, T) bool: the positions whose logits predict a trained token, one left of it."""
    targets: Tensor
    """(N,) int64: the trained tokens."""
    values: dict[str, Tensor]
    """(N,) float32 each, by name."""
    rows: list[int]
    """Trained tokens of each row: B numbers that add up to N."""
    runs: list[int]
    """Lengths of the unbroken runs of trained tokens, row by row; they add up to N too."""
    positions: Tensor | None = None
    """(1, T) int64 where samples are packed: places of the tokens in their samples."""


def collate(
    samples: Sequence[Sample],
    values: Mapping[str, Sequence[npt.NDArray[np.float32]]],
    rows: Sequence[int],
    device: torch.device,
    targets: Targets = model_targets,
    packed: bool = False,
) -> MicroBatch:
    """Builds the tensors of a micro-batch.

    Args:
        samples: All samples.
        values: Numbers per trained token: for each name one (n,) array per sample.
        rows: Indices of the samples in this micro-batch.
        device: Where the tensors go.
        targets: Which tokens are learnt from.
        packed: See above.
    """
    places = [targets(samples[i]) for i in rows]
    lengths = [len(samples[i].ids) for i in rows]
    width = padded_length(sum(lengths)) if packed else max(map(padded_length, lengths))
    ids = np.zeros((1 if packed else len(rows), width), np.int64)
    keep, positions = np.zeros(ids.shape, np.bool_), np.zeros((1, width), np.int64)
    start = 0
    for number, (i, length) in enumerate(zip(rows, lengths, strict=True)):
        row = 0 if packed else number
        ids[row, start : start + length] = samples[i].ids
        keep[row, start + places[number] - 1] = True
        if packed:
            positions[0, start : start + length] = np.arange(length)
            start += length
    positions[0, start:] = np.arange(width - start)
    tokens = np.concatenate([samples[i].ids[own] for i, own in zip(rows, places, strict=True)]).astype(np.int64)
    flat = {name: np.concatenate([per_sample[i] for i in rows]) for name, per_sample in values.items()}
    return MicroBatch(
        torch.from_numpy(ids).to(device),
        torch.from_numpy(keep).to(device),
        torch.from_numpy(tokens).to(device),
        {name: torch.from_numpy(array).to(device) for name, array in flat.items()},
        [len(own) for own in places],
        [length for own in places for length in run_lengths(own)],
        torch.from_numpy(positions).to(device) if packed else None,
    )


def run_lengths(places: npt.NDArray[np.int64]) -> list[int]:
    """Returns the lengths of the unbroken runs of ascending places."""
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    return [len(run) for run in runs if len(run)]


def trained_logits(model: PreTrainedModel, batch: MicroBatch, run: Callable[..., Any] | None = None) -> Tensor:
    """Runs a model and returns its outputs for the tokens that are learnt from, and no others.

    The output layer is given the kept positions only (a hook on it drops the rest): observations and padding cost no
    product with the vocabulary, which is what a small model spends most on.

    Args:
        model: A language model, or a token classifier.
        batch: What it reads.
        run: Runs it, where something stands around it; the model itself if not given.

    Returns:
        (N, V) logits, or (N, labels).
    """
    head: Any = model.get_output_embeddings() or model.score  # type: ignore[no-untyped-call]

    def kept_only(module: torch.nn.Module, arguments: tuple[Any, ...]) -> tuple[Tensor]:
        return (arguments[0][batch.keep].unsqueeze(0),)

    hook: AbstractContextManager[Any] = head.register_forward_pre_hook(kept_only)
    packed = {} if batch.positions is None else {"position_ids": batch.positions}
    with hook:
        logits: Tensor = (run or model)(input_ids=batch.ids, use_cache=False, **packed).logits
    return logits[0]
