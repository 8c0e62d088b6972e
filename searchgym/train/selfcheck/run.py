"""Self-check of a recipe: finds in minutes the faults that silently ruin trainings of days."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from searchgym.rollout.loading import load_tokenizer
from searchgym.train.learner.learner import LocalLearner
from searchgym.train.recipe.recipe import Recipe
from searchgym.train.run.draw import TrainingData
from searchgym.train.run.folder import Row
from searchgym.train.run.rollout import SamplerHooks
from searchgym.train.run.trainer import Trainer
from searchgym.train.selfcheck.bandit import QUESTIONS, BanditRollout, bandit_model, bandit_recipe
from searchgym.train.selfcheck.findings import Check, Findings
from searchgym.train.selfcheck.small import small_recipe
from searchgym.train.selfcheck.steps import check_steps

BANDIT_STEPS: Final = 60


def selfcheck(recipe: Recipe, out: Path, say: Callable[[str], None] = lambda text: None) -> list[Check]:
    """Runs all checks on a recipe: a few steps recomputed by other formulas, a bandit, a resume.

    Args:
        recipe: Recipe to check; its models are loaded.
        out: Folder for files that the checks write; must be empty or absent.
        say: Called with a line of text at each stage.

    Raises:
        SearchGymError: The recipe's parts cannot be loaded.
    """
    small = small_recipe(recipe).rollout
    say(f"steps of {small.questions} x {small.attempts} episodes at temperature {small.temperature:g} ...")
    findings = Findings()
    check_steps(recipe, out, findings)
    say("a bandit ...")
    return [*findings.checks(), *_bandit_checks(recipe, out)]


def _bandit_checks(recipe: Recipe, out: Path) -> Iterator[Check]:
    """Yields whether the recipe's method learns a bandit, and resumes to the same bits."""
    if recipe.method == "supervised":
        yield Check("a bandit is learnt", True, "method supervised learns from demonstrations only")
        return
    rows = _bandit(bandit_recipe(recipe, BANDIT_STEPS), out / "bandit").run().rows
    first, last = rows[0]["validation/em"], rows[-1]["validation/em"]
    yield Check("a bandit is learnt", last == 1, f"greedy score {first:g} before, {last:g} after {BANDIT_STEPS} steps")
    short = bandit_recipe(recipe, 6)
    # with the recipe's KL: a resumed run must compare with the model of step 0
    short = replace(short, checkpoint=replace(short.checkpoint, every=1), loss=recipe.loss)
    whole = _bandit(short, out / "whole").run()
    with contextlib.suppress(KeyboardInterrupt):
        _bandit(short, out / "parts", report=_stop_at(3)).run()
    parts = _bandit(short, out / "parts", resume=True).run()
    same = _weights_in(whole.checkpoint) == _weights_in(parts.checkpoint)
    yield Check("a resumed run ends at the same bits", same, "stopped after 3 of 6 steps and resumed")


def _weights_in(folder: Path) -> dict[str, bytes]:
    """Returns the files of a checkpoint that hold weights and optimizers, the critic's too."""
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.suffix in (".safetensors", ".pt")
    }


def _bandit(recipe: Recipe, out: Path, **options: Any) -> Trainer:
    """Returns a training of the bandit."""
    model = bandit_model()
    rollout = BanditRollout(model)
    return Trainer(
        recipe,
        out,
        learner=LocalLearner(recipe, model),
        tokenizer=load_tokenizer("tiny"),
        data=TrainingData(questions=QUESTIONS, validation=QUESTIONS),
        hooks=SamplerHooks(rollout=rollout, publish=rollout.publish),
        **options,
    )


def _stop_at(step: int) -> Callable[[Row], None]:
    """Returns a report that stops a run after a step, as Ctrl-C would."""

    def report(row: Row) -> None:
        if row["step"] == step:
            raise KeyboardInterrupt

    return report
