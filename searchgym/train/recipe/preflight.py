"""Checks of the names in a recipe, before any library or model is loaded: a typing error is answered at once."""

from __future__ import annotations

from searchgym.agents.base import load_agent
from searchgym.corpora.retrieval.cards import find_retriever, is_card, stands_outside
from searchgym.envs.data import find_corpus, lacks_index, no_index
from searchgym.envs.registration import env_options, find_env
from searchgym.envs.rewards import get_reward
from searchgym.envs.task import named_options
from searchgym.errors import DataMissingError
from searchgym.rollout.folders import check_files, local_folder, model_folder
from searchgym.train.recipe.keys import check_credit, keys_of
from searchgym.train.recipe.recipe import Recipe


def check_names(recipe: Recipe) -> None:
    """Raises an error unless what a recipe names exists: environment, options, corpus, retriever, agent, roles, models.

    Of a model on the hub only the configuration is downloaded.

    Raises:
        UnknownNameError: An environment, agent, role, reward, retriever or option that does not exist; the nearest is
            suggested.
        CardError: The retriever's card has a field that is not valid.
        UsageError: Roles and model keys, or roles and credit, do not fit together.
        DataMissingError: A model or a corpus does not exist, or a model lacks files.
    """
    options = {**env_options(recipe.env), **recipe.env_options}
    card, asked = find_env(recipe.env), recipe.validation.env_options
    validation = asked if recipe.validation.every else dict.fromkeys(asked)  # without validation their names alone
    for given in (options, {**options, **validation}):
        named_options(card, given)
        if isinstance(retriever := given.get("retriever"), (str, dict)):  # else one that is built already
            find_retriever(retriever)
    get_reward(options.get("reward") or card.reward)
    agent = load_agent(recipe.agent)
    keys = keys_of(recipe, agent.roles, agent.name)
    check_credit(recipe, agent.roles)
    models = [key.recipe.model for key in keys]
    if recipe.has_critic and recipe.critic.model:
        models.append(recipe.critic.model)
    for model in dict.fromkeys(models):
        folder = model_folder(model, ["config.json"])
        if local_folder(model) is not None:
            check_files(folder)


def missing_data(recipe: Recipe) -> list[str]:
    """Returns what a training would search and not find on this machine, one line each; questions are not looked at.

    Raises:
        UnknownNameError: An environment, retriever or corpus that does not exist.
        CardError: The retriever's card has a field that is not valid.
    """
    options = {**env_options(recipe.env), **recipe.env_options}
    card, given = find_env(recipe.env), options.get("retriever")
    retriever = find_retriever(given) if isinstance(given, (str, dict)) else given
    known = retriever is None or is_card(retriever)
    generated = card.world is not None and not options.get("corpus")
    if not known or generated or options.get("distractors") or (is_card(retriever) and stands_outside(retriever)):
        return []
    found, path = list[str](), None
    try:
        path = find_corpus(str(options.get("corpus") or card.corpus))
    except DataMissingError as error:
        found.append(" ".join(str(error).split()))
    if is_card(retriever) and lacks_index(path, retriever):
        found.append(no_index(retriever))
    return found
