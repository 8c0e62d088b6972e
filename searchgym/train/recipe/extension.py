"""Resuming with more or fewer steps: allowed unless it would change steps that are already done.

The number of steps in a recipe ends the run, and some schedules depend on it. Without such a schedule, an extended run
equals one that had all the steps from the start.
"""

from __future__ import annotations

import dataclasses
import shlex
from typing import Literal

from searchgym.envs.registration import env_options, registered
from searchgym.options import plain
from searchgym.retrieval.cards import RetrieverCard, find_retriever
from searchgym.rollout.foreign.template_options import DATE
from searchgym.train.recipe.options import OptimizerOptions
from searchgym.train.recipe.recipe import Recipe, override_of, recipe_values


def resume_problem(before: Recipe, now: Recipe, done: int) -> str | None:
    """Returns the reason why a run cannot be resumed with another recipe; None if it can.

    Args:
        before: Recipe of the interrupted run.
        now: Recipe to continue with.
        done: Number of steps done at the run's newest checkpoint.
    """
    then, after = recipe_values(before), recipe_values(now)
    changed = [key for key in then if then[key] != after[key]]
    if others := [key for key in changed if key != "steps"]:
        changes = "; ".join(f"{key}: {plain(then[key])} then, {plain(after[key])} now" for key in others)
        back = " ".join(shlex.quote(override_of(key, then[key])) for key in others)
        return f"the run has another recipe ({changes}): only steps may change, so give {back}"
    if not changed:
        return None
    if now.steps < done:
        return f"{done} of {before.steps} steps are done: give at least steps={done}"
    if schedule := schedule_by_steps(before):
        return (
            f"steps was {before.steps} and is {now.steps} now, and {schedule} depends on it: the steps already done "
            f"would change. Continue with steps={before.steps}, or start a new run from a checkpoint of this "
            "one (model=CHECKPOINT)"
        )
    return None


def with_settings_of(recipe: Recipe, before: Recipe) -> Recipe:
    """Returns a recipe with what the interrupted run determined at its start, where the recipe sets no value itself.

    These are the date that chat templates show, and the tokens of micro-batches.
    """
    template = {k: v for k, v in before.template.items() if k == DATE} | recipe.template
    policy, critic = before.optimizer.micro_batch_tokens, before.critic.optimizer.micro_batch_tokens
    return with_micro_batches(dataclasses.replace(recipe, template=template), policy, critic)


def with_micro_batches(recipe: Recipe, policy: int | Literal["auto"], critic: int | Literal["auto"]) -> Recipe:
    """Returns a recipe with numbers of tokens in the place of ``auto``, for the policy and the critic."""

    def with_tokens(options: OptimizerOptions, tokens: int | Literal["auto"]) -> OptimizerOptions:
        is_auto = options.micro_batch_tokens == "auto"
        return dataclasses.replace(options, micro_batch_tokens=tokens) if is_auto else options

    options = with_tokens(recipe.critic.optimizer, critic)
    return dataclasses.replace(
        recipe,
        optimizer=with_tokens(recipe.optimizer, policy),
        critic=dataclasses.replace(recipe.critic, optimizer=options),
    )


def schedule_by_steps(recipe: Recipe) -> str | None:
    """Returns the option (and its value) whose schedule depends on the number of steps; None if there is none."""
    if recipe.optimizer.schedule != "constant":
        return f"optimizer.schedule {recipe.optimizer.schedule}"
    if recipe.has_critic and recipe.critic.optimizer.schedule != "constant":
        return f"critic.optimizer.schedule {recipe.critic.optimizer.schedule}"
    is_registered = recipe.env in registered()
    retriever = {**(env_options(recipe.env) if is_registered else {}), **recipe.env_options}.get("retriever")
    if isinstance(retriever, (str, dict, RetrieverCard)):
        if find_retriever(retriever).grows:
            return "the noise of env_options.retriever (give its card a number of steps)"
    elif hasattr(retriever, "at_step"):
        return "env_options.retriever, which gets the number of steps,"
    return None
