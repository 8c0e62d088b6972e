"""Batches: splits samples into updates and forward passes, divides them among ranks, and builds tensors.

Rows are padded to a multiple of 64 tokens and share a pass only with rows of the same padded length, so that few shapes
occur and padding is short. Attention is causal: padding right of a row cannot reach its tokens, so no attention mask is
needed, and attention costs the sum of the squares of the rows' lengths. Rows that follow each other in one long row
would need a mask, and would cost the square of the whole length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from searchgym.rollout.transformers.precision import head_of
from searchgym.train.algorithms.samples import Sample, Targets, model_targets
from searchgym.train.recipe.options import OptimizerOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Metrics = dict[str, float]
Flat = Sequence[npt.NDArray[np.float32]]
"""One number per target of each sample: an (n,) array for a sample with n targets."""
MULTIPLE = 64
"""Unit of padded lengths, in tokens. Few different shapes occur, which matters because a shape's first pass is slow."""


def padded_length(length: int) -> int:
    """Returns the length of a row after padding, in tokens."""
    return -(-length // MULTIPLE) * MULTIPLE


def updates_of_pass(options: OptimizerOptions, samples: int) -> int:
    """Returns the number of updates in one pass over `samples` samples."""
    if options.minibatch_samples is None:
        return max(1, min(options.minibatches, samples))
    return -(-samples // options.minibatch_samples)


def minibatches(count: int, options: OptimizerOptions, seed: int, step: int) -> Iterator[npt.NDArray[np.intp]]:
    """Yields the indices of each minibatch: `count` samples are shuffled per epoch and split nearly equally."""
    rng = np.random.default_rng([seed, step])
    for _ in range(options.epochs):
        updates = updates_of_pass(options, count)
        order = rng.permutation(count) if updates > 1 else np.arange(count)
        yield from np.array_split(order, updates)


def pack(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Groups rows of equal padded length into micro-batches, deterministically.

    Args:
        lengths: Number of tokens of each row.
        max_tokens: Maximum number of tokens in a micro-batch, padding included; a longer row gets its own micro-batch.

    Returns:
        Indices into `lengths` per micro-batch; each index occurs once, shortest rows first.
    """
    sizes = [padded_length(length) for length in lengths]
    batches: list[list[int]] = []
    for i in sorted(range(len(sizes)), key=lambda i: (sizes[i], i)):
        last = batches[-1] if batches else []
        if last and sizes[last[0]] == sizes[i] and (len(last) + 1) * sizes[i] <= max_tokens:
            last.append(i)
        else:
            batches.append([i])
    return batches


class Ranks:
    """Group of processes that train one model together; this base class is a group of one process.

    Every rank runs the same code on the same samples and computes its share of the micro-batches. Every decision must
    depend only on numbers that all ranks have: otherwise one rank would wait forever at a call that another skips.
    """

    rank, world = 0, 1
    """Index of this process, and number of processes."""

    def sums(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Sums numbers by name over the ranks; for names ``max_...`` it takes the maximum instead."""
        total: dict[str, float] = {}
        for of_rank in self.gather(dict(numbers)):
            add(total, of_rank)
        return total

    def gather(self, value: Any) -> list[Any]:
        """Returns the objects passed by all ranks, in rank order, so that sums over them agree bit for bit."""
        return [value]


class ProcessRanks(Ranks):
    """Group of the ranks in torch's process group, which must be initialised."""

    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    @override
    def gather(self, value: Any) -> list[Any]:
        gathered: list[Any] = [None] * self.world
        dist.all_gather_object(gathered, value)
        return gathered


def add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    """Adds `more` to `sums` in place, by name; for names ``max_...`` it keeps the larger number instead."""
    for name, value in more.items():
        sums[name] = max(sums.get(name, value), value) if name.startswith("max_") else sums.get(name, 0.0) + value


def shares(batches: Sequence[list[int]], ranks: Ranks) -> list[tuple[list[int], bool]]:
    """Returns the micro-batches of this rank; every rank gets the same number.

    Args:
        batches: Micro-batches of the whole update, ordered so that neighbours have similar costs.
        ranks: The group, with this process as `rank`.

    Returns:
        (sample indices, counts) per micro-batch. A rank without a further micro-batch repeats the first row of the
        first one with ``counts`` False, because the other ranks would wait forever for a skipped pass.
    """
    rounds = -(-len(batches) // ranks.world)
    share = [(batches[at], True) for at in range(ranks.rank, len(batches), ranks.world)]
    return share + [(batches[0][:1], False)] * (rounds - len(share))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tensors of one forward pass: B rows of T padded tokens, with N trained tokens in row order."""

    ids: Tensor
    """(B, T) int64 token ids; 0 where padded."""
    keep: Tensor
    """(B, T) bool: True at positions whose logits predict a trained token, which are one left of the token."""
    targets: Tensor
    """(N,) int64 ids of the trained tokens."""
    values: dict[str, Tensor]
    """Values of the trained tokens by name, each (N,) float32."""
    rows: list[int]
    """Number of trained tokens of each sample; they add up to N."""
    runs: list[int]
    """Lengths of the unbroken runs of trained tokens, in row order; they add up to N."""


def collate(
    samples: Sequence[Sample],
    values: Mapping[str, Flat],
    rows: Sequence[int],
    device: torch.device,
    targets: Targets = model_targets,
) -> MicroBatch:
    """Builds the tensors of a micro-batch.

    Args:
        samples: All samples of the step.
        values: Numbers per trained token, by name: one (n,) float32 array per sample.
        rows: Indices of the samples in this micro-batch.
        device: Device to put the tensors on.
        targets: Returns the positions of the tokens that are learnt from. Default: the model's trained tokens.
    """
    target_positions = [targets(samples[i]) for i in rows]
    ids = np.zeros((len(rows), max(padded_length(len(samples[i].ids)) for i in rows)), np.int64)
    keep = np.zeros(ids.shape, np.bool_)
    for row, i in enumerate(rows):
        ids[row, : len(samples[i].ids)] = samples[i].ids
        keep[row, target_positions[row] - 1] = True
    tokens = np.concatenate([samples[i].ids[at] for i, at in zip(rows, target_positions, strict=True)]).astype(np.int64)
    flat = {name: np.concatenate([per_sample[i] for i in rows]) for name, per_sample in values.items()}
    return MicroBatch(
        torch.from_numpy(ids).to(device),
        torch.from_numpy(keep).to(device),
        torch.from_numpy(tokens).to(device),
        {name: torch.from_numpy(array).to(device) for name, array in flat.items()},
        [len(at) for at in target_positions],
        [length for at in target_positions for length in run_lengths(at)],
    )


def micro_batches(
    samples: Sequence[Sample],
    values: Mapping[str, Flat],
    options: OptimizerOptions,
    ranks: Ranks,
    device: torch.device,
    targets: Targets,
) -> Iterator[tuple[list[int], MicroBatch, bool]]:
    """Yields (sample indices, tensors, True if they count) for a rank's micro-batches; see `shares` and `collate`."""
    batches = pack([len(sample.ids) for sample in samples], options.pass_tokens)
    for rows, counts in shares(batches, ranks):
        batch = collate(samples, values, rows, device, targets)
        if not counts and "weight" in batch.values:
            batch.values["weight"].zero_()
        yield rows, batch, counts


def spread(samples: Sequence[Sample], numbers: Flat, targets: Targets = model_targets) -> Flat:
    """Expands per-target values to one (T,) float32 array per sample, with 0 at tokens that are not targets."""
    rows = []
    for sample, of_targets in zip(samples, numbers, strict=True):
        row = np.zeros(len(sample.ids), np.float32)
        row[targets(sample)] = of_targets
        rows.append(row)
    return rows


def run_lengths(positions: npt.NDArray[np.int64]) -> list[int]:
    """Returns the lengths of runs of consecutive numbers in ascending positions: 2 and 1 for 2, 3, 7."""
    runs = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
    return [len(run) for run in runs if len(run)]


def trained_logits(
    model: PreTrainedModel, batch: MicroBatch, run: Callable[..., Any] | None = None, head: Any = None
) -> Tensor:
    """Runs a model and returns its outputs at the positions that predict the trained tokens.

    A hook passes only these positions to the output layer. The learner uses it for critics, and for language models
    that change the logits after their output layer; see `searchgym.train.learner.head` for all others.

    Args:
        model: A language model, or a token classifier.
        batch: Tensors of the forward pass.
        run: Callable that runs the model through a wrapper, such as a DeepSpeed engine. Default: the model.
        head: Output layer of the model. Default: determined by `head_of`.

    Returns:
        (N, V) logits of a language model, or (N, labels) of a classifier.
    """
    head = head_of(model) if head is None else head

    def kept_only(module: torch.nn.Module, arguments: tuple[Any, ...]) -> tuple[Tensor]:
        return (arguments[0][batch.keep].unsqueeze(0),)

    hook: AbstractContextManager[Any] = head.register_forward_pre_hook(kept_only)
    with hook:
        logits: Tensor = (run or model)(input_ids=batch.ids, use_cache=False).logits
    return logits[0]
