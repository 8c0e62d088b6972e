"""Interface of proposers, one class each, and the options of proposers that walk a graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

from annotated_types import Ge, Interval

from searchgym.options import Kind, Setting
from searchgym.records import Question
from searchgym.selfplay.arms import Arm, ArmPolicy, Floats, Level
from searchgym.selfplay.source import QuestionSource

if TYPE_CHECKING:
    from searchgym.envs.task import Task


class Proposing(QuestionSource, Protocol):
    """A source of questions that no file has."""

    known: dict[str, Question]
    """Every question proposed so far, by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposer(Kind):
    """Who makes the questions of a run: one class per proposer, whose fields are its options."""

    kinds_in: ClassVar = "searchgym.selfplay.kinds"
    noun: ClassVar = "proposer"

    def check(self, setting: Setting) -> Iterable[str]:
        """Yields a sentence for each choice of the run that does not go with this proposer."""
        return ()

    def source(self, task: Task, env_options: Mapping[str, Any], seed: int) -> Proposing:
        """Returns the source of a run's questions.

        Args:
            task: The environment, loaded.
            env_options: The recipe's options of the environment.
            seed: Seed of the run.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no source")


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkingProposer(Proposer):
    """A proposer that walks the graph behind the environment's corpus; see `searchgym.selfplay.proposer`."""

    arms: Level = "last"
    """What is told apart: numbers of hops; shapes, hops and operations; these and the last relation; or the first
    relation too."""
    max_named: Annotated[float, Interval(ge=0, le=1)] = 0.15
    """Largest share of questions that name their answer or ask for yes or no: they are coin-flips to a solver that
    knows nothing, which 4 p (1 - p) rewards most."""
    hops: list[Annotated[int, Ge(1)]] = field(default_factory=lambda: [1, 2, 3, 4])
    """Numbers of pages that a question may need."""
    triples: str | None = None
    """File of triples (subject, relation, object with tabs between them) to walk, whose subjects are titles in the
    environment's corpus. Default: a world's own graph, or the facts that are found in the corpus."""
    pool: Annotated[int, Ge(0)] = 256
    """Most earlier questions that are kept to fill up a step for which too few new ones are found."""
    tries: Annotated[int, Ge(1)] = 50
    """Drafts per question after which the pool fills up."""

    def problems(self) -> Iterable[str]:
        """See `Options.problems`."""
        if not self.hops or len(set(self.hops)) < len(self.hops):
            yield f"hops is {self.hops}: expected numbers from 1 on, each once"

    def check(self, setting: Setting) -> Iterable[str]:
        """See `Proposer.check`."""
        if setting.attempts < 2:
            yield f"rollout.attempts is {setting.attempts}: a proposer needs pass rates of at least 2 attempts"
        if setting.paragraphs:
            yield "its questions bring no paragraphs, leave env_options.distractors out"

    def source(self, task: Task, env_options: Mapping[str, Any], seed: int) -> Proposing:
        """Returns the questions of walks over the environment's graph; see `Proposer.source`.

        Raises:
            UsageError: There is no graph behind the environment's questions, or none with the hops that are asked for.
        """
        from searchgym.selfplay.build import ground_of
        from searchgym.selfplay.proposer import PathProposer

        return PathProposer(ground_of(self, task, env_options, seed), self, seed)

    def policy(self, arms: Sequence[Arm]) -> ArmPolicy:
        """Returns the policy that chooses between kinds of questions."""
        raise NotImplementedError(f"{type(self).__name__} defines no policy")

    def rewards(self, rates: Sequence[float], attempts: Sequence[int]) -> Floats | None:
        """Returns the rewards of questions from which the policy learns; None if it learns nothing.

        Args:
            rates: Share of right attempts at each question; NaN where it is not known.
            attempts: Number of attempts at each question.
        """
        return None
