"""How large a corpus is and what its index will take, told before the build from the first passages of its file."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from searchgym.corpora.files import GZIP_MAGIC, FilePath, sniff
from searchgym.corpora.passages import corpus_file
from searchgym.corpora.retrieval.backends import Needs, back_end
from searchgym.corpora.retrieval.cards import RetrieverCard
from searchgym.corpora.retrieval.index.build import SHARD
from searchgym.corpora.retrieval.index.index import part_names

SAMPLE: Final = 4 << 20
"""Bytes of the file that are looked at; unpacked at most four times as many."""
IDS: Final = 2 * 43
"""Bytes for each passage while a corpus is read: its id is looked for twice."""
PROGRAM: Final = 300_000_000
"""Bytes of the program itself."""
COPIES: Final = 7
"""Bytes in memory for each byte of a shard: passages, lines, terms; seen with 72 MB of 100,000 passages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """About how large a corpus is."""

    passages: int
    bytes: int
    """Of ids, titles and texts, as JSON lines."""


def estimate(source: FilePath) -> Size | None:
    """Returns about how large a file of JSON lines is, packed or not; None for anything else."""
    path = Path(source)
    if str(source).startswith("hf:") or (path.is_dir() and not (path / "corpus.jsonl").exists()):
        return None
    file = corpus_file(path)
    if sniff(file) != "jsonl":
        return None
    size = file.stat().st_size
    with file.open("rb") as raw:
        sample = raw.read(SAMPLE)
    read, rest = len(sample), 0
    if sample[:2] == GZIP_MAGIC:
        unpack = zlib.decompressobj(wbits=31)
        sample = unpack.decompress(sample, 4 * SAMPLE)
        rest = len(unpack.unconsumed_tail) + len(unpack.unused_data)  # the latter of a file of several members
        read -= rest
    lines = sample.count(b"\n")
    if read == size and not rest:  # all of it
        lines += not sample.endswith(b"\n")
    whole = len(sample) * size / read
    return Size(passages=max(1, round(whole * lines / len(sample))), bytes=round(whole))


def needs(card: RetrieverCard, size: Size) -> Needs:
    """Returns what an index folder takes while it is built: parts one after the other, beside the passages."""
    parts: Sequence[Needs] = [back_end(p).needs(p, size.passages, size.bytes) for p in part_names(card).values()]
    shard = size.bytes * min(1.0, SHARD / max(size.passages, 1))
    memory = PROGRAM + round(COPIES * shard) + IDS * size.passages + max((one.memory for one in parts), default=0)
    disk = size.bytes + 24 * size.passages + sum(one.disk for one in parts)
    return Needs(memory, disk)
