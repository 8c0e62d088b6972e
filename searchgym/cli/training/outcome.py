"""The end of a training: what stood in its way, and the command that a user needs next."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from searchgym.cli.options import TaskChoice
from searchgym.cli.output import say

if TYPE_CHECKING:
    from searchgym.train.loop.trainer import TrainResult
    from searchgym.train.recipe.recipe import Recipe


def say_outcome(recipe: Recipe, result: TrainResult, folder: Path) -> None:
    """Prints why nothing was learnt, if so, and the picture of the training."""
    rows = [row for row in result.rows if row["step"] > 0]
    if rows and recipe.method.compares and not any(row.get("rollout/reward") for row in rows):
        legal = {
            name: share for name, share in rows[-1].items() if name.startswith("role/") and name.endswith("/legal")
        }
        legal = legal or {"all calls": 1 - rows[-1].get("rollout/illegal", 0.0)}
        worst = min(legal, key=lambda name: legal[name])
        say(
            f"no episode earned a reward, so nothing was learnt; the least legal outputs are those of {worst} "
            f"({100 * legal[worst]:.0f} %): warm the model up on demonstrations (method supervised), or give worked "
            "examples in the prompts"
        )
    if result.progress.best_step == 0 and rows:
        say("no step scored higher on validation than the model did before training: the best checkpoint is step 0")
    if (folder / "curve.png").is_file():
        say(f"curve: {folder / 'curve.png'}")


def next_words(recipe: Recipe, result: TrainResult, folder: Path) -> list[str]:
    """Returns the words of the next command: an evaluation on the validation questions, or else a report.

    A report is next where the run trained nothing, or where ``eval`` has no option for something in the recipe.
    """
    options: dict[str, Any] = {**recipe.env_options, **recipe.validation.env_options}
    flags = {field.name for field in dataclasses.fields(TaskChoice)}
    if not result.progress.step or recipe.models or not options.keys() <= flags:
        return ["report", str(folder)]
    words = ["eval", recipe.env, "--agent", recipe.agent, "--model", str(result.best or result.checkpoint)]
    if recipe.rollout.max_tokens is not None:
        words += ["--max-tokens", str(recipe.rollout.max_tokens)]
    for name, value in recipe.template.items():
        words += ["--template", f"{name}={value}"]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, Mapping):
            words += [flag, yaml.safe_dump(dict(value), default_flow_style=True, width=10**6, sort_keys=False).strip()]
        elif value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return words
