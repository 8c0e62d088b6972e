"""Checks of the token ids: marks that stand twice, turns that were encoded again, positions and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from searchgym.testing.dumps.finding import Report, listed
from searchgym.testing.dumps.sample import DumpedSample, Ints
from searchgym.testing.dumps.vocabulary import Vocabulary, text_of

STRANGE: Final = 0.25
"""Share of a turn's tokens that the tokenizer would write otherwise, above which no sampler wrote them."""
FEWEST: Final = 8
"""Minimum length of a turn whose encoding is compared, in tokens."""
REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
"""Character that decoding puts for bytes that are no text."""


def check_tokens(samples: Sequence[DumpedSample], words: Vocabulary | None, report: Report) -> None:
    """Checks the ids of all samples; what needs a tokenizer is left out without one."""
    for sample in samples:
        _numbers(sample, report)
        if sample.sampled is not None:
            _against_sampled(sample, words, report)
        if words is not None:
            _doubled(sample, words, report)
            _encoding(sample, words, report)
    if words is None:
        report.unchecked["BOS and EOS, encoding of turns"] = "name a tokenizer by --tokenizer or --model"
    else:
        report.checked["tokens"] = "BOS, EOS and the encoding of trained turns"
    if all(sample.sampled is None for sample in samples):
        report.unchecked["trained ids against sampled ids"] = "the dump has no field sampled_ids"


def _numbers(sample: DumpedSample, report: Report) -> None:
    """Checks that numbers of trained tokens are finite, and that positions count from 0."""
    rows = {**sample.logps, "advantage": sample.advantage, "token_reward": sample.token_reward}
    for name, row in rows.items():
        bad = np.flatnonzero(sample.mask & ~np.isfinite(row)) if row is not None else np.zeros(0, np.int64)
        if len(bad) and not sample.wrong_lengths:
            report.add("not-finite", sample.name, f"{name} is not finite at {listed(bad)}", bad)
    if sample.reward is not None and not np.isfinite(sample.reward):
        report.add("not-finite", sample.name, f"reward is {sample.reward}")
    if sample.positions is not None:
        bad = np.flatnonzero(sample.positions != np.arange(len(sample.ids)))
        if len(bad):
            detail = f"position ids from {sample.positions[0]}, wrong at {listed(bad)}"
            report.add("positions-wrong", sample.name, detail, bad[:1])


def _doubled(sample: DumpedSample, words: Vocabulary, report: Report) -> None:
    """Checks that neither BOS nor an end token stands twice in a row."""
    again = np.flatnonzero(sample.ids[1:] == sample.ids[:-1]) + 1
    bos = words.tokenizer.bos_token_id
    for position in map(int, again):
        token = int(sample.ids[position])
        if token == bos and (position == 1 or token not in words.end_ids):
            report.add(
                "bos-doubled", sample.name, f"BOS (id {bos}) stands at {position - 1} and {position}", [position]
            )
        elif token in words.end_ids:
            detail = (
                f"end token {token} stands at {position - 1} and {position}{text_of(words, sample.ids[[position]])}"
            )
            report.add("eos-doubled", sample.name, detail, [position])


def _against_sampled(sample: DumpedSample, words: Vocabulary | None, report: Report) -> None:
    """Compares the trained ids with those that the sampler returned."""
    trained, sampled = sample.ids[sample.mask], np.asarray(sample.sampled)
    if len(trained) == len(sampled) and (trained == sampled).all():
        return
    common = min(len(trained), len(sampled))
    differing = np.flatnonzero(trained[:common] != sampled[:common])
    at = int(differing[0]) if len(differing) else common
    position = int(np.flatnonzero(sample.mask)[min(at, len(trained) - 1)]) if len(trained) else 0
    detail = (
        f"{len(trained)} trained and {len(sampled)} sampled ids differ first at token {position}: trained "
        f"{trained[at : at + 3].tolist()}{text_of(words, trained[at : at + 3])}, sampled "
        f"{sampled[at : at + 3].tolist()}{text_of(words, sampled[at : at + 3])}"
    )
    report.add("retokenised", sample.name, detail, [position])


def _encoding(sample: DumpedSample, words: Vocabulary, report: Report) -> None:
    """Checks each trained turn for ids that no sampler writes: split marks, replaced bytes, foreign encodings."""
    for start, end in sample.spans:
        ids = sample.ids[start:end]
        text = words.decode(ids)
        right = words.encode(text)
        logp = sample.sampled_logp
        likely = logp is not None and bool(np.nanmean(logp[start:end]) > -1) and bool((logp[start:end] != 0).any())
        if ids.tolist() == right:
            broken = _replaced(ids, words)
            if broken:
                where = [start + n for n in broken]
                detail = f"the ids at {listed(where)} spell U+FFFD, which stands for bytes that were lost in decoding"
                report.add("retokenised", sample.name, detail, where)
            continue
        split = [mark for mark in map(str, words.tokenizer.all_special_tokens) if _is_split(ids, mark, words)]
        unusual = _unusual(ids, right)
        if split:
            detail = f"{split[0]!r} in tokens {start}-{end - 1} is several tokens and not the mark itself"
            report.add("retokenised", sample.name, detail, range(start, end))
        elif len(ids) >= FEWEST and len(unusual) > STRANGE * len(ids) and not likely:
            where = [start + n for n in unusual]
            detail = (
                f"{len(unusual)} of {len(ids)} tokens, {listed(where)}, are not how the tokenizer writes their text"
            )
            report.add("retokenised", sample.name, detail, where)


def _replaced(ids: Ints, words: Vocabulary) -> list[int]:
    """Returns positions of ids that spell the replacement character itself, as no incomplete byte does."""
    spelt = words.encode(REPLACEMENT)
    row = ids.tolist()
    return [n for n in range(len(row)) if spelt and row[n : n + len(spelt)] == spelt]


def _is_split(ids: Ints, mark: str, words: Vocabulary) -> bool:
    """Returns whether the pieces that spell a mark as plain text stand in a row of ids."""
    pieces, row = words.encode(mark, special=False), ids.tolist()
    return len(pieces) > 1 and any(row[n : n + len(pieces)] == pieces for n in range(len(row)))


def _unusual(ids: Ints, right: Sequence[int]) -> list[int]:
    """Returns positions of ids that are in no common subsequence of a row with the usual encoding."""
    import difflib

    usual: set[int] = set()
    for block in difflib.SequenceMatcher(None, ids.tolist(), list(right), autojunk=False).get_matching_blocks():
        usual.update(range(block.a, block.a + block.size))
    return [n for n in range(len(ids)) if n not in usual]
