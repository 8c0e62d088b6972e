"""Cards of suites: the environments of a suite, with their questions and options."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from searchgym.errors import CardError, DataMissingError, UnknownNameError
from searchgym.options import Options
from searchgym.options.cards import find_card, list_cards, load_card
from searchgym.options.yaml import read_small

DATA: Final = "$SEARCHGYM_DATA"
"""Beginning of a path that is relative to the folder of evaluation data."""
OPTIONS: Final = (
    "questions", "corpus", "retriever", "distractors", "aliases", "protocol", "dialect",
    "several_calls", "top_k", "max_turns", "max_queries", "max_observation_words", "browse", "snippet_words",
    "find", "cite", "token_budget",
)  # fmt: skip
"""Options of an environment that a suite may set. None of them runs code, so that cards of strangers are safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subset(Options):
    """Rule for a fixed part of a data set: from each stratum, the ids with the smallest hashes; see `draw_subset`."""

    n: int
    """Number of questions."""
    seed: int = 0
    """Seed of the hash."""
    strata: list[Literal["type", "hops", "level"]] = field(default_factory=lambda: ["type", "hops"])
    """Attributes of questions that define the strata; each stratum gets its share of the questions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuitePart(Options):
    """One data set of a suite."""

    env: str
    """Id of the environment."""
    n: int
    """Number of questions of the data set, before a subset is drawn; another number is an error."""
    name: str = ""
    """Name in tables and folders. Default: the environment's short name."""
    split: str | None = field(default=None, repr=False)
    """Name of the split, if the options set questions of another split than the environment's; a label only."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the environment; paths may begin with ``$SEARCHGYM_DATA/``."""
    subset: Subset | None = None
    """Rule that selects questions; None for all questions."""
    ids: list[str] = field(default_factory=list)
    """Ids of the selected questions, instead of a subset; empty for all questions."""
    sha256: str | None = None
    """SHA-256 of the ids of the selected questions (`ids_sha256`); None if it is unknown: then the first use on a
    machine records it there, and later uses must match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteCard(Options):
    """Card of one suite."""

    name: str
    summary: str
    parts: list[SuitePart]

    def part(self, name: str) -> SuitePart:
        """Returns the part with the given name.

        Raises:
            UnknownNameError: The suite has no such part.
        """
        parts = {part.name: part for part in self.parts}
        if name not in parts:
            raise UnknownNameError(f"part of suite {self.name}", name, parts)
        return parts[name]


def find_suite(name: str) -> Path | None:
    """Returns the file of a suite's card; None if there is no suite of that name."""
    if Path(name).suffix in (".yaml", ".yml"):
        try:
            text = read_small(Path(name))
        except (OSError, ValueError):  # `load_suite` reports the error
            return None
        return Path(name) if "\nparts:" in f"\n{text}" else None
    return list_cards("suites").get(name)


def load_suite(name: str) -> SuiteCard:
    """Reads the card of a suite, given its name or its path.

    Raises:
        UnknownNameError: No such suite; the nearest name is suggested.
        CardError: An unknown key or option, a part twice, or both a subset and ids.
    """
    path = find_card("suites", name)
    card = load_card(SuiteCard, path)
    if not card.parts:
        raise CardError(f"{path}: a suite needs at least one part")
    named = []
    for part in card.parts:
        short = part.env.split("/")[-1]
        part = replace(part, name=part.name or short.rpartition("-v")[0] or short)
        named.append(part)
        where = f"{path}: part {part.name}"
        for option in part.options:
            if option not in OPTIONS:
                raise CardError(f"{where}: {UnknownNameError('option', option, OPTIONS)}")
        if part.env.endswith((".yaml", ".yml")):
            raise CardError(f"{where}: env {part.env!r} is a file; name a registered environment")
        if (retriever := part.options.get("retriever", "bm25")) not in list(list_cards("retrievers")):
            raise CardError(f"{where}: retriever {retriever!r:.60} is no card that ships: give --retriever yourself")
        if _names_code(part.options):
            raise CardError(f"{where}: a kind of questions is code: name one that ships or is installed")
        if part.subset is not None and part.ids:
            raise CardError(f"{where}: has both ids and a subset: remove one")
        if Path(part.name).name != part.name or part.name.startswith("."):
            raise CardError(f"{where}: the name becomes that of a folder, {part.name!r} cannot")
    if len({part.name for part in named}) < len(named):
        raise CardError(f"{path}: two parts have the same name: give each a `name`")
    return SuiteCard(name=card.name, summary=card.summary, parts=named)


def _names_code(value: object) -> bool:
    """Checks whether any ``kind`` in nested options is a ``module:Class``."""
    if isinstance(value, list):
        return any(map(_names_code, value))
    if not isinstance(value, dict):
        return False
    return ":" in str(value.get("kind", "")) or any(map(_names_code, value.values()))


def ids_sha256(ids: Iterable[str]) -> str:
    """Returns the SHA-256 of sorted ids, one per line, so that their order does not matter."""
    return hashlib.sha256("\n".join(sorted(ids)).encode("utf-8", "surrogatepass")).hexdigest()


def resolved(value: Any) -> Any:
    """Returns options, or one value, with ``$SEARCHGYM_DATA/`` in paths replaced by the folder of evaluation data.

    Raises:
        DataMissingError: ``SEARCHGYM_DATA`` is not set, or its folder lacks the file.
    """
    if isinstance(value, Mapping):
        return {name: resolved(item) for name, item in value.items()}
    if isinstance(value, list):
        return [resolved(item) for item in value]
    if not isinstance(value, str) or not value.startswith(f"{DATA}/"):
        return value
    name, base = value.removeprefix(f"{DATA}/"), os.environ.get("SEARCHGYM_DATA")
    if not base:
        raise DataMissingError(f"needs evaluation data: set SEARCHGYM_DATA to the folder with {name}")
    path = Path(base) / name
    if not path.exists():
        raise DataMissingError("no such evaluation data in the folder that SEARCHGYM_DATA names", path)
    return str(path)
