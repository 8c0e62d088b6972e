"""Checkpoints of training runs: which of their folders is the model behind which role."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from searchgym.agents.base import LoadedAgent
from searchgym.errors import CardError, DataMissingError, UnknownNameError, UsageError
from searchgym.options.yaml import read_yaml
from searchgym.rollout.folders import is_adapter, local_folder


def share_roles(
    keys: Mapping[str, Collection[str] | None], roles: Collection[str], agent: str
) -> dict[str, tuple[str, ...]]:
    """Shares an agent's roles out among model keys.

    Args:
        keys: Key to its roles; None: every role that no other key names. None at all: a key for a judge.
        roles: The agent's.
        agent: Its name, for messages.

    Raises:
        UnknownNameError: A key names a role that the agent does not have; the nearest is suggested.
        UsageError: A role without a key, or a key without a role.
    """
    named = [role for own in keys.values() for role in own or ()]
    if unknown := [role for role in named if role not in roles]:
        raise UnknownNameError(f"role of agent {agent}", unknown[0], roles)
    rest = [role for role in roles if role not in named]
    shared = {}
    for name, own in keys.items():
        shared[name] = tuple(rest if own is None else own)
        if own is None and not rest:
            raise UsageError(f"models.{name}: no role of agent {agent} asks it, each has another key: leave it out")
    if missing := set(roles).difference(*shared.values()):
        raise UsageError(f"agent {agent}: no model for role {', '.join(sorted(missing))}: name a key for it in models")
    return shared


def in_checkpoints(models: Mapping[str, str], agent: LoadedAgent) -> dict[str, str]:
    """Returns role to model, where a role may have been given the checkpoint of a run with several keys.

    Args:
        models: Role to a folder, or anything else that names a model.
        agent: The run's.

    Raises:
        CardError: The run's ``recipe.yaml`` cannot be read.
        DataMissingError: A checkpoint of several keys outside its run.
        UnknownNameError: The checkpoint is of a team with other roles.
        UsageError: The same.
    """
    found = dict(models)
    for name in set(models.values()):
        if (checkpoint := local_folder(name)) is None:
            continue
        one = is_adapter(checkpoint) or (checkpoint / "config.json").is_file()
        if (checkpoint / "trainer.json").is_file() and not one:
            record = checkpoint.resolve().parent.parent / "recipe.yaml"
            if not record.is_file():
                raise DataMissingError(f"{name} has several models, and {record}, which says whose, is not there")
            by_role = _models_by_role(record, agent, checkpoint)
            found |= {role: by_role[role] for role, model in models.items() if model == name}
    return found


def _models_by_role(record: Path, agent: LoadedAgent, checkpoint: Path) -> dict[str, str]:
    """Returns the model behind each role by a run's ``recipe.yaml``: a folder in the checkpoint, or a frozen one.

    Raises:
        CardError: It is not the YAML of a recipe.
    """
    recipe = read_yaml(record)
    if not isinstance(recipe, dict) or not isinstance(recipe.get("model"), str):
        raise CardError(f"{record}: expected the recipe of a run, with its model")
    keys = recipe.get("models", {})
    if not isinstance(keys, dict) or not all(isinstance(options, dict) for options in keys.values()):
        raise CardError(f"{record}: models: expected keys with their values")
    if not keys:
        return dict.fromkeys(agent.roles, str(checkpoint))
    shared = share_roles({name: options.get("roles") for name, options in keys.items()}, agent.roles, agent.name)
    by_role: dict[str, str] = {}
    for name, roles in shared.items():
        frozen = keys[name].get("frozen", False)
        model = keys[name].get("model") or recipe["model"] if frozen else checkpoint / name
        by_role |= dict.fromkeys(roles, str(model))
    return by_role
