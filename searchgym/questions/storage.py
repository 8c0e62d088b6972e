"""Writes question sets to folders, which appear only when complete, and caches those of environments.

questions/SPLIT.jsonl   questions, in the format ``searchgym``, with path, waypoints and gold titles
flashrag/SPLIT.jsonl    the same questions in FlashRAG's format
card.yaml               source, pack, rules, counts and seeds, with the sha256 of the question files
report.json, report.md  measurements
report.png              plot of the questions by shape
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.files import FilePath, sha256_file, write_jsonl
from searchgym.corpora.folders import cached, check_free
from searchgym.corpora.passages import corpus_sha256
from searchgym.corpora.questions import read_questions, write_questions
from searchgym.errors import DataError, DataMissingError
from searchgym.options.cards import find_card
from searchgym.options.yaml import read_yaml
from searchgym.questions.generate import VERSION, QuestionSet, generate, why
from searchgym.questions.graphs.packs import load_pack
from searchgym.questions.report import markdown, picture, report_of
from searchgym.questions.saved import CARD, write_card, write_report
from searchgym.questions.shortcuts import Shortcuts, measure
from searchgym.questions.source import HeldOut, held_out_by
from searchgym.questions.spec import SPLITS, USUAL, GeneratedSpec
from searchgym.questions.worlds.storage import read_world
from searchgym.records import Passage, Question
from searchgym.retrieval.cards import Progress, quiet
from searchgym.retrieval.index.index import build_in_memory
from searchgym.retrieval.retriever import CorpusRetriever

FORMAT: Final = "searchgym questions"
"""Value of ``format`` in the card of a question set."""
FILES: Final = tuple(f"{name}/{split}.jsonl" for split in SPLITS for name in ("questions", "flashrag"))
"""Question files of a set, whose checksums are in its card."""
ORDER: Final = "by hash"
"""Order of the questions in a file. Earlier versions grouped them by shape; caches do not reuse such sets."""


def key_of(sha256: str, spec: GeneratedSpec, top_k: int, held_out: HeldOut | None) -> dict[str, Any]:
    """Returns all inputs that determine the generated questions, as plain data; `sha256` is that of the corpus."""
    names = sorted(held_out.names) if held_out else []
    shapes, shares = list(spec.shapes or USUAL), list(spec.shares)
    return {
        "version": VERSION,
        "order": ORDER,
        "corpus_sha256": sha256,
        "pack": spec.pack,
        "pack_sha256": sha256_file(find_card("packs", spec.pack)),
        "plan": {"n": spec.n, "seed": spec.seed, "top_k": top_k, "shapes": shapes, "shares": shares},
        "held_out_pages": len(held_out.pages) if held_out else 0,
        "held_out_sha256": hashlib.sha256("\n".join(names).encode()).hexdigest(),
    }


def digest_of(key: object) -> str:
    """Returns the sha256 of plain data, which names cache folders."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()


def write_set(
    passages: Sequence[Passage],
    spec: GeneratedSpec,
    out: FilePath,
    held_out: HeldOut | None = None,
    source: str = "a corpus",
    progress: Progress = quiet,
    needed: Sequence[str] = (),
    top_k: int = 3,
) -> dict[str, Any]:
    """Generates questions and writes them to a folder; an interrupted run resumes where it stopped.

    Args:
        passages: The corpus.
        spec: Parameters of the questions.
        out: Folder to create.
        held_out: Pages and names to leave out.
        source: Name of the corpus for the report.
        progress: Callback that receives progress reports.
        needed: Splits that must have a question.
        top_k: Number of hits per search in the environment that will ask the questions.

    Returns:
        The report as plain data.

    Raises:
        RunExistsError: `out` exists and is not an empty folder.
        DataError: The corpus gives no question, or none for a split that is needed; no files remain.
    """
    out = Path(out)
    check_free(out)
    key = key_of(corpus_sha256(passages), spec, top_k, held_out)
    building = out.with_name(f".{out.name}.building-{digest_of(key)[:16]}")  # the same for a resumed run
    (building / "work").mkdir(parents=True, exist_ok=True)
    retriever = build_in_memory(passages)
    try:
        question_set = generate(
            passages, load_pack(spec.pack), spec, held_out, building / "work", progress, retriever, top_k
        )
        counts = {split: len(question_set.split(split)) for split in SPLITS}
        if lacking := [split for split in needed if not counts[split]]:
            counts_text = ", ".join(f"{split} {count}" for split, count in counts.items())
            raise DataError(
                f"gives no questions for {' and '.join(lacking)} ({counts_text}): {why(question_set, len(passages))}: "
                "give more pages or more shapes, or other shares of the splits "
                "(a split with a share of 0 needs no question)"
            )
    except DataError:
        shutil.rmtree(building)
        raise
    questions = [question for split in SPLITS for question in question_set.split(split)]
    measured = report_of(question_set, measure(questions, passages, retriever, top_k, question_set.triples))
    _write(building, question_set, measured, key | {"passages": len(passages)}, source)
    shutil.rmtree(building / "work")
    check_free(out)  # again: another process may have written it in the meantime
    building.rename(out)
    return measured


def write_splits(folder: Path, questions: Mapping[str, Sequence[Question]]) -> list[str]:
    """Writes the questions of each split to ``questions/SPLIT.jsonl``; returns the names of the files."""
    (folder / "questions").mkdir()
    files = {split: f"questions/{split}.jsonl" for split in SPLITS}
    for split, file in files.items():
        write_questions(folder / file, questions[split])
    return list(files.values())


def _write(folder: Path, question_set: QuestionSet, measured: dict[str, Any], key: dict[str, Any], source: str) -> None:
    """Writes the files of a question set, and first removes partial files of a killed run."""
    for name in ("questions", "flashrag"):
        shutil.rmtree(folder / name, ignore_errors=True)
    questions = {split: question_set.split(split) for split in SPLITS}
    write_splits(folder, questions)
    (folder / "flashrag").mkdir()
    for split in SPLITS:
        write_jsonl(folder / "flashrag" / f"{split}.jsonl", map(_flashrag, questions[split]))
    pictured = importlib.util.find_spec("matplotlib") is not None  # part of `train`; the tables hold the same data
    if pictured:
        picture(measured, str(folder / "report.png"))
    write_report(folder, measured, markdown(measured, source, pictured))
    counts = {name: measured[name] for name in ("questions", "drafts_refused")}
    write_card(folder, {"format": FORMAT, "source": source} | key | counts, FILES)


def _flashrag(question: Question) -> dict[str, Any]:
    """Returns a question in FlashRAG's format, with its known evidence as metadata."""
    facts = question.supporting_facts or ()
    supporting = {"title": [fact.title for fact in facts], "sent_id": [fact.sentence for fact in facts]}
    return {
        "id": question.id,
        "question": question.text,
        "golden_answers": list(question.golds),
        "metadata": {"type": question.kind, "supporting_facts": supporting, **question.metadata},
    }


def read_card(folder: FilePath) -> dict[str, Any]:
    """Returns the card of a question set after checking its files.

    Raises:
        DataError: The folder is not a question set, or a file does not match the card.
    """
    folder = Path(folder)
    if not (folder / CARD).is_file():
        raise DataMissingError("has no card.yaml: give a folder that `searchgym questions generate` wrote", folder)
    card = read_yaml(folder / CARD)
    sums = card.get("sha256") if isinstance(card, dict) and card.get("format") == FORMAT else None
    counts = card.get("questions") if isinstance(card, dict) else None
    if not isinstance(sums, dict) or not isinstance(counts, dict):
        raise DataError("is not the card of a question set", folder / CARD)
    for name, expected in sums.items():
        if name not in FILES or not (folder / name).is_file() or sha256_file(folder / name) != expected:
            raise DataError("is not the file that the card describes: generate the questions again", folder / str(name))
    return dict(card)


def read_split(folder: FilePath, split: str) -> tuple[Question, ...]:
    """Returns the questions of one split of a question set, or of all splits for ``all``.

    Raises:
        DataError: The folder is not a question set, a file does not match the card, or the split has no question.
    """
    folder = Path(folder)
    counts = read_card(folder)["questions"]
    names = [name for name in (SPLITS if split == "all" else (split,)) if counts.get(name)]
    if not names:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise DataError(f"has no questions in split {split!r} ({listed}): ask for more, or another split", folder)
    return tuple(q for name in names for q in read_questions(folder / "questions" / f"{name}.jsonl"))


def world_shortcuts(folder: FilePath) -> tuple[Shortcuts, tuple[Question, ...]]:
    """Returns the shortcuts of a world's questions, and the questions."""
    world = read_world(folder)
    return measure(world.questions, world.passages, build_in_memory(world.passages), 3, world.triples), world.questions


def cached_set(
    retriever: CorpusRetriever,
    spec: GeneratedSpec,
    home: Path,
    source: str,
    held_back: Sequence[FilePath] = (),
    top_k: int = 3,
) -> Path:
    """Returns the folder of a question set in a cache; generates it from a retriever's corpus if it is not cached.

    Args:
        retriever: Retriever over the corpus.
        spec: Parameters of the questions.
        home: Folder of the cache.
        source: Name of the corpus for the report.
        held_back: Question files whose gold pages and answers are excluded.
        top_k: Number of hits per search in the environment that will ask the questions.
    """
    sha256 = retriever.corpus_sha256 or corpus_sha256(retriever.passages())
    held_out = held_out_by(retriever.passages(), held_back)
    folder = home / digest_of(key_of(sha256, spec, top_k, held_out))[:24]
    passages = retriever.passages
    return cached(folder, lambda out: write_set(list(passages()), spec, out, held_out, source, top_k=top_k))
