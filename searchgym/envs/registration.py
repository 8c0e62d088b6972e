"""Registration of environments with Gymnasium: shipped cards at import, and a user's environment in one call."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack, cast

import gymnasium
from gymnasium.envs.registration import parse_env_id, registry

from searchgym.envs.cards import EnvCard
from searchgym.envs.options import TaskOptions, check_option_names, merge_options
from searchgym.errors import CardError, SearchGymError, UnknownNameError, UsageError
from searchgym.options import plain
from searchgym.options.cards import find_card, list_cards, load_card
from searchgym.options.yaml import read_small

_registered: dict[str, EnvCard | Path] = {}
"""Card of each id, or its file. Shipped cards are read at first use, since importing the YAML library is slow."""
_ID = re.compile(r"^id: *(\S+) *$", re.MULTILINE)


class _Options(dict[str, Any]):
    """Keyword arguments of a registered id, which ``gymnasium.make`` copies and updates with those of its caller.

    The copy shares retrievers and questions; fields of a question source are merged (`merge_options`).
    """

    env_id = ""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Options:
        copied = _Options(self)
        copied.env_id = self.env_id
        return copied

    def update(self, options: Mapping[str, Any]) -> None:  # type: ignore[override]
        """Overrides the registered options with those of a caller; see `merge_options`."""
        merge = self.env_id and "questions" in self and "questions" in options
        super().update(merge_options(find_env(self.env_id), self, options) if merge else options)


def _register(env_id: str, card: EnvCard | Path, options: Mapping[str, Any]) -> str:
    """Registers an id for a card, with default options.

    An id that SearchGym registered before is replaced, so that a notebook cell can be run twice.

    Raises:
        UsageError: The id is malformed, or belongs to another package.
    """
    try:
        parse_env_id(env_id)
    except gymnasium.error.Error as error:
        raise UsageError(f"{env_id!r} is not an environment id such as 'Mine/Quiz-v0': {error}") from None
    if env_id in registry:
        if env_id not in _registered:
            raise UsageError(f"environment id {env_id!r} is taken by another package: choose another")
        del registry[env_id]
    kwargs = _Options(card=str(card) if isinstance(card, Path) else plain(card), **options)
    kwargs.env_id = env_id
    gymnasium.register(
        id=env_id,
        entry_point="searchgym.envs.single:SearchEnv",
        vector_entry_point="searchgym.envs.vector:SearchVectorEnv",
        kwargs=kwargs,
    )
    _registered[env_id] = card
    return env_id


def register(id: str | os.PathLike[str], **options: Unpack[TaskOptions]) -> str:
    """Registers a new environment with Gymnasium in one call.

    Args:
        id: A new id such as ``"Mine/Quiz-v0"``, with ``questions=`` and ``corpus=`` (or ``retriever=``, or
            ``distractors=True``) and any other `TaskOptions`; or a path to a YAML card.
        **options: Defaults of the new id; ``gymnasium.make(id, ...)`` may still override them.

    Returns:
        The registered id.

    Raises:
        UsageError: The options have no questions, or nothing to search.
        UnknownNameError: An option does not exist.
        CardError: The card cannot be read.
    """
    check_option_names(options, f"register({id!r})")
    if os.fspath(id).endswith((".yaml", ".yml")):
        card = load_card(EnvCard, find_card("envs", os.fspath(id)))
        return _register(card.id, card, options)
    if "questions" not in options:
        raise UsageError(f"register({id!r}) needs questions=: a question file or Question records")
    if not {"corpus", "retriever", "distractors"} & options.keys():
        raise UsageError(f"register({id!r}) needs corpus=, retriever= or distractors=True: something to search")
    return _register(os.fspath(id), own_card(os.fspath(id)), options)


def own_card(id: str) -> EnvCard:
    """Returns the card of an environment whose questions and corpus are user options."""
    from searchgym.questions.sources.dataset import DatasetQuestions

    source = DatasetQuestions(dataset="own", split="all", size=0, file="", get="")
    return EnvCard(id=id, summary="registered by the user", questions=source, corpus="")


def full_id(name: str) -> str:
    """Returns the registered environment id for a full or short name.

    Args:
        name: A full id; a short name (``"HotpotQA"``, ``"HotpotQA-v0"``, ``"searchgym/HotpotQA"``, in any case), which
            selects the newest version; or a path to a YAML card, which is registered.

    Raises:
        UnknownNameError: No registered environment has that name; the nearest is suggested.
        UsageError: The name belongs to a suite, or is ambiguous between several namespaces.
    """
    if name in registered():
        return name
    if name.endswith((".yaml", ".yml")):
        return register(name)
    parsed = [(*parse_env_id(env_id), env_id) for env_id in registered()]
    matches = [
        (namespace or "", version or 0, env_id)
        for namespace, base, version, env_id in parsed
        if name.lower() in {text.lower() for text in (base, f"{base}-v{version}", f"{namespace}/{base}")}
    ]
    if not matches and name.lower() in list_cards("suites"):
        raise UsageError(
            f"{name} is a suite of environments, which `searchgym eval {name.lower()}` runs as a whole: name one of "
            "them here (searchgym list suites)"
        )
    if not matches:
        short = [*(base for _, base, _, _ in parsed), *list_cards("suites")]
        raise UnknownNameError("environment", name, registered() if "/" in name else short)
    if len({namespace for namespace, _, _ in matches}) > 1:
        ids = sorted(env_id for _, _, env_id in matches)
        raise UsageError(f"environment {name!r} is ambiguous: write one of {', '.join(ids)}")
    return max(matches)[2]


def find_env(name: str) -> EnvCard:
    """Returns the card of a registered environment, given its id or short name.

    Raises:
        UnknownNameError: See `full_id`.
        CardError: The card cannot be read.
    """
    env_id = full_id(name)
    card = _registered[env_id]
    if isinstance(card, Path):
        card = _registered[env_id] = load_card(EnvCard, card)
    return card


def registered() -> list[str]:
    """Returns the environment ids that SearchGym registered and Gymnasium still has."""
    return [env_id for env_id in _registered if env_id in registry]


def env_options(name: str, *layers: Mapping[str, Any]) -> TaskOptions:
    """Returns the options that an environment was registered with, overridden by `layers`; see `merge_options`."""
    registered = {key: value for key, value in registry[full_id(name)].kwargs.items() if key != "card"}
    return cast(TaskOptions, merge_options(find_env(name), registered, *layers) if layers else registered)


def register_shipped() -> None:
    """Registers the ids of the environment cards that ship with the package."""
    for path in list_cards("envs").values():
        try:
            line = _ID.search(read_small(path))
            if line is None:
                raise CardError(f"{path}: expected a line such as id: Mine/Quiz-v0")
            _register(line[1], path, {})
        except (SearchGymError, OSError, ValueError) as error:  # a faulty card must not break every import
            warnings.warn(f"environment not registered: {error}", stacklevel=2)
