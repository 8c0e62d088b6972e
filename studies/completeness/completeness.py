"""Does a model that knows the answers go on searching? Three rewards, paired by seed.

    python studies/completeness/completeness.py --seeds 1 2 3 4 5 [--out runs/completeness] [--records DIR] [--json]

First the tiny model learns the answers to `COUNT` questions by heart: half of its demonstrations answer at once, half
search first. Then the arms train it on these questions. README.md has the protocol. What has a record is not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from searchgym.cli.output import emit, say
from searchgym.corpora.files import write_atomic
from searchgym.envs import Task, find_env, load_task
from searchgym.eval import t_interval
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.tokens import TokenFormat
from searchgym.train import load_recipe, train
from searchgym.train.demonstrations.oracle import DemonstrationSet, demonstration_of
from searchgym.train.demonstrations.teams import play_team
from searchgym.train.demonstrations.write import write_demonstrations

COUNT: Final = 24
"""Number of questions that the model learns by heart, and is trained and scored on."""
ENV: Final = "searchgym/World-v0"
OPTIONS: Final[dict[str, Any]] = {"questions": {"split": "train", "size": COUNT, "seed": 7}}
AGENT: Final = "search-r1-reread"
ARMS: Final = {
    "outcome": "credit={outcome: 1}",
    "costs": "credit={outcome: 1, costs: {search: 0.1}}",
    "completeness": "credit={outcome: 1, costs: {search: 0.1}, completeness: 1}",
}
KNOWS: Final = ["model=tiny", f"agent={AGENT}", "steps=120", "optimizer.lr=1e-3", "method.batch=16"]
VALUES: Final = [
    f"agent={AGENT}",
    f"env_options={json.dumps(OPTIONS)}",
    f"validation.env_options={json.dumps(OPTIONS)}",
    "advantage.estimator.std=none",
    f"validation.questions={COUNT}",
    "validation.every=10",
    "rollout.questions=12",
    "steps=10",
    "checkpoint.every=0",
    "log.tensorboard=false",
    "log.curve=false",
]


class Scripted:
    """Writes the turns of one episode: the searcher's in order, and the reader's answer."""

    def __init__(self, turns: Sequence[str], answer: str) -> None:
        self._turns, self._answer = iter(turns), answer

    def reply(self, role: str, fields: Mapping[str, str]) -> str:
        """Returns a role's next output."""
        return next(self._turns) if role == "searcher" else f"<answer> {self._answer}</answer>"


def by_heart(task: Task, out: Path) -> Path:
    """Writes demonstrations that answer at once, and as many that search first; returns their file."""
    form = TokenFormat(load_tokenizer("tiny"), task.rules.protocol, chat=True)
    shown = DemonstrationSet()
    for searches in (False, True):
        scripts = {}
        for question in task.questions:
            turns = demonstration_of(question, False, random.Random(0), task.rules).turns
            scripts[question.id] = Scripted(turns if searches else turns[-1:], question.answers[0])
        for episode in play_team(AGENT, task, scripts, form):
            episode.calls = [dataclasses.replace(call, prefix=False) for call in episode.calls]  # learn the reader too
            shown.episodes.append(episode)
    write_demonstrations(shown, out, {"study": "completeness"})
    return out / "episodes.jsonl"


def model_that_knows(out: Path) -> Path:
    """Returns the checkpoint of the model that knows the answers; trains it if there is none."""
    folder = out / "knows"
    if not (folder / "checkpoints" / "last").exists():
        task = load_task(find_env(ENV), **OPTIONS)
        file = out / "shown" / "episodes.jsonl"
        file = file if file.exists() else by_heart(task, out / "shown")
        with contextlib.redirect_stdout(sys.stderr):
            train(load_recipe("tiny-warm", [f"method.demonstrations={file}", *KNOWS]), folder)
    return folder / "checkpoints" / "last"


def run_unit(arm: str, seed: int, start: Path, out: Path) -> dict[str, Any]:
    """Trains an arm with a seed; returns its record."""
    recipe = load_recipe("tiny-grpo", [f"model={start}", ARMS[arm], *VALUES, f"seed={seed}"])
    with contextlib.redirect_stdout(sys.stderr):
        result = train(recipe, out)
    names = ("validation/em", "validation/searches", "rollout/em", "rollout/searches")
    curve = [{name: round(row[name], 4) for name in ("step", *names) if name in row} for row in result.rows]
    scored = [row for row in curve if "validation/em" in row]
    return {
        "arm": arm,
        "seed": seed,
        "em": [scored[0]["validation/em"], scored[-1]["validation/em"]],
        "searches": [scored[0]["validation/searches"], scored[-1]["validation/searches"]],
        "curve": curve,
    }


def interval(values: Sequence[float]) -> str:
    """Returns mean and 95 % interval over seeds, as text."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:.3f}"
    low, high = t_interval(np.array(values))
    return f"{mean:.3f} ({low:.3f} to {high:.3f})"


def summary(records: Path) -> dict[str, str]:
    """Returns searches and EM of each arm at the end, and the differences between arms, over the seeds of all arms."""
    rows = [json.loads(path.read_text()) for path in sorted(records.glob("*.json"))]
    by_arm = {arm: {row["seed"]: row for row in rows if row["arm"] == arm} for arm in ARMS}
    seeds = sorted(set.intersection(*(set(of_arm) for of_arm in by_arm.values())))
    if not seeds:
        return {}
    result = {"seeds": " ".join(map(str, seeds)), "searches before": f"{rows[0]['searches'][0]:.3f}"}
    ends = {
        arm: {key: [of_arm[seed][key][-1] for seed in seeds] for key in ("searches", "em")}
        for arm, of_arm in by_arm.items()
    }
    result |= {f"{key}, {arm}": interval(of_arm[key]) for key in ("searches", "em") for arm, of_arm in ends.items()}
    for first, second in (("completeness", "costs"), ("costs", "outcome")):
        gaps = np.subtract(ends[first]["searches"], ends[second]["searches"])
        result[f"searches, {first} less {second}"] = interval(gaps.tolist())
    return result


def main() -> None:
    """Runs what has no record yet, and prints the contrasts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--out", type=Path, default=Path("runs/completeness"))
    parser.add_argument("--records", type=Path, help="folder of records; default: OUT/records")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    records = options.records or options.out / "records"
    records.mkdir(parents=True, exist_ok=True)
    start = model_that_knows(options.out)
    for seed in options.seeds:
        for arm in ARMS:
            path = records / f"{arm}-{seed}.json"
            if path.exists():
                continue
            say(f"{arm}, seed {seed} ...")
            record = run_unit(arm, seed, start, options.out / f"{arm}-{seed}-{time.time_ns()}")
            with write_atomic(path) as file:
                file.write(json.dumps(record).encode() + b"\n")
    emit(summary(records), options.json)


if __name__ == "__main__":
    main()
