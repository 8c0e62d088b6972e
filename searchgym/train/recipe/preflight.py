"""Checks of the names in a recipe before any library or model is loaded, so that typing errors are reported at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from searchgym.agents.base import load_agent, read_agent
from searchgym.corpora.files import read_json
from searchgym.envs.data import find_corpus, lacks_index, no_index
from searchgym.envs.options import named_options, own_questions, with_options
from searchgym.envs.registration import env_options, find_env
from searchgym.envs.reward import get_reward
from searchgym.errors import DataMissingError
from searchgym.options.cards import CorpusCard, EncoderCard, list_cards, load_card
from searchgym.retrieval.cards import RetrieverCard, find_retriever, parts_of
from searchgym.retrieval.index.index import MANIFEST
from searchgym.rollout.folders import check_files, local_folder, model_folder, only_on_hub
from searchgym.train.recipe.keys import Key, check_credit, keys_of
from searchgym.train.recipe.load import with_code
from searchgym.train.recipe.recipe import Recipe


def check_names(recipe: Recipe) -> None:
    """Checks that a recipe's environment, options, corpus, retriever, agent, roles and models exist.

    For a model on the hub, only the configuration is downloaded.

    Raises:
        UnknownNameError: An environment, agent, role, reward, retriever or option does not exist; the nearest name is
            suggested.
        CardError: The retriever's card has a field that is not valid.
        UsageError: The agent's roles do not match the model keys or the credit terms.
        DataMissingError: A model or a corpus does not exist, or a model lacks files.
    """
    options = env_options(recipe.env, recipe.env_options)
    card, overrides = find_env(recipe.env), recipe.validation.env_options
    # Without validation, only the names of its options are checked.
    validation = overrides if recipe.validation.every else dict.fromkeys(overrides)
    for values in (options, env_options(recipe.env, recipe.env_options, validation)):
        with_options(card, named_options(card, values))
        if isinstance(retriever := values.get("retriever"), (str, dict)):  # otherwise it is a retriever object
            find_retriever(retriever)
    get_reward(options.get("reward") or card.reward)
    agent = load_agent(recipe.agent)
    models = _models(recipe, keys_of(recipe, agent.roles, agent.name))
    check_credit(with_code(recipe), agent.roles)
    for model in dict.fromkeys(models):
        folder = model_folder(model, ["config.json"])
        if local_folder(model) is not None:
            check_files(folder)


def missing_data(recipe: Recipe) -> list[str]:
    """Returns the questions, corpora and models of a recipe that are missing on this machine, one line each.

    Models are those that are trained or sampled, and those of retrievers.

    Raises:
        UnknownNameError: An environment, retriever or corpus does not exist.
        CardError: The retriever's card has a field that is not valid.
    """
    options = env_options(recipe.env, recipe.env_options)
    overrides = recipe.validation.env_options if recipe.validation.every else {}
    validation = env_options(recipe.env, recipe.env_options, overrides)
    missing = list(
        dict.fromkeys([*_missing_questions(recipe.env, options), *_missing_questions(recipe.env, validation)])
    )
    models = _models(recipe, keys_of(recipe, read_agent(recipe.agent)[1], recipe.agent))  # imports no workflow
    retriever = _searched(recipe)
    if retriever != "elsewhere":
        path, corpus = None, str(options.get("corpus") or find_env(recipe.env).corpus)
        try:
            path = find_corpus(corpus)
        except DataMissingError as error:
            missing.append("; ".join(line.strip() for line in str(error).splitlines()))
        if isinstance(retriever, RetrieverCard):
            if lacks_index(path, retriever):
                missing.append(no_index(retriever, corpus))
            for model in (model for card in retriever.walk() for model in card.models):
                models.append(model.model if isinstance(model, EncoderCard) else model)
    return missing + [
        f"model {model}: downloaded when the training starts" for model in dict.fromkeys(models) if only_on_hub(model)
    ]


def _models(recipe: Recipe, keys: Sequence[Key]) -> list[str]:
    """Returns the names of the models that a recipe with these keys trains or samples."""
    models = [key.recipe.model for key in keys]
    return models + ([recipe.critic.model] if recipe.has_critic and recipe.critic.model else [])


def _missing_questions(env: str, options: Mapping[str, Any]) -> list[str]:
    """Returns the missing questions of an environment; those on a hub are always listed."""
    user_questions = own_questions(options)
    if user_questions is None:
        return [*filter(None, [with_options(find_env(env), options).questions.missing()])]
    missing = []
    for source in filter(
        lambda item: isinstance(item, str), user_questions if isinstance(user_questions, list) else [user_questions]
    ):
        if source.startswith("hf:"):
            missing.append(f"questions {source}: downloaded when the training starts, unless the hub's cache has them")
        elif not Path(source).exists():
            missing.append(f"questions {source}: no such file")
    return missing


def _searched(recipe: Recipe) -> RetrieverCard | Literal["elsewhere"] | None:
    """Returns the retriever card for a corpus on this machine, None for the corpus's default, or ``"elsewhere"``."""
    options = env_options(recipe.env, recipe.env_options)
    named = options.get("retriever")
    retriever = find_retriever(named) if isinstance(named, (str, dict)) else named
    brought = with_options(find_env(recipe.env), options).questions.brings_corpus and not options.get("corpus")
    if retriever is not None and not (isinstance(retriever, RetrieverCard) and retriever.needs_corpus):
        return "elsewhere"
    return "elsewhere" if brought or options.get("distractors") else retriever


def vectors_gib(recipe: Recipe, gpus: int) -> dict[str, float]:
    """Returns the GiB of the vectors that a recipe searches, by device.

    Counts vectors over a corpus whose number of passages is known (an index folder, or the corpus of a card), and what
    FAISS reserves on each GPU that it searches on. BM25's postings do not count: they are read from disk as needed.

    Args:
        recipe: Recipe of the training.
        gpus: Number of GPUs of the machine.

    Raises:
        UsageError: The retriever searches on a GPU that the machine lacks.
    """
    options, retriever = env_options(recipe.env, recipe.env_options), _searched(recipe)
    if not isinstance(retriever, RetrieverCard):
        return {}
    name = str(options.get("corpus") or find_env(recipe.env).corpus)
    manifest = Path(name) / MANIFEST
    if manifest.is_file():
        passages = read_json(manifest).get("passages", 0)
    else:
        shipped = list_cards("corpora")
        passages = (load_card(CorpusCard, shipped[name]).passages or 0) if name in shipped else 0
    sizes: dict[str, float] = {}
    for part in parts_of(retriever):
        for device, size in part.search_memory(passages, gpus).items():
            sizes[device] = sizes.get(device, 0.0) + size / 2**30
    return sizes
