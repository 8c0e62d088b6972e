"""Interface of credit terms: their base class, inputs and return values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from typing_extensions import override

from searchgym.errors import CardError, NoVerdictError, UsageError
from searchgym.named import check_call
from searchgym.options import Kind, Setting, check_kind
from searchgym.records import Episode, Question
from searchgym.scoring.judges.judge import Checked, default_judge
from searchgym.train.algorithms.samples import at_ends
from searchgym.train.credit.waypoints import Names

Rows = list[list[float]]
"""Rewards of a group: one row per episode, one number per call of the episode."""


def _no_question(episode: Episode) -> Question:
    raise UsageError(f"episode {episode.id}: its question is not loaded: create the credit with Credit.of")


@dataclass(frozen=True, slots=True)
class CreditContext:
    """Inputs of a credit term besides the episodes."""

    penalties: Mapping[str, float] = field(default_factory=dict)
    """Penalty of each role for an illegal output, at most 0. Default: none."""
    score: Callable[[Episode, str], float] = lambda episode, text: 0.0
    """Returns the environment's reward if the episode had ended with this answer text. Default: always 0."""
    question: Callable[[Episode], Question] = _no_question
    """Returns an episode's question with its gold answers and evidence. Default: raises an error."""
    names: Callable[[], Names] = lambda: Names(())
    """Returns the names of entities in the environment's questions. Default: none."""
    judge: Checked = field(default_factory=lambda: default_judge().open({}))
    """Judge for terms that need one. Default: rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term(Kind):
    """Base class of credit terms, which reward calls of a group of episodes; a subclass's fields are its options."""

    kinds_in: ClassVar = "searchgym.train.credit.terms"
    noun: ClassVar = "credit term"
    rewards_one: ClassVar[Literal["episode", "role", "call"]] = "role"
    """Unit that shares a reward. ``episode``: all rewarded calls of an episode get the same reward; ``role``: calls of
    different roles may differ; ``call``: any two calls may differ."""
    sums_up: ClassVar[bool] = True
    """False if the rewards of an episode's calls must not be added, because several calls get the same reward."""
    normalise: ClassVar[str] = "role or role-turn"
    """Recommended ``advantage.normalise`` for rewards of single calls."""
    passed_back: ClassVar[bool] = True
    """False for rewards of a call's form, which ``advantage.chain: episode`` does not pass to earlier calls."""
    asks_judge: ClassVar[bool] = False
    """True if the term uses the recipe's judge."""
    trains_prefixes: ClassVar[bool] = False
    """True if the term rewards trial answers (`Call.prefix`), so that they are trained on."""
    trials: ClassVar[tuple[str, str] | None] = None
    """Role whose trial answers the term compares, and an agent that has it; agents without the role are refused."""

    weight: float = 1.0
    """Factor that multiplies the term's rewards."""
    roles: list[str] | None = None
    """Roles whose calls get the term's rewards. Default: all roles."""

    @classmethod
    def short(cls, value: object) -> object:
        """Reads a number as the term's weight."""
        return {"weight": value}

    @override
    def problems(self) -> Iterable[str]:
        if self.weight == 0:
            yield "weight is 0: expected a finite number other than 0"
        if self.roles is not None and (not self.roles or len(set(self.roles)) < len(self.roles)):
            yield f"roles is {self.roles}: expected at least one, none twice"

    def differs(self, penalties: Mapping[str, float]) -> bool:
        """Returns True if calls of one episode may get different rewards, given each role's penalty."""
        return self.rewards_one != "episode" or (self.roles is not None and set(self.roles) != set(penalties))

    def rewards(self, group: Sequence[Episode], context: CreditContext) -> Rows:
        """Returns the reward of each call of a group, before weight and roles.

        Args:
            group: Attempts at one question.
            context: Penalties, scores, questions and the judge.

        Returns:
            One row per episode with one number per call. The default implementation calls `of_episode` for each
            episode.

        Raises:
            UnjudgedError: The judge gave no verdict on some episodes.
        """
        rows, unjudged, why = list[list[float]](), list[int](), ""
        for index, episode in enumerate(group):
            try:
                rows.append(self.of_episode(episode, context))
            except NoVerdictError as error:
                unjudged.append(index)
                why = why or f"episode {episode.id}: {error}"
        if unjudged:
            raise UnjudgedError(unjudged, why)
        return rows

    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        """Returns the reward of each call of an episode, for terms that reward each episode independently."""
        raise NotImplementedError(f"{type(self).__name__} defines neither rewards nor of_episode")

    def figures(self, rewards: Sequence[float]) -> Mapping[str, float]:
        """Returns a judged term's further metrics ``judge/NAME`` of a step, by name. Default: none.

        Args:
            rewards: Largest reward of each episode, before weight and roles; at least one.
        """
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeTerm(Term):
    """Base class of terms for whole episodes, whose reward goes to the last call of each sequence of an episode."""

    rewards_one: ClassVar = "episode"
    sums_up: ClassVar = False

    def value(self, episode: Episode, context: CreditContext) -> float:
        """Returns the reward of an episode, before weight and roles."""
        raise NotImplementedError(f"{type(self).__name__} defines no value")

    @override
    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        return at_ends(episode, self.value(episode, context))


def answer_of(episode: Episode) -> str:
    """Returns the text of an episode's answer; empty if it has none."""
    return "" if episode.answer is None else episode.answer.text


class UnjudgedError(NoVerdictError):
    """Raised when a judge gave no verdict on some episodes of a group.

    Args:
        indices: Indices of these episodes in the group.
        why: Reason for the first of them.
    """

    def __init__(self, indices: Sequence[int], why: str) -> None:
        self.indices = tuple(indices)
        super().__init__(why)


def term_problems(terms: Mapping[str, Term], setting: Setting) -> Iterable[str]:
    """Yields one message for each contradiction between credit terms and the comparison of calls."""
    if not terms:
        yield "credit names no term: expected at least one, such as {outcome: 1}"
    single = {name: term for name, term in terms.items() if term.rewards_one == "call"}
    name = next(iter(single), f"advantage.chain {setting.chain}")
    if setting.whole_episodes and (single or setting.chain != "call" or setting.normalise != "all"):
        why = f"{setting.estimator}: it makes rewards of calls from those of whole episodes"
        yield f"advantage.estimator {why}; use it with normalise all, chain call and terms like outcome"
    elif (single or setting.chain != "call") and setting.by_episode:
        why = f"{setting.estimator} compares episodes as wholes, and {name} rewards calls"
        yield f"advantage.normalise is all: {why}; set it to {single[name].normalise if single else Term.normalise}"
    for name, term in terms.items():
        if setting.chain == "episode" and not term.sums_up:
            again = f"{name} gives many the same again"
            yield f"advantage.chain episode adds up what later calls earn, and {again}: use gain"
        if setting.estimator == "stages" and not term.sums_up and term.roles is None:
            yield f"advantage.estimator stages adds up what a stage's calls earn: name the roles of {name}"
        yield from (f"credit.{name}: {problem}" for problem in check_kind(term, setting))


def check_methods(name: str, term: Term) -> None:
    """Checks that a term can compute rewards, before the first episode.

    Raises:
        CardError: Its class defines neither `rewards` nor `of_episode`, nor, as an `EpisodeTerm`, `value`.
        UsageError: A method has other arguments.
    """
    cls = type(term)
    if cls.rewards is Term.rewards and cls.of_episode is Term.of_episode:
        raise CardError(f"credit term {name!r}: {cls.__name__} defines neither rewards nor of_episode")
    if isinstance(term, EpisodeTerm):
        if type(term).value is EpisodeTerm.value:
            raise CardError(f"credit term {name!r}: {cls.__name__} defines no value")
        check_call(f"credit term {name!r}", term.value, "episode", "context")
    check_call(f"credit term {name!r}", term.rewards, "group", "context")
    check_call(f"credit term {name!r}", term.of_episode, "episode", "context")
