"""Writes worlds to folders, which appear only when they are complete, reads them, and caches generated worlds.

corpus.jsonl      pages, in the canonical format
questions.jsonl   questions, in the format ``searchgym``
triples.tsv       every fact: subject, relation, object
card.yaml         description of the world, with the sha256 of the three files above
report.json       measurements
report.md         the same measurements as readable tables
"""

from __future__ import annotations

import contextlib
import json
import shutil
import uuid
from pathlib import Path
from typing import Any, Final

import yaml

from searchgym.corpora.files import FilePath, sha256_file, text_lines
from searchgym.corpora.passages import read_passages, write_corpus
from searchgym.corpora.questions import read_questions, write_questions
from searchgym.errors import CardError, DataError, DataMissingError, RunExistsError
from searchgym.options import read
from searchgym.options.yaml import read_yaml
from searchgym.questions.worlds.build import build_world
from searchgym.questions.worlds.report import card_of, markdown, report_of
from searchgym.questions.worlds.schema import VERSION, WorldSpec, check_spec
from searchgym.questions.worlds.world import World
from searchgym.records import Triple

CORPUS: Final = "corpus.jsonl"
QUESTIONS: Final = "questions.jsonl"
TRIPLES: Final = "triples.tsv"
CARD: Final = "card.yaml"
"""File of a world folder that describes the world."""


def write_world(world: World, out: FilePath) -> Path:
    """Writes a world to a folder; the same world always gives the same bytes.

    Args:
        world: World to write.
        out: Folder to make; its parents are made too.

    Returns:
        The folder.

    Raises:
        RunExistsError: `out` exists and is not an empty folder.
    """
    out = Path(out)
    check_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    building = out.parent / f".{out.name}.building-{uuid.uuid4().hex[:8]}"
    building.mkdir()
    try:
        write_corpus(building / CORPUS, world.passages)
        write_questions(building / QUESTIONS, world.questions)
        lines = ["\t".join((t.subject, t.relation, t.object)) + "\n" for t in world.triples]
        (building / TRIPLES).write_text("".join(lines), encoding="utf-8")
        report = report_of(world)
        (building / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        (building / "report.md").write_text(markdown(report), encoding="utf-8")
        sums = {name: sha256_file(building / name) for name in (CORPUS, QUESTIONS, TRIPLES)}
        card = yaml.safe_dump(card_of(world) | {"sha256": sums}, sort_keys=False)
        (building / CARD).write_text(card, encoding="utf-8")
        check_free(out)  # again: another process may have written it meanwhile
        building.rename(out)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return out


def read_world(folder: FilePath) -> World:
    """Returns the world that `write_world` wrote to a folder.

    Raises:
        DataMissingError: The folder or one of its files does not exist.
        DataError: A file is not the one that the card describes, or the card is damaged or of another version.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataMissingError("no such world folder: build it with `searchgym world build --out DIR`", folder)
    card = _card(folder)
    for name, expected in card["sha256"].items():
        if sha256_file(folder / name) != expected:
            raise DataError("is not the file that the world's card describes: build the world again", folder / name)
    lines = [line.removesuffix("\n") for _, line in text_lines(folder / TRIPLES)]
    return World(
        read(WorldSpec, card["spec"], f"{folder / CARD}: spec"),
        tuple(read_passages(folder / CORPUS)),
        tuple(read_questions(folder / QUESTIONS)),
        tuple(Triple(*line.split("\t")) for line in lines),
    )


def cached_world(spec: WorldSpec, home: Path) -> Path:
    """Returns the folder of a world in a cache; builds and writes the world if the cache lacks it.

    Args:
        spec: Specification of the world.
        home: Folder of the cache.

    Raises:
        UnknownNameError, UsageError: No world can be built from `spec`; see `build_world`.
    """
    check_spec(spec)
    hops = "".join(map(str, sorted(spec.hops)))
    strata = "".join(f"-{name}" for name in sorted(spec.strata))
    folder = home / f"{spec.level}-{spec.split}-seed{spec.seed}-n{spec.size}-hops{hops}{strata}-v{VERSION}"
    if not folder.exists():
        with contextlib.suppress(RunExistsError):  # another process may write the same world meanwhile
            write_world(build_world(spec), folder)
    return folder


def check_free(out: Path) -> None:
    """Raises a RunExistsError if a path exists and is not an empty folder."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise RunExistsError(f"{out} is there already: choose another --out, or remove it first")


def _card(folder: Path) -> dict[str, Any]:
    """Returns spec and checksums from a world folder's card, after checking its version."""
    if not (folder / CARD).is_file():
        raise DataMissingError("is missing: this is not a world folder", folder / CARD)
    try:
        card = read_yaml(folder / CARD)
        if card["version"] != VERSION:
            raise DataError(f"is a world of version {card['version']}, this code reads {VERSION}", folder / CARD)
        return {"spec": card["spec"], "sha256": dict(card["sha256"])}
    except (TypeError, KeyError, ValueError, CardError) as error:
        raise DataError(f"is not a world's card ({type(error).__name__}: {error})", folder / CARD) from error
