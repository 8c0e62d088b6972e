"""Wrappers of the parts of a run that record the data for the checks."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from searchgym.records import Episode, Hit, Passage, Question, Searched
from searchgym.rollout.sampler import Sampled, Sampler, SampleRequest
from searchgym.train.algorithms.samples import Sample
from searchgym.train.learner.batching import Metrics
from searchgym.train.learner.keyed_learner import KeyedLearner
from searchgym.train.learner.learner import Learner, LocalLearner
from searchgym.train.learner.trained_model import Updater
from searchgym.train.loop.rollout import Rollout
from searchgym.train.recipe.recipe import Recipe

WAYS: Final = (
    (),
    ((0, 0),),
    ((0, 0), (1, 1)),
    ((0, 0), (0, 1)),
    ((0, 0), (1, 0)),
    ((0, 0), (1, 1), (2, 2), (3, 1)),
    ((0, 1), (1, 0), (2, 0)),
)
"""Patterns of made-up searches; each search is (index of its turn, index of the gold page that it returns)."""
Exchange = tuple[SampleRequest, Sampled]
"""(Request to a sampler, reply of the sampler)."""


class WatchedSampler:
    """A sampler that wraps another one and records its requests and replies.

    Args:
        sampler: Wrapped sampler.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler, self.max_context = sampler, sampler.max_context
        self.exchanges: list[Exchange] = []
        """Requests and replies since the list was last emptied."""

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the wrapped sampler."""
        return getattr(self._sampler, name)

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Samples with the wrapped sampler and records copies of requests and replies."""
        sent = [dataclasses.replace(request, ids=request.ids.copy()) for request in requests]
        replies = self._sampler.sample(requests)
        received = [dataclasses.replace(r, ids=r.ids.copy(), logp=r.logp.copy()) for r in replies]
        self.exchanges += zip(sent, received, strict=True)
        return replies


class WatchedRollout:
    """A rollout that replaces rewards by made-up ones, so that every formula has different numbers to compare.

    A model that never succeeds, or always does, gets equal rewards everywhere, which hide most faults. The made-up
    rewards give groups different means. One group has equal rewards, one episode counts as failed and one as cut off.

    Args:
        rollout: Wrapped rollout, which runs the episodes.
        recipe: Recipe with the group sizes and the least reward of ``method: rejection``.
        validated: Called with the questions and episodes of a validation; these episodes keep their rewards.
    """

    def __init__(
        self, rollout: Rollout, recipe: Recipe, validated: Callable[[Sequence[Question], list[Episode]], None]
    ) -> None:
        self._rollout, self._recipe, self._validated = rollout, recipe, validated
        self.questions: dict[str, Question] = {}
        """All questions of the training so far, by id."""
        self.begin()

    def begin(self) -> None:
        """Starts a new step and clears the records of the last one."""
        self.rounds: list[list[Question]] = []
        """Questions of each call of the rollout in the step."""
        self.sampled: list[Episode] = []
        """Episodes of the step, with the rewards of the environment."""
        self.episodes: list[Episode] = []
        """Episodes of the step, with made-up rewards."""

    def __call__(self, questions: Sequence[Question], attempts: int, step: int, greedy: bool) -> list[Episode]:
        """Runs episodes, `attempts` for each question, and returns them; in training with made-up rewards."""
        sampled = self._rollout(questions, attempts, step, greedy)
        if greedy:
            self._validated(questions, sampled)
            return sampled
        self.rounds.append(list(questions))
        self.questions |= {question.id: question for question in questions}
        episodes = [
            self._made_up(episode, number // attempts, number % attempts, len(questions), attempts)
            for number, episode in enumerate(sampled)
        ]
        self.sampled += sampled
        self.episodes += episodes
        return episodes

    def give_up(self) -> None:
        """Does nothing: the steps are checked one after the other."""

    def _made_up(self, episode: Episode, group: int, attempt: int, groups: int, attempts: int) -> Episode:
        """Returns a copy of an episode with another reward, and with calls of other answers and legality."""
        level = 0.25 if group == groups - 1 and groups > 2 else group / 2 + (3 * attempt + group) % 5 / 4
        if (least := self._recipe.method.least_reward) is not None:
            level += least - 0.5
        stop = episode.stop_reason
        if group == 0 and attempt == attempts - 1 > max(1, self._recipe.advantage.min_group - 1):
            stop = "retriever_error"
        elif group == 1 and attempt == 0:
            stop = "context"
        answers = ("no answer at all", self.questions[episode.question_id].answers[0])
        calls = [
            dataclasses.replace(call, legal=n % 3 > 0, answer=None if call.answer is None else answers[n % 2])
            for n, call in enumerate(episode.calls, attempt)
        ]
        searches = episode.searches or self._searches(episode, attempt)
        scores = episode.scores | {"em": float((group + attempt) % 2)}
        changes: dict[str, Any] = {"stop_reason": stop, "calls": calls, "searches": searches, "scores": scores}
        return dataclasses.replace(episode, reward=level, **changes)

    def imagined(self, questions: Sequence[Question]) -> list[tuple[Episode, Episode]]:
        """Returns made-up attempts at questions, each with the sampled episode whose tokens it has."""
        pairs, attempts = [], self._recipe.rollout.attempts
        self.questions |= {question.id: question for question in questions}
        for number in range(len(questions) * attempts):
            base = self.sampled[number % len(self.sampled)]
            group, attempt = divmod(number, attempts)
            name = questions[group].id
            like = dataclasses.replace(
                base, id=f"{name}#{attempt}@imagined", question_id=name, attempt=attempt, group_uid=f"imagined/{name}"
            )
            other = self._made_up(like, group % 3, attempt, 4, attempts)
            pairs.append((dataclasses.replace(other, searches=self._searches(like, number)), base))
        return pairs

    def _searches(self, episode: Episode, number: int) -> list[Searched]:
        """Returns made-up searches that return gold pages, by one of the patterns in `WAYS`."""
        question = self.questions[episode.question_id]
        facts = [f"{fact.subject} {fact.relation} {fact.object}" for fact in question.evidences or ()] or [""]
        titles = question.gold_titles or ("None",)
        pages = [Passage(f"{question.id}/{n}", t, facts[n % len(facts)]) for n, t in enumerate(titles)]
        turns = [call.turn for call in episode.calls if not call.prefix] or [1]
        turns += [turns[-1] + more for more in (1, 2, 3)]
        return [
            Searched(turns[index], pages[page % len(pages)].title, (Hit(pages[page % len(pages)], 1.0),))
            for index, page in WAYS[number % len(WAYS)]
        ]


class WatchedLearner:
    """A learner that records prepared samples and passes each update to the checks.

    Args:
        learner: Wrapped learner.
        learnt: Called with (samples, step, update), where `update` is a function that runs the update.
    """

    def __init__(
        self, learner: Learner, learnt: Callable[[Sequence[Sample], int, Callable[[], Metrics]], Metrics]
    ) -> None:
        self._learner, self._learnt = learner, learnt
        self.prepared: list[Sample] | None = None
        """Result of the last call of `prepare`; None before the first, or if it was reset."""

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the wrapped learner."""
        return getattr(self._learner, name)

    def prepare(self, samples: Sequence[Sample]) -> list[Sample]:
        """Adds log-probs and values to samples, and records them; see `Learner.prepare`."""
        self.prepared = self._learner.prepare(samples)
        return self.prepared

    def learn(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Updates the models and checks the updates; see `Learner.learn`."""
        return self._learnt(samples, step, lambda: self._learner.learn(samples, step))

    def save(self, folder: Path) -> None:
        """Writes nothing: the checked steps leave no checkpoint."""

    def close(self) -> None:
        """Does nothing: the self-check closes the learner."""


class GradientWatch:
    """Recorder of the clipped gradients of the first and the last update since the last call of `take`.

    Args:
        updater: Updater whose optimizer steps are watched.
    """

    def __init__(self, updater: Updater) -> None:
        # an adapter's weights have the names of peft's files
        names = {id(weight): name for name, weight in updater.model.named_parameters()}
        plain = {key: f"base_model.model.{name.replace('.default.', '.')}" for key, name in names.items()}
        self._names = {key: plain[key] if ".lora_" in name else name for key, name in names.items()}
        self._kept: list[dict[str, Tensor]] = []
        updater.optimizer.register_step_pre_hook(self._keep)

    def _keep(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        weights = [weight for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None]
        gradients = {self._names[id(weight)]: weight.grad.detach().float().cpu().clone() for weight in weights}
        self._kept = [*self._kept[:1], gradients]

    def take(self) -> list[dict[str, Tensor]]:
        """Returns the recorded gradients by weight, of the first and the last update, and clears them."""
        gradients, self._kept = self._kept, []
        return gradients


def watch(learner: Learner, key: str) -> tuple[GradientWatch | None, GradientWatch | None]:
    """Returns recorders for the policy and the critic of a model key; None if missing or run by other processes."""
    local = learner.learners[key] if isinstance(learner, KeyedLearner) else learner
    if not isinstance(local, LocalLearner):
        return None, None
    critic = None if local.critic is None else GradientWatch(local.critic.updater)
    return GradientWatch(local.policy.updater), critic


def by_episode(exchanges: Sequence[Exchange]) -> dict[str, list[Exchange]]:
    """Groups exchanges by ``QUESTION#ATTEMPT``, in their order; those of a revised episode belong to it."""
    grouped: dict[str, list[Exchange]] = defaultdict(list)
    for request, reply in exchanges:
        grouped[re.sub(r"(#\d+)~\d+\.\d+$", r"\1", request.episode)].append((request, reply))
    return grouped
