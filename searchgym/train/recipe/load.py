"""Reading recipes: YAML files, ``key=value`` overrides, and checks.

A recipe is as strict as a card: unknown keys, wrong types and impossible combinations are refused before anything
runs. An override names a value by its dotted path (``optimizer.lr=1e-4``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from searchgym.cards import build, find_card
from searchgym.errors import CardError, UnknownNameError
from searchgym.train.recipe.combinations import combination_problems
from searchgym.train.recipe.recipe import Recipe, recipe_keys, recipe_values
from searchgym.yaml_reader import parse_yaml, read_yaml

Say = Callable[[str], None]
"""Function that shows the user a line of text."""


def load_recipe(name: str, overrides: Iterable[str] = (), say: Say = lambda text: None) -> Recipe:
    """Reads a recipe and its overrides.

    Args:
        name: Name of a shipped recipe, or a path to a YAML file.
        overrides: ``key=value``, the key dotted, the value as YAML; the last one of a key wins. If they lower the
            number of steps, a warm-up of the recipe that would not fit is shortened.
        say: Called with a line of text for each warm-up that was shortened.

    Raises:
        UnknownNameError: No such recipe, or no such key; the nearest is suggested.
        CardError: The file or a value does not fit, or the combination is impossible.
    """
    try:
        path = find_card("train", name)
    except UnknownNameError as error:
        raise UnknownNameError("recipe", name, error.known, error.hint) from None
    return read_recipe(path, overrides, say)


def read_recipe(path: Path, overrides: Iterable[str] = (), say: Say = lambda text: None) -> Recipe:
    """Reads the recipe of a file; see `load_recipe`."""
    data = read_yaml(path)
    overrides = list(overrides)
    where = override_values(data, overrides, recipe_keys(), str(path))
    recipe = _shortened(build(Recipe, data, where), {key.partition("=")[0] for key in overrides}, say)
    check_recipe(recipe, where)
    return recipe


def override_values(data: object, overrides: Iterable[str], known: Collection[str], where: str) -> str:
    """Writes ``key=value`` pairs into the plain data of a recipe, in place; returns `where` followed by them.

    Raises:
        UnknownNameError: No such key; the nearest is suggested.
        CardError: A pair is malformed.
    """
    if isinstance(data, dict):
        for override in overrides:
            _override(data, override, known)
            where += f" {override}"
    return where


def _override(data: dict[str, Any], override: str, known: Collection[str]) -> None:
    """Writes one ``key=value`` into the plain data of a recipe."""
    key, equals, text = override.partition("=")
    if not equals:
        example = "optimizer.lr=1e-4" if "optimizer.lr" in known else f"{min(known, key=len)}=VALUE"
        raise CardError(f"override {override!r}: expected key=value, for example {example}")
    if whole := next((name for name in known if key.startswith(f"{name}.")), None):
        inside = key.removeprefix(f"{whole}.")
        raise CardError(f"override {override!r}: {whole} is one value, give all of it: {whole}='{{{inside}: ...}}'")
    if key not in known:
        raise UnknownNameError("recipe key", key, known)
    *parents, last = key.split(".")
    for parent in parents:
        inner = data.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise CardError(f"override {override!r}: {parent} is {inner!r} in the recipe, expected keys and values")
        data = inner
    data[last] = parse_yaml(text, f"override {override!r}: the value")


def _shortened(recipe: Recipe, given: Collection[str], say: Say) -> Recipe:
    """Returns the recipe with warm-ups that fit a number of steps given by the user; warm-ups that the user gave stay.

    The critic's warm-up leaves a step in which the policy learns too.
    """
    steps = max(recipe.steps, 1)
    for section, most in (("optimizer", steps), ("critic", steps - 1)):
        options: Any = getattr(recipe, section)
        key, warmup = f"{section}.warmup_steps", options.warmup_steps
        if "steps" in given and key not in given and warmup > most:
            recipe = dataclasses.replace(recipe, **{section: dataclasses.replace(options, warmup_steps=most)})
            say(f"{key}: {most} instead of the recipe's {warmup}, because steps is {steps}")
    return recipe


def with_warmups_of(recipe: Recipe, before: Recipe, overrides: Collection[str]) -> Recipe:
    """Returns a recipe with the warm-ups of the run that it resumes, but for those that the user gave.

    A run with few steps may have begun with a shorter warm-up than the recipe's; when it goes on it keeps that one.
    """
    given = {override.partition("=")[0] for override in overrides}
    for section in ("optimizer", "critic"):
        if f"{section}.warmup_steps" not in given:
            kept = getattr(before, section).warmup_steps
            options = dataclasses.replace(getattr(recipe, section), warmup_steps=kept)
            recipe = dataclasses.replace(recipe, **{section: options})
    return recipe


def check_recipe(recipe: Recipe, where: str) -> None:
    """Refuses values out of range and combinations that cannot work.

    Raises:
        CardError: Names every problem found.
    """
    problems = [*_range_problems(recipe), *combination_problems(recipe)]
    if problems:
        raise CardError(f"{where}: " + "; ".join(problems))


def _range_problems(recipe: Recipe) -> list[str]:
    """Returns one line per value that is out of range."""
    found = []
    for key, value in recipe_values(recipe).items():
        if isinstance(value, float) and not math.isfinite(value):
            found.append(f"{key} is {value}: expected a finite number")
        elif key in _AT_LEAST and value is not None and value < _AT_LEAST[key]:
            found.append(f"{key} is {value}: expected at least {_AT_LEAST[key]}")
    for place, options in (("optimizer", recipe.optimizer), ("critic.optimizer", recipe.critic.optimizer)):
        if len(options.betas) != 2 or not all(0 <= beta < 1 for beta in options.betas):
            found.append(f"{place}.betas is {options.betas}: expected two numbers in [0, 1)")
    if recipe.rollout.temperature <= 0:
        found.append(f"rollout.temperature is {recipe.rollout.temperature}: attempts need one above 0")
    if not 0 < recipe.rollout.top_p <= 1:
        found.append(f"rollout.top_p is {recipe.rollout.top_p}: expected above 0 and at most 1")
    return found


_OPTIMIZER_AT_LEAST: dict[str, float] = {
    "lr": 0,
    "eps": 0,
    "weight_decay": 0,
    "max_grad_norm": 0,
    "warmup_steps": 0,
    "min_lr_ratio": 0,
    "minibatches": 1,
    "minibatch_samples": 1,
    "epochs": 1,
    "micro_batch_tokens": 1,
}
_AT_LEAST: dict[str, float] = {
    "steps": 1,
    "seed": 0,
    "max_generated_tokens": 1,
    "max_read_tokens": 1,
    "proposer.decay": 0,
    "proposer.prior": 0,
    "proposer.min_entropy": 0,
    "proposer.max_named": 0,
    "proposer.pool": 0,
    "proposer.tries": 1,
    "curriculum.up": 0,
    "curriculum.down": 0,
    "curriculum.window": 1,
    "rollout.questions": 1,
    "rollout.attempts": 1,
    "rollout.max_tokens": 1,
    "rollout.concurrency": 1,
    "rollout.staleness": 0,
    "rollout.probe": 0,
    "rollout.resample": 0,
    "rollout.vllm.cache_gib": 1,
    "rollout.vllm.max_context": 1,
    "rollout.vllm.tensor_parallel": 1,
    "rollout.vllm.replicas": 1,
    "rollout.vllm.stall": 0.1,
    "lora.rank": 0,
    "credit.alpha": 0,
    "credit.turn_cost": 0,
    "credit.search_cost": 0,
    "credit.waypoint_names": 1,
    "credit.judge_seconds": 0.001,
    "credit.gate_delta": 1e-6,
    "credit.tournament_rounds": 1,
    "credit.candidates": 1,
    "credit.draws": 1,
    "credit.length_limit": 1,
    "credit.length_cache": 1,
    "lora.alpha": 0,
    "advantage.eps": 0,
    "advantage.std_floor": 0,
    "advantage.min_group": 2,
    "advantage.alpha": 0,
    "advantage.gamma": 0,
    "advantage.lam": 0,
    "critic.value_clip": 0,
    "critic.warmup_steps": 0,
    "learner.ranks": 1,
    "learner.zero": 0,
    "learner.frozen_layers": 0,
    "loss.clip_low": 0,
    "loss.clip_high": 0,
    "loss.kl_coef": 0,
    "loss.entropy_coef": 0,
    "loss.importance_cap": 1,
    "loss.llds_coef": 0,
    "loss.constant_length": 1,
    "supervised.batch": 1,
    "validation.every": 0,
    "validation.questions": 1,
    "checkpoint.every": 0,
    "checkpoint.keep_last": 1,
    "log.episodes_every": 0,
    "guard.patience": 1,
    "deadline.rollout": 0.001,
    "deadline.learn": 0.001,
    "deadline.validation": 0.001,
    **{
        f"{place}.{name}": least
        for place in ("optimizer", "critic.optimizer")
        for name, least in _OPTIMIZER_AT_LEAST.items()
    },
}
