"""Registering environments with Gymnasium: the shipped cards at import, a user's own in one call."""

from __future__ import annotations

import os
import warnings
from typing import Any, Unpack

import gymnasium
from gymnasium.envs.registration import parse_env_id, registry

from searchgym.cards import EnvCard, QuestionSource, find_card, list_cards, load_card
from searchgym.envs.task import TaskOptions
from searchgym.errors import CardError, UnknownNameError, UsageError

_registered: dict[str, EnvCard] = {}


class _Options(dict[str, Any]):
    """Arguments of an id; the deep copy that ``gymnasium.make`` takes shares retrievers and questions."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Options:
        return _Options(self)


def register_card(card: EnvCard, **options: Any) -> str:
    """Registers an environment id for a card.

    Args:
        card: The card; its `id` is registered, again if it was before (a notebook cell can be run twice).
        **options: `TaskOptions` that become defaults of the id.

    Returns:
        The id, ready for ``gymnasium.make`` and ``gymnasium.make_vec``.

    Raises:
        UsageError: The id is not one, or another package's.
    """
    try:
        parse_env_id(card.id)
    except gymnasium.error.Error as error:
        raise UsageError(f"{card.id!r} is not an environment id such as 'Mine/Quiz-v0': {error}") from None
    if card.id in registry:
        if card.id not in _registered:
            raise UsageError(f"environment id {card.id!r} is taken by another package: choose another")
        del registry[card.id]
    gymnasium.register(
        id=card.id,
        entry_point="searchgym.envs.single:SearchEnv",
        vector_entry_point="searchgym.envs.vector:SearchVectorEnv",
        kwargs=_Options(card=card, **options),
    )
    _registered[card.id] = card
    return card.id


def register(id: str | os.PathLike[str], **options: Unpack[TaskOptions]) -> str:
    """Registers one's own environment in one call.

    Args:
        id: ``"Mine/Quiz-v0"``, with ``questions=`` and ``corpus=`` (or ``retriever=``, or ``distractors=True``) and
            any other `TaskOptions`; or a path to a YAML card.
        **options: Defaults of the new id; ``gymnasium.make(id, ...)`` may still override them.

    Returns:
        The id.

    Raises:
        UsageError: No questions, or nothing to search.
        CardError: The card is wrong.
    """
    for name in options:
        if name not in TaskOptions.__annotations__:
            raise UnknownNameError("option", name, TaskOptions.__annotations__)
    if os.fspath(id).endswith((".yaml", ".yml")):
        return register_card(load_card(EnvCard, find_card("envs", os.fspath(id))), **options)
    if "questions" not in options:
        raise UsageError(f"register({id!r}) needs questions=: a question file or Question records")
    if not {"corpus", "retriever", "distractors"} & options.keys():
        raise UsageError(f"register({id!r}) needs corpus=, retriever= or distractors=True: something to search")
    source = QuestionSource(dataset="own", split="all", size=0, file="", get="")
    return register_card(
        EnvCard(id=os.fspath(id), summary="registered by the user", questions=source, corpus=""), **options
    )


def full_id(name: str) -> str:
    """Returns the registered id behind a name.

    Args:
        name: A full id; a short one (``"HotpotQA"``, ``"HotpotQA-v0"``, ``"searchgym/HotpotQA"``, in any case), of
            which the newest version is taken; or a path to a YAML card, which is registered.

    Raises:
        UnknownNameError: Nothing registered has that name; the nearest is suggested.
        UsageError: Ids of several namespaces have it.
    """
    if name in _registered:
        return name
    if name.endswith((".yaml", ".yml")):
        return register(name)
    found: dict[str, list[tuple[int, str]]] = {}
    bases = []
    for env_id in _registered:
        namespace, base, version = parse_env_id(env_id)
        bases.append(base)
        if name.lower() in {text.lower() for text in (base, f"{base}-v{version}", f"{namespace}/{base}")}:
            found.setdefault(namespace or "", []).append((version or 0, env_id))
    if not found:
        raise UnknownNameError("environment", name, bases)
    if len(found) > 1:
        ids = sorted(env_id for same in found.values() for _, env_id in same)
        raise UsageError(f"environment {name!r} is ambiguous: write one of {', '.join(ids)}")
    (same,) = found.values()
    return max(same)[1]


def find_env(name: str) -> EnvCard:
    """Returns the card of a registered id or short name."""
    return _registered[full_id(name)]


def registered() -> dict[str, EnvCard]:
    """Returns every environment id that SearchGym registered, with its card."""
    return dict(_registered)


def env_options(name: str) -> dict[str, Any]:
    """Returns the default options an id was registered with."""
    return {key: value for key, value in registry[full_id(name)].kwargs.items() if key != "card"}


def register_shipped() -> None:
    """Registers every shipped card."""
    for path in list_cards("envs").values():
        try:
            register_card(load_card(EnvCard, path))
        except CardError as error:  # one card that somebody is editing must not break every import
            warnings.warn(f"environment not registered: {error}", stacklevel=2)
