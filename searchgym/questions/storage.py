"""Writes question sets to folders, which appear when they are complete, and caches those of environments.

questions/SPLIT.jsonl   questions, in the format ``searchgym``, with path, waypoints and gold titles
flashrag/SPLIT.jsonl    the same questions in FlashRAG's format
card.yaml               source, pack, rules, counts and seeds, with the sha256 of the files of questions
report.json, report.md  measurements
report.png              the questions by shape
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from searchgym.corpora.files import FilePath, sha256_file, write_jsonl
from searchgym.corpora.folders import lock_folder
from searchgym.corpora.passages import corpus_sha256
from searchgym.corpora.questions import read_questions, write_questions
from searchgym.errors import DataError
from searchgym.options.cards import find_card
from searchgym.options.yaml import read_yaml
from searchgym.questions.generate import VERSION, Plan, QuestionSet, generate, why
from searchgym.questions.graphs.packs import load_pack
from searchgym.questions.report import markdown, picture, report_of
from searchgym.questions.shortcuts import Shortcuts, measure
from searchgym.questions.source import SPLITS, HeldOut, hold_out
from searchgym.questions.worlds.storage import check_free, read_world
from searchgym.records import Passage, Question
from searchgym.retrieval.cards import Progress, quiet
from searchgym.retrieval.index.index import build_in_memory
from searchgym.retrieval.retriever import CorpusRetriever

CARD: Final = "card.yaml"
ORDER: Final = "by hash"
"""Order of the questions in a file; sets of earlier versions stand shape by shape, and are not taken from a cache."""


def key_of(sha256: str, pack: str, plan: Plan, held_out: HeldOut | None) -> dict[str, Any]:
    """Returns all that decides which questions are generated, as plain data; `sha256` is the corpus's."""
    names = sorted(held_out.names) if held_out else []
    return {
        "version": VERSION,
        "order": ORDER,
        "corpus_sha256": sha256,
        "pack": pack,
        "pack_sha256": sha256_file(find_card("packs", pack)),
        "plan": dataclasses.asdict(plan) | {"shapes": list(plan.shapes), "shares": list(plan.shares)},
        "held_out_pages": len(held_out.pages) if held_out else 0,
        "held_out_sha256": hashlib.sha256("\n".join(names).encode()).hexdigest(),
    }


def write_set(
    passages: Sequence[Passage],
    pack: str,
    plan: Plan,
    out: FilePath,
    held_out: HeldOut | None = None,
    source: str = "a corpus",
    progress: Progress = quiet,
    needed: Sequence[str] = (),
) -> dict[str, Any]:
    """Generates questions and writes them to a folder; a run that was stopped goes on where it ended.

    Args:
        passages: The corpus.
        pack: Name or path of a pack.
        plan: What to generate.
        out: Folder to make.
        held_out: Pages and names to leave out.
        source: Name of the corpus for the report.
        progress: Called with progress reports.
        needed: Splits that must have a question.

    Returns:
        The report as plain data.

    Raises:
        RunExistsError: `out` exists and is not an empty folder.
        DataError: The corpus gives no question, or none for a split that is needed; nothing is left behind then.
    """
    out = Path(out)
    check_free(out)
    key = key_of(corpus_sha256(passages), pack, plan, held_out)
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    building = out.parent / f".{out.name}.building-{digest}"
    (building / "work").mkdir(parents=True, exist_ok=True)
    retriever = build_in_memory(passages)
    try:
        made = generate(passages, load_pack(pack), plan, held_out, building / "work", progress, retriever)
        _check_splits(made, needed, len(passages))
    except DataError:
        shutil.rmtree(building)
        raise
    questions = [question for split in SPLITS for question in made.split(split)]
    measured = report_of(made, measure(questions, passages, retriever, plan.top_k, made.triples))
    _write(building, made, measured, key | {"passages": len(passages)}, source)
    shutil.rmtree(building / "work")
    check_free(out)  # again: another process may have written it meanwhile
    building.rename(out)
    return measured


def _check_splits(made: QuestionSet, needed: Sequence[str], passages: int) -> None:
    """Raises a DataError if a split that is needed has no question."""
    counts = {split: len(made.split(split)) for split in SPLITS}
    if lacking := [split for split in needed if not counts[split]]:
        told = ", ".join(f"{split} {count}" for split, count in counts.items())
        raise DataError(
            f"gives no questions for {' and '.join(lacking)} ({told}): {why(made, passages)}: give more pages or "
            "more shapes, or other shares of the splits (a split with a share of 0 needs no question)"
        )


def _write(folder: Path, made: QuestionSet, measured: dict[str, Any], key: dict[str, Any], source: str) -> None:
    """Writes the files of a question set; what a run that was killed had written of them is removed."""
    for name in ("questions", "flashrag"):
        shutil.rmtree(folder / name, ignore_errors=True)
    sums = {}
    for split in SPLITS:
        questions = made.split(split)
        for name, write in (("questions", write_questions), ("flashrag", _write_flashrag)):
            file = folder / name / f"{split}.jsonl"
            file.parent.mkdir(exist_ok=True)
            write(file, questions)
            sums[f"{name}/{split}.jsonl"] = sha256_file(file)
    card = {"format": "searchgym questions", "source": source} | key
    card |= {"questions": measured["questions"], "drafts_refused": measured["drafts_refused"], "sha256": sums}
    (folder / "report.json").write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    pictured = importlib.util.find_spec("matplotlib") is not None  # it comes with `train`; the tables say the same
    if pictured:
        picture(measured, str(folder / "report.png"))
    (folder / "report.md").write_text(markdown(measured, source, pictured), encoding="utf-8")
    (folder / CARD).write_text(yaml.safe_dump(card, sort_keys=False, allow_unicode=True), encoding="utf-8")


def _write_flashrag(path: Path, questions: Sequence[Question]) -> None:
    """Writes questions in FlashRAG's format, with what is known of their evidence as metadata."""
    write_jsonl(
        path,
        (
            {
                "id": question.id,
                "question": question.text,
                "golden_answers": list(question.golds),
                "metadata": {
                    "type": question.kind,
                    "supporting_facts": {
                        "title": [fact.title for fact in question.supporting_facts or ()],
                        "sent_id": [fact.sentence for fact in question.supporting_facts or ()],
                    },
                    **question.metadata,
                },
            }
            for question in questions
        ),
    )


def read_card(folder: FilePath) -> dict[str, Any]:
    """Returns the card of a question set after a check of its files.

    Raises:
        DataError: The folder is no question set, or a file is not the one that the card describes.
    """
    folder = Path(folder)
    if not (folder / CARD).is_file():
        raise DataError("has no card.yaml: give a folder that `searchgym questions generate` wrote", folder)
    card = read_yaml(folder / CARD)
    sums = card.get("sha256") if isinstance(card, dict) and card.get("format") == "searchgym questions" else None
    counts = card.get("questions") if isinstance(card, dict) else None
    if not isinstance(sums, dict) or not isinstance(counts, dict):
        raise DataError("is not the card of a question set", folder / CARD)
    known = {f"{name}/{split}.jsonl" for name in ("questions", "flashrag") for split in SPLITS}
    for name, expected in sums.items():
        if name not in known or not (folder / name).is_file() or sha256_file(folder / name) != expected:
            raise DataError("is not the file that the card describes: generate the questions again", folder / str(name))
    return dict(card)


def read_split(folder: FilePath, split: str) -> tuple[Question, ...]:
    """Returns the questions of a split of a question set, or those of ``all``.

    Raises:
        DataError: The folder is no question set, its files are not those of its card, or the split has no question.
    """
    folder = Path(folder)
    counts = read_card(folder)["questions"]
    names = [name for name in (SPLITS if split == "all" else (split,)) if counts.get(name)]
    if not names:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise DataError(f"has no questions in split {split!r} ({listed}): ask for more, or another split", folder)
    return tuple(q for name in names for q in read_questions(folder / "questions" / f"{name}.jsonl"))


def world_shortcuts(folder: FilePath) -> tuple[Shortcuts, tuple[Question, ...]]:
    """Returns the measures of a world's questions, and the questions."""
    world = read_world(folder)
    return measure(world.questions, world.passages, build_in_memory(world.passages), 3, world.triples), world.questions


def held_out_by(passages: Iterable[Passage], files: Sequence[FilePath]) -> HeldOut | None:
    """Returns what question files keep to themselves in a corpus, None without files; see `hold_out`."""
    if not files:
        return None
    kept = [question for file in files for question in read_questions(file)]
    titles = [title for question in kept for title in question.gold_titles or ()]
    return hold_out(list(passages), titles, [answer for question in kept for answer in question.golds])


def cached_set(
    retriever: CorpusRetriever, pack: str, plan: Plan, home: Path, source: str, held_back: Sequence[FilePath] = ()
) -> Path:
    """Returns the folder of a question set in a cache; generates it from a retriever's corpus if the cache lacks it.

    Args:
        retriever: Retriever over the corpus.
        pack: Name or path of a pack.
        plan: What to generate.
        home: Folder of the cache.
        source: Name of the corpus for the report.
        held_back: Question files whose gold pages and answers are left out.
    """
    sha256 = retriever.corpus_sha256 or corpus_sha256(retriever.passages())
    held_out = held_out_by(retriever.passages(), held_back)
    key = json.dumps(key_of(sha256, pack, plan, held_out), sort_keys=True)
    folder = home / hashlib.sha256(key.encode()).hexdigest()[:24]
    if not folder.exists():
        home.mkdir(parents=True, exist_ok=True)
        with lock_folder(home, wait=3600.0):
            if not folder.exists():  # else another process has written it meanwhile
                write_set(list(retriever.passages()), pack, plan, folder, held_out, source)
    return folder
