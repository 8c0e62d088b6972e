"""Methods of training side by side on the tiny model: greedy EM on held-out questions, at equal generated tokens.

    python benchmarks/methods.py [CONTRAST ...] [--seeds 5] [--steps N] [--questions 500] [--out runs/methods] [--json]
                                 [--set KEY=VALUE ...]

A contrast is two arms, ``A:B`` (see ARMS). For each seed A trains for its recipe's steps, or ``--steps``; then B trains
until it has generated as many tokens. Seeds are paired: both ask the same questions. One method beats the other
if the 95 % t-interval of the paired differences of EM excludes 0; else the contrast is not resolved. A training has
collapsed if the EM of its episodes over the last fifth of its steps is under half of the best mean of three steps.

A folder of an earlier run is gone on with: finished trainings stay. ``curves.png`` shows the trainings' EM.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from searchgym.agents.base import load_agent
from searchgym.cli.demo import ENV, em_by_question, evaluate_model
from searchgym.cli.output import emit, emit_rows
from searchgym.corpora.files import iter_jsonl
from searchgym.envs.registration import find_env
from searchgym.envs.task import Task, load_task
from searchgym.eval.intervals import bootstrap_ci, t_interval
from searchgym.train.demonstrations import AGENT
from searchgym.train.recipe import load_recipe
from searchgym.train.run import train

ARMS: dict[str, list[str]] = {
    "grpo": ["tiny-grpo"],
    "rejection": ["tiny-rejection"],
    "ppo": ["tiny-ppo"],
    "stratified": ["tiny-grpo", "advantage.estimator=stratified"],
    "grpo-4": ["tiny-grpo", "optimizer.minibatches=4"],
    "llds": ["tiny-grpo", "optimizer.minibatches=4", "loss.llds_coef=0.2"],
}
"""Name to recipe and values; LLDS acts only where a rollout is learnt from in several minibatches."""
CONTRASTS = ["grpo:rejection", "grpo:stratified", "grpo-4:llds", "grpo:ppo"]
MANY_STEPS = 100_000
"""Of an arm that its tokens end."""


def main() -> None:
    """Trains what is missing and prints a row per training and one per contrast."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contrasts", nargs="*", default=CONTRASTS, metavar="A:B")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="of the first arm of a contrast; its recipe's if not given")
    parser.add_argument("--questions", type=int, default=500, help="held-out questions")
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="recipe values for all arms")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    pairs = [tuple(contrast.split(":")) for contrast in args.contrasts]
    if any(len(pair) != 2 or not set(pair) <= ARMS.keys() for pair in pairs):
        parser.error(f"a contrast is two of {', '.join(ARMS)}, like grpo:ppo; got {' '.join(args.contrasts)}")
    task = load_task(find_env(ENV))
    task = dataclasses.replace(task, questions=task.questions[: args.questions])
    before = scores_of(task, load_recipe("tiny-grpo", args.set).model, args.out / "before")
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for seed in range(args.seeds):
        for first, second in pairs:
            steps = [] if args.steps is None else [f"steps={args.steps}"]
            rows[first, seed] = row = trained(task, first, seed, [*args.set, *steps], args.out, before)
            budget = [f"steps={MANY_STEPS}", f"max_generated_tokens={row['tokens']}"]
            rows[second, seed] = trained(task, second, seed, [*args.set, *budget], args.out, before)
    contrasts = [contrast(rows, first, second, args.seeds) for first, second in pairs]
    draw(rows, args.out)
    listed = [{"arm": arm, "seed": seed} | row for (arm, seed), row in sorted(rows.items())]
    if args.json:
        emit({"before": means(before), "trainings": listed, "contrasts": contrasts}, True)
        return
    emit(means(before), False, "before")
    emit_rows(listed, False, "trainings", f"greedy EM on {len(task.questions)} held-out questions of {ENV}")
    emit_rows(contrasts, False, "contrasts", f"differences over {args.seeds} paired seeds, first arm - second")


def trained(task: Task, arm: str, seed: int, overrides: list[str], out: Path, before: dict[str, Any]) -> dict[str, Any]:
    """Trains and evaluates, unless that was done before; returns the row."""
    folder = out / f"{arm}-{seed}"
    record = folder / "row.json"
    if record.is_file():
        return dict(json.loads(record.read_text(encoding="utf-8")))
    print(f"{arm}, seed {seed} ...", file=sys.stderr, flush=True)
    started = time.perf_counter()
    name, *own = ARMS[arm]
    recipe = load_recipe(name, [*own, *overrides, f"seed={seed}"])
    result = train(recipe, folder / "train", resume=(folder / "train").exists())
    seconds = time.perf_counter() - started
    after = scores_of(task, str(result.checkpoint), folder / "after")
    low, high = bootstrap_ci([after["em"][i] - before["em"][i] for i in sorted(before["em"])])
    scores, reference = means(after), means(before)
    row = scores | {
        "gain": scores["em"] - reference["em"],
        "gain_low": low,
        "gain_high": high,
        "recall_gain": scores["title_recall"] - reference["title_recall"],
        "steps": result.progress.step,
        "tokens": result.progress.generated_tokens,
        "collapsed": collapsed([row["rollout/em"] for row in result.rows if "rollout/em" in row]),
        "seconds": round(seconds),
    }
    record.write_text(json.dumps(row), encoding="utf-8")
    return row


def scores_of(task: Task, model: str, out: Path) -> dict[str, Any]:
    """Returns a model's scores, and its EM by question id in the place of the mean."""
    scores = evaluate_model(task, load_agent(AGENT), model, out)
    return scores | {"em": em_by_question(out)}


def means(scores: dict[str, Any]) -> dict[str, float]:
    """Returns the numbers of a row."""
    return {
        "em": float(np.mean(list(scores["em"].values()))),
        "title_recall": scores["title_recall"][-1],
        "searches": scores["searches"],
    }


def collapsed(em: list[float]) -> bool:
    """Returns whether the EM of a training's steps fell under half of its best, see above."""
    if len(em) < 5:
        return False
    best = max(np.convolve(em, np.ones(3) / 3, mode="valid"))
    return bool(np.mean(em[-(len(em) // 5) :]) < best / 2)


def contrast(rows: dict[tuple[str, int], dict[str, Any]], first: str, second: str, seeds: int) -> dict[str, Any]:
    """Returns the paired difference in EM of two arms and what it says."""
    differences = [rows[first, seed]["em"] - rows[second, seed]["em"] for seed in range(seeds)]
    low, high = t_interval(differences) if seeds > 1 else (float("-inf"), float("inf"))
    verdict = f"{first} wins" if low > 0 else f"{second} wins" if high < 0 else "not resolved"
    return {
        "contrast": f"{first}:{second}",
        "gain": [float(np.mean([rows[arm, seed]["gain"] for seed in range(seeds)])) for arm in (first, second)],
        "difference": float(np.mean(differences)),
        "low": low,
        "high": high,
        "by seed": differences,
        "collapsed": [sum(rows[arm, seed]["collapsed"] for seed in range(seeds)) for arm in (first, second)],
        "verdict": verdict,
    }


def draw(rows: dict[tuple[str, int], dict[str, Any]], out: Path) -> None:
    """Draws the EM of the trainings' episodes by generated tokens: thin lines for seeds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="generated tokens", ylabel="EM of training episodes, mean of three steps")
    for number, arm in enumerate(dict.fromkeys(arm for arm, _ in rows)):
        for seed in (seed for name, seed in rows if name == arm):
            path = out / f"{arm}-{seed}" / "train" / "metrics.jsonl"
            steps = [row for _, row in iter_jsonl(path) if "rollout/em" in row]
            smooth = np.convolve([row["rollout/em"] for row in steps], np.ones(3) / 3, mode="valid")
            tokens = [row["generated_tokens"] for row in steps[2:]]
            axes.plot(tokens, smooth, color=f"C{number}", alpha=0.6, linewidth=1, label=arm if seed == 0 else None)
    axes.legend()
    axes.grid(alpha=0.3)
    canvas.print_png(out / "curves.png")  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
