"""Runs all checks of a dump."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from searchgym.errors import DataError, UsageError
from searchgym.options import find_kind
from searchgym.testing.dumps.advantages import (
    check_advantages,
    check_groups,
    check_repeats,
    check_rewards,
    estimator_name,
)
from searchgym.testing.dumps.files import read_batches
from searchgym.testing.dumps.finding import Report
from searchgym.testing.dumps.form import DumpFormat
from searchgym.testing.dumps.logps import check_against_model, check_logps
from searchgym.testing.dumps.masks import check_masks
from searchgym.testing.dumps.sample import DumpedSample
from searchgym.testing.dumps.tokens import check_tokens
from searchgym.testing.dumps.vocabulary import Vocabulary, vocabulary

STOPS: Final = ("</search>", "</answer>")
"""Texts at which samplers of search agents stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What the user says of a dump, and what it is compared with."""

    estimator: str | None = None
    """Estimator of the advantages."""
    model: str | None = None
    """Folder or name of the model that sampled."""
    adapter: str | None = None
    """Folder of the adapter that sampled with it."""
    tokenizer: str | None = None
    """Folder or name of a model whose tokenizer is used. Default: `model`."""
    temperature: float | None = None
    """Sampling temperature. Default: the dump's, else 1."""
    stops: Sequence[str] = STOPS
    """Texts at which the sampler stopped."""
    samples: int = 32
    """Maximum number of samples whose log-probs are compared with the model's."""


def check_dump(path: Path, format_name: str, claims: Claims = Claims()) -> Report:
    """Checks a dump; the file is read before any model is loaded.

    Args:
        path: The file.
        format_name: Name of a format, or ``module:Class``.
        claims: What the user says of the dump.

    Raises:
        UnknownNameError: The format or the estimator is unknown.
        UsageError: An adapter is named without its model, or the temperature is not positive.
        DataError: The file cannot be read as this format.
    """
    form = find_kind(DumpFormat, format_name)()
    estimator = None if claims.estimator is None else estimator_name(claims.estimator, dict(form.estimators))
    if claims.adapter is not None and claims.model is None:
        raise UsageError("--adapter needs --model, the model that it belongs to")
    if claims.temperature is not None and not claims.temperature > 0:
        raise UsageError(f"--temperature {claims.temperature:g}: log-probs are compared at temperatures above 0")
    samples, unread, report = list[DumpedSample](), dict[str, None](), Report()
    for batch in read_batches(path):
        samples += form.samples(batch)
        unread |= dict.fromkeys(form.unread(batch))
    if not samples:
        raise DataError("the file has no samples", path)
    samples = [dataclasses.replace(s, reward=_total(s)) if s.reward is None else s for s in samples]
    folder = claims.tokenizer or claims.model
    words = None if folder is None else vocabulary(folder)
    check_masks(samples, words, claims.stops, report)
    check_tokens(samples, words, report)
    check_groups(samples, report)
    check_rewards(samples, report)
    check_advantages(samples, estimator, form.epsilon, report)
    check_logps(samples, words, report)
    _check_model(samples, claims, words, report)
    check_repeats(samples, report)
    if unread:
        report.unchecked["other fields"] = ", ".join(unread)
    return report


def _total(sample: DumpedSample) -> float | None:
    """Returns the sum of a sample's token rewards; None if it has none."""
    return None if sample.token_reward is None else float(sample.token_reward.sum())


def _check_model(samples: Sequence[DumpedSample], claims: Claims, words: Vocabulary | None, report: Report) -> None:
    """Compares the log-probs of the first samples with the model's, if there are any and a model is named."""
    rows = [sample for sample in samples if sample.logps and sample.mask.any()][: claims.samples]
    if claims.model is None or words is None or not rows:
        if rows:
            report.unchecked["log-probs against a model"] = "name it by --model, and its adapter by --adapter"
        return
    from searchgym.testing.dumps.model_logps import model_logps

    stated = next((sample.temperature for sample in rows if sample.temperature), None)
    temperature = claims.temperature or stated or 1.0
    logps = model_logps(rows, claims.model, claims.adapter, temperature)
    check_against_model(rows, logps, temperature, words, report)
    if len(rows) < len(samples):
        report.unchecked["log-probs of the other samples"] = f"compared for {len(rows)} of {len(samples)}: --samples"
