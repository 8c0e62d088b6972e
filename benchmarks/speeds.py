"""Speeds of this machine for `searchgym train --plan`, and how well they predict steps that they were not fitted on.

    python benchmarks/speeds.py fit   [--recipes "tiny-grpo rollout.questions=8" "tiny-grpo model=..."] [--steps 4]
    python benchmarks/speeds.py check [--recipes tiny-ppo tiny-mask] [--steps 4]

`fit` trains some steps of two recipes, whose models have different sizes, and prints the fixed and the growing part of
the seconds per token, as `searchgym.train.plan.hours.DEVICES` has them. `check` trains some steps of other recipes, and
compares the seconds of a step with those predicted from the lengths of their episodes. The first step, which warms up,
does not count. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from searchgym.cli.output import emit_rows
from searchgym.train import load_recipe, train
from searchgym.train.plan.hours import Lengths, Speed, device_here, estimate, trained_weights
from searchgym.train.recipe.recipe import Recipe

LARGER: Final = (
    "tiny-grpo model=smollm2 lora.rank=16 rollout.questions=3 rollout.attempts=4 rollout.max_tokens=48"
    " rollout.probe=0 advantage.drop_zero_variance=false"  # the base model answers nothing: all groups are alike
)
FIT: Final = ("tiny-grpo rollout.questions=8", LARGER)
CHECK: Final = ("tiny-ppo", "tiny-mask")


def main() -> None:
    """Runs one part and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("fit", "check"))
    parser.add_argument("--recipes", nargs="+", help='recipes, with their values: "tiny-grpo lora.rank=16"')
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if args.part == "fit":
        first, second = (measured(recipe_of(words, args.steps)) for words in args.recipes or FIT)
        rows = [{"recipe": words} | row for words, row in zip(args.recipes or FIT, (first, second), strict=True)]
        emit_rows(rows, args.json, "measured", "medians over steps")
        for kind in ("sample", "learn"):
            print(f"{kind}: {line(first, second, kind)}", file=sys.stderr)
        return
    rows = []
    for words in args.recipes or CHECK:
        recipe = recipe_of(words, args.steps)
        row = measured(recipe)
        step = estimate(recipe, device_here(recipe), tokens=Lengths(row["generated"], row["read"]))
        assert step is not None and step.draw is not None and step.learn is not None
        row |= {"predicted s": step.seconds, "predicted draw s": step.draw, "predicted learn s": step.learn}
        rows.append({"recipe": words} | row | {"predicted / measured": step.seconds / (row["draw s"] + row["learn s"])})
    emit_rows(rows, args.json, "check", "seconds of a step, predicted from the lengths of its episodes")


def recipe_of(words: str, steps: int) -> Recipe:
    """Returns a recipe, given by its name and values, for some steps without validation."""
    name, *values = words.split()
    quiet = ["validation.every=0", "checkpoint.every=0", "log.tensorboard=false", "log.episodes_every=0"]
    return load_recipe(name, [*values, f"steps={steps}", *quiet])


def measured(recipe: Recipe) -> dict[str, Any]:
    """Trains a recipe; returns medians over its steps but the first, of one step and of an episode."""
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
        rows = [row for row in train(recipe, Path(folder) / "run").rows if row["step"] > 1]
    episodes = recipe.rollout.questions * recipe.rollout.attempts

    def median(name: str) -> float:
        return statistics.median(row.get(name, 0.0) for row in rows)

    learnt, generated = median("learner/tokens_read"), median("rollout/tokens")
    alike = median("groups/zero_variance_share") if recipe.advantage.drop_zero_variance else 0.0
    share = 1 - alike  # of the episodes that are learnt
    return {
        "weights": trained_weights(recipe),
        "draw s": median("time/draw"),
        "learn s": median("time/learn"),
        "generated": round(generated / episodes),
        "read": round(learnt / episodes / share - generated / episodes) if share else 0,
        "sample s": median("time/draw") / generated,
        "learn s a token": statistics.median(
            row["time/learn"] / row["learner/tokens_read"] for row in rows if row.get("learner/tokens_read")
        ),
        "learnt share": share,
    }


def line(first: dict[str, Any], second: dict[str, Any], kind: str) -> Speed:
    """Returns the line through the seconds per token of two models; a LoRA adapter does 4 of 6 operations."""
    name = "sample s" if kind == "sample" else "learn s a token"
    work = (1.0, 1.0) if kind == "sample" else (1.0, 4 / 6)
    one, other = (row[name] / share for row, share in zip((first, second), work, strict=True))
    growing = (other - one) / (second["weights"] - first["weights"]) * 1e9
    return Speed(one - growing * first["weights"] / 1e9, growing)


if __name__ == "__main__":
    main()
