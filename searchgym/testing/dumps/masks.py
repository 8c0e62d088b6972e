"""Checks of the loss mask: what is trained that the model did not write, and what it wrote that is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from searchgym.testing.dumps.finding import Report, listed
from searchgym.testing.dumps.sample import DumpedSample, Ints
from searchgym.testing.dumps.vocabulary import Vocabulary, text_of

ZEROS: Final = 16
"""Number of consecutive log-probs of exactly 0 from which a stretch counts as not sampled."""


def check_masks(
    samples: Sequence[DumpedSample], words: Vocabulary | None, stops: Sequence[str], report: Report
) -> None:
    """Checks the loss masks of all samples.

    Args:
        samples: The samples.
        words: The tokenizer; None if there is none.
        stops: Texts at which the sampler stopped, after which the environment may add an end token.
        report: Receives the findings.
    """
    trained = sum(int(sample.mask.sum()) for sample in samples)
    report.checked["masks"] = f"{len(samples)} samples, {trained} trained of {sum(len(s.ids) for s in samples)} tokens"
    for sample in samples:
        for sentence in sample.wrong_lengths:
            report.add("lengths-differ", sample.name, sentence)
        _padding(sample, words, report)
        if not sample.mask.any():
            if not sample.truncated:
                report.add("nothing-trained", sample.name, f"none of {len(sample.ids)} tokens has weight")
            continue
        _shift(sample, words, report)
        if not report.has(sample.name, "mask-shifted"):
            _prompt(sample, words, report)
            _observations(sample, words, report)
            _edges(sample, words, stops, report)
    turns = [name for sample in samples for name in [sample.name] * _unweighted(sample)]
    if turns:
        report.checked["sampled turns without weight"] = f"{len(turns)}, the first in {turns[0]}: is this meant?"
    if words is None:
        report.unchecked["end tokens, marks of observations"] = "name a tokenizer by --tokenizer or --model"
    if not any(sample.sampler for sample in samples):
        report.unchecked["sampled tokens against the mask"] = "the dump has no log-probs of the sampler"


def _unweighted(sample: DumpedSample) -> int:
    """Returns the number of stretches that the sampler wrote and that have no weight and no neighbour with weight."""
    wrote = _wrote(sample)
    if wrote is None or sample.truncated:
        return 0
    edges = np.flatnonzero(np.diff(np.concatenate([[0], (wrote & ~sample.mask).astype(np.int8), [0]])))
    beside = np.concatenate([[False], sample.mask, [False]])
    return sum(not beside[a] and not beside[b + 1] for a, b in edges.reshape(-1, 2) if b - a >= 3)


def _padding(sample: DumpedSample, words: Vocabulary | None, report: Report) -> None:
    """Checks that no padding has weight, whether the attention mask leaves it out or not."""
    if sample.padding_trained:
        report.add("padding-trained", sample.name, f"{sample.padding_trained} tokens of padding have weight")
    if words is None or words.tokenizer.pad_token_id in (None, *words.end_ids):
        return
    pad = words.tokenizer.pad_token_id
    tokens = np.flatnonzero(sample.mask & (sample.ids == pad))
    if len(tokens):
        report.add("padding-trained", sample.name, f"padding, id {pad}, has weight at {listed(tokens)}", tokens)


def _wrote(sample: DumpedSample) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
    """Returns True for tokens whose log-prob by the sampler is not 0; None if all or none of them are such."""
    logp = sample.sampled_logp
    if logp is None:
        return None
    wrote = np.isfinite(logp) & (logp != 0)
    return wrote if wrote.any() and np.isfinite(logp).sum() > wrote.sum() else None


def _shift(sample: DumpedSample, words: Vocabulary | None, report: Report) -> None:
    """Checks that turns begin and end where the sampler's log-probs or the chat template say."""
    wrote, spans, length = _wrote(sample), sample.spans, len(sample.ids)
    reply = list(words.reply) if words is not None else []
    opened = bool(reply) and any(sample.ids[max(a - len(reply), 0) : a].tolist() == reply for a, _ in spans)
    if wrote is not None:
        for offset in (-1, 1):
            moved = np.roll(sample.mask, -offset)  # the mask, were it not shifted
            outside = [b if offset < 0 else a - 1 for a, b in spans]
            edges = [a if offset < 0 else b - 1 for a, b in spans if offset < 0 or b < length]
            moved[-1] |= offset > 0  # rolled in from the beginning
            inside = any(0 <= n < length and wrote[n] for n in outside)
            if inside and edges and not opened and not wrote[edges].any() and not (wrote & ~moved).any():
                side = "after" if offset < 0 else "before"
                detail = f"the sampler's log-probs begin {side} each trained stretch does"
                report.add("mask-shifted", sample.name, detail, edges)
                return
    if words is None or not reply:
        return
    early = [a for a, _ in spans if sample.ids[max(a - len(reply) + 1, 0) : a + 1].tolist() == reply]
    cut = [b for _, b in spans if b < length and int(sample.ids[b]) in words.end_ids]
    late = [a for a, _ in spans if a and sample.ids[max(a - 1 - len(reply), 0) : a - 1].tolist() == reply]
    beyond = [b - 1 for _, b in spans if b >= 2 and int(sample.ids[b - 2]) in words.end_ids]
    for where, ends, side in ((early, cut, "early"), (late, beyond, "late")):
        if where and (ends or side == "early" or len(where) > 1):
            text = text_of(words, sample.ids[where[:1]])
            report.add("mask-shifted", sample.name, f"begins one token too {side}, at {listed(where)}{text}", where)
            return


def _prompt(sample: DumpedSample, words: Vocabulary | None, report: Report) -> None:
    """Checks that no token of the prompt has weight."""
    tokens = np.flatnonzero(sample.mask[: sample.prompt])
    if not sample.prompt and words is not None and words.reply:
        reply, ids = list(words.reply), sample.ids.tolist()
        ends = [n + len(reply) for n in range(len(ids)) if ids[n : n + len(reply)] == reply]
        tokens = np.flatnonzero(sample.mask[: ends[0]]) if ends else tokens
    if not len(tokens):
        run = [run for run in _zero_runs(sample) if run[0] == 0 or not sample.mask[: run[0]].any()]
        tokens = np.arange(*run[0]) if run else tokens
    if len(tokens):
        text = text_of(words, sample.ids[tokens])
        report.add("prompt-trained", sample.name, f"{len(tokens)} tokens of the prompt, {listed(tokens)}{text}", tokens)


def _zero_runs(sample: DumpedSample) -> list[tuple[int, int]]:
    """Returns the ranges of `ZEROS` or more trained tokens that the sampler gave a log-prob of exactly 0."""
    logp = sample.sampled_logp
    if logp is None or _wrote(sample) is None:
        return []
    edges = np.flatnonzero(np.diff(np.concatenate([[0], (sample.mask & (logp == 0)).astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2) if b - a >= ZEROS]


def _observations(sample: DumpedSample, words: Vocabulary | None, report: Report) -> None:
    """Checks that no text of the environment has weight, by marks and by log-probs of 0."""
    wrote = _wrote(sample)
    first = max(sample.prompt, len(sample.prompt_ids))
    for start, end, mark in words.observations(sample.ids) if words is not None else ():
        tokens = start + np.flatnonzero(sample.mask[start:end])
        tokens = tokens[tokens >= first]
        by_model = wrote is not None and len(tokens) > 0 and wrote[tokens].mean() > 0.5
        if len(tokens) and not by_model:
            text = text_of(words, sample.ids[tokens])
            detail = f"{len(tokens)} tokens after {mark!r}, {listed(tokens)}{text}"
            before = start < sample.prompt or not sample.mask[:start].any()
            report.add("prompt-trained" if before else "observation-trained", sample.name, detail, tokens)
    for start, end in _zero_runs(sample):
        if not report.has(sample.name, "prompt-trained", "observation-trained"):
            text = text_of(words, sample.ids[start:end])
            detail = f"the sampler's log-probs of {listed(range(start, end))} are exactly 0{text}"
            report.add("observation-trained", sample.name, detail, range(start, end))


def _edges(sample: DumpedSample, words: Vocabulary | None, stops: Sequence[str], report: Report) -> None:
    """Checks that the tokens before and after each trained stretch were not sampled."""
    wrote = _wrote(sample)
    if sample.finished and words is not None and sample.mask[-1] and int(sample.ids[-1]) not in words.end_ids:
        text = words.decode(sample.ids[-8:]).rstrip()
        if not text.endswith(tuple(stops)):
            report.add("end-missing", sample.name, f"ends with {text!r}", [len(sample.ids) - 1])
    for start, end in sample.spans:
        if end < len(sample.ids) and words is not None and int(sample.ids[end]) in words.end_ids:
            sampled = wrote is not None and bool(wrote[end])
            stopped = words.decode(sample.ids[start:end]).rstrip().endswith(tuple(stops))
            if sampled or not stopped:
                detail = f"token {end}{text_of(words, sample.ids[end : end + 1])} has no weight"
                report.add("end-untrained", sample.name, detail, [end])
                continue
        beside = [n for n in (start - 1, end) if wrote is not None and 0 <= n < len(sample.ids) and wrote[n]]
        if beside:
            last = words is None and beside == [end] and _last_sampled(sample, wrote) == end
            detail = f"token {listed(beside)}{text_of(words, sample.ids[beside])} was sampled and has no weight"
            report.add("end-untrained" if last else "sampled-untrained", sample.name, detail, beside)


def _last_sampled(sample: DumpedSample, wrote: Ints | np.ndarray[tuple[int], np.dtype[np.bool_]] | None) -> int:
    """Returns the position of the last sampled token, -1 if there is none."""
    positions = np.flatnonzero(wrote) if wrote is not None else np.zeros(0, int)
    return int(positions[-1]) if len(positions) else -1
