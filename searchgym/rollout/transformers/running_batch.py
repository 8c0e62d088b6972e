"""Running batch of the transformers sampler: rows that get one token each per step, and the choice of tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from searchgym.rollout.sampler import Finish, Sampled, SampleRequest
from searchgym.rollout.samplers.transformers import most_tokens
from searchgym.rollout.transformers.kv_cache import RowCache, SlotCache

Key = TypeVar("Key")
Forward = Callable[[Tensor, Tensor, Tensor, SlotCache], Tensor]
"""Function that runs a model on new ids (B, n), given the mask of visible columns (B, W + n), positions (B, n) and a
cache of W columns; it returns the logits of the last position (B, V)."""


@dataclass(slots=True, eq=False)
class RunningRow(Generic[Key]):
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
    """Version of the weights."""
    cached: int = 0
    """Number of the row's tokens in the batch's cache."""
    ids: list[int] = field(default_factory=list)
    """Token ids sampled so far."""
    logp: list[float] = field(default_factory=list)
    """Natural-log probabilities of the sampled tokens."""
    finish: Finish | None = None
    """Reason why the response ended; None while it is running."""

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
        self.rows: list[RunningRow[Key]] = []
        """Rows in the batch, in the order of their slots."""
        self._logits = torch.empty(0)
        """(B, V) logits of the next token."""

    def join(self, rows: Sequence[RunningRow[Key]], caches: Sequence[RowCache], logits: Tensor) -> None:
        """Adds rows whose requests were processed by the model.

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

    def choose(self, ends: frozenset[int]) -> list[RunningRow[Key]]:
        """Chooses the next token of every row; returns the finished rows, which stay in the batch.

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

    def leave(self, row: RunningRow[Key]) -> tuple[npt.NDArray[np.int32], RowCache]:
        """Removes a finished row from the batch.

        Returns:
            The row's token ids in the cache, (T,) int32, and their keys and values. The last sampled token is not
            included, because the model has not processed it.
        """
        slot, last = self.rows.index(row), self.rows.pop()
        cache = self._cache.row(slot, row.cached)
        self._cache.remove(slot, last.cached)
        if last is not row:
            self.rows[slot] = last
        return np.concatenate([row.request.ids, np.array(row.ids[:-1], np.int32)]), cache

    def forward(self, run: Forward) -> None:
        """Runs the model on the last chosen tokens, which computes the logits of the next ones."""
        width = max(row.cached for row in self.rows)
        self._cache.trim(width)
        tokens = torch.tensor([row.ids[-1] for row in self.rows], device=self._device)[:, None]
        lengths = torch.tensor([row.cached for row in self.rows], device=self._device)[:, None]
        mask = torch.arange(width + 1, device=self._device) >= width - lengths
        self._logits = run(tokens, mask, lengths, self._cache)
        for row in self.rows:
            row.cached += 1


# -- the choice of a token -------------------------------------------------------------------------------------------


def choose(logits: Tensor, temperature: Tensor, top_p: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Chooses one token per row by inverting the cumulative distribution at a random number.

    Args:
        logits: (B, V) logits of any float type, converted to float32.
        temperature: (B,) float32 temperatures; 0 chooses the most likely token.
        top_p: (B,) float32 probability masses of nucleus sampling, in (0, 1].
        noise: (B,) float64 random numbers in [0, 1).

    Returns:
        Tokens, (B,) int64, and their natural-log probabilities, (B,) float32 (see `Sampled.logp`).
    """
    logits = logits.float()
    greedy = temperature == 0
    logp = torch.log_softmax(logits / torch.where(greedy, 1.0, temperature)[:, None], -1)
    if bool((top_p < 1).any()):
        logp = _nucleus(logp, torch.where(greedy, 1.0, top_p))
    total = logp.double().exp().cumsum(-1)
    # The noise is at most 1 - 2**-53, so its product with the total never rounds up to the total: a token of
    # probability 0 is never chosen.
    sampled = torch.searchsorted(total, noise[:, None] * total[:, -1:], right=True)[:, 0]
    # The clamp matters only for logits that are not finite; their log-probability then reveals them.
    tokens = torch.where(greedy, logits.argmax(-1), sampled.clamp(max=logits.shape[-1] - 1))
    return tokens, logp.gather(-1, tokens[:, None])[:, 0]


def _nucleus(logp: Tensor, top_p: Tensor) -> Tensor:
    """Restricts distributions to their nucleus and renormalises them.

    Args:
        logp: (B, V) float32 natural-log probabilities.
        top_p: (B,) float32 probability masses; rows with 1 stay unchanged.

    Returns:
        (B, V) float32 natural-log probabilities, -inf outside the nucleus.
    """
    ordered, order = logp.sort(dim=-1, descending=True, stable=True)
    p = ordered.double().exp()
    before = p.cumsum(-1) - p
    out = torch.zeros_like(logp, dtype=torch.bool).scatter(-1, order, before >= top_p[:, None])
    cut = logp.masked_fill(out, float("-inf"))
    return torch.where((top_p < 1)[:, None], cut - cut.logsumexp(-1, keepdim=True), logp)


def uniforms(seed: int, count: int) -> npt.NDArray[np.float64]:
    """Returns uniform random numbers, one per position of a response, from which its tokens are chosen.

    Number i depends only on the seed and i, not on `count`.

    Args:
        seed: Seed of the request, at least 0.
        count: Number of positions.

    Returns:
        (count,) float64 in [0, 1).
    """
    return np.random.default_rng(seed).random(count)


class StopMatcher:
    """Detects, token by token, when the text of a response contains a stop string.

    Only the last tokens are decoded, and only if the newest one can complete a stop string: if its text contains a stop
    string's last character, or an incomplete character.

    Args:
        decode: Function from token ids to text, special tokens included.
        stop: Stop strings; if empty, nothing ever matches.
    """

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str]) -> None:
        self._decode, self._stop = decode, tuple(stop)
        # A token has at least one byte, so a stop string spans at most as many tokens as it has bytes. One more,
        # because some tokenizers drop a blank in front of the first token that they decode.
        self._window = 1 + max((len(text.encode("utf-8", "surrogatepass")) for text in stop), default=0)
        self._last = {text[-1] for text in stop} | {"\N{REPLACEMENT CHARACTER}"}
        self._always = any(text[-1].isspace() for text in stop)
        self._may_complete: dict[int, bool] = {}

    def complete(self, ids: Sequence[int]) -> bool:
        """Returns True if the response, which had no stop string before its last token, has one now.

        Args:
            ids: Token ids of the response so far, at least one.
        """
        if not self._stop:
            return False
        if (may := self._may_complete.get(token := ids[-1])) is None:
            text = self._decode([token])
            may = self._may_complete[token] = self._always or any(char in text for char in self._last)
        if not may:
            return False
        tail = self._decode(list(ids[-self._window :]))
        return any(text in tail for text in self._stop)


# -- memory ---------------------------------------------------------------------------------------------------------


def affordable_tokens(model: PreTrainedModel) -> int:
    """Returns the number of tokens whose keys and values fit into a share of the device's memory; see `most_tokens`.

    It is a share of the total, not the free memory: the size of batches must not depend on other programs.
    """
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    per_token = 2 * config.num_hidden_layers * heads * width * model.dtype.itemsize
    return most_tokens(int(per_token), device_memory(model.device), on_gpu=model.device.type == "cuda")


def device_memory(device: torch.device) -> int:
    """Returns the bytes of memory of a device; for the CPU, the machine's memory or the control group's limit."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="ascii").strip() if limit.is_file() else ""
    return min(whole, int(text)) if text.isdigit() else whole
