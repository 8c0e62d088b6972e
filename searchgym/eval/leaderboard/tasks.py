"""The task of a submission: a part of a suite, with the budgets of the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from searchgym.envs.options import TaskOptions
from searchgym.envs.task import Task
from searchgym.errors import UnknownNameError
from searchgym.eval.suites.cards import SuiteCard, load_suite
from searchgym.eval.suites.tasks import load_part
from searchgym.options.cards import list_cards
from searchgym.protocol import DEFAULT, get_protocol
from searchgym.retrieval.retriever import NullRetriever

BUDGETS: Final = ("top_k", "max_turns", "max_queries", "max_observation_words")
"""Budgets that a run may choose; each choice is a separate track."""


class Tasks:
    """Tasks of the parts of suites, each loaded once.

    Args:
        options: Options of the environments, such as another corpus or retriever.
        cards: Cards of suites beside those that ship with the package. A submission may name a suite of either kind,
            never a file.
    """

    def __init__(self, options: TaskOptions | None = None, cards: Sequence[str | Path] = ()) -> None:
        self._options = options
        self._suites = {suite.name: suite for suite in (load_suite(str(card)) for card in cards)}
        self._loaded: dict[tuple[str, str], Task] = {}

    def suite(self, name: str) -> SuiteCard:
        """Returns the card of a suite.

        Raises:
            UnknownNameError: There is no such suite.
        """
        if name in self._suites:
            return self._suites[name]
        if name not in (cards := list_cards("suites")):
            raise UnknownNameError("suite", name, [*cards, *self._suites])
        return load_suite(str(cards[name]))

    def base(self, suite: str, part: str) -> Task:
        """Returns the task of a part of a suite, with the suite's budgets.

        Raises:
            UnknownNameError: There is no such suite or part.
            DataMissingError: Its questions or its corpus are not here.
        """
        if (suite, part) not in self._loaded:
            card = self.suite(suite)
            self._loaded[suite, part] = load_part(card, card.part(part), self._options)
        return self._loaded[suite, part]

    def of_run(self, suite: str, part: str, record: Mapping[str, Any]) -> Task:
        """Returns the task of a part with the budgets of a run's record or manifest.

        A run over another corpus than the one here has a retriever that finds nothing: its hits cannot be looked up.
        """
        base = self.base(suite, part)
        budgets = {name: record[name] for name in BUDGETS}
        thoughts = base.rules.protocol.keep_thoughts
        spelling = {"dialect": record.get("dialect", DEFAULT), "several": record.get("several_calls", "first")}
        grammar = get_protocol(record["protocol"], thoughts, **spelling)
        rules = dataclasses.replace(base.rules, protocol=grammar, **budgets)
        here = getattr(base.retriever, "corpus_sha256", None) == record["corpus_sha256"]
        return dataclasses.replace(base, rules=rules, retriever=base.retriever if here else NullRetriever())
