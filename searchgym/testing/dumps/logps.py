"""Checks of log-probs: by themselves, against each other, and against a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from searchgym.testing.dumps.finding import Report, listed
from searchgym.testing.dumps.sample import Bools, DumpedSample, Floats
from searchgym.testing.dumps.vocabulary import Vocabulary, text_of

TOLERANCE: Final = 0.05
"""Maximum mean difference of log-probs from the model's, in nats: engines in bfloat16 reach 0.02."""
CLOSE: Final = 0.005
"""Mean difference up to which no other explanation is looked for, in nats."""
BETTER: Final = 4.0
"""How many times nearer an explanation must be than what the user claims."""
FAR: Final = 0.5
"""Difference of a single token, in nats, above which its log-prob belongs to another token or weights."""
GAP: Final = 0.1
"""Maximum mean difference of sampler and trainer, in nats."""


@dataclass(frozen=True, slots=True)
class ModelLogps:
    """Log-probs of one sample's tokens by a model, each (T,) float64; the first token's is NaN."""

    claimed: Floats
    """By the model and adapter that the user names, at the sampling temperature."""
    base: Floats | None
    """By the model without the adapter; None without one."""
    temperatures: Mapping[float, Floats]
    """At other temperatures."""
    padded: Floats | None
    """With the padding of the dump attended to; None without padding on the left."""


def check_logps(samples: Sequence[DumpedSample], words: Vocabulary | None, report: Report) -> None:
    """Checks log-probs without a model: signs, missing ones, and the sampler's against the trainer's."""
    fields = sorted({name for sample in samples for name in sample.logps})
    if not fields:
        report.unchecked["log-probs"] = "the dump has none"
        return
    report.checked["log-probs"] = ", ".join(fields)
    for sample in samples:
        for name, row in sample.logps.items():
            high = np.flatnonzero(sample.mask & (np.nan_to_num(row) > 1e-3))
            if len(high):
                detail = f"{name} is {row[high[0]]:.3g} at token {high[0]}{text_of(words, sample.ids[high[:1]])}"
                report.add("logp-positive", sample.name, detail, high)
    for name in fields:
        rows = [sample for sample in samples if name in sample.logps]
        if all((row.logps[name][row.mask] == 0).all() for row in rows) and any(row.mask.any() for row in rows):
            report.add("logp-missing", rows[0].name, f"{name} is 0 at every trained token of all {len(rows)} samples")
    for sample in samples:
        _against_each_other(sample, report)


def _against_each_other(sample: DumpedSample, report: Report) -> None:
    """Compares the sampler's log-probs with the trainer's."""
    logp = sample.sampled_logp
    for name, row in sample.logps.items():
        if logp is None or name == sample.sampler or report.has(sample.name, "not-finite", "logp-missing"):
            continue
        gap = _gap(row, logp, sample.mask)
        if gap is None or gap <= GAP:
            continue
        offset, near = _best_shift(row, logp, sample.mask)
        if near < gap / BETTER:
            detail = f"{name} is that of {sample.sampler} {abs(offset)} token {'later' if offset > 0 else 'earlier'}"
            report.add("logp-shifted", sample.name, f"{detail}: {near:.2g} nats apart, {gap:.2g} in place")
        else:
            report.add("logp-gap", sample.name, f"{name} and {sample.sampler} are {gap:.2g} nats apart on average")


def _gap(first: Floats, second: Floats, where: Bools) -> float | None:
    """Returns the mean difference at some tokens; None if no token has both numbers."""
    both = where & np.isfinite(first) & np.isfinite(second)
    return float(np.abs(first - second)[both].mean()) if both.any() else None


def _best_shift(row: Floats, right: Floats, mask: Bools) -> tuple[int, float]:
    """Returns the shift by one token that brings a row nearest to the right one, and the distance left."""
    gaps = []
    for offset in (-1, 1):
        inside = mask & np.roll(mask, offset) & (np.arange(len(mask)) > 0)
        inside[-1 if offset < 0 else 0] = False
        gap = _gap(row, np.roll(right, offset), inside)
        gaps.append((np.inf if gap is None else gap, offset))
    near, offset = min(gaps)
    return offset, near


def check_against_model(
    samples: Sequence[DumpedSample],
    logps: Sequence[ModelLogps],
    temperature: float,
    words: Vocabulary,
    report: Report,
) -> None:
    """Compares log-probs with those of a model, and looks for what explains those that differ.

    Args:
        samples: Samples of the dump.
        logps: Log-probs of the model, one for each sample.
        temperature: Sampling temperature that is claimed.
        words: The tokenizer, for the tokens' text.
        report: Receives the findings.
    """
    for name in sorted({name for sample in samples for name in sample.logps}):
        pairs = [(s, m) for s, m in zip(samples, logps, strict=True) if name in s.logps and s.mask.any()]
        pairs = [(s, m) for s, m in pairs if not report.has(s.name, "logp-missing", "lengths-differ")]
        gaps = [gap for s, m in pairs if (gap := _gap(s.logps[name], m.claimed, s.mask)) is not None]
        if not gaps:
            continue
        report.checked[f"{name} against the model"] = (
            f"{len(pairs)} samples, {np.mean(gaps):.2g} nats apart on average, at temperature {temperature:g}"
        )
        absent = _adapter(name, pairs, report)
        for sample, model in pairs:
            if not absent:
                _explain(name, sample, model, temperature, words, report)


def _adapter(name: str, pairs: Sequence[tuple[DumpedSample, ModelLogps]], report: Report) -> bool:
    """Measures which share of the adapter's change is in the log-probs; returns whether it is not all of it.

    The share is the slope of a line through the origin: of the dump's differences from the base model, over the
    adapter's. So an adapter is missed even where it changes less than precision does, if there are enough tokens.
    """
    changes, differences = [np.zeros(0)], [np.zeros(0)]
    for sample, model in pairs:
        if model.base is not None:
            row = sample.logps[name]
            inside = sample.mask & np.isfinite(row) & np.isfinite(model.claimed)
            changes.append((model.claimed - model.base)[inside])
            differences.append((row - model.base)[inside])
    change, difference = np.concatenate(changes), np.concatenate(differences)
    size = float((change**2).sum())
    if not len(change):
        return False
    share = float((change * difference).sum()) / max(size, 1e-30)
    error = float(np.sqrt(((difference - share * change) ** 2).mean() / max(size, 1e-30)))
    if size < 1e-12 or error > 0.15:
        moved = f"it moves them by {np.abs(change).mean():.2g} nats on average"
        report.unchecked[f"adapter in {name}"] = f"cannot be told from {len(change)} tokens: {moved}"
        return False
    report.checked[f"adapter in {name}"] = f"{100 * share:.0f} % of its change, give or take {100 * error:.0f}"
    if abs(share - 1) <= max(0.25, 3 * error):
        return False
    kind = "logp-adapter" if abs(share) < 0.25 else "logp-adapter-part"
    for sample, _ in pairs:
        report.add(kind, sample.name, f"{name} has {100 * share:.0f} % of the adapter's change (+-{100 * error:.0f} %)")
    return True


def _explain(
    name: str, sample: DumpedSample, model: ModelLogps, temperature: float, words: Vocabulary, report: Report
) -> None:
    """Compares the log-probs of one sample with the model's, and with each explanation's."""
    row, mask = sample.logps[name], sample.mask
    gap = _gap(row, model.claimed, mask)
    if gap is None or gap <= CLOSE:
        return
    explanations = [(near, "logp-temperature", f"temperature {other:g}") for other, logp in model.temperatures.items()
                    if (near := _gap(row, logp, mask)) is not None]  # fmt: skip
    if model.padded is not None and (near := _gap(row, model.padded, mask)) is not None:
        explanations.append((near, "logp-padding", "padding attended to"))
    offset, near = _best_shift(row, model.claimed, mask)
    explanations.append((near, "logp-shifted", f"one token {'later' if offset > 0 else 'earlier'}"))
    best, kind, explanation = min(explanations)
    said_gap = f"{name} is {gap:.2g} nats from the model's at temperature {temperature:g}"
    if best < gap / BETTER and best <= TOLERANCE:
        report.add(kind, sample.name, f"{said_gap}, and {best:.2g} with {explanation}")
    elif gap > TOLERANCE:
        _single_tokens(said_gap, sample, np.abs(row - model.claimed), row, words, report)


def _single_tokens(
    said_gap: str, sample: DumpedSample, off: Floats, row: Floats, words: Vocabulary, report: Report
) -> None:
    """Tells a few tokens that differ, which were not sampled or were encoded again, from another model."""
    far = np.flatnonzero(sample.mask & (np.nan_to_num(off) > FAR))
    count = int(sample.mask.sum())
    others, whole = np.delete(off, far)[np.delete(sample.mask, far)], off[sample.mask]
    if (
        not len(far)
        or len(far) == count
        or float(np.nanmean(others)) > min(CLOSE * 6, float(np.nanmean(whole)) / BETTER)
    ):
        report.add("logp-model", sample.name, said_gap)
        return
    text = text_of(words, sample.ids[far[:12]])
    if (row[far] == 0).mean() > 0.8:
        detail = f"log-probs of {listed(far)} are 0, and the model's are not{text}"
        if not report.has(sample.name, "prompt-trained", "mask-shifted"):
            report.add("observation-trained", sample.name, detail, far)
    else:
        detail = f"{said_gap}, by {len(far)} of {count} tokens, {listed(far)}{text}: others were sampled there"
        report.add("retokenised", sample.name, detail, far)
