"""Evaluation of the tiny model on unseen worlds: reading given pages, and searching on its own."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import torch
from tiny_lessons import exercise
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from searchgym.agents.base import load_agent
from searchgym.envs.task import Task
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Episode, Question
from searchgym.rollout.engine import Engine
from searchgym.rollout.models import Model
from searchgym.rollout.tokens import TokenFormat
from searchgym.rollout.transformers.sampler import TransformersSampler
from searchgym.train.algorithms.samples import Sample
from searchgym.train.demonstrations.play import AGENT, ROLE
from searchgym.train.demonstrations.teams import TEAMS
from searchgym.train.demonstrations.worlds import ReadingTest, world_task

EXERCISE_WORLD: Final = WorldSpec("simple", size=60, seed=2, split="validation")

TEAM_QUESTIONS: Final = 400
"""Number of questions for each team; some roles are called only for one question in five."""

Scores = dict[str, float]


def model_copy(model: PreTrainedModel) -> Any:
    """Returns a copy of a model, in evaluation mode."""
    copy = cast(Any, type(model))(model.config).to(model.device).eval()
    copy.load_state_dict(model.state_dict())
    return copy


class Examiner:
    """Measures reading and searching on worlds that training has not seen.

    Args:
        specs: Worlds to test on, by the name of their scores.
        tokenizer: Tokenizer of the model.
        form: Token format of the model.
    """

    def __init__(self, specs: Mapping[str, WorldSpec], tokenizer: PreTrainedTokenizerBase, form: TokenFormat) -> None:
        self._tokenizer, self._form = tokenizer, form
        world, rng = build_world(EXERCISE_WORLD), random.Random("examination")
        self._exercises = {pages: [exercise(world, pages, form, rng) for _ in range(60 // pages)] for pages in (1, 3)}
        self._tests = {name: ReadingTest(build_world(spec), form) for name, spec in specs.items()}

    def examine(self, model: PreTrainedModel, search: bool = True) -> dict[str, dict[str, Scores]]:
        """Returns EM by hops: ``{name: {"reading": {"1": 0.9, ...}, "search": {...}}}``.

        In ``reading``, the searches of a demonstration return the gold pages, and the model writes only the last turn.
        In ``search``, the model searches greedily. ``{"exercises": {"copying": {"1": 0.9, "3": 0.8}}}`` is the share of
        right answers in exercises, by number of pages.

        Args:
            model: Model to evaluate.
            search: Whether to measure ``search``, which is useless before training on whole episodes.

        Returns:
            Scores by world, kind and hops.

        """
        sampler = TransformersSampler(model_copy(model), self._tokenizer)  # it changes how a model computes attention
        copying = {str(pages): answered(model, samples) for pages, samples in self._exercises.items()}
        scores: dict[str, dict[str, Scores]] = {"exercises": {"copying": copying}}
        for name, test in self._tests.items():
            read = by_hops(zip(test.task.questions, test.scores(sampler), strict=True))
            scores[name] = {"reading": read} | ({"search": self._search(sampler, test.task)} if search else {})
        return scores

    def _search(self, sampler: TransformersSampler, task: Task) -> Scores:
        """Returns EM of greedy episodes."""
        episodes: list[Episode] = []
        engine = Engine(task, load_agent(AGENT), {ROLE: Model.over("tiny", sampler, self._form)})
        asyncio.run(engine.run(task.questions, episodes.append))
        return by_hops((task.by_id[episode.question_id], episode.scores["em"]) for episode in episodes)


def examine_teams(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, form: TokenFormat, spec: WorldSpec
) -> dict[str, Any]:
    """Returns EM and the share of legal calls of each shipped agent with a model behind every role.

    Args:
        model: Model to evaluate.
        tokenizer: Tokenizer of the model.
        form: Token format of the model.
        spec: World whose first questions are used, once each, at temperature 1.

    Returns:
        ``{agent: {"em": 0.2, "legal": {role: 0.9}}}``.
    """
    task, found = world_task(build_world(spec)), dict[str, Any]()
    for name in ("praise", *TEAMS):
        agent, episodes = load_agent(name), list[Episode]()
        asked = Model.over("tiny", TransformersSampler(model_copy(model), tokenizer), form)
        engine = Engine(task, agent, dict.fromkeys(agent.roles, asked), temperature=1.0, training=True)
        asyncio.run(engine.run(task.questions[:TEAM_QUESTIONS], episodes.append))
        legal: defaultdict[str, list[bool]] = defaultdict(list)
        for call in (call for episode in episodes for call in episode.calls):
            legal[call.role].append(call.legal)
        shares = {role: round(sum(own) / len(own), 4) for role, own in sorted(legal.items())}
        em = round(sum(episode.scores["em"] for episode in episodes) / len(episodes), 4)
        found[name] = {"em": em, "legal": shares}
    return found


def answered(model: PreTrainedModel, samples: Sequence[Sample]) -> float:
    """Returns the share of answers of which every token is the model's likeliest one under teacher forcing.

    Args:
        model: Model to evaluate.
        samples: Samples in which each run of trained tokens is an answer.
    """
    right: list[bool] = []
    for sample in samples:
        with torch.no_grad():
            logits = model(input_ids=torch.from_numpy(sample.ids[None].astype(np.int64)).to(model.device)).logits[0]
        hit = np.concatenate([[True], logits[:-1].argmax(-1).cpu().numpy() == sample.ids[1:]])
        starts = np.flatnonzero(sample.mask & ~np.concatenate([[False], sample.mask[:-1]]))
        stops = np.flatnonzero(sample.mask & ~np.concatenate([sample.mask[1:], [False]])) + 1
        right += [bool(hit[start:stop].all()) for start, stop in zip(starts, stops, strict=True)]
    return round(sum(right) / len(right), 4)


def by_hops(scored: Iterable[tuple[Question, float]]) -> Scores:
    """Returns the mean score by number of hops, and over all questions (``"all"``)."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for question, score in scored:
        values[str(question.metadata["hops"])].append(score)
        values["all"].append(score)
    return {hops: round(sum(own) / len(own), 4) for hops, own in sorted(values.items())}
