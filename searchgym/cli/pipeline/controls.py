"""Credit terms that are controls: what a training does when its rewards mean nothing, or when they say everything."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from typing_extensions import override

from searchgym.errors import DataError
from searchgym.records import Episode, Question, title_key
from searchgym.text import count_words
from searchgym.train.algorithms.samples import at_ends
from searchgym.train.credit.evidence import acting_calls, new_pages
from searchgym.train.credit.term import CreditContext, EpisodeTerm, Rows, Term, answer_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Permuted(Term):
    """Gives each attempt the outcome of an attempt at the same question, drawn without replacement.

    A group keeps its rewards, and so its mean, its deviation and whether it has signal; which attempt earned them is
    chance. What a training by it changes is no effect of the rewards. The draw depends on the group's key alone.

    Use it as ``credit: {searchgym.cli.pipeline.controls:Permuted: 1}``.
    """

    rewards_one: ClassVar = "episode"
    sums_up: ClassVar = False

    @override
    def rewards(self, group: Sequence[Episode], context: CreditContext) -> Rows:
        rng = random.Random(f"permuted {group[0].group_uid}")
        rewards = rng.sample([episode.reward for episode in group], len(group))
        return [at_ends(episode, reward) for episode, reward in zip(group, rewards, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormOnly(EpisodeTerm):
    """Gives 1 to an episode whose calls are all legal and whose answer is short, whatever it says, else 0.

    What a training by it gains in EM is the gain of form alone: it sees neither gold answers nor gold pages.

    Use it as ``credit: {searchgym.cli.pipeline.controls:FormOnly: 1}``.
    """

    most_words: Annotated[int, Ge(1)] = 6
    """Maximum number of words of a short answer."""

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        if episode.stop_reason != "answer" or not all(call.legal for call in episode.calls):
            return 0.0
        return float(1 <= count_words(answer_of(episode)) <= self.most_words)


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleSearches(Term):
    """Gives 1 to each search that finds a gold page while one is missing, else 0; gold pages must be named."""

    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        """See `Term.of_episode`."""
        acted, pages = acting_calls(episode), new_pages(episode, _question(episode, context))
        approved = {acted[turn] for turn, new in pages.items() if new and turn in acted}
        return [float(number in approved) for number in range(len(episode.calls))]


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleAnswers(Term):
    """Gives each answer once no gold page is missing the episode's outcome, and 0 to all other calls."""

    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        """See `Term.of_episode`."""
        question = _question(episode, context)
        rewards, acted, pages = [0.0] * len(episode.calls), acting_calls(episode), new_pages(episode, question)
        whole = sum(pages.values()) == len({title_key(title) for title in question.gold_titles or ()})
        if whole and episode.stop_reason == "answer" and acted:
            rewards[max(acted.values())] = episode.reward
        return rewards


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleCredit(Term):
    """Gives 1 to each call that an oracle would approve of, which knows the gold pages and the answer, else 0.

    It approves of a search that finds a gold page while one is missing, and of a right answer once none is missing: a
    lucky guess earns nothing. `OracleSearches` and `OracleAnswers` are its two halves, to be weighted. A question that
    names no gold page is refused with a DataError.

    Use it as ``credit: {searchgym.cli.pipeline.controls:OracleCredit: 1}`` with ``advantage.chain: none`` and
    ``normalise: role-turn``.
    """

    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        """See `Term.of_episode`."""
        halves = OracleSearches().of_episode(episode, context), OracleAnswers().of_episode(episode, context)
        return [searches + answers for searches, answers in zip(*halves, strict=True)]


def _question(episode: Episode, context: CreditContext) -> Question:
    question = context.question(episode)
    if not question.gold_titles:
        raise DataError(f"question {question.id!r} names no gold page, and oracle credit needs them")
    return question
