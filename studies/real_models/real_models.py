"""What reinforcement learning teaches a real model about searching: arms, controls and seeds, one record each.

    python studies/real_models/real_models.py [ARM ...] --seeds 1 2 3 [--home runs/qwen] [--out runs/real-models]
        [--controls agent "closed book" ...] [--set KEY=VALUE ...] [--json]

`make train-real ARGS=steps=0` makes --home, with practice/, validation/, test/, shown/ and warm/. The unit is one arm
and one seed: it is trained, scored on test/ and, if SEARCHGYM_DATA is set, on the real questions, and its record is
written when it ends. What a record has is not run again, a control that it lacks is added to it; what was stopped goes
on where it was. README.md has the protocol, and `tables.py` makes the tables and the picture from the records.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from searchgym.agents.base import load_agent, with_max_tokens
from searchgym.cli.output import emit, say
from searchgym.corpora.files import iter_jsonl, write_atomic, write_jsonl
from searchgym.envs import Task, find_env, load_task
from searchgym.eval import EvalOptions, evaluate
from searchgym.eval.ceilings import with_gold_pages, with_other_hits
from searchgym.eval.run_folder import QUESTIONS
from searchgym.eval.suites import load_suite, load_suite_tasks
from searchgym.records import title_key
from searchgym.rollout.models import Loading, opened_models
from searchgym.train import Recipe, load_recipe, train

BASE: Final = "qwen2.5-coder-0.5b"
RULES: Final[dict[str, Any]] = {"top_k": 3, "max_turns": 5, "max_observation_words": 150}
"""Rules of the environment, those of `qwen-grpo`."""
MAX_TOKENS: Final = 32
FORM: Final = "credit={searchgym.cli.pipeline.controls:FormOnly: 1}"
MIXED: Final = (
    "curriculum={kind: learnability, by: kind, stages: [{mix: {chain: 2, comparison: 1, bridge-comparison: 1}}]}"
)
COMPARISONS: Final = ("comparison", "bridge-comparison")
"""Kinds of questions that the arm `comparisons` adds to the chains."""
PER_KIND: Final = 600
"""Number of questions of each such kind."""
TEAMS: Final = ("m-ask", "jade")
"""Arms whose agent is the team of that name, which starts from demonstrations of its roles."""
TEAM: Final = ["optimizer.autocast=bfloat16", "lora.rank=16", "lora.alpha=32", "learner.frozen_layers=12"]
ARMS: Final[Mapping[str, tuple[str, list[str]] | None]] = {
    "untouched": None,
    "warm": None,
    "main": ("qwen-grpo", []),
    "form": ("qwen-grpo", [FORM]),
    "comparisons": ("qwen-grpo", [MIXED]),
    "demonstrations": ("qwen-warm", []),
    "worlds": ("qwen-grpo", []),
    "self-play": ("qwen-grpo", ["curriculum=null", "proposer={kind: path, hops: [1, 2, 3]}"]),
    "ppo": ("qwen-grpo", ["advantage.estimator=gae", "critic.optimizer.lr=1e-5", "critic.warmup_steps=4"]),
    "m-ask": ("tiny-mask", TEAM),
    "jade": ("tiny-jade", TEAM),
}
"""Recipe of each arm, and the values that it changes; None is not trained."""
CONTROLS: Final[Mapping[str, tuple[str, Callable[[Task], Task] | None]]] = {
    "agent": ("search-r1", None),
    "closed book": ("direct", None),
    "few-shot": ("search-r1-few-shot", None),
    "gold pages": ("reader", with_gold_pages),
    "oracle queries": ("oracle-queries", None),
    "other hits": ("search-r1", with_other_hits),
}
"""Agent of each control, and what changes the hits of its searches."""
FIELDS: Final = ("em", "answers", "evidence", "golds", "hops", "searches")
"""Fields of a question's row that a record has; see `searchgym.eval.decomposition`."""


def question_options(home: Path, name: str) -> str:
    """Returns the environment's options for the questions in a folder, as YAML."""
    files = {"questions": str(home / name / "questions.jsonl"), "corpus": str(home / "practice" / "corpus.jsonl")}
    return json.dumps(files | RULES | {"reward": "em"})


def mixed_questions(home: Path) -> str:
    """Writes chains of pages, and comparisons that share no gold page with the validation and test questions.

    The comparisons come from ``set-comparisons``; `make train-real` leaves them out, since they offer their answer.
    """
    folder, rows = home / "practice-comparisons", list[dict[str, Any]]()
    scored = {
        title_key(fact[0])
        for name in ("validation", "test")
        for _, row in iter_jsonl(home / name / "questions.jsonl")
        for fact in row["supporting_facts"]
    }
    pages = {title_key(row["title"]) for _, row in iter_jsonl(home / "practice" / "corpus.jsonl")} - scored
    chains = (row for _, row in iter_jsonl(home / "practice" / "questions.jsonl"))
    rows += [row for row in chains if row["kind"] == "chain" and row["metadata"]["hops"] > 1]
    left = dict.fromkeys(COMPARISONS, PER_KIND)
    for _, row in iter_jsonl(home / "set-comparisons" / "questions" / "train.jsonl"):
        if left.get(row["kind"]) and all(title_key(fact[0]) in pages for fact in row["supporting_facts"]):
            left[row["kind"]] -= 1
            rows.append(row)
    folder.mkdir(exist_ok=True)
    write_jsonl(folder / "questions.jsonl", rows)
    return folder.name


def recipe_of(arm: str, seed: int, given: argparse.Namespace) -> Recipe:
    """Returns the recipe of an arm that asks questions."""
    entry = ARMS[arm]
    assert entry is not None
    name, changed = entry
    options = question_options(given.home, mixed_questions(given.home) if arm == "comparisons" else "practice")
    start = team_folder(arm, given) / "checkpoints" / "last" if arm in TEAMS else given.start
    values = [f"model={start}", f"seed={seed}", "env=searchgym/Corpus-v0"]
    if arm == "worlds":
        values[-1] = "env=searchgym/WorldFull-v0"
        world = {"level": "full", "split": "train", "size": 2000, "seed": seed}
        options = json.dumps(RULES | {"reward": "em", "questions": world})
    elif arm == "self-play":
        scored = [str(given.home / folder / "questions.jsonl") for folder in ("validation", "test")]
        corpus = str(given.home / "practice" / "corpus.jsonl")
        options = json.dumps(RULES | {"reward": "em", "corpus": corpus, "questions": {"hold_out": scored}})
    checked = "{}" if arm == "worlds" else question_options(given.home, "validation")
    values += [f"env_options={options}", f"validation.env_options={checked}"]
    return load_recipe(name, [*values, *changed, *given.set])


def demonstrations_recipe(seed: int, tokens: float, given: argparse.Namespace) -> Recipe:
    """Returns the recipe that learns from an oracle's episodes until about `tokens` tokens are read."""
    shown = given.home / "practice-shown" / "episodes.jsonl"
    rows = [row for _, row in iter_jsonl(shown)]
    each = sum(len(span["ids"]) for row in rows for span in row["contexts"][0]["spans"]) / len(rows)
    recipe = load_recipe("qwen-warm", [f"method.demonstrations={shown}", f"model={given.start}", f"seed={seed}"])
    batch = recipe.method.demonstrated
    return dataclasses.replace(recipe, steps=max(1, round(tokens / each / batch)))


def team_folder(arm: str, given: argparse.Namespace) -> Path:
    """Returns the run folder of a team's warm start."""
    return Path(given.home) / f"warm-{arm}"


def warm_up(arm: str, given: argparse.Namespace) -> None:
    """Makes a team's warm start where it is missing: as many demonstrations of its roles as the single agent had."""
    shown, folder = Path(given.home) / f"shown-{arm}", team_folder(arm, given)
    practice = given.home / "practice"
    if not shown.exists():
        rules = [f"--{name.replace('_', '-')}={value}" for name, value in RULES.items()]
        files = ["--questions", str(practice / "questions.jsonl"), "--corpus", str(practice / "corpus.jsonl")]
        command = [sys.executable, "-m", "searchgym", "demonstrate", *files, *rules, "--agent", arm, "--n", "64"]
        subprocess.run([*command, "--model", given.base, "--out", str(shown)], check=True, stdout=sys.stderr)
    if not (folder / "checkpoints" / "last").exists():
        values = [f"method.demonstrations={shown / 'episodes.jsonl'}", f"agent={arm}", f"model={given.base}"]
        with contextlib.redirect_stdout(sys.stderr):
            train(load_recipe("qwen-warm", values), folder, resume=(folder / "recipe.yaml").exists(), report=say_step)


def trained(arm: str, seed: int, given: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Trains an arm; returns the model and what the training took."""
    folder = given.out / f"{arm}-{seed}" / "train"
    if arm == "demonstrations":
        main = record_path("main", seed, given.records)
        if not main.exists():
            raise SystemExit(f"demonstrations, seed {seed}: run main of that seed first, its tokens are the budget")
        recipe = demonstrations_recipe(seed, json.loads(main.read_text())["training"]["tokens_read"], given)
    else:
        if arm in TEAMS:
            warm_up(arm, given)
        recipe = recipe_of(arm, seed, given)
    with contextlib.redirect_stdout(sys.stderr):
        result = train(recipe, folder, resume=(folder / "recipe.yaml").exists(), report=say_step)
    rows = [row for row in result.rows if row["step"] > 0]
    curves = ("rollout/", "validation/", "curriculum/")
    took = {
        "steps": result.progress.step,
        "tokens_read": sum(row.get("learner/tokens_read", 0.0) for row in rows),
        "tokens_sampled": sum(row.get("rollout/tokens", 0.0) for row in rows),
        "minutes": round(sum(row.get("time/draw", 0.0) + row.get("time/learn", 0.0) for row in rows) / 60, 1),
        "curves": [
            {name: round(value, 4) for name, value in row.items() if name.startswith(curves)} | {"step": row["step"]}
            for row in result.rows
        ],
    }
    return str(result.checkpoint), took


def say_step(row: Mapping[str, float]) -> None:
    """Reports a step on standard error."""
    names = ("rollout/em", "rollout/searches", "validation/em", "groups/zero_variance_share", "time/draw", "time/learn")
    say(f"  step {row['step']:.0f}: " + ", ".join(f"{name} {row[name]:.3f}" for name in names if name in row))


def tasks_of(home: Path) -> dict[str, Task]:
    """Returns the question sets that are scored, by name."""
    questions, corpus = (str(home / "test" / f"{name}.jsonl") for name in ("questions", "corpus"))
    tasks = {"generated": load_task(find_env("searchgym/Corpus-v0"), questions=questions, corpus=corpus, **RULES)}
    if os.environ.get("SEARCHGYM_DATA"):
        tasks |= load_suite_tasks(load_suite("wiki-real"), RULES)  # type: ignore[arg-type]  # names of its options
    return tasks


def scored(
    model: str, arm: str, controls: Sequence[str], given: argparse.Namespace, folder: Path
) -> dict[str, dict[str, Any]]:
    """Returns the rows of each question by set and control, as ``"SET, CONTROL"``."""
    results: dict[str, dict[str, Any]] = {}
    tasks = tasks_of(given.home)
    protocol = next(iter(tasks.values())).rules.protocol
    team = arm if arm in TEAMS else None
    with opened_models({"model": model}, protocol, Loading(given.sampler, given.dtype, max_context=2048)) as models:
        for control in controls:
            name, changed = CONTROLS[control]
            agent = with_max_tokens(load_agent(team or name), MAX_TOKENS)
            for set_name, task in tasks.items():
                out = folder / f"{set_name}-{control}".replace(" ", "-")
                say(f"{arm}: {control}, {set_name} ...")
                asked = task.subset(given.limit)
                evaluate(
                    changed(asked) if changed else asked,
                    agent,
                    out,
                    dict.fromkeys(agent.roles, models["model"]),
                    EvalOptions(resume=(out / "run.json").exists()),
                )
                rows = (row for _, row in iter_jsonl(out / QUESTIONS))
                results[f"{set_name}, {control}"] = {
                    row["id"]: {key: row[key] for key in FIELDS if key in row} for row in rows
                }
    return results


def record_path(arm: str, seed: int, records: Path) -> Path:
    """Returns the path of a record."""
    return records / f"{arm}-{seed}.json"


def run_unit(arm: str, seed: int, given: argparse.Namespace) -> None:
    """Trains and scores an arm of a seed, and writes its record; of one that there is, what controls it lacks."""
    path = record_path(arm, seed, given.records)
    record: dict[str, Any] = {"arm": arm, "seed": seed, "training": None, "scores": {}}
    if path.exists():
        record = json.loads(path.read_text())
    controls = [name for name in given.controls if not any(key.endswith(f", {name}") for key in record["scores"])]
    if not controls:
        return
    say(f"{arm}, seed {seed} ...")
    model = {"untouched": given.base, "warm": given.start}.get(arm)
    if model is None:
        model, record["training"] = trained(arm, seed, given)
    record["scores"] |= scored(model, arm, controls, given, given.out / f"{arm}-{seed}" / "scores")
    given.records.mkdir(parents=True, exist_ok=True)
    with write_atomic(path) as file:
        file.write(json.dumps(record).encode() + b"\n")


def arguments() -> argparse.Namespace:
    """Returns the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arms", nargs="*", default=["untouched", "warm", "main", "form"], metavar="ARM")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--home", type=Path, default=Path("runs/qwen"))
    parser.add_argument("--base", default=BASE, help="model of the arm untouched")
    parser.add_argument("--start", help="model that trainings start from; default: HOME/warm/checkpoints/last")
    parser.add_argument("--controls", nargs="+", default=["agent"], metavar="CONTROL", help=", ".join(CONTROLS))
    parser.add_argument("--limit", type=int, help="questions of each set; default: all")
    parser.add_argument("--sampler", default="transformers", help="of the scores; the recipe's is rollout.sampler")
    parser.add_argument("--dtype", default="bfloat16", help="of the scores; the recipe's is optimizer.autocast")
    parser.add_argument("--out", type=Path, default=Path("runs/real-models"))
    parser.add_argument("--records", type=Path, help="folder of records; default: OUT/records")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="recipe values of the arms that ask")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    for what, names, known in (("arm", given.arms, ARMS), ("control", given.controls, CONTROLS)):
        if unknown := [name for name in names if name not in known]:
            parser.error(f"no such {what}: {', '.join(unknown)}; there are {', '.join(known)}")
    given.start = given.start or str(given.home / "warm" / "checkpoints" / "last")
    given.records = given.records or given.out / "records"
    return given


def main() -> None:
    """Runs what no record has yet."""
    given = arguments()
    tasks_of(given.home)  # what is scored must be there before an hour of training
    units = [(arm, seed) for seed in given.seeds for arm in given.arms]
    units = [(arm, min(given.seeds) if ARMS[arm] is None else seed) for arm, seed in units]
    units = list(dict.fromkeys(units))
    for arm, seed in units:
        run_unit(arm, seed, given)
    emit({"records": [str(record_path(arm, seed, given.records)) for arm, seed in units]}, given.json)


if __name__ == "__main__":
    main()
