"""Self-check of a recipe, which detects silent faults in minutes, before a training of days."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from searchgym.envs.reward import SCORES
from searchgym.options import Kind, kind_name, plain
from searchgym.rollout.loading import load_tokenizer
from searchgym.testing.bandit import QUESTIONS, BanditRollout, bandit_model, bandit_recipe
from searchgym.testing.selfcheck.findings import Check, CheckFailed, Findings
from searchgym.testing.selfcheck.small import small_recipe
from searchgym.testing.selfcheck.steps import check_steps
from searchgym.train.learner.learner import LocalLearner
from searchgym.train.loop.collect import TrainingData
from searchgym.train.loop.folder import Row
from searchgym.train.loop.rollout import SamplerHooks
from searchgym.train.loop.trainer import Trainer, TrainResult
from searchgym.train.recipe.combinations import changed as changed_options
from searchgym.train.recipe.load import with_code
from searchgym.train.recipe.options import ValidationOptions
from searchgym.train.recipe.recipe import Recipe, recipe_values

BANDIT_STEPS: Final = 60
AGREED: Final = 0.02
"""Maximum mean difference of log-probs, in nats, between the bandit's sampler and its trainer."""
GRADES: Final = (0.2, 0.6, 0.4, 0.8, 0.8, 0.5, 0.3)
"""Made-up validation scores of steps 0 to 6: the best score is not the last, occurs twice, and precedes the resume."""
LEARNT: Final = "a bandit is learnt"
RESUMED: Final = "a resumed run ends at the same bits"
BEST: Final = "the best checkpoint is that of the best score"


def selfcheck(
    recipe: Recipe, out: Path, say: Callable[[str], None] = lambda text: None, findings: Findings | None = None
) -> list[Check]:
    """Runs all checks of a recipe: a few recomputed steps, a bandit task, and a resumed run.

    Args:
        recipe: Recipe to check; its models are loaded.
        out: Folder for files that the checks write; must be empty or absent.
        say: Called with a line of text at the start of each stage.
        findings: Collector that receives each result at once. Default: a new one.

    Returns:
        All results.

    Raises:
        SearchGymError: The recipe's parts cannot be loaded.
    """
    findings, recipe = Findings() if findings is None else findings, with_code(recipe)
    small = small_recipe(recipe)
    rollout = small.rollout
    say(f"steps of {rollout.questions} x {rollout.attempts} episodes at temperature {rollout.temperature:g} ...")
    check_steps(recipe, out, findings)
    say("a bandit ...")
    check_bandit(recipe, out, findings)
    findings.skip("the recipe's values that the steps change", changed(recipe, small))
    if not recipe.method.demonstrated:
        apart = "environment, agent, sampler and model are the bandit's, in one process; "
        findings.skip("the recipe's values that the bandit changes", apart + changed(recipe, short_recipe(recipe)))
    return findings.checks()


def changed(recipe: Recipe, other: Recipe) -> str:
    """Lists the values that differ between a recipe and the one that is run instead."""
    values, instead = recipe_values(recipe), recipe_values(other)
    without = ("name", "summary") if recipe.has_critic else ("name", "summary", "critic.")
    differ = [name for name in values if values[name] != instead[name] and not name.startswith(without)]
    return ", ".join(f"{name} {_formatted(values[name])} -> {_formatted(instead[name])}" for name in differ)


def _formatted(value: Any) -> str:
    """Formats a value of a recipe in a few characters."""
    if isinstance(value, Kind):
        changes = [f"{name} {plain(getattr(value, name))}" for name in changed_options(value)]
        return f"{kind_name(value)} ({', '.join(changes)})" if changes else kind_name(value)
    return f"{value:g}" if isinstance(value, float) else f"{value!s:.40}"


def short_recipe(recipe: Recipe) -> Recipe:
    """Returns the bandit recipe for a run that is stopped and resumed.

    It has the loss of the recipe, with KL, and its validation metric: a resumed run must restore the reference model
    and the best score so far.
    """
    bandit = bandit_recipe(recipe, len(GRADES) - 1)
    metric = recipe.validation.metric if _is_score(recipe.validation.metric) else "em"
    validation = replace(bandit.validation, every=1, metric=metric)
    return replace(bandit, checkpoint=replace(bandit.checkpoint, every=1), loss=recipe.loss, validation=validation)


def _is_score(metric: str) -> bool:
    """Checks whether a validation metric is a score of episodes, for which values can be made up."""
    return metric == "reward" or metric in SCORES


def check_bandit(recipe: Recipe, out: Path, findings: Findings) -> None:
    """Checks that the recipe's method learns a bandit, resumes to the same bits, and keeps the best checkpoint."""
    if recipe.method.demonstrated:
        for name in (LEARNT, RESUMED, BEST):
            findings.skip(name, f"method {kind_name(recipe.method)} learns from demonstrations only")
        return
    with contextlib.suppress(CheckFailed), findings.stage(LEARNT):
        rows = _bandit(bandit_recipe(recipe, BANDIT_STEPS), out / "bandit").run().rows
        first, last = rows[0]["validation/em"], rows[-1]["validation/em"]
        apart = max((row.get("learner/sampler_difference", 0.0) for row in rows), default=0.0)
        message = f"greedy score {first:g} before, {last:g} after {BANDIT_STEPS} steps"
        if apart > AGREED:
            message += f"; log-probs of sampler and trainer were up to {apart:.2g} nats apart, {AGREED:g} is allowed"
        findings.add(LEARNT, last == 1 and apart <= AGREED, message)
    with contextlib.suppress(CheckFailed), findings.stage(RESUMED):
        short = short_recipe(recipe)
        whole = _bandit(short, out / "whole", graded=True).run()
        with contextlib.suppress(KeyboardInterrupt):
            _bandit(short, out / "parts", graded=True, report=_stop_after_3).run()
        parts = _bandit(short, out / "parts", graded=True, resume=True).run()
        same = _weights_in(whole.checkpoint) == _weights_in(parts.checkpoint)
        findings.add(RESUMED, same, f"stopped after 3 of {short.steps} steps and resumed")
        with findings.stage(BEST):
            _check_best(recipe.validation, whole, parts, findings)
    findings.skip(BEST, "the run whose best checkpoint is compared did not end")


def _check_best(options: ValidationOptions, whole: TrainResult, parts: TrainResult, findings: Findings) -> None:
    """Checks which checkpoint counts as the best, that it is saved, and that a resumed run has the same one."""
    metric = options.metric
    if not options.every or not _is_score(metric):
        why = f"validation.metric {metric} is no score of an episode" if options.every else "no validation"
        findings.skip(BEST, why)
        return
    right = f"step-{max(range(len(GRADES)), key=lambda step: (GRADES[step], -step)):06d}"
    names = ["none" if run.best is None else run.best.name for run in (whole, parts)]
    links = [(run.checkpoint.parent / "best").resolve() for run in (whole, parts)]
    saved = all(link.name == right and any(link.glob("**/*.safetensors")) for link in links)
    message = f"by {metric}: {names[0]}, after a resume {names[1]}; {right} is right"
    findings.add(BEST, names == [right] * 2 and saved, message if saved else f"{message}, but it is not saved as best")


def _stop_after_3(row: Row) -> None:
    """Stops a run after its third step, as Ctrl-C would."""
    if row["step"] == 3:
        raise KeyboardInterrupt


def _weights_in(folder: Path) -> dict[str, bytes]:
    """Returns the files of a checkpoint that hold weights and optimizers, the critic's too."""
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.suffix in (".safetensors", ".pt")
    }


def _bandit(recipe: Recipe, out: Path, graded: bool = False, **options: Any) -> Trainer:
    """Returns a training of the bandit; if `graded`, its validation scores are those of `GRADES`."""
    model = bandit_model()
    rollout = BanditRollout(model, grades=(recipe.validation.metric, GRADES) if graded else None)
    return Trainer(
        recipe,
        out,
        learner=LocalLearner(recipe, model),
        tokenizer=load_tokenizer("tiny"),
        data=TrainingData(questions=QUESTIONS, validation=QUESTIONS),
        hooks=SamplerHooks(rollout=rollout, publish=rollout.publish),
        **options,
    )
