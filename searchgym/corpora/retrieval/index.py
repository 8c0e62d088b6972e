"""Index folders: a BM25 index, its passages and a manifest that says which corpus and which code they come from.

manifest.json      `Manifest`
passages.jsonl     the corpus in canonical form, one passage per line
offsets.npy        where each line begins
bm25/              the postings and the vocabulary, as bm25s saves them
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import unicodedata
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import bm25s

import searchgym
from searchgym.cards import build
from searchgym.corpora.files import FilePath, sha256_file
from searchgym.corpora.retrieval import analysis
from searchgym.corpora.retrieval.bm25 import K1, B, BM25Retriever, build_model, contents
from searchgym.corpora.store import PASSAGES, PassageStore, unique, write_passages
from searchgym.errors import CardError, DataError, DataMissingError, IndexMismatchError, RunExistsError
from searchgym.records import Passage

MANIFEST: Final = "manifest.json"
KIND: Final = "bm25"
FORMAT: Final = 1
"""Version of the folder's layout; a folder of another version is refused."""
_BM25: Final = "bm25"
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
class Manifest:
    """What an index folder holds and how it was made."""

    kind: str
    format: int
    corpus_sha256: str
    """sha256 of passages.jsonl: the identity of the corpus, whatever file format it came in."""
    passages: int
    k1: float
    b: float
    analyser: str
    analyser_version: int
    stop_words: list[str]
    versions: dict[str, str]
    """Versions of the software that built the index."""
    files: dict[str, IndexFile]
    """By path below the folder."""


# -- build ---------------------------------------------------------------------------------------------------------


def build_in_memory(passages: Iterable[Passage], k1: float = K1, b: float = B) -> BM25Retriever:
    """Returns a retriever over passages that are kept in memory; for small corpora.

    Raises:
        UsageError: `k1` or `b` is out of range.
        DataError: There is nothing to index, or an id occurs twice.
    """
    kept = list(unique(passages))
    return BM25Retriever(build_model(map(contents, kept), k1, b), kept)


def build_index(
    passages: Iterable[Passage],
    out: FilePath,
    k1: float = K1,
    b: float = B,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Manifest:
    """Builds an index folder. Until it is complete, nothing stands under its name.

    Args:
        passages: Read once, one at a time; memory grows with the number of words, not with the texts.
        out: The folder to make; its parents are made too.
        k1: Saturation of term frequency, at least 0.
        b: Strength of length normalisation, 0 to 1.
        overwrite: Replace an index that is already there.
        progress: Called with the number of passages read so far, now and then.

    Raises:
        UsageError: `k1` or `b` is out of range.
        DataError: There is nothing to index, or an id occurs twice.
        RunExistsError: `out` exists and `overwrite` is False, or it is not an index.
    """
    out = Path(out)
    _check_free(out, overwrite)
    out.parent.mkdir(parents=True, exist_ok=True)
    building = out.parent / f".{out.name}.building-{uuid.uuid4().hex[:8]}"
    building.mkdir()
    try:
        written = write_passages(unique(_counted(passages, progress)), building)
        model = build_model(map(contents, written), k1, b)
        model.save(building / _BM25)
        manifest = _describe(building, model)
        (building / MANIFEST).write_text(json.dumps(dataclasses.asdict(manifest), indent=2) + "\n", encoding="utf-8")
        _move(building, out, overwrite)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return manifest


def _counted(passages: Iterable[Passage], progress: Callable[[int], None] | None) -> Iterator[Passage]:
    """Yields the passages, reporting every thousandth and the last."""
    number = 0
    for number, passage in enumerate(passages, 1):
        yield passage
        if progress is not None and number % 1000 == 0:
            progress(number)
    if progress is not None:
        progress(number)


def _describe(folder: Path, model: bm25s.BM25) -> Manifest:
    """Returns the manifest of a folder that is complete but for it."""
    files = {
        path.relative_to(folder).as_posix(): IndexFile(
            bytes=path.stat().st_size, fingerprint=_fingerprint(path), sha256=sha256_file(path)
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    libraries = {name: version(name) for name in ("bm25s", "numpy", "PyStemmer")}
    return Manifest(
        kind=KIND,
        format=FORMAT,
        corpus_sha256=files[PASSAGES].sha256,
        passages=model.scores["num_docs"],
        k1=model.k1,
        b=model.b,
        analyser=analysis.NAME,
        analyser_version=analysis.VERSION,
        stop_words=sorted(analysis.STOP_WORDS),
        versions={"searchgym": searchgym.__version__, "unicode": unicodedata.unidata_version} | libraries,
        files=files,
    )


def _check_free(out: Path, overwrite: bool) -> None:
    """Refuses a name under which something stands that must not be replaced; an empty folder is nothing."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / MANIFEST).exists():
        raise RunExistsError(f"{out} exists and is not an index (no {MANIFEST}): choose another --out")
    if not overwrite:
        raise RunExistsError(f"{out} already holds an index: choose another --out, or pass --overwrite to replace it")


def _move(building: Path, out: Path, overwrite: bool) -> None:
    """Gives a finished folder its name."""
    _check_free(out, overwrite)  # again: another process may have been quicker
    old = building.with_name(f"{building.name}-old")
    if (out / MANIFEST).exists():
        out.rename(old)
    try:
        building.rename(out)
    except OSError:
        _check_free(out, overwrite=False)  # another process was quicker after all
        raise
    shutil.rmtree(old, ignore_errors=True)


# -- load ----------------------------------------------------------------------------------------------------------


def load_index(folder: FilePath, expect_sha256: str | None = None) -> BM25Retriever:
    """Opens an index folder, memory-mapped, after checking it against its manifest in constant time.

    Args:
        folder: Made by `build_index`.
        expect_sha256: `Manifest.corpus_sha256` that the index must have.

    Raises:
        DataMissingError: There is no such folder.
        IndexMismatchError: A file is missing or not the one of the manifest, the folder was made by code that does not
            agree with this, or for another corpus than expected.
    """
    folder = Path(folder)
    manifest = _checked_manifest(folder, verify=False)
    if expect_sha256 is not None and manifest.corpus_sha256 != expect_sha256:
        raise _mismatch(folder, f"was built from corpus {manifest.corpus_sha256}, expected {expect_sha256}")
    try:
        model = bm25s.BM25.load(folder / _BM25, mmap=True)
        store = PassageStore(folder)
    except (OSError, ValueError, TypeError, LookupError, EOFError, DataError) as error:
        raise _mismatch(folder, f"cannot be read: {type(error).__name__}: {error}") from error
    if not len(store) == model.scores["num_docs"] == manifest.passages:
        counts = f"{len(store)}, {model.scores['num_docs']} and {manifest.passages}"
        raise _mismatch(folder, f"passages, bm25 and {MANIFEST} count {counts} passages")
    return BM25Retriever(model, store, manifest.corpus_sha256)


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


def _checked_manifest(folder: Path, verify: bool) -> Manifest:
    """Returns a folder's manifest if the folder agrees with it and this code can use it."""
    if not folder.is_dir():
        raise DataMissingError("no such index folder: build it with `searchgym index build CORPUS --out DIR`", folder)
    try:
        data = json.loads((folder / MANIFEST).read_bytes())
        found = (data["kind"], data["format"])
        if found != (KIND, FORMAT):
            raise _mismatch(
                folder, f"is of kind {found[0]!r}, format {found[1]!r}; this version reads {KIND!r}, {FORMAT}"
            )
        manifest = build(Manifest, data, MANIFEST)
    except (OSError, ValueError, TypeError, LookupError, CardError) as error:
        raise _mismatch(folder, f"{MANIFEST} cannot be read: {type(error).__name__}: {error}") from error
    if (manifest.analyser, manifest.analyser_version) != (analysis.NAME, analysis.VERSION):
        made = f"{manifest.analyser} {manifest.analyser_version}"
        raise _mismatch(folder, f"was analysed by {made!r}, this version has {analysis.NAME!r} {analysis.VERSION}")
    if PASSAGES not in manifest.files or manifest.files[PASSAGES].sha256 != manifest.corpus_sha256:
        raise _mismatch(folder, f"{MANIFEST} contradicts itself about {PASSAGES}")
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
