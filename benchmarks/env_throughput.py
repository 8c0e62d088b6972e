"""Environment steps per second, compared with the raw retriever on the same queries.

Every step searches (the worst case for the environment); episodes are reset after four searches. The raw retriever gets
the same queries in batches of the same size. Raw and environment runs alternate in one process; medians are reported.

The overhead of a step does not depend on the corpus, but the cost of a search does: so the corpus is measured both as
it is and grown to ``--grow`` passages of its sentences in new combinations (still small compared with a wiki).

    make bench
    python benchmarks/env_throughput.py --corpus CORPUS --questions QUESTIONS --json
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from searchgym.cli.output import emit_rows
from searchgym.corpora import read_passages, read_questions
from searchgym.corpora.folders import bundled_file
from searchgym.envs import SearchVectorEnv, Task, load_task
from searchgym.envs.cards import EnvCard
from searchgym.options.cards import find_card, load_card
from searchgym.records import Passage, Question
from searchgym.retrieval import NullRetriever, Retriever, build_in_memory

SEARCHES = 4
"""Number of searches per episode."""


def main() -> None:
    """Measures each corpus size and number of environments, and prints the table."""
    args = parse_args()
    questions = read_questions(args.questions)
    passages = list(read_passages(args.corpus))
    corpora: dict[int, Retriever] = {0: NullRetriever(), len(passages): build_in_memory(passages)}
    if args.grow > len(passages):
        print(f"indexing {args.grow} passages ...", file=sys.stderr)
        corpora[args.grow] = build_in_memory(grow(passages, args.grow))
    gc.collect()
    gc.freeze()  # an index folder keeps its passages in a mapped file, not on the heap that is collected
    card = load_card(EnvCard, find_card("envs", "demo"))
    rows = []
    for size, retriever in corpora.items():
        task = load_task(card, questions=questions, retriever=retriever, max_turns=SEARCHES + 1)
        for n in (1, 64, 256):
            print(f"{size} passages, {n} environments ...", file=sys.stderr)
            name = "null" if size == 0 else "bm25"
            rows.append({"retriever": name, "passages": size, "envs": n} | measure(task, retriever, n, args))
    emit_rows(rows, args.json, "results", f"medians of {args.runs} runs of {args.steps} steps")


def grow(passages: Sequence[Passage], size: int) -> Iterator[Passage]:
    """Yields the passages, then new passages that combine their sentences at random, `size` passages in all."""
    yield from passages
    rng = random.Random(0)
    sentences = [sentence for passage in passages for sentence in passage.text.split(". ")]
    for number in range(len(passages), size):
        like = passages[rng.randrange(len(passages))]
        text = ". ".join(rng.choices(sentences, k=like.text.count(". ") + 1))
        yield Passage(f"grown-{number}", like.title, text)


def parse_args() -> argparse.Namespace:
    """Parses the arguments; default files are those of the data folder, or the bundled ones without it."""
    data = os.environ.get("SEARCHGYM_DATA")
    corpus = Path(data) / "2wikimultihopqa" / "corpus.json" if data else bundled_file("demo/corpus.jsonl")
    questions = Path(data) / "hotpotqa" / "dev_simplified.json" if data else bundled_file("demo/questions.json")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=corpus)
    parser.add_argument("--questions", type=Path, default=questions)
    parser.add_argument(
        "--grow", type=int, default=500_000, help="number of passages of the grown corpus; 0 to skip it"
    )
    parser.add_argument("--runs", type=int, default=7, help="number of runs of each kind, after one warm-up run")
    parser.add_argument("--steps", type=int, default=2048, help="environment steps per run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def measure(task: Task, retriever: Retriever, n: int, args: argparse.Namespace) -> dict[str, Any]:
    """Returns steps per second of n environments, and queries per second of the raw retriever."""
    asked = [task.questions[i % len(task.questions)] for i in range(args.steps)]
    env = SearchVectorEnv(task, n)
    stepped, raw = [], []
    for run in range(args.runs + 1):
        raw_rate = rate(lambda: search_all(retriever, asked, task.rules.top_k, n), args.steps)
        step_rate = rate(lambda: step_all(env, asked), args.steps)
        if run:
            stepped.append(step_rate)
            raw.append(raw_rate)
    ratios = [s / r for s, r in zip(stepped, raw, strict=True)]
    null = isinstance(retriever, NullRetriever)
    return {
        "steps_per_s": round(statistics.median(stepped)),
        "step_cost_us": round(
            1e6 * statistics.median(1 / s - (0 if null else 1 / r) for s, r in zip(stepped, raw, strict=True))
        ),
        "raw_queries_per_s": None if null else round(statistics.median(raw)),
        "ratio": None if null else round(statistics.median(ratios), 3),
        "ratio_min": None if null else round(min(ratios), 3),
        "ratio_max": None if null else round(max(ratios), 3),
    }


def rate(work: Callable[[], None], count: int) -> float:
    """Runs some work once and returns its rate: `count` per second."""
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def search_all(retriever: Retriever, asked: Sequence[Question], k: int, n: int) -> None:
    """Sends every question's text to the retriever, in batches of n."""
    for at in range(0, len(asked), n):
        retriever.search([question.text for question in asked[at : at + n]], k)


def step_all(env: SearchVectorEnv, asked: Sequence[Question]) -> None:
    """Sends every question's text through the environments as a search action, n at a time."""
    n = env.num_envs
    for turn, at in enumerate(range(0, len(asked), n)):
        if turn % SEARCHES == 0:
            env.reset(seed=0 if turn == 0 else None)
        actions = [f"<search>{question.text}</search>" for question in asked[at : at + n]]
        env.step_subset(range(len(actions)), actions)


if __name__ == "__main__":
    main()
