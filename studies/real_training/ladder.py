"""Rungs of a ladder: a recipe with one thing changed each time, on one seed, judged by validation alone.

    python studies/real_training/ladder.py [RUNG ...] [--recipe smol-grpo] --home runs/smol [--out runs/ladder] \
        [--set KEY=VALUE ...] [--json]

`--home` holds practice/ and validation/ of `searchgym questions select`. A row tells whether a training learns, and if
not, where it ends: greedy EM on the validation questions by step, and of the sampled episodes of the first and the last
fifth of the steps: EM, whether all gold pages were found, EM given that, groups without signal, entropy, and how far
sampler and learner are apart. With an earlier --out, finished rungs are not repeated and a stopped one goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from searchgym.cli.output import emit, emit_rows, say
from searchgym.corpora.files import iter_jsonl, write_atomic
from searchgym.corpora.questions import read_questions
from searchgym.records import Episode, Question, title_key
from searchgym.rollout import read_episodes
from searchgym.train import Recipe, load_recipe, train

RUNGS: dict[str, dict[str, list[str]]] = {
    "smol-grpo": {
        "recipe": [],
        "lr 5e-6": ["optimizer.lr=5e-6"],
        "lr 2e-5": ["optimizer.lr=2e-5"],
        "lr 5e-5": ["optimizer.lr=5e-5"],
        "lr 1e-4": ["optimizer.lr=1e-4"],
        "lr 2e-4": ["optimizer.lr=2e-4"],
        "KL 0.01": ["loss.kl_coef=0.01"],
        "16 attempts": ["rollout.questions=8", "rollout.attempts=16"],
    },
    "qwen-grpo": {
        "recipe": [],
        "single facts too": ["curriculum={kind: learnability, stages: [{mix: {1: 1, 2: 3}}]}"],
        "waypoints unanswered": ["credit={outcome: 1, waypoint: 1}"],
        "8 attempts": ["rollout.questions=2", "rollout.attempts=8"],
        "lr 3e-5": ["optimizer.lr=3e-5"],
        "no warm start": ["model=qwen2.5-coder-0.5b"],
    },
}
"""Recipe to its rungs, each with the values that it changes."""


def rules_of(name: str) -> dict[str, Any]:
    """Returns the rules of a recipe's environment: its options without questions and corpus."""
    options = load_recipe(name).env_options
    return {key: value for key, value in options.items() if key not in ("questions", "corpus")}


def data_of(home: Path, rules: Mapping[str, Any]) -> list[str]:
    """Returns the recipe values that name the questions in a folder, under some rules."""
    corpus = home / "practice" / "corpus.jsonl"
    options = ", ".join(f"{name}: {value}" for name, value in rules.items())
    return [
        f"env_options={{questions: {home / 'practice' / 'questions.jsonl'}, corpus: {corpus}, {options}}}",
        f"validation.env_options={{questions: {home / 'validation' / 'questions.jsonl'}, corpus: {corpus}}}",
    ]


def recipe_of(name: str, rung: str, home: Path, values: Sequence[str]) -> Recipe:
    """Returns the recipe of a rung over the questions in a folder."""
    return load_recipe(name, [*data_of(home, rules_of(name)), *RUNGS[name][rung], *values])


def found_all(episode: Episode, question: Question) -> bool:
    """Returns whether the hits of an episode hold all gold pages of its question."""
    hits = {title_key(hit.passage.title) for search in episode.searches for hit in search.hits}
    return {title_key(title) for title in question.gold_titles or ()} <= hits


def fifth(rows: Sequence[Any], last: bool) -> Sequence[Any]:
    """Returns the first or the last fifth of a list, one item at least."""
    size = max(1, len(rows) // 5)
    return rows[-size:] if last else rows[:size]


def mean(values: Sequence[float | None]) -> float:
    """Returns the mean of the values that there are, 0 if there are none: a step without signal updates nothing."""
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else 0.0


def sampled(episodes: Sequence[Episode], questions: dict[str, Question]) -> dict[str, float]:
    """Returns what some episodes found and answered."""
    em = np.array([episode.scores["em"] for episode in episodes])
    all_found = np.array([found_all(episode, questions[episode.question_id]) for episode in episodes])
    return {
        "em": float(em.mean()),
        "found": float(all_found.mean()),
        "em given found": float(em[all_found].mean()) if all_found.any() else 0.0,
        "searches": float(np.mean([len(episode.searches) for episode in episodes])),
    }


def row_of(rung: str, recipe: Recipe, run: Path) -> dict[str, Any]:
    """Returns the row of a finished rung."""
    rows = [row for _, row in iter_jsonl(run / "metrics.jsonl")]
    steps = [row for row in rows if "rollout/em" in row]
    questions = {question.id: question for question in read_questions(recipe.env_options["questions"])}
    episodes = list(read_episodes(run / "episodes.jsonl"))
    row: dict[str, Any] = {
        "rung": rung,
        "validation": [round(row["validation/em"], 3) for row in rows if "validation/em" in row],
        "minutes": round(sum(row.get("time/draw", 0) + row.get("time/learn", 0) for row in steps) / 60, 1),
        "sampler difference": max(mean([row.get("learner/sampler_difference")]) for row in steps),
    }
    for place, last in (("first", False), ("last", True)):
        row |= {f"{name}, {place}": round(x, 3) for name, x in sampled(fifth(episodes, last), questions).items()}
        for name, key in (("no signal", "groups/zero_variance_share"), ("entropy", "learner/entropy")):
            row[f"{name}, {place}"] = round(mean([own.get(key) for own in fifth(steps, last)]), 3)
    return row


def main() -> None:
    """Trains what is missing and prints a row for each rung."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rungs", nargs="*", metavar="RUNG", help="default: all of the recipe")
    parser.add_argument("--recipe", choices=list(RUNGS), default="smol-grpo")
    parser.add_argument("--home", type=Path, default=Path("runs/smol"))
    parser.add_argument("--out", type=Path, default=Path("runs/ladder"))
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="recipe values for all rungs")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rungs = RUNGS[given.recipe]
    given.rungs = given.rungs or list(rungs)
    if unknown := [rung for rung in given.rungs if rung not in rungs]:
        parser.error(f"no such rung: {', '.join(unknown)}; there are {', '.join(rungs)}")
    found = []
    for number, rung in enumerate(given.rungs, start=1):
        folder = given.out / rung.replace(" ", "-")
        record = folder / "row.json"
        if not record.is_file():
            say(f"{number} of {len(given.rungs)}: {rung} ...")
            recipe = recipe_of(given.recipe, rung, given.home, given.set)
            with contextlib.redirect_stdout(sys.stderr):
                train(recipe, folder / "train", resume=(folder / "train" / "recipe.yaml").exists(), report=_say_step)
            row = row_of(rung, recipe, folder / "train") | {"values": given.set}
            with write_atomic(record) as file:
                file.write(json.dumps(row).encode())
        row = json.loads(record.read_text(encoding="utf-8"))
        if row["values"] != given.set:
            parser.error(f"{folder} was run with --set {' '.join(row['values'])}: name another --out")
        found.append(row)
    emit_rows(found, False, "ladder") if not given.json else emit({"results": found}, True)


def _say_step(row: dict[str, float]) -> None:
    names = ("rollout/em", "validation/em", "groups/zero_variance_share", "learner/entropy", "time/draw", "time/learn")
    told = ", ".join(f"{name} {row[name]:.3f}" for name in names if name in row)
    say(f"  step {row['step']:.0f}: {told}")


if __name__ == "__main__":
    main()
