"""Runs the episodes of a step with the episode engine, and computes their metrics."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from searchgym.agents.base import LoadedAgent
from searchgym.envs.task import Task
from searchgym.errors import ScoringError, TrainingError
from searchgym.protocol import markers_in_pages
from searchgym.records import Episode, Question
from searchgym.retrieval.retriever import at_step
from searchgym.rollout.chat import thought_counts
from searchgym.rollout.engine import Engine
from searchgym.rollout.models import Model
from searchgym.rollout.replay.journal import Journal, Reuse
from searchgym.rollout.replay.prefix import Start
from searchgym.train.algorithms.samples import Sample, is_overlong
from searchgym.train.curriculum.source import value_of
from searchgym.train.loop.folder import Row
from searchgym.train.recipe.recipe import Recipe

MAX_KINDS: Final = 12
"""Maximum number of kinds of questions that validation reports one by one: the most frequent ones."""


class Rollout(Protocol):
    """Function that runs episodes with the current weights."""

    def __call__(self, questions: Sequence[Question], attempts: int, step: int, greedy: bool) -> list[Episode]:
        """Returns `attempts` episodes per question.

        Args:
            questions: Each once.
            attempts: Episodes per question; the attempts at a question share a `group_uid` that no other call uses.
            step: 0-based step; it and the recipe's seed determine all random numbers.
            greedy: If True, always choose the most likely token, as in validation.
        """
        ...


@runtime_checkable
class ContinuingRollout(Rollout, Protocol):
    """Rollout that can also begin episodes at prefixes of earlier ones."""

    def continued(self, starts: Sequence[Start], step: int) -> list[Episode]:
        """Returns one episode per beginning, in order."""
        ...


def _nothing(*_: object) -> None:
    """Does nothing: the hook of a sampler that needs no such call."""


@dataclass(frozen=True, slots=True)
class SamplerHooks:
    """Functions with which the training loop runs and updates a sampler."""

    rollout: Rollout | None = None
    """Runs episodes. Required, except for ``method: supervised`` without validation."""
    publish: Callable[[int], None] = _nothing
    """Copies the learner's weights to the samplers of the trained keys.

    Called with the version of the weights, before the first rollout and after each step's updates."""
    probe: Callable[[Sequence[Sample]], Row] | None = None
    """Checks that the sampler has the new weights. Called with a step's samples after the weights are published."""
    rest: Callable[[], None] | None = None
    """Makes a sampler on the learner's GPU free its memory until `publish`. Called before a step's updates."""
    give_up: Callable[[], None] = _nothing
    """Cancels a rollout in another thread that is no longer needed (``rollout.staleness``)."""
    journal: Journal | None = None
    """Journal of the responses since the last checkpoint; None if a resumed run samples them again."""


class EngineRollout:
    """A `Rollout` on the episode engine; it handles one call at a time.

    Args:
        recipe: Recipe with the seed, the concurrency and the sampling options.
        agent: The workflow and its roles.
        models: The model behind each role.
        task: Environment of training.
        validation: Environment of greedy rollouts.
        canonical: If True, a step's episodes depend only on (recipe, weights, step), bit for bit; see `Engine`.
        journal: Journal of the responses, from which a resumed run takes those of an unfinished step.
    """

    def __init__(
        self,
        recipe: Recipe,
        agent: LoadedAgent,
        models: Mapping[str, Model],
        task: Task,
        validation: Task,
        *,
        canonical: bool = True,
        journal: Journal | None = None,
    ) -> None:
        self.journal = journal
        self.recipe, self.agent, self.models = recipe, agent, models
        self.task, self.validation, self.canonical = task, validation, canonical
        self._under_way: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

    def __call__(self, questions: Sequence[Question], attempts: int, step: int, greedy: bool) -> list[Episode]:
        """Returns `attempts` episodes per question, ordered by question and attempt."""
        todo = [(question, attempt) for question in questions for attempt in range(attempts)]
        episodes = self.run_all(todo, step, greedy)
        order = {question.id: number for number, question in enumerate(questions)}
        return sorted(episodes, key=lambda episode: (order[episode.question_id], episode.attempt))

    def continued(self, starts: Sequence[Start], step: int) -> list[Episode]:
        """Returns one episode per beginning, in order."""
        by_id = {episode.id: episode for episode in self.run_all(starts, step, False)}
        return [by_id[f"{start.name}@{step}"] for start in starts]

    def run_all(self, todo: Sequence[tuple[Question, int] | Start], step: int, greedy: bool) -> list[Episode]:
        """Runs the episodes of a step, in any order."""
        episodes: list[Episode] = []
        engine = self._engine(step, greedy)
        for retriever in (engine.task.retriever, *engine.task.retrievers.values()):
            at_step(retriever, None if greedy else step, self.recipe.steps)
        self._forget()  # a resumed run has no cache of a validation or a proposer
        try:
            with self._journaled(step, greedy):
                self._wait(engine.run_attempts(todo, episodes.append, group=str(step)))
        finally:
            self._forget()  # the learner needs the memory
        return episodes

    @contextlib.contextmanager
    def _journaled(self, step: int, greedy: bool) -> Iterator[None]:
        """Context manager in which responses are read from and written to the journal."""
        if self.journal is None or not self.journal.started:
            yield
            return
        page = self.journal.open(step, greedy)
        complete = False
        try:
            for model in self.models.values():
                model.batcher.memory = page.of(model.key)
                model.batcher.before = None if self.journal.whole else model.sampler.forget
            yield
            complete = True
        finally:
            for model in self.models.values():
                model.batcher.memory = model.batcher.before = None
            what = f"validation after step {step}" if greedy else f"step {step + 1}"
            sys.stderr.write(reused_line(page.close(complete), what))

    def _forget(self) -> None:
        """Clears the samplers' caches, if episodes must not depend on them."""
        if self.canonical:
            for model in self.models.values():
                model.sampler.forget()

    def give_up(self) -> None:
        """Cancels a call in another thread, which raises a `CancelledError` in that thread."""
        if (under_way := self._under_way) is not None:
            loop, task = under_way
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        """Ends what runs on between calls: nothing here."""

    def _wait(self, episodes: Coroutine[Any, Any, None]) -> None:
        """Runs episodes to their end."""
        asyncio.run(self._run(episodes))

    async def _run(self, episodes: Coroutine[Any, Any, None]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._under_way = (asyncio.get_running_loop(), task)
        try:
            await episodes
        finally:
            self._under_way = None

    def _engine(self, step: int, greedy: bool) -> Engine:
        """Returns the episode engine of a step, seeded for it."""
        options = self.recipe.rollout
        return Engine(
            self.validation if greedy else self.task,
            self.agent,
            self.models,
            concurrency=options.concurrency,
            seed=int(np.random.SeedSequence((self.recipe.seed, step, greedy)).generate_state(1)[0]),
            temperature=0.0 if greedy else options.temperature,
            top_p=1.0 if greedy else options.top_p,
            training=not greedy,
            canonical=self.canonical,
        )


def reused_line(reuse: Reuse, what: str) -> str:
    """Returns a line for the terminal about the responses that a rollout reused; empty if there were none."""
    if not reuse.reused:
        return ""
    total = reuse.reused + reuse.sampled
    return f"{what}: {reuse.reused} of {total} responses are from before the stop, which saves {reuse.seconds:.0f} s\n"


def generated_tokens(episodes: Sequence[Episode]) -> int:
    """Counts the tokens that models generated in episodes; see `Episode.generated_tokens`."""
    return sum(episode.generated_tokens() for episode in episodes)


def rollout_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Computes metrics of the episodes of a step.

    Returns:
        Means over episodes: ``reward``, each score, ``searches``, ``opens`` and ``markers_in_pages`` (if any),
        ``turns``, ``generated_tokens``, ``observation_words``, ``repeated_tokens`` (with ``forks``, the share that
        repeats calls, if any); shares: ``answered``, ``context_full``, ``overlong``,
        ``retriever_error`` of episodes, ``invalid`` of actions, ``illegal`` of calls; ``reward_std`` (over n),
        ``max_generated_tokens`` and ``longest_prompt``, the maximum number of tokens before a call. Also means of
        `thought_counts`.
    """
    rewards = [episode.reward for episode in episodes]
    lengths = [episode.generated_tokens() for episode in episodes]
    calls = [call for episode in episodes for call in episode.calls]
    repeated = np.array([sum(call.end - call.start for call in e.calls[: e.replayed]) for e in episodes])
    markers = [markers_in_pages(episode.searches, episode.opens) for episode in episodes]
    scores = sorted({name for episode in episodes for name in episode.scores})
    return {
        "reward": float(np.mean(rewards)),
        "reward_std": float(np.std(rewards)),
        **{name: float(np.mean([e.scores[name] for e in episodes if name in e.scores])) for name in scores},
        "searches": float(np.mean([len(episode.searches) for episode in episodes])),
        **({"opens": opens} if (opens := float(np.mean([len(episode.opens) for episode in episodes]))) else {}),
        "turns": float(np.mean([episode.turns for episode in episodes])),
        **(
            {"forks": float(np.mean(repeated > 0)), "repeated_tokens": float(repeated.mean())} if repeated.any() else {}
        ),
        "observation_words": float(np.mean([episode.observation_words for episode in episodes])),
        **({"markers_in_pages": marked} if (marked := float(np.mean(markers))) else {}),
        "answered": float(np.mean([episode.stop_reason == "answer" for episode in episodes])),
        "context_full": float(np.mean([episode.stop_reason == "context" for episode in episodes])),
        "overlong": float(np.mean([is_overlong(episode) for episode in episodes])),
        "retriever_error": float(np.mean([episode.stop_reason == "retriever_error" for episode in episodes])),
        "invalid": sum(episode.invalid for episode in episodes) / max(sum(episode.turns for episode in episodes), 1),
        "illegal": float(np.mean([not call.legal for call in calls])) if calls else 0.0,
        "generated_tokens": float(np.mean(lengths)),
        "max_generated_tokens": float(max(lengths)),
        "longest_prompt": float(max((call.start for call in calls), default=0)),
        **{name: float(np.mean(values)) for name, values in thought_counts(episodes).items()},
    }


def check_contexts(episodes: Sequence[Episode], step: int) -> None:
    """Warns if contexts are too small in the first step, and ends a run if no episode of a step fits.

    Args:
        episodes: All episodes of the step.
        step: 1-based.

    Raises:
        TrainingError: Every episode ended because a context was full.
    """
    full = [episode for episode in episodes if episode.stop_reason == "context"]
    if not full or (step > 1 and len(full) < len(episodes)):
        return
    most = max((call.start for episode in full for call in episode.calls), default=0)
    reached = f"the longest prompt that fitted has {most} tokens" if most else "no prompt fitted"
    message = (
        f"{len(full)} of {len(episodes)} episodes of step {step} ended because a context was full ({full[0].error}; "
        f"{reached}): use a model with a longer context, shorter prompts, or smaller top_k, max_observation_words or "
        "max_turns"
    )
    if len(full) == len(episodes):
        raise TrainingError(message)
    sys.stderr.write(f"{message}\n")


def role_metrics(episodes: Sequence[Episode], rewards: Sequence[Sequence[float]]) -> dict[str, float]:
    """Computes metrics of the calls of each role; returns nothing if all calls have the same role.

    Args:
        episodes: Episodes of a step.
        rewards: Rewards of each episode's calls.

    Returns:
        ``ROLE/calls`` per episode, ``ROLE/legal`` (share), ``ROLE/reward`` (mean per call).
    """
    calls: dict[str, list[tuple[bool, float]]] = {}
    for episode, of_calls in zip(episodes, rewards, strict=True):
        for call, reward in zip(episode.calls, of_calls, strict=True):
            calls.setdefault(call.role, []).append((call.legal, reward))
    if len(calls) < 2:
        return {}
    metrics: dict[str, float] = {}
    for role, seen in sorted(calls.items()):
        legal, earned = zip(*seen, strict=True)
        metrics |= {f"{role}/calls": len(seen) / len(episodes), f"{role}/legal": float(np.mean(legal))}
        metrics[f"{role}/reward"] = float(np.mean(earned))
    return metrics


def validation_metrics(
    episodes: Sequence[Episode], questions: Sequence[Question], by: Sequence[str] = ("kind", "hops")
) -> dict[str, float]:
    """Computes metrics of one greedy episode per question; see `rollout_metrics`.

    Args:
        episodes: The episodes, in any order.
        questions: The questions.
        by: Properties of questions, see `value_of`. The first one with several values divides the questions: ``em`` and
            ``searches`` are also computed for each of its `MAX_KINDS` most frequent values, as ``em/VALUE``.

    Raises:
        ScoringError: The episodes do not match the questions one to one.
    """
    expected, answered = sorted(q.id for q in questions), sorted(e.question_id for e in episodes)
    if expected != answered:
        odd = sorted(set(expected) ^ set(answered)) or [a for a, b in itertools.pairwise(answered) if a == b]
        raise ScoringError(
            f"{len(expected)} questions, {len(answered)} validation episodes; mismatched: {', '.join(odd[:5])}"
        )
    return rollout_metrics(episodes) | _by_kind(episodes, questions, by)


def _by_kind(episodes: Sequence[Episode], questions: Sequence[Question], by: Sequence[str]) -> dict[str, float]:
    """Returns EM and searches by the first property that has several values; see `validation_metrics`."""
    kinds: dict[str, str] = {}
    for name in by:
        kinds = {question.id: value_of(question, name) for question in questions}
        if len(set(kinds.values())) > 1:
            break
    counts = Counter(kinds.values())
    metrics: dict[str, float] = {}
    for kind in sorted(counts, key=lambda kind: (-counts[kind], kind))[:MAX_KINDS] if len(counts) > 1 else ():
        alike = [episode for episode in episodes if kinds[episode.question_id] == kind]
        if ems := [episode.scores["em"] for episode in alike if "em" in episode.scores]:
            metrics[f"em/{kind}"] = float(np.mean(ems))
        metrics[f"searches/{kind}"] = float(np.mean([len(episode.searches) for episode in alike]))
    return metrics
