"""Building index folders: the corpus is read once as a stream, by shards; an interrupted build goes on where it was.

Until it is complete, a build stands in the hidden folder ``.NAME.building`` beside its name: ``.build.json`` says which
shards are done. The next build of the same name reads the corpus again, finds by the shards' checksums what it need
not do again, and goes on from the first shard that is new or another.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import shutil
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from searchgym.cards import build
from searchgym.corpora.files import FilePath, lock_folder, write_atomic
from searchgym.corpora.passages import corpus_sha256, passage_line
from searchgym.corpora.retrieval.backends import Builder, Progress, back_end, quiet
from searchgym.corpora.retrieval.bm25 import analysis
from searchgym.corpora.retrieval.cards import DEFAULT, PartCard, RetrieverCard, built_of, find_retriever, plain
from searchgym.corpora.retrieval.index.index import FORMAT, MANIFEST, Manifest, Part, describe_files, part_names
from searchgym.corpora.store import ENDS, PASSAGES, PassageStore, PassageWriter, unique
from searchgym.errors import CardError, DataError, RunExistsError, UsageError
from searchgym.records import Passage
from searchgym.version import __version__

SHARD: Final = 100_000
"""Passages of a shard: what is lost at most when a build is interrupted, and what is in memory at once."""
STATE: Final = ".build.json"
_SHARDS: Final = ".shards"
_LIBRARIES: Final = ("bm25s", "numpy", "PyStemmer", "pyserini", "faiss-cpu", "faiss-gpu", "sentence-transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneShard:
    """A shard that is on disk, in every part."""

    passages: int
    bytes: int
    """Of its canonical lines."""
    sha256: str
    """Of those."""


@dataclass(slots=True, kw_only=True)
class BuildState:
    """How far a build is."""

    format: str
    """Of the folder and of BM25's analysis."""
    parts: dict[str, dict[str, Any]]
    """What each part's build depends on, by its folder."""
    source: str
    """What is taken instead of being built; empty where all is."""
    shard: int
    """Passages of a shard."""
    shards: list[DoneShard] = field(default_factory=list)


def make_builder(card: PartCard, folder: Path, shards: Path, progress: Progress) -> Builder:
    """Returns what builds a part: its back end's builder, as `parts.BackEnd` has it."""
    return back_end(card).builder(card, folder, shards, progress)


def build_index(
    passages: Iterable[Passage],
    out: FilePath,
    card: str | dict[str, Any] | RetrieverCard = DEFAULT,
    *,
    overwrite: bool = False,
    restart: bool = False,
    shard: int = SHARD,
    wait: float = 0.0,
    make: Callable[[PartCard, Path, Path, Progress], Builder] = make_builder,
    source: str = "",
    progress: Progress = quiet,
) -> Manifest:
    """Builds an index folder. Until it is complete, nothing stands under its name.

    Args:
        passages: Read once, one at a time; no more than a shard is in memory.
        out: The folder to make; its parents are made too.
        card: Retriever card, its name, or a mapping: what is built is what it needs.
        overwrite: Replace an index that is already there.
        restart: Throw away what an interrupted build with other settings has left.
        shard: Passages of a shard.
        wait: Seconds to wait for another process that builds the same.
        make: Gives what builds each part.
        source: What that takes from elsewhere: a build from another source does not go on with this one.
        progress: Told of each stage's progress.

    Raises:
        UsageError: The card needs no index.
        DataError: There is nothing to index, or an id occurs twice.
        RunExistsError: `out` exists and `overwrite` is False, or it is not an index; or another build is under way, or
            was interrupted that had other settings.
    """
    out, card = Path(out), find_retriever(card)
    parts = part_names(card)
    if not parts:
        raise UsageError(f"the retriever card {card.name or card.kind!r} searches no corpus: there is nothing to build")
    check_free(out, overwrite)
    out.parent.mkdir(parents=True, exist_ok=True)
    building = building_folder(out)
    with lock_folder(building, wait):
        if not (building / STATE).exists():
            _check_still_free(out, overwrite, building)
        if (building / MANIFEST).exists() and not restart:
            return _put_in_place(building, out, overwrite, card, passages)
        built = {name: _comparable(built_of(part)) for name, part in parts.items()}
        form = f"{FORMAT}.{analysis.VERSION}"
        state = _state(building, BuildState(format=form, parts=built, source=source, shard=shard), restart)
        try:
            builders = {name: make(part, *_part_folders(building, name), progress) for name, part in parts.items()}
            store = _write_shards(_counted(unique(passages), progress), building, state, builders)
            facts = _finish(state, builders, store)
            manifest = _complete(building, card, facts, store)
            _clean(building)
            _move(building, out, overwrite)
        except BaseException:
            if not state.shards:  # nothing is lost
                shutil.rmtree(building, ignore_errors=True)
            raise
    return manifest


def building_folder(out: Path) -> Path:
    """Returns where a build stands until it is complete."""
    return out.parent / f".{out.name}.building"


def check_free(out: Path, overwrite: bool) -> None:
    """Refuses a name under which something stands that must not be replaced; an empty folder is nothing."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / MANIFEST).exists():
        raise RunExistsError(f"{out} exists and is not an index (no {MANIFEST}): choose another --out")
    if not overwrite:
        raise RunExistsError(f"{out} already holds an index: choose another --out, or pass --overwrite to replace it")


def _check_still_free(out: Path, overwrite: bool, building: Path) -> None:
    """Refuses a name that another process was quicker to take, and leaves nothing beside it."""
    try:
        check_free(out, overwrite)
    except RunExistsError:
        shutil.rmtree(building, ignore_errors=True)
        raise


def _put_in_place(
    building: Path, out: Path, overwrite: bool, card: RetrieverCard, passages: Iterable[Passage]
) -> Manifest:
    """Gives its name to a build that was interrupted when all was done but that; returns its manifest."""
    manifest = build(Manifest, json.loads((building / MANIFEST).read_bytes()), str(building / MANIFEST))
    if manifest.retriever != _comparable(plain(card)) or corpus_sha256(passages) != manifest.corpus_sha256:
        raise RunExistsError(
            f"{building} holds a finished build of another card or corpus: pass --restart to throw it away"
        )
    _clean(building)
    _move(building, out, overwrite)
    return manifest


def _comparable(data: dict[str, Any]) -> dict[str, Any]:
    """Returns plain data as JSON has it."""
    return dict(json.loads(json.dumps(data)))


def _part_folders(building: Path, name: str) -> tuple[Path, Path]:
    """Makes and returns the folder of a part, and that for its shards."""
    folders = building / name, building / _SHARDS / name
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    return folders


# -- state ---------------------------------------------------------------------------------------------------------


def _state(building: Path, wanted: BuildState, restart: bool) -> BuildState:
    """Returns how far an interrupted build of the same settings is; a new state if there is none."""
    path = building / STATE
    if path.exists() and not restart:
        try:
            found = build(BuildState, json.loads(path.read_bytes()), str(path))
        except (ValueError, CardError) as error:
            raise RunExistsError(
                f"{building}: an interrupted build that cannot be read ({error}): --restart"
            ) from error
        if dataclasses.replace(found, shards=[]) != wanted:
            raise RunExistsError(
                f"{building} holds {len(found.shards)} shards of an interrupted build with other settings: build with "
                "those to go on with it, or pass --restart to throw it away"
            )
        return found
    for inside in building.iterdir():
        if inside.is_dir():
            shutil.rmtree(inside)
        elif inside.name != ".lock":
            inside.unlink()
    return wanted


def _save(state: BuildState, building: Path) -> None:
    with write_atomic(building / STATE) as file:
        file.write(json.dumps(dataclasses.asdict(state)).encode())


# -- stages --------------------------------------------------------------------------------------------------------


def _counted(passages: Iterable[Passage], progress: Progress) -> Iterator[Passage]:
    """Yields the passages, reporting every thousandth and the last."""
    number = 0
    for number, passage in enumerate(passages, 1):
        yield passage
        if number % 1000 == 0:
            progress("reading passages", number, 0)
    progress("reading passages", number, number)


def _finish(state: BuildState, builders: dict[str, Builder], store: PassageStore) -> dict[str, dict[str, Any]]:
    """Makes the parts of their shards; returns the facts of each."""
    try:
        return {name: one.finish(len(state.shards), store) for name, one in builders.items()}
    except DataError:  # this corpus never gives an index: its shards are of no use
        state.shards.clear()
        raise


def _write_shards(
    passages: Iterable[Passage], building: Path, state: BuildState, builders: dict[str, Builder]
) -> PassageStore:
    """Writes what is not written yet; returns the passages."""
    with PassageWriter(building) as writer:
        _cut(writer, state, len(state.shards))
        start, number = 0, 0
        for number, batch in enumerate(_batches(passages, state.shard), start=1):
            lines = [passage_line(passage) for passage in batch]
            done = DoneShard(
                passages=len(batch),
                bytes=sum(map(len, lines)),
                sha256=hashlib.sha256(b"".join(lines)).hexdigest(),
            )
            if state.shards[number - 1 : number] != [done]:
                if len(state.shards) >= number:  # the corpus is another one from here on
                    _forget(building, writer, state, number - 1)
                writer.write(lines)
                for one in builders.values():
                    one.add(number - 1, start, batch)
                state.shards.append(done)
                _save(state, building)
            start += len(batch)
        if number < len(state.shards):
            _forget(building, writer, state, number)
        if not state.shards:
            raise DataError("nothing to index: no passages and no word in them")
        return writer.finish()


def _batches(passages: Iterable[Passage], size: int) -> Iterator[list[Passage]]:
    iterator = iter(passages)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def _cut(writer: PassageWriter, state: BuildState, shards: int) -> None:
    kept = state.shards[:shards]
    writer.cut(sum(one.passages for one in kept), sum(one.bytes for one in kept))


def _forget(building: Path, writer: PassageWriter, state: BuildState, shards: int) -> None:
    """Takes back all but the first shards, and what parts have made of all of them."""
    for name in state.parts:
        shutil.rmtree(building / name)
        (building / name).mkdir()
    del state.shards[shards:]
    _save(state, building)
    _cut(writer, state, shards)


def _complete(building: Path, card: RetrieverCard, facts: dict[str, dict[str, Any]], store: PassageStore) -> Manifest:
    """Writes the manifest: from then on the build is complete, whatever else lies there."""
    files = describe_files(building)
    parts = {name: Part(card=plain(part), facts=facts[name]) for name, part in part_names(card).items()}
    manifest = Manifest(
        format=FORMAT,
        corpus_sha256=files[PASSAGES].sha256,
        passages=len(store),
        retriever=plain(card),
        parts=parts,
        versions={"searchgym": __version__, "unicode": unicodedata.unidata_version} | _versions(),
        files=files,
    )
    with write_atomic(building / MANIFEST) as file:
        file.write((json.dumps(dataclasses.asdict(manifest), indent=2) + "\n").encode())
    return manifest


def _clean(building: Path) -> None:
    """Removes what was needed for building only."""
    if (building / _SHARDS).exists():
        shutil.rmtree(building / _SHARDS)
    for name in (STATE, ENDS):
        (building / name).unlink(missing_ok=True)


def _versions() -> dict[str, str]:
    """Returns the versions of the libraries that are there."""
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _move(building: Path, out: Path, overwrite: bool) -> None:
    """Gives a finished folder its name."""
    check_free(out, overwrite)
    old = building.with_name(f"{building.name}-old-{time.time_ns()}")
    if (out / MANIFEST).exists():
        out.rename(old)
    try:
        building.rename(out)
    except OSError:
        check_free(out, overwrite=False)  # another process was quicker after all
        raise
    (out / ".lock").unlink()  # not before: whoever waits for it would take what is moved for a new build
    shutil.rmtree(old, ignore_errors=True)
