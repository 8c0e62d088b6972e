"""Writes some linked pages of a corpus as a folder of Markdown documents, to try a pipeline on them.

    python studies/own_corpus/own_corpus.py --corpus corpus.json --questions train.jsonl --pages 200 \
        --out documents [--json]
    searchgym train smol-own corpus=documents/

The pages are the gold pages of the first questions of several hops that do not offer their answer, so that the folder
can be asked such questions too. Give questions of a split that holds no evaluation page.
"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path

import yaml

from searchgym.cli.output import emit
from searchgym.corpora import open_corpus
from searchgym.corpora.questions import read_questions
from searchgym.questions.shortcuts import names_answer
from searchgym.records import title_key


def main() -> None:
    """Writes the documents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--questions", required=True)
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.out.exists():
        parser.error(f"{given.out} exists: name another folder")
    wanted: dict[str, None] = {}
    for question in read_questions(given.questions):
        titles = list(dict.fromkeys(map(title_key, question.gold_titles or ())))
        fits = len(titles) > 1 and len(wanted.keys() | set(titles)) <= given.pages
        if fits and not names_answer(question):
            wanted |= dict.fromkeys(titles)
    building = given.out.with_name(f".{given.out.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    written = set[str]()
    for passage in open_corpus(given.corpus):
        if (key := title_key(passage.title)) in wanted and key not in written:
            written.add(key)
            name = re.sub(r"[^\w-]+", "_", passage.title).strip("_")
            head = yaml.safe_dump({"title": passage.title}, allow_unicode=True)
            (building / f"{len(written):03d}_{name}.md").write_text(
                f"---\n{head}---\n{passage.text}\n", encoding="utf-8"
            )
    building.rename(given.out)
    emit({"documents": len(written), "out": str(given.out)}, given.json, "documents")


if __name__ == "__main__":
    main()
