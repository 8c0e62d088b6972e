"""What a check of a dump says: the faults, and what was looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Positions = Sequence[int] | npt.NDArray[np.integer[Any]]
"""Positions of tokens."""

CAUSES: Final[dict[str, str]] = {
    "prompt-trained": "the loss mask begins before the response: build it from the prompt's length",
    "observation-trained": "the mask covers text that the environment returned: mask each tool result with 0",
    "padding-trained": "the loss mask is not multiplied by the attention mask",
    "mask-shifted": "the mask and the ids are shifted by one: a mask of targets was used for inputs, or reversed",
    "end-untrained": "the end token that the model sampled is masked, so the model does not learn to stop",
    "end-missing": "the response is said to be complete, and was cut: its reward and its end belong to other tokens",
    "sampled-untrained": "tokens that the model sampled at the edge of a turn have no weight",
    "nothing-trained": "no token has weight: the sample was filtered, or its mask was lost",
    "lengths-differ": "ids, mask and numbers were cut or joined separately: cut them together",
    "bos-doubled": "text that begins with the BOS token was encoded with add_special_tokens=True",
    "eos-doubled": "an end token was appended to a response that had one, or padding counts as attended",
    "not-finite": "a number is NaN or infinite: see the sampler's log-probs and the reward function",
    "advantage-mismatch": "the advantages do not follow from the rewards: other groups, estimator or rewards",
    "advantage-varies": "the estimator gives one number for each sequence, and the tokens have several",
    "advantage-order": "the advantages are those of other rows: batch and advantages were ordered differently",
    "reward-misplaced": "the reward is not on the last token of a turn: its index counts padding, or a prompt token",
    "group-mixed": "rows of different prompts share a group: the batch was reordered, or ids are not unique",
    "sample-twice": "the same response twice in a group: batches were filled by copies, or attempts share a seed",
    "group-of-one": "nothing to compare: attempts were filtered, or the group id is new for each attempt",
    "positions-wrong": "position ids do not count the attended tokens from 0: compute them from the attention mask",
    "logp-positive": "log-probs are at most 0: probabilities or another quantity were stored",
    "logp-missing": "the log-probs of all trained tokens are 0: the sampler was not asked for them",
    "logp-gap": "sampler and trainer disagree: stale weights, an adapter not delivered, or another precision",
    "logp-adapter": "the log-probs are the base model's: the adapter did not reach the sampler or the trainer",
    "logp-adapter-part": "only a part of the adapter's change is in the log-probs: an older adapter, or another scale",
    "logp-temperature": "the log-probs belong to another temperature: divide the logits by the sampling temperature",
    "logp-shifted": "the log-probs belong to the neighbouring token: logits at t predict the token at t + 1",
    "logp-padding": "the log-probs were computed with the padding attended to: pass the attention mask",
    "logp-model": "no other temperature, shift or padding explains the log-probs: other weights, or other token ids",
    "retokenised": "the turn was decoded and encoded again: train on the ids that the sampler returned",
}
"""Likely cause, with what to do, by kind of finding."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault in one sample."""

    kind: str
    """Key of `CAUSES`."""
    sample: str
    """Location of the sample in the dump."""
    tokens: tuple[int, ...]
    """Positions of the tokens, counted without padding; empty if the whole sample is meant."""
    detail: str
    """Measured values, with the tokens' text if a tokenizer is present."""

    @property
    def cause(self) -> str:
        """The likely cause, and what to do."""
        return CAUSES[self.kind]


@dataclass(slots=True)
class Report:
    """Findings of all checks, what was checked, and what could not be."""

    findings: list[Finding] = field(default_factory=list)
    """Findings, in the order of the checks."""
    checked: dict[str, str] = field(default_factory=dict)
    """Name of a checked part to what was looked at."""
    unchecked: dict[str, str] = field(default_factory=dict)
    """Name of a part that was not checked to the reason."""

    def add(self, kind: str, sample: str, detail: str, tokens: Positions = ()) -> None:
        """Adds a finding, unless the sample has one of this kind."""
        assert kind in CAUSES, kind
        if not any(each.kind == kind and each.sample == sample for each in self.findings):
            self.findings.append(Finding(kind, sample, tuple(map(int, tokens)), detail))

    def has(self, sample: str, *kinds: str) -> bool:
        """Returns whether a sample has a finding of one of these kinds."""
        return any(each.sample == sample and each.kind in kinds for each in self.findings)


def listed(positions: Positions) -> str:
    """Returns positions as text, consecutive ones as a range: ``4-9``, or ``4, 7 and 3 more``."""
    numbers = [int(each) for each in positions]
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    more = f" and {len(numbers) - 3} more" if len(numbers) > 3 else ""
    return ", ".join(map(str, numbers[:3])) + more
