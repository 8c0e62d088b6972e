"""Running batch of the transformers sampler: rows that are sampled together, one token each per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from searchgym.rollout.sampler import Finish, Sampled, SampleRequest
from searchgym.rollout.transformers.choice import StopMatcher, choose
from searchgym.rollout.transformers.kv_cache import RowCache, SlotCache

Key = TypeVar("Key")
Forward = Callable[[Tensor, Tensor, Tensor, SlotCache], Tensor]
"""Function that runs a model on new ids (B, n), given the mask of visible columns (B, W + n), positions (B, n) and a
cache of W columns; it returns the logits of the last position (B, V)."""


@dataclass(slots=True, eq=False)
class Row(Generic[Key]):
    """One request while it is being sampled."""

    key: Key
    """Caller's key for the request."""
    request: SampleRequest
    limit: int
    """Maximum number of new tokens: `max_tokens`, or fewer if the context ends first."""
    noise: npt.NDArray[np.float64]
    """(limit,) float64 random numbers in [0, 1), one per new token."""
    stop: StopMatcher
    """Detector of the request's stop strings."""
    version: int = 0
    """Policy version of the weights."""
    cached: int = 0
    """Number of the row's tokens in the batch's cache."""
    ids: list[int] = field(default_factory=list)
    """Token ids sampled so far."""
    logp: list[float] = field(default_factory=list)
    """Natural-log probabilities of the sampled tokens."""
    finish: Finish | None = None
    """Why the response ended; None while it runs."""

    @property
    def length(self) -> int:
        """Number of tokens in the request."""
        return len(self.request.ids)

    def add(self, token: int, logp: float, ends: frozenset[int]) -> None:
        """Appends a sampled token and sets `finish` if it ends the response.

        Args:
            token: Token id.
            logp: Natural-log probability of the token.
            ends: Token ids that end a response.
        """
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
    """Batch of rows that join and leave between tokens, with their keys and values in the slots of a cache.

    Args:
        layers: Number of layers of the model.
        device: Device of the model.
    """

    def __init__(self, layers: int, device: torch.device) -> None:
        self._cache, self._device = SlotCache(layers), device
        self.rows: list[Row[Key]] = []
        """Rows in the batch, in the order of their slots."""
        self._logits = torch.empty(0)
        """(B, V) logits of the next token."""

    def join(self, rows: Sequence[Row[Key]], caches: Sequence[RowCache], logits: Tensor) -> None:
        """Adds rows whose requests have been through the model.

        Args:
            rows: The n new rows, at least one.
            caches: Keys and values of their requests.
            logits: (n, V) logits of their first new tokens.
        """
        self._cache.add(caches, [row.length for row in rows], max((row.cached for row in self.rows), default=0))
        for row in rows:
            row.cached = row.length
        self._logits = torch.cat([self._logits, logits]) if self.rows else logits
        self.rows += rows

    def choose(self, ends: frozenset[int]) -> list[Row[Key]]:
        """Chooses the next token of every row; returns the rows that it finished, which stay in the batch.

        Args:
            ends: Token ids that end a response.
        """
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
        """Removes a finished row from the batch.

        Returns:
            The row's token ids in the cache, (T,) int32, and their keys and values. The last sampled token is not among
            them, since it has not been through the model.
        """
        slot, last = self.rows.index(row), self.rows.pop()
        cache = self._cache.row(slot, row.cached)
        self._cache.remove(slot, last.cached)
        if last is not row:
            self.rows[slot] = last
        return np.concatenate([row.request.ids, np.array(row.ids[:-1], np.int32)]), cache

    def forward(self, run: Forward) -> None:
        """Runs the model on the tokens chosen last, which gives the logits of the next ones."""
        width = max(row.cached for row in self.rows)
        self._cache.trim(width)
        tokens = torch.tensor([row.ids[-1] for row in self.rows], device=self._device)[:, None]
        lengths = torch.tensor([row.cached for row in self.rows], device=self._device)[:, None]
        mask = torch.arange(width + 1, device=self._device) >= width - lengths
        self._logits = run(tokens, mask, lengths, self._cache)
        for row in self.rows:
            row.cached += 1
