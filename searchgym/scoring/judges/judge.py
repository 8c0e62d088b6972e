"""The interface of judges, and the one way to ask them, by which nothing but a verdict becomes a score.

A judge decides three things: whether pages answer a question (`Judge.verify`), which criteria an answer meets
(`Judge.meets`), and which of two answers is better (`Judge.better`). `Checked` asks it: a judge that fails, times out,
or replies with a number, prose or nothing raises a `NoVerdictError`. An answer of articles and punctuation alone, or of
more than `MAX_ANSWER_CHARACTERS` characters, meets no criterion, and no judge is asked.
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
"""Number of characters above which an answer meets no criterion: a short report is asked for, not a copy of pages."""
CACHED_VERDICTS: Final = 10_000
"""Number of answers whose verdicts are kept."""


@dataclass(frozen=True, slots=True)
class Criterion(Options):
    """One atomic requirement of a rubric, of which a judge decides whether an answer meets it.

    Raises:
        UsageError: There is no text, or the weight is not above 0 and finite.
    """

    text: str
    """Statement about the answer, for a person or a model: ``"It says that the mother of Zor is Ada Bel."``"""
    says: tuple[tuple[str, ...], ...] = ()
    """Words for a judge by rules: one sentence of the answer must hold a name of each group, word for word."""
    negated: bool = False
    """Whether the statement must not be true of the answer."""
    weight: float = 1.0
    """Weight among the criteria of its rubric, above 0."""
    bottom: bool = False
    """Whether it is a bottom line, without which nothing else counts (credit term ``gated``)."""

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise UsageError("a criterion needs a text: a statement that is true or false of an answer")
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise UsageError(f"criterion {self.text!r:.60}: weight is a number above 0, got {self.weight!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge(Kind):
    """A judge of answers: one class per judge, whose fields are its options."""

    kinds_in: ClassVar = "searchgym.scoring.judges.kinds"
    noun: ClassVar = "judge"
    in_process: ClassVar[bool] = False
    """True if its verdicts are computed here from the texts alone: they need no deadline, and come again the same."""

    @classmethod
    @override
    def short(cls, value: object) -> object:
        """Reads a text as a judge's name, as ``module:Class``, or else as the model that judges."""
        if not isinstance(value, str):
            return value
        named = value in kinds(cls) or names_code(value)
        return {"kind": value} if named else {"kind": "model", "model": value}

    @property
    def asks(self) -> str | None:
        """The model key or model that it asks. Default: None."""
        return None

    @override
    def problems(self) -> Iterable[str]:
        if type(self).open is Judge.open:
            methods = [name for name in ("verify", "meets", "better") if getattr(type(self), name) is vars(Judge)[name]]
            yield from (f"{type(self).__name__} does not define {name}" for name in methods)

    def open(self, models: Mapping[str, Any]) -> Checked:
        """Returns the judge, ready to be asked; imports libraries and loads a model only here.

        Args:
            models: Models of the run, by key.
        """
        return Checked(self)

    def verify(self, question: str, answer: str, pages: Sequence[str]) -> bool:
        """Returns whether the pages give the question this answer.

        Raises:
            NoVerdictError: The judge gave no verdict: it failed, timed out, or replied with something else.
        """
        raise NotImplementedError

    def meets(self, question: str, answer: str, criteria: Sequence[Criterion]) -> list[bool]:
        """Returns, for each criterion, whether its statement is true of the answer, negated or not.

        Without criteria it only checks that the answer does not sway the judge, and returns an empty list.

        Raises:
            NoVerdictError: See `verify`.
            SwayedError: The answer makes the judge affirm what is false.
        """
        raise NotImplementedError

    def better(self, question: str, answers: tuple[str, str], criteria: Sequence[Criterion]) -> int | None:
        """Returns which of two answers is better, 0 or 1; None if neither is.

        Raises:
            NoVerdictError: See `verify`.
        """
        raise NotImplementedError


def default_judge() -> Judge:
    """Returns the judge by rules."""
    return find_kind(Judge, "rules")()


@dataclass(slots=True)
class Verdicts:
    """Counts of a judge's verdicts."""

    asked: int = 0
    """Number of times the judge was asked about an answer, or a pair of them."""
    failed: int = 0
    """Number of times it gave no verdict."""
    swayed: int = 0
    """Number of times an answer made it affirm what is false."""


class Checked:
    """The one way to ask a judge: its verdicts are checked, counted, kept, and waited for until a deadline.

    Args:
        judge: The judge.
        seconds: Seconds that one verdict may take, unless the judge is `Judge.in_process`.
        close: Closes what was loaded for the judge.
    """

    def __init__(self, judge: Judge, seconds: float = 60.0, close: Callable[[], None] = lambda: None) -> None:
        self.judge, self.seconds, self.close, self.counts = judge, seconds, close, Verdicts()
        self._met: dict[tuple[str, str, tuple[Criterion, ...]], list[bool]] = {}

    def verify(self, question: str, answer: str, pages: Sequence[str]) -> bool:
        """Returns whether the pages give the question this answer; see `Judge.verify`."""
        if unfit(answer):
            return False
        return self._asked(lambda: self.judge.verify(question, answer, pages), _is_bool)

    def meets(self, question: str, answer: str, criteria: Sequence[Criterion]) -> list[bool]:
        """Returns, for each criterion, whether its statement is true of the answer; see `Judge.meets`.

        What was asked before is not asked again.
        """
        if unfit(answer):
            return [False] * len(criteria)
        key = (question, answer, tuple(criteria))
        if key not in self._met:
            if len(self._met) >= CACHED_VERDICTS:
                self._met.clear()
            self._met[key] = self._asked(
                lambda: self.judge.meets(question, answer, criteria),
                lambda found: isinstance(found, list) and len(found) == len(criteria) and all(map(_is_bool, found)),
            )
        return list(self._met[key])

    def passes(self, question: str, answer: str, criteria: Sequence[Criterion]) -> list[bool]:
        """Returns which criteria an answer passes: a statement is true, or a negated one is not.

        None is passed by an answer that is unfit (`unfit`) or sways the judge.

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
        """Returns which of two answers is better; see `Judge.better`. An unfit answer loses to one that is not."""
        unfits = [unfit(answer) for answer in answers]
        if any(unfits):
            return None if all(unfits) else unfits.index(False)
        return self._asked(
            lambda: self.judge.better(question, answers, criteria),
            lambda found: found is None or (type(found) is int and found in (0, 1)),
        )

    def _asked(self, ask: Callable[[], Result], fits: Callable[[object], bool]) -> Result:
        """Returns the judge's verdict after checking it."""
        self.counts.asked += 1
        name = type(self.judge).__name__
        try:
            found = ask() if getattr(self.judge, "in_process", False) else call_within(ask, self.seconds)
        except SwayedError:
            self.counts.swayed += 1
            raise
        except UsageError:  # the user's mistake: it would come again with every answer
            raise
        except Exception as error:
            self.counts.failed += 1
            if isinstance(error, NoVerdictError):
                raise
            raise NoVerdictError(f"judge {name} failed: {type(error).__name__}: {error}") from error
        if not fits(found):
            self.counts.failed += 1
            raise NoVerdictError(f"judge {name} replied with {found!r:.80}, which is no verdict")
        return found


def _is_bool(found: object) -> bool:
    """Returns whether an object is True or False itself: 1, 0.5, NaN and "yes" are no verdicts."""
    return found is True or found is False


def unfit(answer: str) -> bool:
    """Returns whether an answer is of articles and punctuation alone, or is longer than `MAX_ANSWER_CHARACTERS`."""
    return len(answer) > MAX_ANSWER_CHARACTERS or not norm(normalise_answer(answer))
