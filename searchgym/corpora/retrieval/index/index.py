"""Index folders: passages, the parts that retrievers are built of, and a manifest that says what they are.

manifest.json      `Manifest`
passages.jsonl     the corpus in canonical form, one passage per line
offsets.npy        where each line begins
ids.npy            where each id is, unless ids are positions
bm25/              postings and vocabulary, as bm25s saves them
lucene/            a Lucene index, as pyserini makes it
dense/             a FAISS index
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from searchgym.cards import build
from searchgym.corpora.files import FilePath, sha256_file
from searchgym.corpora.retrieval.backends import Progress, back_end, quiet
from searchgym.corpora.retrieval.bm25.build import K1, B, build_model
from searchgym.corpora.retrieval.bm25.search import BM25Retriever, contents
from searchgym.corpora.retrieval.cards import (
    OUTSIDE,
    PartCard,
    RetrieverCard,
    find_retriever,
    leaves,
    parts_of,
    same_part,
)
from searchgym.corpora.retrieval.retriever import CorpusRetriever, Retriever
from searchgym.corpora.retrieval.wrappers.compose import compose
from searchgym.corpora.store import PASSAGES, PassageStore, unique
from searchgym.errors import CardError, DataError, DataMissingError, IndexMismatchError, UsageError
from searchgym.records import Passage

MANIFEST: Final = "manifest.json"
FORMAT: Final = 2
"""Version of the folder's layout; a folder of another version is refused."""
_END: Final = 64 * 1024  # bytes at each end of a file that its fingerprint covers


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """One file of an index folder."""

    bytes: int
    fingerprint: str
    """sha256 of the size and the first and last 64 KiB: checked at every load, in constant time."""
    sha256: str
    """sha256 of everything: checked when asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one back end built."""

    card: dict[str, Any]
    facts: dict[str, Any]
    """What the back end says of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an index folder holds and how it was made."""

    format: int
    corpus_sha256: str
    """sha256 of passages.jsonl: the identity of the corpus, whatever file format it came in."""
    passages: int
    retriever: dict[str, Any]
    """The card that searches it, unless another one is asked for."""
    parts: dict[str, Part]
    """By folder."""
    versions: dict[str, str]
    """Versions of the software that built the index."""
    files: dict[str, IndexFile]
    """By path below the folder."""


def build_in_memory(passages: Iterable[Passage], k1: float = K1, b: float = B) -> BM25Retriever:
    """Returns BM25 over passages that are kept in memory; for small corpora.

    Raises:
        UsageError: `k1` or `b` is out of range.
        DataError: There is nothing to index, or an id occurs twice.
    """
    kept = list(unique(passages))
    return BM25Retriever(build_model(map(contents, kept), k1, b), kept)


# -- load ----------------------------------------------------------------------------------------------------------


def load_index(
    folder: FilePath,
    expect_sha256: str | None = None,
    card: str | dict[str, Any] | RetrieverCard | None = None,
    progress: Progress = quiet,
) -> CorpusRetriever:
    """Opens an index folder, memory-mapped, after checking it against its manifest in constant time.

    Args:
        folder: Made by `build_index`.
        expect_sha256: `Manifest.corpus_sha256` that the index must have.
        card: Another way to search it than the manifest's; every part that it needs must be there.
        progress: Told of what takes long.

    Raises:
        DataMissingError: There is no such folder.
        IndexMismatchError: A file is missing or not the one of the manifest, the folder was made by code that does not
            agree with this, or for another corpus than expected.
        UsageError: `card` needs a part that the folder lacks.
    """
    folder = Path(folder)
    manifest = _checked_manifest(folder, verify=False)
    if expect_sha256 is not None and manifest.corpus_sha256 != expect_sha256:
        raise _mismatch(folder, f"was built from corpus {manifest.corpus_sha256}, expected {expect_sha256}")
    try:
        store = PassageStore(folder)
        if len(store) != manifest.passages:
            raise _mismatch(folder, f"passages and {MANIFEST} count {len(store)} and {manifest.passages} passages")
        own = find_retriever(manifest.retriever)
        built = {name: find_retriever(part.card) for name, part in manifest.parts.items()}
    except (OSError, ValueError, LookupError, EOFError, DataError, CardError, UsageError) as error:
        raise _mismatch(folder, f"cannot be read: {type(error).__name__}: {error}") from error
    if card is None and any(isinstance(leaf, OUTSIDE) for leaf in leaves(own)):  # a tool would be code of another's
        raise UsageError(f"{folder}: its own card searches elsewhere too: name one that you trust (card=, --retriever)")
    wanted = own if card is None else find_retriever(card)
    opened: list[tuple[PartCard, CorpusRetriever]] = []

    def part(card: PartCard) -> CorpusRetriever:
        for known, retriever in opened:
            if known == card:
                return retriever
        for name, has in built.items():
            if isinstance(has, type(card)) and same_part(card, has):
                facts = manifest.parts[name].facts
                try:
                    found = back_end(card).load(card, folder / name, facts, store, manifest.corpus_sha256, progress)
                except IndexMismatchError as error:
                    raise _mismatch(folder, str(error)) from error
                opened.append((card, found))
                return found
        names = ", ".join(sorted(manifest.parts))
        raise UsageError(
            f"{folder} has no part for the card {card.name or card.kind!r}, it holds {names}: build another index with "
            "`searchgym index build CORPUS --retriever CARD --out DIR`"
        )

    return over_corpus(compose(wanted, part), folder)


def over_corpus(retriever: Retriever, folder: Path) -> CorpusRetriever:
    """Returns a retriever if it stands on a corpus."""
    if not isinstance(retriever, CorpusRetriever):
        raise UsageError(f"{folder}: {type(retriever).__name__} searches elsewhere: it needs no index folder")
    return retriever


def inspect_index(folder: FilePath, verify: bool = False) -> dict[str, Any]:
    """Returns what an index folder holds, as plain data.

    Args:
        folder: Made by `build_index`.
        verify: Read every file and compare its full sha256, in time linear in the size.

    Returns:
        The manifest, with the bytes of each file in place of its checksums; ``bytes`` in total; whether all were read.

    Raises:
        DataMissingError: There is no such folder.
        IndexMismatchError: As `load_index`.
    """
    manifest = _checked_manifest(Path(folder), verify)
    sizes = {name: file.bytes for name, file in manifest.files.items()}
    described = dataclasses.asdict(manifest) | {"files": sizes, "bytes": sum(sizes.values()), "verified": verify}
    return {"folder": str(folder), **described}


def describe_files(folder: Path) -> dict[str, IndexFile]:
    """Returns the files of a folder that is complete but for its manifest."""
    return {
        path.relative_to(folder).as_posix(): IndexFile(
            bytes=path.stat().st_size, fingerprint=_fingerprint(path), sha256=sha256_file(path)
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(name.startswith(".") for name in path.relative_to(folder).parts)
    }


def part_names(card: RetrieverCard) -> dict[str, PartCard]:
    """Returns the parts of a card by the names of their folders."""
    named: dict[str, PartCard] = {}
    for part in parts_of(card):
        same = sum(other.kind == part.kind for other in named.values())
        named[f"{part.kind}-{same + 1}" if same else part.kind] = part
    return named


def _checked_manifest(folder: Path, verify: bool) -> Manifest:
    """Returns a folder's manifest if the folder agrees with it and this code can use it."""
    if not folder.is_dir():
        raise DataMissingError("no such index folder: build it with `searchgym index build CORPUS --out DIR`", folder)
    try:
        data = json.loads((folder / MANIFEST).read_bytes())
        if data["format"] != FORMAT:
            raise _mismatch(folder, f"is of format {data['format']!r}; this version reads {FORMAT}")
        manifest = build(Manifest, data, MANIFEST)
    except (OSError, ValueError, TypeError, LookupError, CardError) as error:
        raise _mismatch(folder, f"{MANIFEST} cannot be read: {type(error).__name__}: {error}") from error
    if PASSAGES not in manifest.files or manifest.files[PASSAGES].sha256 != manifest.corpus_sha256:
        raise _mismatch(folder, f"{MANIFEST} contradicts itself about {PASSAGES}")
    named = [Path(name) for name in (*manifest.files, *manifest.parts)]
    if any(path.is_absolute() or ".." in path.parts for path in named):
        raise _mismatch(folder, f"{MANIFEST} names files outside of the folder")
    if missing := [name for name in manifest.parts if not any(Path(f).parts[0] == name for f in manifest.files)]:
        raise _mismatch(folder, f"{MANIFEST} names no files of {missing[0]}")
    for name, file in manifest.files.items():
        _check_file(folder, name, file, verify)
    return manifest


def _check_file(folder: Path, name: str, file: IndexFile, verify: bool) -> None:
    """Compares one file with its entry in the manifest."""
    path = folder / name
    if not path.is_file():
        raise _mismatch(folder, f"{name} is missing")
    if path.stat().st_size != file.bytes:
        raise _mismatch(folder, f"{name} has {path.stat().st_size} bytes, {MANIFEST} says {file.bytes}")
    if (sha256_file(path) != file.sha256) if verify else (_fingerprint(path) != file.fingerprint):
        raise _mismatch(folder, f"{name} is not the file that {MANIFEST} describes")


def _fingerprint(path: Path) -> str:
    """Returns the sha256 of a file's size, first 64 KiB and last 64 KiB."""
    size = path.stat().st_size
    with path.open("rb") as file:
        digest = hashlib.sha256(f"{size}\n".encode() + file.read(_END))
        file.seek(max(0, size - _END))
        digest.update(file.read(_END))
    return digest.hexdigest()


def _mismatch(folder: Path, problem: str) -> IndexMismatchError:
    """Returns the error for a folder that cannot be used, with the remedy."""
    return IndexMismatchError(
        f"{folder}: {problem}. The index is damaged or another one's: rebuild it with "
        f"`searchgym index build CORPUS --out {folder} --overwrite`"
    )
