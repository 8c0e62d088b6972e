"""Writes worlds to folders, which appear only when complete; reads them, and caches generated worlds.

corpus.jsonl      pages, in the canonical format
questions.jsonl   questions, in the format ``searchgym``
triples.tsv       every fact: subject, relation, object
card.yaml         description of the world, with the sha256 of the three files above
report.json       measurements
report.md         the same measurements as readable tables
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from searchgym.corpora.files import FilePath, sha256_file, text_lines
from searchgym.corpora.folders import appearing, cached
from searchgym.corpora.passages import read_passages, write_corpus
from searchgym.corpora.questions import read_questions, write_questions
from searchgym.errors import CardError, DataError, DataMissingError
from searchgym.options import read
from searchgym.options.yaml import read_yaml
from searchgym.questions.saved import CARD, write_card, write_report
from searchgym.questions.worlds.build import build_world
from searchgym.questions.worlds.report import card_of, markdown, report_of
from searchgym.questions.worlds.schema import VERSION, World, WorldSpec, check_spec
from searchgym.records import Triple

CORPUS: Final = "corpus.jsonl"
QUESTIONS: Final = "questions.jsonl"
TRIPLES: Final = "triples.tsv"


def write_world(world: World, out: FilePath) -> Path:
    """Writes a world to a folder; the same world always gives the same bytes.

    Args:
        world: World to write.
        out: Folder to create, with its parents.

    Returns:
        The folder.

    Raises:
        RunExistsError: `out` exists and is not an empty folder.
    """
    with appearing(Path(out)) as building:
        write_corpus(building / CORPUS, world.passages)
        write_questions(building / QUESTIONS, world.questions)
        lines = ["\t".join((t.subject, t.relation, t.object)) + "\n" for t in world.triples]
        (building / TRIPLES).write_text("".join(lines), encoding="utf-8")
        report = report_of(world)
        write_report(building, report, markdown(report))
        write_card(building, card_of(world), (CORPUS, QUESTIONS, TRIPLES))
    return Path(out)


def read_world(folder: FilePath) -> World:
    """Returns a world from a folder written by `write_world`.

    Raises:
        DataMissingError: The folder or one of its files does not exist.
        DataError: A file does not match the card, or the card is damaged or of another version.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataMissingError("no such world folder: build it with `searchgym world build --out DIR`", folder)
    file = folder / CARD
    if not file.is_file():
        raise DataMissingError("is missing: this is not a world folder", file)
    try:
        card = read_yaml(file)
        if card["version"] != VERSION:
            raise DataError(f"is a world of version {card['version']}, this code reads {VERSION}", file)
        spec, sums = card["spec"], dict(card["sha256"])
    except (TypeError, KeyError, ValueError, CardError) as error:
        raise DataError(f"is not a world's card ({type(error).__name__}: {error})", file) from error
    for name, expected in sums.items():
        if sha256_file(folder / name) != expected:
            raise DataError("is not the file that the world's card describes: build the world again", folder / name)
    lines = [line.removesuffix("\n") for _, line in text_lines(folder / TRIPLES)]
    return World(
        read(WorldSpec, spec, f"{file}: spec"),
        tuple(read_passages(folder / CORPUS)),
        tuple(read_questions(folder / QUESTIONS)),
        tuple(Triple(*line.split("\t")) for line in lines),
    )


def cached_world(spec: WorldSpec, home: Path) -> Path:
    """Returns the folder of a world in a cache; builds and writes the world if it is not cached.

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
    return cached(folder, lambda out: write_world(build_world(spec), out))
