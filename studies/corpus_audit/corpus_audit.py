"""Audits of real and generated questions with planted holes: what is named, what is flagged, what filling restores.

    python studies/corpus_audit/corpus_audit.py [planted | passport | limits] [--seeds 1 2 3 4 5] [--top-k 20] [--json]

``planted``: HotpotQA's and 2WikiMultihopQA's questions in SEARCHGYM_DATA, and those of generated worlds, with holes in
the corpus. ``passport``: the same questions, and those of --questions over --corpus, with faults. ``limits``: the
distributions on generated worlds from which the two limits of `searchgym.eval.audit.holes` were chosen.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from plant import FAULTS, faulty_set, planted

from searchgym.agents.base import load_agent
from searchgym.cli.output import emit, emit_rows, say
from searchgym.corpora.documents import open_corpus
from searchgym.corpora.passages import read_passages
from searchgym.corpora.questions import read_questions
from searchgym.envs import find_env, load_task
from searchgym.eval import evaluate
from searchgym.eval.audit import GoldPage, audit_corpus, fill_corpus
from searchgym.eval.audit.match import Matcher
from searchgym.eval.passport import passport_of
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Paragraph, Passage, Question, title_key
from searchgym.retrieval import build_in_memory

COUNTS = {"missing": 20, "cut": 10, "retitled": 10, "near-duplicate": 10}
"""Planted holes of each kind."""


def with_texts(questions: Sequence[Question], passages: Sequence[Passage]) -> list[Question]:
    """Returns questions with the texts of their gold pages, as public sets bring them."""
    pages = {title_key(passage.title): passage for passage in passages}

    def paragraphs(question: Question) -> tuple[Paragraph, ...]:
        golds = [pages[title_key(title)] for title in question.gold_titles or ()]
        return tuple(Paragraph(page.title, (page.text,), True) for page in golds)

    return [dataclasses.replace(question, paragraphs=paragraphs(question)) for question in questions]


def sets(seed: int) -> Iterator[tuple[str, list[Question], list[Passage]]]:
    """Yields name, questions and corpus of each set."""
    if data := os.environ.get("SEARCHGYM_DATA"):
        for name in ("hotpotqa", "2wikimultihopqa"):
            folder = Path(data) / name
            yield name, read_questions(folder / "questions.json"), list(open_corpus(folder / "corpus.json"))
    world = build_world(WorldSpec("full", 100, seed, "test"))
    yield "world", with_texts(world.questions, world.passages), list(world.passages)


def oracle(questions: Sequence[Question], passages: Sequence[Passage], top_k: int) -> dict[str, Any]:
    """Returns the scores of the oracle that searches for each gold title."""
    card = find_env("searchgym/Corpus-v0")
    task = load_task(card, questions=questions, retriever=build_in_memory(passages), top_k=top_k, max_turns=8)
    with tempfile.TemporaryDirectory() as folder:
        return dict(evaluate(task, load_agent("evidence-oracle"), Path(folder) / "run"))


def one(name: str, questions: list[Question], passages: list[Passage], seed: int, top_k: int) -> dict[str, Any]:
    """Plants holes in a corpus, audits and fills it."""
    clean = list(audit_corpus(questions, lambda: passages))
    holed, kinds = planted(questions, passages, COUNTS, seed)
    audited = list(audit_corpus(questions, lambda: holed))
    named = {title_key(finding.title): finding.kind for row in audited for finding in row.findings}
    right: Counter[str] = Counter(kind for title, kind in kinds.items() if named[title] == kind)
    more = sum(kind != "present" and title not in kinds for title, kind in named.items())
    with tempfile.TemporaryDirectory() as folder:
        holes = [(row.id, *hole) for row in audited for hole in row.holes]
        fill_corpus(holed, holes, Path(folder) / "filled", name, name)
        filled = list(read_passages(Path(folder) / "filled" / "corpus.jsonl"))
    before = oracle(questions, holed, top_k)
    return {
        "set": name,
        "seed": seed,
        "questions": len(questions),
        "flagged when clean": sum(bool(row.holes) for row in clean),
        **{f"{kind} named": f"{right[kind]}/{count}" for kind, count in COUNTS.items()},
        "named elsewhere": more,
        "answerable": sum(row.answerable is True for row in audited),
        "oracle, clean": oracle(questions, passages, top_k)["em"],
        "oracle, holed": before["em"],
        "oracle, answerable": before["on_answerable"]["em"],
        "oracle, filled": oracle(questions, filled, top_k)["em"],
    }


def passport(name: str, questions: Sequence[Question], passages: Sequence[Passage], seed: int) -> dict[str, Any]:
    """Plants five faults of each kind in a set, and returns how many of them its passport names, and how many more."""
    faulty, kept, trained, ids = faulty_set(questions, passages, 5, seed)
    before = passport_of(questions, build_in_memory(passages), trained_on=[]).flags
    flags = passport_of(faulty, build_in_memory(kept), trained_on=trained).flags
    row: dict[str, Any] = {"set": name, "seed": seed, "questions": len(questions)}
    for fault in FAULTS:
        named = {id for id, flag in flags[fault].items() if flag}
        clean = {id for id, flag in before[fault].items() if flag}
        row |= {
            fault: f"{len(named & ids[fault])}/{len(ids[fault])}",
            f"{fault}, more": len(named - ids[fault] - clean),
        }
    return row


def limits(seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Returns what the texts under a gold title and the nearest others share with the page, in worlds with holes."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for level in ("simple", "full"):
        for seed in seeds:
            world = build_world(WorldSpec(level, 300, seed, "validation"))
            texts = {title_key(passage.title): passage.text for passage in world.passages}
            titles = sorted({title_key(title) for question in world.questions for title in question.gold_titles or ()})
            kinds_planted = ("missing", "near-duplicate", "other text", "retitled")
            counts: dict[str, int] = dict.fromkeys(kinds_planted, len(titles) // 6)
            holed, kinds = planted(world.questions, world.passages, counts, seed, altered=(0.02, 0.4))
            matcher = Matcher([GoldPage(title, texts[title]) for title in titles])
            matcher.add(holed)
            for title, match in zip(titles, matcher.matches, strict=True):
                kind, here = kinds.get(title, "untouched"), match.covers.get(title)
                others = [cover.distance for cover in match.covers.values() if cover is not here]
                values.setdefault((level, kind, "distance of the nearest other title"), []).append(min([*others, 1.0]))
                if here is not None:
                    values.setdefault((level, kind, "share of words under its title"), []).append(here.share)
    return [
        {"worlds": level, "planted": kind, "measure": measure, "n": len(numbers)}
        | {f"{q:.0%}": round(float(np.quantile(numbers, q)), 3) for q in (0, 0.01, 0.05, 0.5, 0.95, 0.99, 1)}
        for (level, kind, measure), numbers in sorted(values.items())
    ]


def main() -> None:
    """Prints the rows of a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("planted", "passport", "limits"), default="planted")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--top-k", type=int, default=20)
    parser.add_argument("--questions", type=Path, help="a further set for passport, such as generated questions")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.what == "limits":
        rows = limits(given.seeds)
    else:
        rows = []
        for seed in given.seeds:
            for name, questions, passages in sets(seed):
                say(f"{name}, seed {seed} ...")
                if given.what == "passport":
                    rows.append(passport(name, questions, passages, seed))
                else:
                    rows.append(one(name, questions, passages, seed, given.top_k))
            if given.what == "passport" and given.questions:
                further = read_questions(given.questions), list(open_corpus(given.corpus))
                rows.append(passport(given.questions.parent.name, *further, seed))
    if given.json:
        emit({"results": rows}, True)
    else:
        emit_rows(rows, False, "results")


if __name__ == "__main__":
    main()
