"""Masked spans of a corpus: how many there are, some of them as they are asked, and what an oracle's searches find.

    python studies/masked/masked_spans.py CORPUS [--hold-out FILE ...] [--n 1000] [--seed 0] [--shown 20]
                                      [--questions 200] [--json]

For each mode (kept and hidden source) it prints the spans by kind, the tasks by number of masks, what the rules
refused, some tasks drawn at random (``--shown``), and two figures of an oracle that knows the queries but reads only
what its searches show: the share of drafts that it solves before the others are left out, and, over ``--questions``
tasks, its mean recall in the environment, with the tasks in which the source page was among the hits.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from typing import Any

from searchgym.agents import load_agent
from searchgym.cli.output import emit
from searchgym.corpora.passages import read_passages
from searchgym.envs import find_env, load_task
from searchgym.envs.options import with_options
from searchgym.questions.masked.generate import SearchLimits, generate
from searchgym.questions.masked.spec import MaskedSpec
from searchgym.questions.source import held_out_by
from searchgym.records import Episode, Question
from searchgym.retrieval import build_in_memory
from searchgym.rollout import Engine


def main() -> None:
    """Generates both modes and prints them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="corpus file")
    parser.add_argument("--hold-out", nargs="+", default=[], metavar="FILE", help="files of evaluation questions")
    parser.add_argument("--n", type=int, default=1000, help="number of tasks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shown", type=int, default=20, help="number of tasks to print")
    parser.add_argument("--questions", type=int, default=200, help="number of tasks that the oracle is asked")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    found = {source: mode(source, args) for source in ("kept", "hidden")}
    if args.json:
        emit(found, True)
        return
    for source, told in found.items():
        print(f"\n## source: {source}\n")
        for name, value in told.items():
            if name != "shown":
                print(f"{name}: {value}")
        print()
        for number, row in enumerate(told["shown"], start=1):
            print(f"{number}. {row['text']}\n   => {row['answer']}  ({', '.join(row['pages'])})")


def mode(source: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the counts, samples and oracle's figures of a mode."""
    passages = list(read_passages(args.corpus))
    index, began = build_in_memory(passages), time.perf_counter()
    held_out = held_out_by(passages, args.hold_out)
    spec = MaskedSpec(n=args.n, seed=args.seed, source=source, split="all", hold_out=args.hold_out)
    made = generate(passages, spec, SearchLimits(), index, held_out)
    seconds = round(time.perf_counter() - began, 1)
    questions = [question for own in made.questions.values() for question in own]
    counts = made.counts
    drafts = counts["drafts that an oracle solves"] + counts["drafts: a span is not found"]
    rng = random.Random(args.seed)
    asked = rng.sample(questions, min(args.questions, len(questions)))
    print(f"{source}: {len(questions)} tasks in {seconds} s", file=sys.stderr)
    return {
        "passages": len(passages),
        "held out": len(held_out.pages) if held_out else 0,
        "spans": sum(count for name, count in counts.items() if name in KINDS),
        "by kind": {name: counts[name] for name in KINDS if counts[name]},
        "tasks": {split: len(own) for split, own in made.questions.items()},
        "by masks": dict(sorted(Counter(question.metadata["masks"] for question in questions).items())),
        "refused": {
            name: n for name, n in counts.most_common() if name.startswith(("spans: ", "drafts: ", "passages"))
        },
        "drafts that the oracle solves": round(counts["drafts that an oracle solves"] / drafts, 4),
        **oracle(asked, index, args.hold_out),
        "seconds": seconds,
        "shown": [shown(question) for question in rng.sample(questions, min(args.shown, len(questions)))],
    }


KINDS = tuple(f"{kind} spans" for kind in ("link", "title", "name", "date", "year", "number"))


def oracle(questions: list[Question], index: Any, hold_out: list[str]) -> dict[str, Any]:
    """Returns the recall of the oracle, and how often the source page was among the hits."""
    card = with_options(find_env("searchgym/MaskedSpan-v0"), {"questions": {"hold_out": hold_out}})
    task, episodes = load_task(card, questions=questions, retriever=index), list[Episode]()
    asyncio.run(Engine(task, load_agent("span-oracle"), {}).run(task.questions, episodes.append))
    with_source = [
        any(hit.passage.title == task.find(e.question_id).metadata["page"] for own in e.searches for hit in own.hits)
        for e in episodes
    ]
    return {
        "oracle": {
            "tasks": len(episodes),
            "recall": sum(episode.reward for episode in episodes) / len(episodes),
            "searches": sum(len(episode.searches) for episode in episodes) / len(episodes),
            "source among the hits": sum(with_source),
        }
    }


def shown(question: Question) -> dict[str, Any]:
    """Returns a task for people to read."""
    return {"text": question.text, "answer": question.answers[0], "pages": list(question.gold_titles or ())}


if __name__ == "__main__":
    main()
