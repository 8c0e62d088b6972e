"""Rows that are sampled together, one token of each at a time. Used by `transformers_sampler` alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from searchgym.rollout.choice import choose
from searchgym.rollout.kv_cache import RowCache, SlotCache
from searchgym.rollout.sampler import Finish, Sampled, SampleRequest, StopMatcher

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
        return Sampled(np.array(self.ids, np.int32), np.array(self.logp, np.float32), self.finish)


class RunningBatch(Generic[Key]):
    """Slots of a cache with a row in each, or none; rows come and go between tokens.

    A slot that was left goes on computing, to no effect, until a row takes it or half of the slots are empty: moving
    the others together copies all keys and values.

    Args:
        layers: Layers of the model.
        device: Of the model.
    """

    def __init__(self, layers: int, device: torch.device) -> None:
        self._cache, self._device = SlotCache(layers), device
        self._slots: list[Row[Key] | None] = []
        self._logits = torch.empty(0)
        """(B, V), of the token to be chosen next."""
        self._tokens = torch.empty(0, dtype=torch.int64)
        """(B,), chosen last."""

    @property
    def rows(self) -> list[Row[Key]]:
        """Rows that are not finished."""
        return [row for row in self._slots if row is not None]

    def join(self, rows: Sequence[Row[Key]], caches: Sequence[RowCache], logits: Tensor) -> None:
        """Adds rows.

        Args:
            rows: At least one.
            caches: Keys and values of their requests.
            logits: (n, V) of their first tokens.
        """
        for row in rows:
            row.cached = row.length
        free = [slot for slot, row in enumerate(self._slots) if row is None]
        if len(free) < len(rows) or self._cache.end < max(row.length for row in rows):
            self._move(rows, caches, logits)
            return
        for slot, row, cache, own in zip(free, rows, caches, logits, strict=False):
            self._slots[slot] = row
            self._cache.place(slot, cache, row.length)
            self._logits[slot] = own

    def choose(self, ends: frozenset[int]) -> list[Row[Key]]:
        """Gives every row its next token and returns those that it finished, still in the batch."""
        rows = self._slots
        noise = [row.noise[len(row.ids)] if row else 0.0 for row in rows]
        temperature = [row.request.sampling.temperature if row else 0.0 for row in rows]
        top_p = [row.request.sampling.top_p if row else 1.0 for row in rows]
        tokens, logp = choose(
            self._logits,
            torch.tensor(temperature, device=self._device),
            torch.tensor(top_p, device=self._device),
            torch.tensor(noise, dtype=torch.float64, device=self._device),
        )
        self._tokens = tokens
        for row, token, value in zip(rows, tokens.tolist(), logp.tolist(), strict=True):
            if row is not None:
                row.add(token, value, ends)
        return [row for row in self.rows if row.finish is not None]

    def leave(self, row: Row[Key]) -> tuple[npt.NDArray[np.int32], RowCache]:
        """Takes a finished row out; returns what the cache holds of it: (ids (T,) int32; keys and values).

        The last token has not been through the model.
        """
        slot = self._slots.index(row)
        self._slots[slot] = None
        ids = np.concatenate([row.request.ids, np.array(row.ids[:-1], np.int32)])
        return ids, self._cache.row(slot, row.cached)

    def forward(self, run: Forward) -> None:
        """Reads the tokens that were chosen."""
        tokens = self._tokens
        active = [slot for slot, row in enumerate(self._slots) if row is not None]
        if 2 * len(active) <= len(self._slots):
            tokens = tokens[torch.tensor(active, device=self._device)]
            self._move((), (), self._logits[:0])
        # an empty slot sees its new token alone, at position 0
        cached = [row.cached if row else 0 for row in self._slots]
        width = max(cached)
        self._cache.trim(width)
        lengths = torch.tensor(cached, device=self._device)[:, None]
        mask = torch.arange(width + 1, device=self._device) >= width - lengths
        self._logits = run(tokens[:, None], mask, lengths, self._cache)
        for row in self.rows:
            row.cached += 1

    def _move(self, rows: Sequence[Row[Key]], caches: Sequence[RowCache], logits: Tensor) -> None:
        """Moves the rows that there are together, and new ones behind them."""
        kept = [slot for slot, row in enumerate(self._slots) if row is not None]
        own = self.rows
        self._cache.arrange([*kept, *caches], [row.cached for row in (*own, *rows)])
        self._slots = [*own, *rows]
        index = torch.tensor(kept, dtype=torch.int64, device=self._device)
        self._logits = torch.cat([self._logits[index], logits]) if kept else logits
