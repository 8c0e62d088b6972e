"""Resuming with more or fewer steps: allowed unless the steps already made would have been others.

The number of a recipe's steps ends the run, and it stretches some schedules. A run without such a schedule does not
depend on it, so that an extended run equals one that had all the steps from the start.
"""

from __future__ import annotations

import dataclasses
import shlex

from searchgym.envs.registration import env_options, registered
from searchgym.options import plain
from searchgym.retrieval.cards import RetrieverCard, find_retriever
from searchgym.rollout.foreign.template_options import DATE
from searchgym.train.recipe.recipe import Recipe, override_of, recipe_values


def resume_problem(before: Recipe, now: Recipe, made: int) -> str | None:
    """Returns why a run cannot be resumed with another recipe; None if it can.

    Args:
        before: Recipe of the run so far.
        now: Recipe to go on with.
        made: Steps of the run's newest checkpoint.
    """
    then, given = recipe_values(before), recipe_values(now)
    changed = [key for key in then if then[key] != given[key]]
    if others := [key for key in changed if key != "steps"]:
        said = "; ".join(f"{key}: {plain(then[key])} then, {plain(given[key])} now" for key in others)
        back = " ".join(shlex.quote(override_of(key, then[key])) for key in others)
        return f"it is of another recipe ({said}): only steps may change, so give {back}"
    if not changed:
        return None
    if now.steps < made:
        return f"{made} of {before.steps} steps are made: give at least steps={made}"
    if schedule := schedule_by_steps(before):
        return (
            f"steps was {before.steps} and is {now.steps} now, and {schedule} depends on it: the steps already made "
            f"would have been others. Go on with steps={before.steps}, or start a new run from a checkpoint of this "
            "one (model=CHECKPOINT)"
        )
    return None


def with_date_of(recipe: Recipe, before: Recipe) -> Recipe:
    """Returns a recipe with the date that chat templates showed in its run so far, unless it gives a date itself."""
    return dataclasses.replace(
        recipe, template={k: v for k, v in before.template.items() if k == DATE} | recipe.template
    )


def schedule_by_steps(recipe: Recipe) -> str | None:
    """Returns the option of a recipe whose schedule depends on the number of steps, with its value; None without."""
    if recipe.optimizer.schedule != "constant":
        return f"optimizer.schedule {recipe.optimizer.schedule}"
    if recipe.has_critic and recipe.critic.optimizer.schedule != "constant":
        return f"critic.optimizer.schedule {recipe.critic.optimizer.schedule}"
    known = recipe.env in registered()
    retriever = {**(env_options(recipe.env) if known else {}), **recipe.env_options}.get("retriever")
    if isinstance(retriever, (str, dict, RetrieverCard)):
        if find_retriever(retriever).grows:
            return "the noise of env_options.retriever (give its card a number of steps)"
    elif hasattr(retriever, "at_step"):
        return "env_options.retriever, which is told the number of steps,"
    return None
