"""Where data is: the folder for data and cached indexes, what ships with the package, and the corpus behind a name."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from searchgym.cards import CorpusCard, find_card, list_cards, load_card
from searchgym.errors import DataMissingError, IndexMismatchError, RunExistsError, UsageError

if TYPE_CHECKING:
    from searchgym.corpora.retrieval.bm25 import BM25Retriever


def home() -> Path:
    """Returns SearchGym's folder for data and cached indexes: ``$SEARCHGYM_HOME`` or ``~/.cache/searchgym``."""
    return Path(os.environ.get("SEARCHGYM_HOME") or Path.home() / ".cache" / "searchgym")


def bundled_file(name: str) -> Path:
    """Returns a file that ships inside the package."""
    return Path(__file__).parent.parent / name


def find_corpus(name: str) -> Path:
    """Returns the path behind ``corpus=``: a path itself, or a corpus card's bundled or downloaded file.

    Raises:
        UsageError: The name is empty.
        DataMissingError: The card's file is not in the data folder; says how to get it.
        UnknownNameError: Neither a path that exists nor a corpus card.
    """
    path = Path(name)
    if not name:
        raise UsageError("nothing to search: give a corpus file, an index folder or a corpus card")
    if path.suffix in (".yaml", ".yml"):
        return _corpus_file(name)
    if path.exists():
        return path
    if path.suffix or len(path.parts) > 1:
        raise DataMissingError("no such corpus file or index folder: check corpus=", path)
    return _corpus_file(name)


def card_corpus(name: str) -> Path:
    """Returns the path behind an environment card's ``corpus``: as `find_corpus`, but a card comes before a path.

    So that a folder that happens to be called ``demo`` changes no environment.
    """
    return _corpus_file(name) if name in list_cards("corpora") else find_corpus(name)


def _corpus_file(name: str) -> Path:
    """Returns the bundled or downloaded file of a corpus card, or the index of its name."""
    card = load_card(CorpusCard, find_card("corpora", name))
    if card.bundled:
        return bundled_file(card.bundled)
    local = home() / "data" / card.file
    index = home() / "indexes" / card.name
    for found in (index, local):
        if found.exists():
            return found
    raise DataMissingError(
        f"corpus {card.name!r} ({card.summary}) is neither at {local} nor indexed at {index}: run "
        f"`searchgym corpus get {card.name}`, or pass corpus=PATH (a corpus file or an index folder)"
    )


def load_corpus(path: Path) -> BM25Retriever:
    """Returns BM25 over an index folder, or over a corpus file or a folder of documents.

    The index of the latter is built once and cached by content; one that is damaged is built anew.
    """
    from searchgym.corpora.documents import is_documents, open_corpus
    from searchgym.corpora.files import sha256_file
    from searchgym.corpora.passages import corpus_file, corpus_sha256
    from searchgym.corpora.retrieval import analysis
    from searchgym.corpora.retrieval.index import FORMAT, MANIFEST, build_index, load_index

    if (path / MANIFEST).exists():
        return load_index(path)
    digest = corpus_sha256(open_corpus(path)) if is_documents(path) else sha256_file(corpus_file(path))
    # The versions are in the name: an index that this code cannot read is built anew, not refused.
    folder = home() / "indexes" / f"bm25-{FORMAT}.{analysis.VERSION}-{digest[:24]}"
    if folder.exists():
        with contextlib.suppress(IndexMismatchError):
            return load_index(folder)
    with contextlib.suppress(RunExistsError):  # another process may build the same index meanwhile
        build_index(open_corpus(path), folder, overwrite=folder.exists())
    return load_index(folder)
