"""Model keys: sets of weights, the roles that sample from each, and the recipe that trains each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from searchgym.agents.roles import Role
from searchgym.errors import CardError, UnknownNameError, UsageError
from searchgym.rollout.models import share_roles
from searchgym.train.credit.term import Term, check_methods, term_problems
from searchgym.train.recipe.options import KeyOptions
from searchgym.train.recipe.recipe import Recipe

POLICY: Final = "policy"
"""Name of the single key of a recipe without `Recipe.models`."""


@dataclass(frozen=True, slots=True)
class Key:
    """A model key: one set of weights and how it is trained."""

    name: str
    roles: tuple[str, ...]
    """Roles that sample from these weights."""
    frozen: bool
    """True if the weights are sampled from but never trained."""
    recipe: Recipe
    """Recipe that trains the key: the run's recipe with the key's own model and learning rates."""


def keys_of(recipe: Recipe, roles: Collection[str], agent: str) -> list[Key]:
    """Returns the model keys of a recipe for an agent's roles, in the recipe's order.

    Args:
        recipe: See `Recipe.models`.
        roles: Roles of the agent.
        agent: Name of the agent, for messages.

    Raises:
        UnknownNameError: A key names a role that the agent does not have; the nearest is suggested.
        UsageError: A role has no key, a key has no role, or all keys are frozen.
    """
    if not roles:
        raise UsageError(f"agent {agent} uses no model: there is nothing to train")
    options = recipe.models or {POLICY: KeyOptions()}
    shared = share_roles({name: key.roles for name, key in options.items()}, roles, agent)
    keys = []
    for name, key in options.items():
        optimizer, critic = recipe.optimizer, recipe.critic
        if key.lr is not None:
            optimizer = replace(optimizer, lr=key.lr)
        if key.critic_lr is not None:
            critic = replace(critic, optimizer=replace(critic.optimizer, lr=key.critic_lr))
        template = recipe.template if key.template is None else key.template
        alone = replace(recipe, model=key.model or recipe.model, template=template, models={})
        alone = replace(alone, optimizer=optimizer, critic=critic)
        keys.append(Key(name, shared[name], key.frozen, alone))
    if all(key.frozen for key in keys):
        raise UsageError(f"models: every key is frozen ({', '.join(options)}): there is nothing to train")
    return keys


def check_credit(recipe: Recipe, roles: Mapping[str, Role]) -> dict[str, Term]:
    """Returns the credit terms after checking that they fit the run and the agent's roles; imports users' classes.

    Raises:
        UnknownNameError: A term or the estimator names a role that the agent lacks; the nearest is suggested.
        UsageError: A term rewards calls of one episode differently, but the estimator compares whole episodes.
        CardError: A user's term does not fit the recipe, or defines no rewards.
    """
    terms = recipe.credit.loaded()
    for name, term in terms.items():
        check_methods(name, term)
        for role in term.roles or ():
            if role not in roles:
                raise UnknownNameError("role", role, roles)
        if term.trials is not None and term.trials[0] not in roles:
            raise UsageError(
                f"credit {name} compares trial answers of role {term.trials[0]}, but the agent's roles are "
                f"{', '.join(roles)}: use an agent such as {term.trials[1]}"
            )
    if not recipe.method.compares:
        return terms
    for role in recipe.advantage.estimator.roles():
        if role not in roles:
            raise UnknownNameError("role", role, roles, " in advantage.estimator")
    if problems := "; ".join(term_problems(terms, recipe.setting)):
        raise CardError(problems)
    penalties = {name: role.penalty for name, role in roles.items()}
    differing = [name for name, term in terms.items() if term.differs(penalties)]
    if recipe.setting.by_episode and len(roles) > 1 and differing:
        raise UsageError(
            f"advantage.normalise is all: {recipe.setting.estimator} compares episodes as wholes, and credit "
            f"{differing[0]} may give their calls different rewards; set it to role or role-turn"
        )
    return terms
