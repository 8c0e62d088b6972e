"""Proposers that walk a graph, choose kinds of questions, and learn from pass rates."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Interval
from typing_extensions import override

from searchgym.corpora.questions import parse_questions, question_row
from searchgym.corpora.rows import Rows
from searchgym.envs.task import Task
from searchgym.errors import BadLines, TrainingError, UsageError
from searchgym.options import Setting
from searchgym.records import Episode, Question
from searchgym.train.selfplay.arms import Arm, ArmPolicy, Floats, Level
from searchgym.train.selfplay.build import ground_of
from searchgym.train.selfplay.ground import Ground
from searchgym.train.selfplay.kind import Proposer, Proposing


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkingProposer(Proposer):
    """Base class of proposers that walk the graph behind the environment's corpus; see `PathProposer`."""

    arms: Level = "last"
    """Properties that distinguish kinds of questions: ``hops``; ``shape`` (shape, hops and operation); ``last`` (these
    and the last relation); or ``relations`` (the first relation too)."""
    max_named: Annotated[float, Interval(ge=0, le=1)] = 0.15
    """Maximum share of questions answerable by guessing (A or B, yes or no). A solver that guesses is right half the
    time, for which the reward 4 p (1 - p) is largest."""
    hops: list[Annotated[int, Ge(1)]] = field(default_factory=lambda: [1, 2, 3, 4])
    """Numbers of pages that a question may need."""
    triples: str | None = None
    """File of triples (subject, relation and object, separated by tabs) to walk, whose subjects are titles in the
    environment's corpus. Default: the world's graph, or facts extracted from the corpus."""
    pool: Annotated[int, Ge(0)] = 256
    """Maximum number of earlier questions kept for steps with too few new questions."""
    tries: Annotated[int, Ge(1)] = 50
    """Maximum number of drafts per question; after that, earlier questions from the pool are used."""

    @override
    def problems(self) -> Iterable[str]:
        if not self.hops or len(set(self.hops)) < len(self.hops):
            yield f"hops is {self.hops}: expected numbers from 1 on, each once"

    @override
    def check(self, setting: Setting) -> Iterable[str]:
        if setting.attempts < 2:
            yield f"rollout.attempts is {setting.attempts}: a proposer needs pass rates of at least 2 attempts"
        if setting.paragraphs:
            yield "its questions have no paragraphs: leave env_options.distractors out"

    def source(self, task: Task, env_options: Mapping[str, Any], seed: int) -> Proposing:
        """Returns the questions of walks over the environment's graph; see `Proposer.source`.

        Raises:
            UsageError: The environment's questions have no graph, or it has no path with the requested hops.
        """
        return PathProposer(ground_of(task, env_options, self.hops, self.triples, seed), self, seed)

    def policy(self, arms: Sequence[Arm]) -> ArmPolicy:
        """Returns the policy that chooses kinds of questions."""
        raise NotImplementedError(f"{type(self).__name__} defines no policy")

    def rewards(self, rates: Sequence[float], attempts: Sequence[int]) -> Floats | None:
        """Returns the rewards of questions, from which the policy learns; None if it does not learn.

        Args:
            rates: Share of right attempts at each question; NaN if unknown.
            attempts: Number of attempts at each question.
        """
        return None


class PathProposer:
    """Source of questions proposed step by step during training; see `selfplay.kind.QuestionStream`.

    Args:
        ground: Graph to walk.
        options: Options of the proposer.
        seed: Seed of the choices.

    Raises:
        UsageError: The graph has no walk with the requested hops, or all its questions name their answer.
    """

    name, proposes = "proposer", True

    def __init__(self, ground: Ground, options: WalkingProposer, seed: int) -> None:
        if not ground.arms:
            hops = ", ".join(map(str, options.hops))
            raise UsageError(
                f"proposer: the graph has no path of {hops} hops: set other hops (proposer.hops), or use a corpus "
                "with more links (`searchgym questions generate` reports what it found)"
            )
        if options.max_named < 1 and all(arm.named for arm in ground.arms):
            raise UsageError(
                "proposer: all questions that the graph allows name their answer (comparisons), but at most "
                f"{options.max_named:g} of the questions may (proposer.max_named): ask for other hops "
                "(proposer.hops), for a corpus with more links, or set proposer.max_named=1"
            )
        self.policy = options.policy(ground.arms)
        self._ground, self._options, self._seed = ground, options, seed
        self._walks: dict[Arm, Iterator[Any]] = {}
        self._taken: Counter[Arm] = Counter()
        self._ended: set[Arm] = set()
        self._pool: dict[str, Question] = {}
        self._named = self._proposed = 0
        self.proposed: dict[str, Question] = {}
        """All questions proposed so far, by id."""
        self._step = Counter[str]()
        self._chances: dict[tuple[bool, ...], list[float]] = {}

    # -- proposing -------------------------------------------------------------------------------------------------

    def draw(self, step: int, count: int) -> list[Question]:
        """Returns new questions for a 0-based step, and earlier ones if there are too few new ones.

        Raises:
            TrainingError: There are no new and no earlier questions.
        """
        self._step.clear()
        return self.more(step, 0, count, ())

    def more(self, step: int, round: int, count: int, used: Sequence[Question]) -> list[Question]:
        """Returns further questions for a step; see `draw`."""
        rng = random.Random(f"propose {self._seed} {step} {round}")
        fresh: list[Question] = []
        for _ in range(count * self._options.tries):
            if len(fresh) == count:
                break
            if (question := self._try(rng)) is not None:
                fresh.append(question)
        used_ids = {question.id for question in (*fresh, *used)}
        spare = [question for name, question in self._pool.items() if name not in used_ids]
        fill = rng.sample(spare, min(count - len(fresh), len(spare)))
        self._step["from pool"] += len(fill)
        self.proposed |= {question.id: question for question in fresh}
        if not fresh and not fill and not round:
            counts = (+self._step).most_common(4)
            why = ", ".join(f"{rule} {times}" for rule, times in counts) or "every walk is used up"
            raise TrainingError(
                f"proposer: step {step + 1} has no question, and the pool of earlier ones is empty ({why}): ask for "
                "fewer questions or steps, other hops (proposer.hops), or a larger world or corpus"
            )
        return fresh + fill

    def _try(self, rng: random.Random) -> Question | None:
        """Walks once; returns the question, or None if the walk is rejected or its arm has no walks left."""
        few_named = self._named + 1 <= self._options.max_named * (self._proposed + 1)
        is_open = tuple(arm not in self._ended and (few_named or not arm.named) for arm in self.policy.arms)
        if is_open not in self._chances:
            self._chances[is_open] = self.policy.probabilities(is_open).cumsum().tolist()
        chances = self._chances[is_open]
        if not chances[-1]:
            return None
        (arm,) = rng.choices(self.policy.arms, cum_weights=chances)
        walks = self._walks.setdefault(arm, self._ground.walks(arm))
        walk = next(walks, None)
        if walk is None:
            self._ended.add(arm)
            return None
        self._taken[arm] += 1
        self._step["drafts"] += 1
        question = self._ground.question(arm, walk, self._taken[arm] - 1)
        if isinstance(question, str):
            self._step[question] += 1
            return None
        self._proposed += 1
        self._named += arm.named
        return question

    # -- learning --------------------------------------------------------------------------------------------------

    def learn(self, step: int, questions: Sequence[Question], episodes: Sequence[Episode]) -> dict[str, float]:
        """Rewards the arms of a step's questions by their pass rates, and adds the questions to the pool.

        Attempts whose retriever failed do not count; a question with fewer than two others has no pass rate.
        """
        shares, attempts = pass_rates(questions, episodes)
        arms = [Arm(*question.metadata["arm"]) for question in questions]
        rewards = self._options.rewards(shares, attempts)
        if rewards is not None:
            self.policy.learn(arms, rewards)
            self._chances.clear()
        for question in questions:
            self._pool.pop(question.id, None)  # the newest are last
            self._pool[question.id] = question
        for name in list(self._pool)[: max(len(self._pool) - self._options.pool, 0)]:
            del self._pool[name]
        rates, open_ended = np.array(shares), np.array([not arm.named for arm in arms])
        mixed, measured = (rates > 0) & (rates < 1), np.isfinite(rates)
        counts, drafts = self._step, max(self._step["drafts"], 1)
        row = {
            "valid": 1 - counts["not one answer"] / drafts,
            "refused": (sum(counts.values()) - counts["drafts"] - counts["from pool"]) / drafts,
            "from_pool": float(counts["from pool"]),
            "named": float(1 - open_ended.mean()),
            "hops": float(np.mean([arm.hops for arm in arms])),
            "entropy": self.policy.entropy(),
            "distinct_forms": len({str(q.metadata["form"]) for q in questions}) / len(questions),
            "distinct_arms": len(set(arms)) / len(arms),
            "distinct_entities": float(len({t for q in questions for t in q.gold_titles or ()})),
        }
        if measured.any():
            row |= {"signal": float(mixed[measured].mean()), "pass_rate": float(rates[measured].mean())}
        if (measured & open_ended).any():
            row["signal_unnamed"] = float(mixed[measured & open_ended].mean())
        return row

    # -- saving and restoring --------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Returns the state that later steps depend on, as plain JSON."""
        return {
            "policy": self.policy.state(),
            "taken": {arm.name: times for arm, times in sorted(self._taken.items())},
            "ended": sorted(arm.name for arm in self._ended),
            "counts": [self._proposed, self._named],
            "pool": [question_row(question) for question in self._pool.values()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores a state; walks continue after those already used."""
        self.policy.restore(state["policy"])
        self._chances.clear()
        self._proposed, self._named = state["counts"]
        names = {arm.name: arm for arm in self.policy.arms}
        self._taken = Counter({names[name]: times for name, times in state["taken"].items()})
        self._walks = {
            arm: itertools.islice(self._ground.walks(arm), times, None) for arm, times in self._taken.items()
        }
        self._ended = {names[name] for name in state["ended"]}
        rows = Rows("the proposer's pool", "item", enumerate(state["pool"], start=1))
        questions = parse_questions(rows, "searchgym", BadLines()) if state["pool"] else []
        self._pool = {question.id: question for question in questions}
        self.proposed |= self._pool


def pass_rates(questions: Sequence[Question], episodes: Sequence[Episode]) -> tuple[list[float], list[int]]:
    """Returns the share of right attempts (exact match) and the number of attempts, by question.

    Attempts whose retriever failed do not count; the share is NaN with fewer than two other attempts.
    """
    right: dict[str, list[float]] = {question.id: [] for question in questions}
    for episode in episodes:
        if episode.stop_reason != "retriever_error":
            right[episode.question_id].append(episode.scores.get("em", 0.0))
    by_question = [right[question.id] for question in questions]
    return [float(np.mean(scores)) if len(scores) > 1 else float("nan") for scores in by_question], [
        len(scores) for scores in by_question
    ]
