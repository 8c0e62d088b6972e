"""Estimates the size of a corpus, and the memory and disk space of its index, from the first passages of its file."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from searchgym.corpora.files import GZIP_MAGIC, FilePath
from searchgym.corpora.passages import corpus_file
from searchgym.corpora.rows import sniff
from searchgym.retrieval.cards import Needs, RetrieverCard
from searchgym.retrieval.index.build import SHARD
from searchgym.retrieval.index.index import part_names

SAMPLE: Final = 4 << 20
"""Bytes read from the start of the file; at most four times as many after unpacking."""
IDS: Final = 2 * 43
"""Bytes of memory per passage for finding repeated ids, which the reader and the builder each do."""
PROGRAM: Final = 300_000_000
"""Bytes of memory of the program without a corpus."""
COPIES: Final = 7
"""Bytes of memory per byte of a shard (passages, lines, terms), measured with 72 MB of 100,000 passages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Estimated size of a corpus."""

    passages: int
    """Estimated number of passages."""
    bytes: int
    """Estimated bytes of all ids, titles and texts as JSON lines."""


def estimate(source: FilePath) -> Size | None:
    """Returns the estimated size of a corpus in JSON lines, compressed or not; None for any other source."""
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
        rest = len(unpack.unconsumed_tail) + len(
            unpack.unused_data
        )  # unused_data: a gzip file may have several members
        read -= rest
    lines = sample.count(b"\n")
    if read == size and not rest:  # the sample is the whole file
        lines += not sample.endswith(b"\n")
    whole = len(sample) * size / read
    return Size(passages=max(1, round(whole * lines / len(sample))), bytes=round(whole))


def needs(card: RetrieverCard, size: Size) -> Needs:
    """Returns the memory and disk space for building an index folder.

    Parts are finished one after the other, so memory counts the largest of them and disk space their sum.

    Args:
        card: Retriever card of the index.
        size: Size of the corpus.
    """
    parts: Sequence[Needs] = [p.needs(size.passages, size.bytes) for p in part_names(card).values()]
    shard = size.bytes * min(1.0, SHARD / max(size.passages, 1))
    memory = PROGRAM + round(COPIES * shard) + IDS * size.passages + max((part.memory for part in parts), default=0)
    disk = size.bytes + 24 * size.passages + sum(part.disk for part in parts)
    return Needs(memory, disk)
