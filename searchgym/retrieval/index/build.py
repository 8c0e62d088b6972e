"""Builds index folders from a corpus that is read once, as a stream of shards; an interrupted build can be resumed.

Until it is complete, the index is in the hidden folder ``.NAME.building`` next to its final name, where
``.build.json`` lists the finished shards. The next build of the same name reads the corpus again, skips the shards
whose checksums have not changed, and continues with the first one that is new or different.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import shutil
import time
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.files import FilePath, write_atomic
from searchgym.corpora.folders import check_claim, lock_folder
from searchgym.corpora.passages import corpus_sha256, passage_line
from searchgym.corpora.store.reader import PassageStore
from searchgym.corpora.store.writer import ENDS, HASHES, PassageWriter, unique
from searchgym.errors import CardError, DataError, RunExistsError, UsageError
from searchgym.options import Options, plain, read
from searchgym.records import Passage
from searchgym.retrieval.bm25 import analysis
from searchgym.retrieval.cards import Builder, PartCard, Progress, RetrieverCard, find_retriever, quiet
from searchgym.retrieval.index.index import FORMAT, MANIFEST, IndexManifest, IndexPart, describe_files, part_names
from searchgym.retrieval.index.trust import mark_own, unknown_model
from searchgym.retrieval.kinds.bm25 import DEFAULT
from searchgym.version import __version__

SHARD: Final = 100_000
"""Default number of passages in a shard. A shard is held in memory; an interruption loses at most one."""
RESTART: Final = "--restart (in Python restart=True)"
"""Option that discards an interrupted build, for error messages."""
STATE: Final = ".build.json"
"""File that lists the finished shards of a build."""
_SHARDS: Final = ".shards"
_LIBRARIES: Final = ("numpy", "PyStemmer", "zstandard", "pyserini", "faiss-cpu", "faiss-gpu", "sentence-transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneShard(Options):
    """A shard that every part of the build has processed."""

    passages: int
    """Number of passages."""
    sha256: str
    """sha256 of the passages' canonical lines."""
    checksum: int
    """CRC-32 of what the build has written of the shard; see `_checksum`."""


@dataclass(slots=True, kw_only=True)
class BuildState(Options):
    """Settings and finished shards of a build, stored so that it can be resumed."""

    format: str
    """Versions of the folder's layout and of BM25's analyser."""
    parts: dict[str, dict[str, Any]]
    """Card fields that each part's build depends on, by the part's folder."""
    source: str
    """Path of an existing index whose files are reused; empty if everything is built from the corpus."""
    shard: int
    """Number of passages in a shard."""
    shards: list[DoneShard] = field(default_factory=list)
    """The finished shards, in corpus order."""


def build_index(
    passages: Iterable[Passage],
    out: FilePath,
    card: str | dict[str, Any] | RetrieverCard = DEFAULT,
    *,
    overwrite: bool = False,
    restart: bool = False,
    shard: int = SHARD,
    wait: float = 0.0,
    make: Callable[[PartCard, Path, Path, Progress], Builder] | None = None,
    source: str = "",
    progress: Progress = quiet,
) -> IndexManifest:
    """Builds an index folder, which appears under its name only when it is complete.

    Args:
        passages: The corpus, read once; no more than a shard is in memory.
        out: Folder to create, along with its parents.
        card: Retriever card, its name, its path or a mapping. The parts that it needs are built.
        overwrite: Whether to replace an existing index.
        restart: Whether to discard an interrupted build with other settings.
        shard: Number of passages in a shard.
        wait: Seconds to wait for another process that builds the same index.
        make: Returns the builder of each part. Default: `PartCard.builder`.
        source: Path of an existing index whose files `make` reuses; a build with another source is not resumed.
        progress: Called during each stage.

    Returns:
        The manifest of the new index folder.

    Raises:
        UsageError: The card needs no index.
        DataError: There is nothing to index, or an id occurs twice.
        RunExistsError: `out` exists and is not an index, or `overwrite` is False; or another process builds the same
            index; or an interrupted build with other settings exists.
    """
    out, card = Path(out), find_retriever(card)
    parts = part_names(card)
    if not card.needs_corpus:
        raise UsageError(f"the retriever card {card.name or card.kind!r} searches no corpus: there is nothing to build")
    check_free(out, overwrite)
    out.parent.mkdir(parents=True, exist_ok=True)
    building = building_folder(out)
    with lock_folder(building, wait):
        if (building / MANIFEST).exists() and not restart:
            return _put_in_place(building, out, overwrite, card, passages)
        built = {name: _comparable(part.built_of()) for name, part in parts.items()}
        form = f"{FORMAT}.{analysis.VERSION}"
        state = _state(building, BuildState(format=form, parts=built, source=source, shard=shard), restart)
        try:
            check_free(out, overwrite)  # again: another process may have built the index meanwhile
            builders = {}
            for name, part in parts.items():
                folder, shards = building / name, building / _SHARDS / name
                folder.mkdir(parents=True, exist_ok=True)
                shards.mkdir(parents=True, exist_ok=True)
                take = part.builder if make is None else partial(make, part)
                builders[name] = take(folder, shards, progress)
            store, sha256, facts = _write_shards(_counted(unique(passages), progress), building, state, builders)
            manifest = _complete(building, card, facts, store, sha256)
            _move(building, out, overwrite)
        except BaseException as error:
            if not state.shards:  # nothing that could be resumed
                shutil.rmtree(building, ignore_errors=True)
            if isinstance(error, OSError) and error.errno and not error.filename:
                error.filename = str(out)  # the system reports a full disk without a path
            raise
    return manifest


def building_folder(out: Path) -> Path:
    """Returns the hidden folder in which an index is built until it is complete."""
    return out.parent / f".{out.name}.building"


def check_free(out: Path, overwrite: bool) -> None:
    """Raises an error if a path holds something that must not be replaced; see `check_claim`."""
    check_claim(out, MANIFEST, "an index", resume=None, overwrite=overwrite)


def _put_in_place(
    building: Path, out: Path, overwrite: bool, card: RetrieverCard, passages: Iterable[Passage]
) -> IndexManifest:
    """Renames a build that was interrupted just before its renaming, and returns its manifest."""
    manifest = read(IndexManifest, json.loads((building / MANIFEST).read_bytes()), str(building / MANIFEST))
    if manifest.retriever != _comparable(plain(card)) or corpus_sha256(passages) != manifest.corpus_sha256:
        raise RunExistsError(f"{building} holds a finished build of another card or corpus: {RESTART} discards it")
    _move(building, out, overwrite)
    return manifest


def _comparable(data: dict[str, Any]) -> dict[str, Any]:
    """Returns plain data as it reads back from JSON, where tuples are lists."""
    return dict(json.loads(json.dumps(data)))


def _state(building: Path, requested: BuildState, restart: bool) -> BuildState:
    """Returns the state of an interrupted build with the same settings; else clears the folder, for a new build."""
    path = building / STATE
    if path.exists() and not restart:
        try:
            saved = read(BuildState, json.loads(path.read_bytes()), str(path))
        except (ValueError, CardError) as error:
            raise RunExistsError(
                f"{building}: the interrupted build cannot be read ({error}): {RESTART} discards it"
            ) from error
        if dataclasses.replace(saved, shards=[]) != requested:
            raise RunExistsError(
                f"{building} holds {len(saved.shards)} shards of an interrupted build with other settings: build with "
                "those settings to continue it, or pass --restart to discard it"
            )
        return saved
    for path in building.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()
    return requested


def _save(state: BuildState, building: Path) -> None:
    with write_atomic(building / STATE) as file:
        file.write(json.dumps(dataclasses.asdict(state)).encode())


def _counted(passages: Iterable[Passage], progress: Progress) -> Iterator[Passage]:
    """Yields passages and reports progress at every thousandth and at the last."""
    number = 0
    for number, passage in enumerate(passages, 1):
        yield passage
        if number % 1000 == 0:
            progress("reading passages", number, 0)
    progress("reading passages", number, number)


def _write_shards(
    passages: Iterable[Passage], building: Path, state: BuildState, builders: dict[str, Builder]
) -> tuple[PassageStore, str, dict[str, dict[str, Any]]]:
    """Writes the shards that are not finished yet.

    Returns:
        The store of all passages, the sha256 of their lines, and the facts of each part.
    """
    with PassageWriter(building) as writer, ThreadPoolExecutor(1) as pool:
        _cut(writer, state)
        start, number, left, whole = 0, 0, iter(passages), hashlib.sha256()
        while batch := list(itertools.islice(left, state.shard)):
            lines = [passage_line(passage) for passage in batch]
            text = b"".join(lines)
            whole.update(text)
            sha256 = hashlib.sha256(text).hexdigest()
            done = state.shards[number] if number < len(state.shards) else None
            end = start + len(batch)
            same = done is not None and done.sha256 == sha256
            if done is None or not same or done.checksum != _checksum(building, writer, builders, number, start, end):
                if done is not None:  # from here on the corpus has changed since the interruption, or files are damaged
                    _forget(building, writer, state, number)
                written = pool.submit(writer.write, lines, [passage.id for passage in batch])  # compresses meanwhile
                for builder in builders.values():
                    builder.add(number, start, batch)
                written.result()
                checksum = _checksum(building, writer, builders, number, start, end)
                state.shards.append(DoneShard(passages=len(batch), sha256=sha256, checksum=checksum))
                _save(state, building)
            start = end
            number += 1
        if number < len(state.shards):
            _forget(building, writer, state, number)
        if not state.shards:
            raise DataError("nothing to index: no passages and no word in them")
        store = writer.finish()
    try:
        return store, whole.hexdigest(), {name: builder.finish(number, store) for name, builder in builders.items()}
    except DataError:  # the corpus cannot be indexed, so there is nothing to resume
        state.shards.clear()
        raise


def _cut(writer: PassageWriter, state: BuildState) -> None:
    """Removes the passages of all but the finished shards, and those shards whose passages are not all there."""
    while sum(shard.passages for shard in state.shards) > writer.passages():
        state.shards.pop()
    writer.cut(sum(shard.passages for shard in state.shards))


def _checksum(
    building: Path, writer: PassageWriter, builders: Mapping[str, Builder], number: int, start: int, end: int
) -> int:
    """Returns the CRC-32 of a shard's passages in the store, and of what the builders have written of it."""
    checksum = writer.checksum(start, end)
    for path in sorted((building / _SHARDS).glob(f"*/{number:05d}.*")):
        checksum = zlib.crc32(path.read_bytes(), checksum)
    for builder in builders.values():
        if hasattr(builder, "checksum"):  # a user's class may have only what version 0.1.0 asked for
            checksum = zlib.crc32(repr(builder.checksum(start, end)).encode(), checksum)
    return checksum


def _forget(building: Path, writer: PassageWriter, state: BuildState, shards: int) -> None:
    """Discards all but the first shards, and everything in the folders of the parts."""
    for name in state.parts:
        shutil.rmtree(building / name)
        (building / name).mkdir()
    del state.shards[shards:]
    _save(state, building)
    _cut(writer, state)


def _complete(
    building: Path, card: RetrieverCard, facts: dict[str, dict[str, Any]], store: PassageStore, sha256: str
) -> IndexManifest:
    """Writes the manifest and returns it. With it the build is complete; leftover files may remain."""
    files = describe_files(building)
    parts = {name: IndexPart(card=plain(part), facts=facts[name]) for name, part in part_names(card).items()}
    versions = {"searchgym": __version__, "unicode": unicodedata.unidata_version}
    for library in _LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            versions[library] = version(library)
    manifest = IndexManifest(
        format=FORMAT,
        corpus_sha256=sha256,
        passages=len(store),
        retriever=plain(card),
        parts=parts,
        versions=versions,
        files=files,
    )
    text = (json.dumps(dataclasses.asdict(manifest), indent=2) + "\n").encode()
    with write_atomic(building / MANIFEST) as file:
        file.write(text)
    if unknown_model(card) is not None:
        mark_own(building, text)
    return manifest


def _move(building: Path, out: Path, overwrite: bool) -> None:
    """Removes the temporary files of a build and renames the folder to its final name, replacing an old index."""
    if (building / _SHARDS).exists():
        shutil.rmtree(building / _SHARDS)
    for name in (STATE, ENDS, HASHES):
        (building / name).unlink(missing_ok=True)
    check_free(out, overwrite)
    old = building.with_name(f"{building.name}-old-{time.time_ns()}")
    if (out / MANIFEST).exists():
        out.rename(old)
    try:
        building.rename(out)
    except OSError:
        check_free(out, overwrite=False)  # raises if another process has built the index meanwhile
        raise
    # Only now: if the lock were released before the renaming, a waiting process would start a new build in this folder.
    (out / ".lock").unlink()
    shutil.rmtree(old, ignore_errors=True)
