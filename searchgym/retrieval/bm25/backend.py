"""The back end ``bm25`` of index folders, whose part ``bm25/`` holds the files that bm25s saves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.store import PassageStore
from searchgym.errors import IndexMismatchError
from searchgym.records import Passage
from searchgym.retrieval.backends import Needs, Progress
from searchgym.retrieval.bm25 import analysis
from searchgym.retrieval.bm25.build import in_folder, load_model, load_shard, make_shard, merge, save_rest, save_shard
from searchgym.retrieval.bm25.search import BM25Retriever, contents
from searchgym.retrieval.kinds.bm25 import BM25Card

BYTES_PER_POSTING: Final = 9.0
"""Bytes of text per posting, as measured on English text, for estimates of an index's size."""


def needs(card: BM25Card, passages: int, text: int) -> Needs:
    """Returns what a build takes: disk for shards and index, memory for the vocabulary and some arrays."""
    postings = text / BYTES_PER_POSTING
    words = 60 * passages**0.75  # number of distinct words by Heaps' law
    return Needs(int(100e6 + 250 * words), int(16 * postings + 4 * passages + 60 * words))


class Bm25Builder:
    """Builder of the BM25 part of an index folder: writes the postings of each shard and merges them at the end."""

    def __init__(self, card: BM25Card, folder: Path, shards: Path, progress: Progress) -> None:
        self._card, self._folder, self._shards, self._progress = card, folder, shards, progress

    def add(self, number: int, start: int, passages: Sequence[Passage]) -> None:
        """Writes the postings of a shard."""
        save_shard(make_shard(map(contents, passages)), self._shards, number)

    def finish(self, shards: int, passages: PassageStore) -> dict[str, Any]:
        """Merges the shards into the index and returns the analyser's name, version and stop words."""

        def load(number: int) -> Any:
            self._progress("merging postings", number, shards)
            return load_shard(self._shards, number)

        model = merge(shards, load, self._card.k1, self._card.b, in_folder(self._folder))
        save_rest(model, self._folder)
        self._progress("merging postings", shards, shards)
        return {
            "analyser": analysis.NAME,
            "analyser_version": analysis.VERSION,
            "terms_since": model.scores["terms_since"],
            "stop_words": sorted(analysis.STOP_WORDS),
        }


builder = Bm25Builder


def load(
    card: BM25Card, folder: Path, facts: dict[str, Any], passages: PassageStore, sha256: str, progress: Progress
) -> BM25Retriever:
    """Returns a retriever over the BM25 part of an index folder, memory-mapped; see `PartCard.load`."""
    version, since = facts.get("analyser_version"), facts.get("terms_since", 1)
    if facts.get("analyser") != analysis.NAME or version not in (1, analysis.VERSION) or since not in (1, 2):
        analyser = f"{facts.get('analyser')} {version}"
        raise IndexMismatchError(f"was analysed by {analyser!r}, this version has {analysis.NAME!r} {analysis.VERSION}")
    try:
        model = load_model(folder, since)
    except (OSError, ValueError, TypeError, LookupError, EOFError) as error:
        raise IndexMismatchError(f"{folder.name} cannot be read: {type(error).__name__}: {error}") from error
    if model.scores["num_docs"] != len(passages):
        raise IndexMismatchError(f"{folder.name} counts {model.scores['num_docs']} passages, not {len(passages)}")
    if version == 1 and (other := next((t for t in model.vocab_dict if not analysis.is_kept(t)), None)) is not None:
        raise IndexMismatchError(
            f"was analysed by version 1 of {analysis.NAME!r} and holds {other!r:.80}, which version "
            f"{analysis.VERSION} writes otherwise"
        )
    return BM25Retriever(model, passages, sha256, card.threads)
