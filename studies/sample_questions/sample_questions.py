"""Prints what a person reads to judge generated questions: links, facts and questions drawn by a seed, with evidence.

    python studies/sample_questions/sample_questions.py CORPUS --hold-out questions.json --seed 20

The verdicts on 2WikiMultihopQA's passages stand in questions-read.md, beside this file.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import defaultdict
from pathlib import Path

from searchgym.corpora.documents import open_corpus
from searchgym.corpora.questions import read_questions
from searchgym.questions.generate import generate
from searchgym.questions.graphs.facts import find_facts
from searchgym.questions.graphs.packs import load_pack
from searchgym.questions.saved import table
from searchgym.questions.source import hold_out
from searchgym.questions.spec import GeneratedSpec
from searchgym.records import Question
from searchgym.text import sentences, tidy


def cut(text: str, most: int = 170) -> str:
    """Returns a text on one line, cut to a length, safe for a table of Markdown."""
    shown = tidy(text).replace("|", "/")
    return shown if len(shown) <= most else shown[:most] + " ..."


def sample(args: argparse.Namespace) -> dict[str, list[dict[str, str]]]:
    """Returns rows of samples by heading."""
    passages, pack = list(open_corpus(args.corpus)), load_pack(args.pack)
    kept = [question for path in args.hold_out for question in read_questions(path)]
    titles = [title for question in kept for title in question.gold_titles or ()]
    out = hold_out(passages, titles, [answer for question in kept for answer in question.golds])
    rng, texts = random.Random(args.seed), {p.title: p.text for p in passages}
    found = find_facts(passages, pack)
    rows: dict[str, list[dict[str, str]]] = {"Links": [], "Facts": []}
    for link in rng.sample(found.links, min(args.counts[0], len(found.links))):
        text = passages[link.source].text
        near = f"{text[max(0, link.start - 60) : link.start]}**{text[link.start : link.end]}**{text[link.end :][:40]}"
        row = {"page": passages[link.source].title, "names": passages[link.target].title, "where": cut(near)}
        rows["Links"].append(row)
    for fact in rng.sample(found.facts, min(args.counts[1], len(found.facts))):
        page = passages[fact.subject]
        linked = "" if fact.target is None else f" [{passages[fact.target].title}]"
        said = cut(page.text[fact.start : fact.end], 200)
        row = {"page": page.title, "relation": fact.relation, "object": f"{fact.text}{linked}", "sentence": said}
        rows["Facts"].append(row)
    groups: defaultdict[tuple[str, int], list[Question]] = defaultdict(list)
    for stratum in generate(passages, pack, GeneratedSpec(n=args.n), out).strata:
        groups[stratum.shape, stratum.hops] += stratum.questions
    for (shape, hops), questions in sorted(groups.items()):
        chosen = rng.sample(questions, min(args.counts[2], len(questions)))
        heading = f"{shape}, {hops} hops: {len(questions)} questions"
        rows[heading] = [
            {"question": cut(q.text, 400), "answer": q.answers[0], "evidence": evidence(q, texts)} for q in chosen
        ]
    return rows


def evidence(question: Question, texts: dict[str, str]) -> str:
    """Returns the gold pages of a question with the sentences that state its facts."""
    shown = []
    for gold in question.supporting_facts or ():
        places, text = sentences(texts[gold.title]), texts[gold.title]
        said = text if gold.sentence is None else text[slice(*places[gold.sentence])]
        shown.append(f"{gold.title}: {cut(said, 110)}")
    return "; ".join(shown)


def main() -> None:
    """Prints Markdown tables without verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="corpus file")
    parser.add_argument("--hold-out", type=Path, nargs="*", default=[], help="question files to leave out")
    parser.add_argument("--pack", default="people-and-works", help="pack of patterns and wordings")
    parser.add_argument("--seed", type=int, default=20, help="seed of the samples")
    parser.add_argument("--n", type=int, default=4000, help="number of questions to generate")
    parser.add_argument("--counts", type=int, nargs=3, default=[40, 60, 20], help="links, facts, questions of a shape")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    rows = sample(args)
    if args.json:
        sys.stdout.write(json.dumps(rows, ensure_ascii=False) + "\n")
        return
    for heading, group in rows.items():
        sys.stdout.write(f"\n## {heading}\n\n{table(group)}")


if __name__ == "__main__":
    main()
