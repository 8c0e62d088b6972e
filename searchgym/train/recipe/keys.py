"""Model keys: which weights are behind which role, and the recipe that each of them is trained by."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from searchgym.agents.base import LoadedAgent
from searchgym.agents.roles import Role
from searchgym.errors import DataMissingError, UnknownNameError, UsageError
from searchgym.rollout.loading import is_adapter
from searchgym.train.recipe.load import read_recipe
from searchgym.train.recipe.options import KeyOptions
from searchgym.train.recipe.recipe import Recipe

POLICY: Final = "policy"
"""The key of a recipe that names none."""


@dataclass(frozen=True, slots=True)
class Key:
    """One set of weights."""

    name: str
    roles: tuple[str, ...]
    """That ask it."""
    frozen: bool
    """True if nothing trains it."""
    recipe: Recipe
    """By which it is trained: its own model and learning rates in the place of the whole recipe's."""


def keys_of(recipe: Recipe, roles: Collection[str], agent: str) -> list[Key]:
    """Returns the model keys of a recipe for an agent's roles, in the recipe's order.

    Args:
        recipe: See `Recipe.models`.
        roles: The agent's.
        agent: Its name, for messages.

    Raises:
        UnknownNameError: A key names a role that the agent does not have; the nearest is suggested.
        UsageError: A role without a key, a key without a role, or nothing that is trained.
    """
    if not roles:
        raise UsageError(f"agent {agent} asks no model: there is nothing to train")
    options = recipe.models or {POLICY: KeyOptions()}
    named = [role for own in options.values() for role in own.roles or ()]
    if unknown := [role for role in named if role not in roles]:
        raise UnknownNameError(f"role of agent {agent}", unknown[0], roles)
    rest = [role for role in roles if role not in named]
    keys = []
    for name, own in options.items():
        asked = tuple(rest if own.roles is None else own.roles)
        if not asked:
            raise UsageError(f"models.{name}: no role of agent {agent} asks it, each has another key: leave it out")
        keys.append(Key(name, asked, own.frozen, _recipe(recipe, own)))
    if missing := set(roles).difference(*(key.roles for key in keys)):
        raise UsageError(f"agent {agent}: no model for role {', '.join(sorted(missing))}: name a key for it in models")
    if all(key.frozen for key in keys):
        raise UsageError(f"models: every key is frozen ({', '.join(options)}): there is nothing to train")
    return keys


def models_by_role(recipe: Recipe, agent: LoadedAgent, checkpoint: Path | None = None) -> dict[str, str]:
    """Returns the model behind each role of a recipe's agent: as a run begins, or as one of its checkpoints has it."""
    keys = keys_of(recipe, agent.roles, agent.name)
    return {role: _weights(recipe, key, checkpoint) for key in keys for role in key.roles}


def _weights(recipe: Recipe, key: Key, checkpoint: Path | None) -> str:
    """Returns the folder, or name, of one key's model."""
    if checkpoint is None or key.frozen:
        return key.recipe.model
    return str(checkpoint / key.name if recipe.models else checkpoint)


def in_checkpoints(models: Mapping[str, str], agent: LoadedAgent) -> dict[str, str]:
    """Returns role to model, where a role may have been given the checkpoint of a run with several keys.

    Args:
        models: Role to a folder, or anything else that names a model.
        agent: The run's.

    Raises:
        DataMissingError: A checkpoint of several keys outside its run.
        UnknownNameError: The checkpoint is of a team with other roles.
        UsageError: The same.
    """
    found = dict(models)
    for name in set(models.values()):
        checkpoint = Path(name)
        one = is_adapter(checkpoint) or (checkpoint / "config.json").is_file()
        if (checkpoint / "trainer.json").is_file() and not one:
            record = checkpoint.resolve().parent.parent / "recipe.yaml"
            if not record.is_file():
                raise DataMissingError(f"{name} has several models, and {record}, which says whose, is not there")
            by_role = models_by_role(read_recipe(record), agent, checkpoint)
            found |= {role: by_role[role] for role, model in models.items() if model == name}
    return found


def check_comparison(recipe: Recipe, roles: Mapping[str, Role]) -> None:
    """Refuses a credit that gives the calls of one episode different rewards, where episodes are compared as wholes.

    Raises:
        UsageError: Says which term, and what to set.
    """
    advantage, terms = recipe.advantage, recipe.credit.terms
    if recipe.method != "policy" or advantage.estimator == "gae" or advantage.normalise != "all" or len(roles) < 2:
        return
    differing = [name for name in terms if ":" in name or (name == "format" and any(r.penalty for r in roles.values()))]
    if differing:
        raise UsageError(
            f"advantage.normalise is all: {advantage.estimator} compares episodes as wholes, and credit {differing[0]} "
            "may give their calls different rewards; set it to role or role-turn"
        )


def _recipe(recipe: Recipe, own: KeyOptions) -> Recipe:
    """Returns the recipe of one key."""
    optimizer, critic = recipe.optimizer, recipe.critic
    if own.lr is not None:
        optimizer = dataclasses.replace(optimizer, lr=own.lr)
    if own.critic_lr is not None:
        critic = dataclasses.replace(critic, optimizer=dataclasses.replace(critic.optimizer, lr=own.critic_lr))
    return dataclasses.replace(recipe, model=own.model or recipe.model, models={}, optimizer=optimizer, critic=critic)
