"""Opens and checks index folders, which hold passages, the parts that back ends built from them, and a manifest.

manifest.json      `IndexManifest`
passages.jsonl     the corpus in canonical form, one passage per line; compressed with a dictionary if it is large
offsets.npy        byte offset of each line or frame
ids.npy            position of each id, unless ids are positions
bm25/              postings and vocabulary of BM25
lucene/            a Lucene index, as pyserini makes it
dense/             a FAISS index
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.files import MAX_LINE, FilePath, sha256_file
from searchgym.corpora.store.packed import DICTIONARY, PACKED
from searchgym.corpora.store.reader import PASSAGES, PassageStore
from searchgym.corpora.store.writer import unique
from searchgym.errors import CardError, DataError, DataMissingError, IndexMismatchError, UsageError
from searchgym.named import code_refused
from searchgym.options import Options, read
from searchgym.reading import read_bytes
from searchgym.records import Passage
from searchgym.retrieval.bm25.build import K1, B, build_model
from searchgym.retrieval.bm25.search import BM25Retriever, contents
from searchgym.retrieval.cards import PartCard, Progress, RetrieverCard, Sources, find_retriever, parts_of, quiet
from searchgym.retrieval.index.trust import check_own, check_whole, names_code
from searchgym.retrieval.retriever import CorpusRetriever

MANIFEST: Final = "manifest.json"
FORMAT: Final = 3
"""Version of the folder's layout; a folder of another version than this or `OLD` is refused."""
OLD: Final = 2
"""Layout of version 0.1.0, whose part ``bm25/`` is built again when it is loaded."""
_END: Final = 64 * 1024  # bytes at each end of a file that its fingerprint covers


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile(Options):
    """The manifest's entry for one file of an index folder."""

    bytes: int
    """Size of the file in bytes."""
    fingerprint: str
    """sha256 of the file's size, first 64 KiB and last 64 KiB; checked at every load, in constant time."""
    sha256: str
    """sha256 of the whole file; checked only on request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPart(Options):
    """The manifest's entry for one part: the folder that one back end built."""

    card: dict[str, Any]
    """Retriever card that the part was built for, as plain data."""
    facts: dict[str, Any]
    """Facts that the back end needs to load the part; see `Builder.finish`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexManifest(Options):
    """Manifest of an index folder: its contents and how it was built."""

    format: int
    """Version of the folder's layout; see `FORMAT`."""
    corpus_sha256: str
    """sha256 of the passages' canonical lines, which identifies the corpus whatever its original format was."""
    passages: int
    """Number of passages."""
    retriever: dict[str, Any]
    """Retriever card for searching the index unless another one is given, as plain data."""
    parts: dict[str, IndexPart]
    """The parts, by the names of their folders."""
    versions: dict[str, str]
    """Versions of the software that built the index, by package."""
    files: dict[str, IndexFile]
    """Entries for all files of the index folder except the manifest, by relative path."""


def build_in_memory(passages: Iterable[Passage], k1: float = K1, b: float = B) -> BM25Retriever:
    """Returns a BM25 retriever over passages kept in memory, for small corpora.

    Args:
        passages: The corpus.
        k1: Saturation of term frequency, at least 0.
        b: Strength of length normalisation, from 0 (none) to 1 (full).

    Raises:
        UsageError: `k1` or `b` is out of range.
        DataError: There is nothing to index, or an id occurs twice.
    """
    corpus = list(unique(passages))
    return BM25Retriever(build_model(map(contents, corpus), k1, b), corpus)


# -- load ----------------------------------------------------------------------------------------------------------


def load_index(
    folder: FilePath,
    expect_sha256: str | None = None,
    card: str | dict[str, Any] | RetrieverCard | None = None,
    progress: Progress = quiet,
) -> CorpusRetriever:
    """Returns the retriever of an index folder, memory-mapped, after a check against its manifest.

    The check takes constant time, except for the postings of BM25, all of which are read once.

    Args:
        folder: Index folder, made by `build_index`.
        expect_sha256: `IndexManifest.corpus_sha256` that the index must have. Default: not checked.
        card: Retriever card to search by instead of the manifest's. The folder must hold the parts that it needs.
        progress: Called during slow stages.

    Raises:
        DataMissingError: The folder does not exist.
        IndexMismatchError: A file is missing or does not match the manifest, the folder was made by an incompatible
            version of the code, or its corpus is not the expected one.
        UsageError: `card` needs a part that the folder lacks, or no `card` is given and the folder's own card names a
            server, a function, a record, or a model that is not in an encoder card of the package.
    """
    folder = Path(folder)
    manifest = _checked_manifest(folder, verify=False)
    if expect_sha256 is not None and manifest.corpus_sha256 != expect_sha256:
        raise _mismatch(folder, f"was built from corpus {manifest.corpus_sha256}, expected {expect_sha256}")
    try:
        store = PassageStore(folder)
        if len(store) != manifest.passages:
            raise _mismatch(folder, f"passages and {MANIFEST} count {len(store)} and {manifest.passages} passages")
        for data in (manifest.retriever, *(part.card for part in manifest.parts.values())):
            check_whole(data)
        default = None if names_code(manifest.retriever) else find_retriever(manifest.retriever)
        shipped_parts(manifest.parts)
    except (OSError, ValueError, LookupError, EOFError, DataError, CardError, UsageError) as error:
        raise _mismatch(folder, f"cannot be read: {type(error).__name__}: {error}") from error
    chosen = find_retriever(card) if card is not None else check_own(folder, (folder / MANIFEST).read_bytes(), default)
    opened: list[tuple[PartCard, CorpusRetriever]] = []  # a card that occurs twice shares its retriever

    def open_part(card: PartCard) -> CorpusRetriever:
        for other, retriever in opened:
            if other == card:
                return retriever
        for name, part in manifest.parts.items():
            if part.card.get("kind") != card.kind:
                continue
            fields = {key: value for key, value in part.card.items() if key != "kind"}
            with code_refused():  # code that the fields name is not imported
                built_of = read(type(card), fields, MANIFEST).built_of()
            if built_of == card.built_of():
                try:
                    loaded = card.load(folder / name, part.facts, store, manifest.corpus_sha256, progress)
                except IndexMismatchError as error:
                    raise _mismatch(folder, str(error)) from error
                opened.append((card, loaded))
                return loaded
        names = ", ".join(sorted(manifest.parts))
        raise UsageError(
            f"{folder} has no part for the card {card.name or card.kind!r}, it holds {names}: build another index with "
            "`searchgym index build CORPUS --retriever CARD --out DIR`"
        )

    sources = Sources(part=open_part, passages=lambda: store, corpus_sha256=manifest.corpus_sha256)
    with code_refused(": name a card that you trust (card=, --retriever)", unless=card is not None):
        return sources.open_corpus(chosen, folder)


def inspect_index(folder: FilePath, verify: bool = False) -> dict[str, Any]:
    """Checks an index folder and returns a description of it as plain data.

    Args:
        folder: Index folder, made by `build_index`.
        verify: Whether to read every file, compare its full sha256, and check the postings of BM25, which takes time
            linear in its size.

    Returns:
        The fields of the manifest, where ``files`` maps each file to its size in bytes; ``folder``; ``bytes``, the
        total size; and ``verified``, the value of `verify`.

    Raises:
        DataMissingError: The folder does not exist.
        IndexMismatchError: The folder does not match its manifest, or an incompatible version made it.
    """
    manifest = _checked_manifest(Path(folder), verify)
    if verify:
        _verify(Path(folder), manifest)
    sizes = {name: file.bytes for name, file in manifest.files.items()}
    described = dataclasses.asdict(manifest) | {"files": sizes, "bytes": sum(sizes.values()), "verified": verify}
    return {"folder": str(folder), **described}


def _verify(folder: Path, manifest: IndexManifest) -> None:
    """Reads the passages and the parts of a folder whose files are those of the manifest; raises what is wrong."""
    for part in manifest.parts.values():
        check_whole(part.card)
    try:
        store = PassageStore(folder)
        if store.sha256() != manifest.corpus_sha256:
            raise ValueError(f"the passages are not those that {MANIFEST} describes")
        for name, card in shipped_parts(manifest.parts).items():
            card.verify(folder / name, manifest.parts[name].facts, store, manifest.corpus_sha256)
    except (IndexMismatchError, DataError, OSError, ValueError) as error:
        raise _mismatch(folder, str(error)) from error


def shipped_parts(parts: Mapping[str, IndexPart]) -> dict[str, PartCard]:
    """Returns the cards of the parts whose kind ships with this package, by name."""
    cards = {name: find_retriever(part.card) for name, part in parts.items() if not names_code(part.card)}
    return {name: card for name, card in cards.items() if isinstance(card, PartCard)}


def describe_files(folder: Path) -> dict[str, IndexFile]:
    """Returns the manifest's entries for the files of a folder, without hidden ones, by relative path."""
    return {
        path.relative_to(folder).as_posix(): IndexFile(
            bytes=path.stat().st_size, fingerprint=_fingerprint(path), sha256=sha256_file(path)
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(name.startswith(".") for name in path.relative_to(folder).parts)
    }


def part_names(card: RetrieverCard) -> dict[str, PartCard]:
    """Returns a card's parts by folder name: ``KIND`` for the first of a kind, then ``KIND-2``, ``KIND-3``, ..."""
    named: dict[str, PartCard] = {}
    for part in parts_of(card):
        same_kind = sum(other.kind == part.kind for other in named.values())
        kind = part.kind.replace(":", "-")  # a user's class
        named[f"{kind}-{same_kind + 1}" if same_kind else kind] = part
    return named


def _checked_manifest(folder: Path, verify: bool) -> IndexManifest:
    """Returns a folder's manifest after checking that the folder matches it and this version can read it."""
    if not folder.is_dir():
        raise DataMissingError("no such index folder: build it with `searchgym index build CORPUS --out DIR`", folder)
    if not (folder / MANIFEST).exists():
        raise IndexMismatchError(
            f"{folder} is no index, it has no {MANIFEST}: give a folder that `searchgym index build CORPUS --out DIR` "
            "wrote"
        )
    try:
        data = json.loads(read_bytes(folder / MANIFEST, MAX_LINE))
        if data["format"] not in (OLD, FORMAT):
            raise _mismatch(folder, f"is of format {data['format']!r}; this version reads {FORMAT}")
        manifest = read(IndexManifest, data, MANIFEST)
    except (OSError, ValueError, TypeError, LookupError, RecursionError, CardError) as error:
        raise _mismatch(folder, f"{MANIFEST} cannot be read: {type(error).__name__}: {error}") from error
    packed = PACKED in manifest.files or (folder / PACKED).exists()
    stored = {PACKED, DICTIONARY} if packed else {PASSAGES}
    plain = manifest.files.get(PASSAGES)
    if not stored <= manifest.files.keys() or (plain is not None and plain.sha256 != manifest.corpus_sha256):
        raise _mismatch(folder, f"{MANIFEST} has inconsistent entries for {' and '.join(sorted(stored))}")
    named = [Path(name) for name in (*manifest.files, *manifest.parts)]
    if any(path.is_absolute() or ".." in path.parts for path in named):
        raise _mismatch(folder, f"{MANIFEST} names files outside of the folder")
    _check_files(folder, manifest, verify)
    return manifest


def _check_files(folder: Path, manifest: IndexManifest, verify: bool) -> None:
    """Raises an IndexMismatchError unless a folder's files are those of its manifest."""
    if missing := [name for name in manifest.parts if not any(Path(f).parts[0] == name for f in manifest.files)]:
        raise _mismatch(folder, f"{MANIFEST} names no files of {missing[0]}")
    if odd := [path for path in folder.rglob("*") if not (path.is_file() or path.is_dir())]:
        raise _mismatch(folder, f"{odd[0].relative_to(folder)} is a device or a broken link")
    for name, file in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise _mismatch(folder, f"{name} is missing")
        if path.stat().st_size != file.bytes:
            raise _mismatch(folder, f"{name} has {path.stat().st_size} bytes, expected {file.bytes} as in {MANIFEST}")
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
    """Returns the error for an index folder that cannot be used, with the command that rebuilds it."""
    return IndexMismatchError(
        f"{folder}: {problem}. The index is damaged or belongs to something else: rebuild it with "
        f"`searchgym index build CORPUS --out {folder} --overwrite`"
    )
