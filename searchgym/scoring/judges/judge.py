"""Interface of judges, and a wrapper that validates their verdicts before they are used as scores.

A judge decides three things: whether pages answer a question (`Judge.verify`), which criteria an answer meets
(`Judge.meets`), and which of two answers is better (`Judge.better`). All calls go through `Checked`, which raises a
`NoVerdictError` if a judge fails, times out, or replies with a number, prose or nothing. An answer that consists only
of articles and punctuation, or has more than `MAX_ANSWER_CHARACTERS` characters, meets no criterion, without a call of
the judge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

from typing_extensions import override

from searchgym.errors import NoVerdictError, SwayedError, UsageError
from searchgym.named import names_code
from searchgym.options import Kind, Options, find_kind, kinds
from searchgym.scoring import normalise_answer
from searchgym.text import norm
from searchgym.threads import call_within

Result = TypeVar("Result")
MAX_ANSWER_CHARACTERS: Final = 10_000
"""Maximum length of an answer in characters; a longer one meets no criterion, so that copied pages earn nothing."""
CACHED_VERDICTS: Final = 10_000
"""Maximum number of cached verdicts; the cache is cleared when it is full."""


@dataclass(frozen=True, slots=True)
class Criterion(Options):
    """One atomic requirement of a rubric; a judge decides whether an answer meets it.

    Raises:
        UsageError: The text is blank, or the weight is not positive and finite.
    """

    text: str
    """Statement about the answer, for a person or a model: ``"It says that the mother of Zor is Ada Bel."``"""
    says: tuple[tuple[str, ...], ...] = ()
    """Groups of names for the judge ``rules``: one sentence of the answer must contain a name of each group, word for
    word."""
    negated: bool = False
    """Whether the criterion is met if the statement is false."""
    weight: float = 1.0
    """Weight relative to the rubric's other criteria, above 0."""
    bottom: bool = False
    """Whether the criterion is mandatory: if it is not met, credit term ``gated`` lowers the reward for all others."""

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise UsageError("a criterion needs a text: a statement that is true or false of an answer")
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise UsageError(f"criterion {self.text!r:.60}: weight is a number above 0, got {self.weight!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge(Kind):
    """Base class of judges of answers; the fields of a subclass are its options."""

    kinds_in: ClassVar = "searchgym.scoring.judges.kinds"
    noun: ClassVar = "judge"
    in_process: ClassVar[bool] = False
    """Whether verdicts are computed in this process from the texts alone, so that they need no time limit and are
    deterministic."""

    @classmethod
    @override
    def short(cls, value: object) -> object:
        """Expands a text: a judge's name, ``module:Class``, or else the model of a ``model`` judge."""
        if not isinstance(value, str):
            return value
        named = value in kinds(cls) or names_code(value)
        return {"kind": value} if named else {"kind": "model", "model": value}

    @property
    def asks(self) -> str | None:
        """Model key or model that the judge queries; None by default."""
        return None

    @property
    def prompts(self) -> Mapping[str, str]:
        """Texts of the judge's prompts by name, of which its identity has a digest; none by default."""
        return {}

    @property
    def weights(self) -> str | None:
        """SHA-256 of the weights of the judge's model; None by default, and for a model behind a server."""
        return None

    @override
    def problems(self) -> Iterable[str]:
        if type(self).open is Judge.open:
            methods = [name for name in ("verify", "meets", "better") if getattr(type(self), name) is vars(Judge)[name]]
            yield from (f"{type(self).__name__} does not define {name}" for name in methods)

    def open(self, models: Mapping[str, Any]) -> Checked:
        """Returns the judge ready for use; only now are libraries imported and a model loaded.

        Args:
            models: Models of the run, by key.
        """
        return Checked(self)

    def verify(self, question: str, answer: str, pages: Sequence[str]) -> bool:
        """Returns whether the pages support an answer to a question.

        Raises:
            NoVerdictError: The judge failed, timed out, or replied with something other than a verdict.
        """
        raise NotImplementedError

    def meets(self, question: str, answer: str, criteria: Sequence[Criterion]) -> list[bool]:
        """Returns, for each criterion, whether its statement is true of the answer; `Criterion.negated` is ignored.

        Without criteria it only checks that the answer does not sway the judge, and returns an empty list.

        Raises:
            NoVerdictError: See `verify`.
            SwayedError: The answer makes the judge affirm a false statement.
        """
        raise NotImplementedError

    def better(self, question: str, answers: tuple[str, str], criteria: Sequence[Criterion]) -> int | None:
        """Returns the index of the better of two answers, 0 or 1; None if neither is better.

        Raises:
            NoVerdictError: See `verify`.
        """
        raise NotImplementedError


def default_judge() -> Judge:
    """Returns the judge ``rules`` with its default options."""
    return find_kind(Judge, "rules")()


@dataclass(slots=True)
class Verdicts:
    """Counts of a judge's verdicts."""

    queries: int = 0
    """Number of queries to the judge, about an answer or a pair of answers."""
    failed: int = 0
    """Number of queries without a verdict."""
    swayed: int = 0
    """Number of queries in which an answer made the judge affirm a false statement."""


class Checked:
    """Wrapper through which judges are called: it validates, counts and caches verdicts, with a time limit.

    Args:
        judge: The judge.
        seconds: Time limit of one verdict in seconds; not applied to a judge that is `Judge.in_process`.
        close: Releases the model that was loaded for the judge.
    """

    def __init__(self, judge: Judge, seconds: float = 60.0, close: Callable[[], None] = lambda: None) -> None:
        self.judge, self.seconds, self.close, self.counts = judge, seconds, close, Verdicts()
        self._met: dict[tuple[str, str, tuple[Criterion, ...]], list[bool]] = {}

    def verify(self, question: str, answer: str, pages: Sequence[str]) -> bool:
        """Returns whether the pages support an answer to a question; see `Judge.verify`."""
        if unfit(answer):
            return False
        return self._query(lambda: self.judge.verify(question, answer, pages), _is_bool)

    def meets(self, question: str, answer: str, criteria: Sequence[Criterion]) -> list[bool]:
        """Returns, for each criterion, whether its statement is true of the answer; see `Judge.meets`.

        Earlier verdicts are cached.
        """
        if unfit(answer):
            return [False] * len(criteria)
        key = (question, answer, tuple(criteria))
        if key not in self._met:
            if len(self._met) >= CACHED_VERDICTS:
                self._met.clear()
            self._met[key] = self._query(
                lambda: self.judge.meets(question, answer, criteria),
                lambda verdict: (
                    isinstance(verdict, list) and len(verdict) == len(criteria) and all(map(_is_bool, verdict))
                ),
            )
        return list(self._met[key])

    def passes(self, question: str, answer: str, criteria: Sequence[Criterion]) -> list[bool]:
        """Returns, for each criterion, whether an answer passes it: the statement is true, or false if negated.

        An answer that is unfit (see `unfit`) or sways the judge passes no criterion.

        Raises:
            NoVerdictError: The judge gave no verdict.
        """
        if unfit(answer):
            return [False] * len(criteria)
        try:
            met = self.meets(question, answer, criteria)
        except SwayedError:
            return [False] * len(criteria)
        return [true != criterion.negated for true, criterion in zip(met, criteria, strict=True)]

    def better(self, question: str, answers: tuple[str, str], criteria: Sequence[Criterion]) -> int | None:
        """Returns the index of the better of two answers; see `Judge.better`. An unfit answer loses to a fit one."""
        unfits = [unfit(answer) for answer in answers]
        if any(unfits):
            return None if all(unfits) else unfits.index(False)
        return self._query(
            lambda: self.judge.better(question, answers, criteria),
            lambda verdict: verdict is None or (type(verdict) is int and verdict in (0, 1)),
        )

    def _query(self, ask: Callable[[], Result], fits: Callable[[object], bool]) -> Result:
        """Queries the judge, counts the query and returns the validated verdict."""
        self.counts.queries += 1
        name = type(self.judge).__name__
        try:
            verdict = ask() if getattr(self.judge, "in_process", False) else call_within(ask, self.seconds)
        except SwayedError:
            self.counts.swayed += 1
            raise
        except UsageError:  # the user's mistake, which would recur with every answer
            raise
        except Exception as error:
            self.counts.failed += 1
            if isinstance(error, NoVerdictError):
                raise
            raise NoVerdictError(f"judge {name} failed: {type(error).__name__}: {error}") from error
        if not fits(verdict):
            self.counts.failed += 1
            raise NoVerdictError(f"judge {name} replied with {verdict!r:.80}, which is no verdict")
        return verdict


def _is_bool(verdict: object) -> bool:
    """Returns whether an object is exactly True or False; 1, 0.5, NaN and "yes" are not verdicts."""
    return verdict is True or verdict is False


def unfit(answer: str) -> bool:
    """Returns whether an answer consists only of articles and punctuation, or exceeds `MAX_ANSWER_CHARACTERS`."""
    return len(answer) > MAX_ANSWER_CHARACTERS or not norm(normalise_answer(answer))
