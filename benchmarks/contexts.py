"""Prompt lengths by turn of the M-ASK team and of the monolithic agent, both searching five times.

    python benchmarks/contexts.py --passages PASSAGES.json --questions QUESTIONS.json

Both make the same queries, which are titles drawn from the corpus, and see the first 5 pages. Every role of the team
writes as much as it may and adds a new step each time (75 words of evidence), so the table shows the longest possible
prompts. No model runs; lengths are in tokens of the tokenizer given.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from searchgym.agents.mask import MOST_EVIDENCE
from searchgym.corpora import open_corpus
from searchgym.envs import Task, find_env, load_task
from searchgym.retrieval import build_in_memory
from searchgym.rollout import TokenFormat, load_tokenizer
from searchgym.train.demonstrations.play import Demonstration, play
from searchgym.train.demonstrations.teams import play_team

TURNS = 5


class Longest:
    """Stand-in for M-ASK's models that writes the longest legal output of each role and never ends the search."""

    def __init__(self, queries: list[str]) -> None:
        self._queries = iter(queries)

    def reply(self, role: str, fields: Mapping[str, str]) -> str:
        """Returns a role's output for a prompt with these fields."""
        if role == "planning":
            return f"<q1>{fields['question']}</q1><a1>unkown</a1><final_answer>unkown</final_answer>"
        if role == "search":
            return f"<search>{next(self._queries)}</search>"
        if role == "summary":
            return f"<evidence>{' '.join(fields['documents'].split()[:MOST_EVIDENCE])}</evidence>"
        if role == "update":
            return f"<add>t{fields['trajectory'].count(' | A: ') + 1}</add>"
        return "<final_answer>unkown</final_answer>"


def prompt_lengths(task: Task, titles: list[str], tokenizer: Any, seed: int = 0) -> dict[str, list[list[int]]]:
    """Returns, for each agent and turn, each episode's longest prompt of the turn in tokens.

    Args:
        task: Task whose turn budget allows five searches and an answer.
        titles: Titles of the passages.
        tokenizer: Tokenizer that counts the tokens.
        seed: Seed for drawing the queries.
    """
    form = TokenFormat(tokenizer, task.rules.protocol, chat=True)
    rng = random.Random(seed)
    queries = {question.id: rng.sample(titles, TURNS) for question in task.questions}
    oracles: Any = {question_id: Longest(own) for question_id, own in queries.items()}
    team = [
        [call.start for call in e.calls if call.role != "planning"] for e in play_team("m-ask", task, oracles, form)
    ]
    shown = []
    for question in task.questions:
        searches = tuple(f"<search>{query}</search>" for query in queries[question.id])
        shown.append(Demonstration(question, (*searches, "<answer>unkown</answer>"), early=False))
    alone = [[call.start for call in episode.calls] for episode in play(task, shown, form)]
    per_turn = 4  # search, summary, update, answer
    return {
        "m-ask": [[max(own[t * per_turn : (t + 1) * per_turn]) for own in team] for t in range(TURNS)],
        "search-r1": [[own[t + 1] for own in alone] for t in range(TURNS)],
    }


def load(passages: Path, questions: Path) -> tuple[Task, list[str]]:
    """Returns a task over the given files, with the budgets of M-ASK's paper, and the titles of its passages."""
    kept = list(open_corpus(passages))
    task = load_task(
        find_env("searchgym/HotpotQA-v0"),
        questions=questions,
        retriever=build_in_memory(kept),
        top_k=5,
        max_turns=TURNS + 1,
    )
    return task, sorted({passage.title for passage in kept})


def main() -> None:
    """Measures the prompt lengths and prints the table."""
    parser = argparse.ArgumentParser(description="Prompt lengths by turn.")
    parser.add_argument("--passages", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--tokenizer", default="tiny-teams", help="model folder or name")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    sys.stderr.write("searching five times per question ...\n")
    with contextlib.redirect_stdout(sys.stderr):
        found = prompt_lengths(*load(args.passages, args.questions), load_tokenizer(args.tokenizer))
    rows: list[dict[str, Any]] = [
        {
            "agent": agent,
            "longest": [max(turn) for turn in turns],
            "mean": [float(np.mean(turn)) for turn in turns],
            "ratio_5_to_2": max(turns[4]) / max(turns[1]),
        }
        for agent, turns in found.items()
    ]
    if args.json:
        sys.stdout.write(json.dumps({"results": rows}) + "\n")
        return
    for row in rows:
        turns = "  ".join(f"{longest} ({mean:.0f})" for longest, mean in zip(row["longest"], row["mean"], strict=True))
        sys.stdout.write(
            f"{row['agent']:10}  longest (mean) of turns 1 to 5: {turns}; 5 / 2: {row['ratio_5_to_2']:.2f}\n"
        )


if __name__ == "__main__":
    main()
