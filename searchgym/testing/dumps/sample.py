"""One sequence of another trainer's batch, in a form that all formats share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
PER_TOKEN: Final = ("advantage", "token_reward", "positions")
"""Fields of `DumpedSample` with one number for each token, beside log-probs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DumpedSample:
    """One sequence of T tokens, without padding; a number that the dump lacks is NaN."""

    name: str
    """Location in the dump, such as ``batch 1, row 3``."""
    ids: Ints
    """(T,) int64 token ids."""
    mask: Bools
    """(T,) bool: True for tokens that the loss weighs."""
    prompt: int = 0
    """Number of tokens at the start that the dump calls the prompt; 0 if its format does not tell."""
    logps: Mapping[str, Floats] = field(default_factory=dict)
    """Natural-log probabilities by the name of the dump's field; each (T,) float64."""
    sampler: str | None = None
    """Field of `logps` that the sampler wrote, with 0 at tokens that it did not sample; None: the dump has none."""
    advantage: Floats | None = None
    """(T,) float64 advantages."""
    reward: float | None = None
    """Reward of the sequence, from which its advantage is computed."""
    token_reward: Floats | None = None
    """(T,) float64 rewards of single tokens."""
    padding_reward: float = 0.0
    """Sum of rewards at padding."""
    group: str | None = None
    """Key of the group of sequences that are compared; None: the dump has none."""
    temperature: float | None = None
    """Sampling temperature that the dump states."""
    positions: Ints | None = None
    """(T,) int64 position ids."""
    sampled: Ints | None = None
    """(n,) int64 ids that the sampler returned, for comparison with the trained ones."""
    truncated: bool = False
    """True if the dump marks the sequence as cut off, so that it may have no weight."""
    finished: bool = False
    """True if the dump says that the response is complete."""
    left_padding: int = 0
    """Number of padding tokens before the sequence."""
    pad_id: int | None = None
    """Token id of the padding; None without padding."""
    padding_trained: int = 0
    """Number of padding tokens that the loss weighs."""
    wrong_lengths: tuple[str, ...] = ()
    """A sentence for each field whose length is not that of the ids."""

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Ranges of consecutive trained tokens, as (start, end)."""
        edges = np.flatnonzero(np.diff(np.concatenate([[False], self.mask, [False]]).astype(np.int8)))
        return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]

    @property
    def prompt_ids(self) -> Ints:
        """Ids of the prompt: as the dump says, else all before the first trained token."""
        trained = np.flatnonzero(self.mask)
        return self.ids[: self.prompt or (int(trained[0]) if len(trained) else len(self.ids))]

    @property
    def sampled_logp(self) -> Floats | None:
        """Log-probs that the sampler wrote, (T,) float64; None if there are none."""
        return None if self.sampler is None else self.logps.get(self.sampler)


def dumped_sample(
    name: str,
    ids: Any,
    mask: Any,
    *,
    attended: Any = None,
    logps: Mapping[str, Any] | None = None,
    sampled: Any = None,
    **fields: Any,
) -> DumpedSample:
    """Returns a sample from one row of a batch: aligns lengths and removes padding.

    Args:
        name: Location of the row.
        ids: Token ids.
        mask: Weights of the tokens in the loss.
        attended: Attention mask. Default: no padding.
        logps: Log-probs by field; None values are left out.
        sampled: Ids that the sampler returned.
        **fields: Other fields of `DumpedSample`; an advantage may be one number.
    """
    row, wrong = np.asarray(ids, np.int64).reshape(-1), list[str]()

    def aligned(field_name: str, values: Any, missing: float) -> Floats:
        numbers = numbers_of(values)
        if len(numbers) != len(row):
            wrong.append(f"{field_name} has {len(numbers)} numbers for {len(row)} tokens")
        numbers = numbers[: len(row)]
        return np.concatenate([numbers, np.full(len(row) - len(numbers), missing)])

    weights = aligned("the mask", mask, 0) != 0
    inside = np.ones(len(row), bool) if attended is None else aligned("the attention mask", attended, 0) != 0
    if fields.get("advantage") is not None and np.ndim(fields["advantage"]) == 0:
        fields["advantage"] = np.where(weights, float(fields["advantage"]), np.nan)
    per_token = {key: aligned(key, fields.pop(key), np.nan) for key in PER_TOKEN if fields.get(key) is not None}
    padding_reward = float(per_token["token_reward"][~inside].sum()) if "token_reward" in per_token else 0.0
    rows = {key: aligned(key, values, np.nan)[inside] for key, values in (logps or {}).items() if values is not None}
    positions = np.flatnonzero(inside)
    first = int(positions[0]) if len(positions) else 0
    kept_rows: dict[str, Any] = {key: values[inside] for key, values in per_token.items()}
    if "positions" in kept_rows:
        kept_rows["positions"] = np.nan_to_num(kept_rows["positions"], nan=-1).astype(np.int64)
    fields["prompt"] = int(inside[: fields.get("prompt", 0)].sum())
    return DumpedSample(
        name=name,
        ids=row[inside],
        mask=weights[inside],
        logps=rows,
        sampled=None if sampled is None else np.asarray(sampled, np.int64),
        left_padding=first,
        pad_id=int(row[~inside][0]) if not inside.all() else None,
        padding_trained=int((weights & ~inside).sum()),
        padding_reward=padding_reward,
        wrong_lengths=tuple(wrong),
        **{**fields, **kept_rows},
    )


def numbers_of(values: Any) -> Floats:
    """Returns a list or an array as float64 numbers, (n,); None becomes NaN."""
    if isinstance(values, list):
        values = [np.nan if value is None else value for value in values]
    return np.asarray(values, np.float64).reshape(-1)
