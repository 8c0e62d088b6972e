"""Locations of data: the cache folder, files that ship with the package, and corpora by name."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from searchgym.corpora.folders import bundled_file, home
from searchgym.errors import DataMissingError, IndexMismatchError, RunExistsError, UnknownNameError, UsageError
from searchgym.options.cards import CorpusCard, data_file, find_card, found_here, is_path, list_cards, load_card

if TYPE_CHECKING:
    from searchgym.retrieval.cards import Progress, RetrieverCard
    from searchgym.retrieval.retriever import CorpusRetriever

    RetrieverGiven: TypeAlias = str | dict[str, Any] | RetrieverCard | None


def find_corpus(name: str | os.PathLike[str], instead: str = "") -> Path:
    """Returns the path for a ``corpus=`` option: a corpus card's bundled or downloaded file, or an existing path.

    Args:
        name: Name of a corpus card that ships, or a path (see `is_path`); a `Path` is always a path.
        instead: Alternative to suggest in the error if a card's corpus is missing.

    Raises:
        UsageError: The name is empty, or neither a string nor a path.
        DataMissingError: The card's file is not in the data folder; the message explains how to get it.
        UnknownNameError: The name is neither an existing path nor a corpus card.
    """
    if not isinstance(name, (str, os.PathLike)):
        raise UsageError(f"corpus= is a path or the name of a corpus card, got {type(name).__name__}")
    path = Path(name)
    if not os.fspath(name):
        raise UsageError("nothing to search: give a corpus file, an index folder or a corpus card")
    if isinstance(name, str) and not is_path(name, "corpora"):
        if name not in (shipped := list_cards("corpora")):
            raise UnknownNameError("corpus file, folder or card", name, shipped, found_here(name))
    elif path.suffix not in (".yaml", ".yml"):
        if not path.exists():
            raise DataMissingError("no such corpus file or folder: check its name", path)
        return path
    card = load_card(CorpusCard, find_card("corpora", os.fspath(name)))
    if card.bundled:
        return bundled_file(card.bundled)
    local = data_file(home() / "data", card.file)
    index = home() / "indexes" / card.name
    for path in (index, local):
        if path.exists():
            return path
    raise DataMissingError(
        f"corpus {card.name!r} is not here ({card.file})\n"
        f"get it by `searchgym corpus get {card.name}`{instead}\n"
        f"it belongs at {local}, or indexed at {index}; or pass corpus=PATH"
    )


def load_corpus(path: Path, card: RetrieverGiven = None, progress: Progress | None = None) -> CorpusRetriever:
    """Returns a retriever over an index folder, or over a corpus file or a folder of documents.

    For a file or documents, the index is built once and cached by content; a damaged index is rebuilt.

    Args:
        path: Path that `find_corpus` returned.
        card: Retriever card, its name, or a mapping. None: the retriever of the index folder, else BM25.
        progress: Called with progress reports of slow steps.

    Raises:
        DataMissingError: The corpus is large, and its dense index is missing.
    """
    from searchgym.corpora.documents import is_documents, open_corpus
    from searchgym.corpora.files import sha256_file
    from searchgym.corpora.passages import corpus_file, corpus_sha256
    from searchgym.retrieval.cards import find_retriever, quiet
    from searchgym.retrieval.index.build import build_index
    from searchgym.retrieval.index.index import MANIFEST, load_index
    from searchgym.retrieval.kinds.bm25 import DEFAULT
    from searchgym.retrieval.lucene.backend import is_lucene, open_lucene

    progress = progress or quiet
    if (path / MANIFEST).exists():
        return load_index(path, card=card, progress=progress)
    if is_lucene(path):
        return open_lucene(path, None, card)
    retriever = DEFAULT if card is None else find_retriever(card)
    digest = corpus_sha256(open_corpus(path)) if is_documents(path) else sha256_file(corpus_file(path))
    folder = home() / "indexes" / f"{_index_name(retriever)}-{digest[:24]}"
    if folder.exists():
        with contextlib.suppress(IndexMismatchError):
            return load_index(folder, card=retriever, progress=progress)
    if lacks_index(path, retriever):
        raise DataMissingError(no_index(retriever), path)
    try:
        build_index(
            open_corpus(path), folder, retriever, overwrite=folder.exists(), wait=LOCK_SECONDS, progress=progress
        )
    except RunExistsError:
        if not folder.exists():  # otherwise another process has built the same index in the meantime
            raise
    return load_index(folder, card=retriever, progress=progress)


LARGE: Final = 2**30
"""Size of a corpus file, in bytes, from which no dense index is built at first use: encoding it takes days."""


def lacks_index(path: Path | None, card: RetrieverCard) -> bool:
    """Returns whether a slow index is missing: `card` needs one, and `path` is a large corpus file or None."""
    from searchgym.retrieval.cards import parts_of

    large = path is None or (path.is_file() and path.stat().st_size >= LARGE)
    return large and any(part.slow for part in parts_of(card))


def no_index(card: RetrieverCard, corpus: str = "") -> str:
    """Returns instructions for getting an index that is missing on this machine.

    Args:
        card: Card of the retriever.
        corpus: Corpus as it was named. The index of a corpus card has a folder in which it is searched.
    """
    name = card.name or card.kind
    shipped = corpus in list_cards("corpora")
    folder = str(home() / "indexes" / corpus) if shipped else "FOLDER"
    elsewhere = (
        "give FOLDER as the corpus: `--corpus FOLDER`, or `corpus: FOLDER` in a recipe's env_options, which an "
        "override replaces as a whole"
    )
    return (
        f"the retriever {name} searches an index folder, which is not here: convert a published one by "
        f"`searchgym index convert`, or build it by `searchgym index build CORPUS --retriever {name}` (days without a "
        f"GPU), each with `--out {folder}`; {'there it is searched without an option' if shipped else elsewhere}"
    )


LOCK_SECONDS: Final = 3600.0
"""Seconds to wait for another process that is building the same index."""


def _index_name(card: RetrieverCard) -> str:
    """Returns a cache name for the index of a card; format versions are part of it, so no outdated index is reused."""
    from searchgym.retrieval.bm25 import analysis
    from searchgym.retrieval.index.index import FORMAT, part_names

    parts = part_names(card)
    contents = json.dumps([part.built_of() for part in parts.values()] + [FORMAT, analysis.VERSION], sort_keys=True)
    return f"{'-'.join(parts) or 'passages'}-{hashlib.sha256(contents.encode()).hexdigest()[:8]}"
