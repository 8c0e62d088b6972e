"""Rows that are sampled together, one token of each at a time. Used by `transformers_sampler` alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from searchgym.rollout.sampler import Finish, Sampled, SampleRequest, StopMatcher
from searchgym.rollout.transformers.choice import choose
from searchgym.rollout.transformers.kv_cache import RowCache, SlotCache

Key = TypeVar("Key")
Forward = Callable[[Tensor, Tensor, Tensor, SlotCache], Tensor]
"""Runs a model on (B, n) new ids, with (B, W + n) columns that are seen, (B, n) positions and a cache of W columns;
returns the last one's logits (B, V)."""


@dataclass(slots=True, eq=False)
class Row(Generic[Key]):
    """A request on its way."""

    key: Key
    """What its caller knows it by."""
    request: SampleRequest
    limit: int
    """Most tokens it may get: `max_tokens`, or less where the context ends before."""
    noise: npt.NDArray[np.float64]
    stop: StopMatcher
    version: int = 0
    """Policy version of the weights."""
    cached: int = 0
    """Tokens that are in the batch's cache."""
    ids: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def length(self) -> int:
        """Tokens of the request."""
        return len(self.request.ids)

    def add(self, token: int, logp: float, ends: frozenset[int]) -> None:
        """Appends a token and decides whether it was the last."""
        self.ids.append(token)
        self.logp.append(logp)
        if token in ends:
            self.finish = "eos"
        elif self.stop.complete(self.ids):
            self.finish = "stop"
        elif len(self.ids) == self.request.sampling.max_tokens:
            self.finish = "length"
        elif len(self.ids) == self.limit:
            self.finish = "context"

    def sampled(self) -> Sampled:
        """Returns the finished row as a response."""
        assert self.finish is not None
        return Sampled(np.array(self.ids, np.int32), np.array(self.logp, np.float32), self.finish, self.version)


class RunningBatch(Generic[Key]):
    """Rows in the slots of a cache; they come and go between tokens.

    Args:
        layers: Layers of the model.
        device: Of the model.
    """

    def __init__(self, layers: int, device: torch.device) -> None:
        self._cache, self._device = SlotCache(layers), device
        self.rows: list[Row[Key]] = []
        """In the order of their slots."""
        self._logits = torch.empty(0)
        """(B, V), of the token to be chosen next."""

    def join(self, rows: Sequence[Row[Key]], caches: Sequence[RowCache], logits: Tensor) -> None:
        """Adds rows.

        Args:
            rows: At least one.
            caches: Keys and values of their requests.
            logits: (n, V) of their first tokens.
        """
        self._cache.add(caches, [row.length for row in rows], max((row.cached for row in self.rows), default=0))
        for row in rows:
            row.cached = row.length
        self._logits = torch.cat([self._logits, logits]) if self.rows else logits
        self.rows += rows

    def choose(self, ends: frozenset[int]) -> list[Row[Key]]:
        """Gives every row its next token and returns those that it finished, still in the batch."""
        tokens, logp = choose(
            self._logits,
            torch.tensor([row.request.sampling.temperature for row in self.rows], device=self._device),
            torch.tensor([row.request.sampling.top_p for row in self.rows], device=self._device),
            torch.tensor([row.noise[len(row.ids)] for row in self.rows], dtype=torch.float64, device=self._device),
        )
        for row, token, value in zip(self.rows, tokens.tolist(), logp.tolist(), strict=True):
            row.add(token, value, ends)
        return [row for row in self.rows if row.finish is not None]

    def leave(self, row: Row[Key]) -> tuple[npt.NDArray[np.int32], RowCache]:
        """Takes a finished row out; returns what the cache holds of it: (ids (T,) int32; keys and values).

        The last token has not been through the model.
        """
        slot, last = self.rows.index(row), self.rows.pop()
        cache = self._cache.row(slot, row.cached)
        self._cache.remove(slot, last.cached)
        if last is not row:
            self.rows[slot] = last
        return np.concatenate([row.request.ids, np.array(row.ids[:-1], np.int32)]), cache

    def forward(self, run: Forward) -> None:
        """Reads the tokens that were chosen."""
        width = max(row.cached for row in self.rows)
        self._cache.trim(width)
        tokens = torch.tensor([row.ids[-1] for row in self.rows], device=self._device)[:, None]
        lengths = torch.tensor([row.cached for row in self.rows], device=self._device)[:, None]
        mask = torch.arange(width + 1, device=self._device) >= width - lengths
        self._logits = run(tokens, mask, lengths, self._cache)
        for row in self.rows:
            row.cached += 1
