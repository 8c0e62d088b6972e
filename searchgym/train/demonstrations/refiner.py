"""Demonstrations of a refiner: attempts of a model, and for each the number of the first flawed turn, or 0."""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import numpy as np

from searchgym.agents.base import LoadedAgent, load_agent
from searchgym.agents.teams.refined import REFINER, Refined
from searchgym.envs.task import Task
from searchgym.errors import DataError, UsageError
from searchgym.records import Call, Context, Episode, Question, Span
from searchgym.rollout.tokens import TokenFormat
from searchgym.train.credit.evidence import useful_searches
from searchgym.train.demonstrations.oracle import DemonstrationSet, context_lengths
from searchgym.train.demonstrations.play import MODEL_KEY, response_after, turn_ids

AGENT: Final = "search-r2"
"""Agent whose refiner is demonstrated."""


def first_flawed_turn(episode: Episode, question: Question) -> int:
    """Returns the number of the first flawed turn of an attempt, or 0 if its answer is right.

    Flawed is the first turn that searched without finding a new gold page, or else the last turn.
    """
    if episode.scores.get("em", episode.reward) >= 1 or not episode.turns:
        return 0
    useful: defaultdict[int, list[bool]] = defaultdict(list)
    for search, of_use in zip(episode.searches, useful_searches(episode, question), strict=True):
        useful[search.turn].append(of_use)
    return next((turn for turn, searches in sorted(useful.items()) if not any(searches)), episode.turns)


def demonstrate_refiner(
    task: Task, form: TokenFormat, attempts: Iterable[Episode], count: int, seed: int = 0, max_tokens: int = 2048
) -> DemonstrationSet:
    """Generates demonstrations of `search-r2` from a model's attempts.

    A right attempt is demonstrated whole, followed by the refiner's 0; of a wrong one only the refiner's output is. As
    many right attempts as wrong ones are taken, in an order that the seed draws.

    Args:
        task: Task with the questions, which name their gold pages.
        form: Token format of the model that will learn from them, and that made the attempts.
        attempts: Episodes of the agent that search-r2 wraps, with tokens.
        count: Maximum number of demonstrations.
        seed: Seed of the order.
        max_tokens: Maximum length of a context in tokens; longer ones are counted and left out.

    Raises:
        DataError: An attempt is at a question that the task lacks.
        UsageError: There are no right attempts, or no wrong ones.
    """
    agent, demonstrated, sides = load_agent(AGENT), DemonstrationSet(), (list[Episode](), list[Episode]())
    for attempt in attempts:
        question = task.by_id.get(attempt.question_id)
        if question is None:
            raise DataError(f"episode {attempt.id} is at a question that the task lacks: give that run's questions")
        episode = _demonstration(attempt, question, form, agent)
        if not question.gold_titles:
            demonstrated.counts["no gold pages named"] += 1
        elif max(context_lengths(episode)) > max_tokens:
            demonstrated.counts[f"longer than {max_tokens} tokens"] += 1
        else:
            sides[len(episode.calls) > 1].append(episode)
    wrong, right = (random.Random(f"{seed} {AGENT}").sample(side, len(side)) for side in sides)
    each = min(len(right), len(wrong), count // 2)
    if not each:
        raise UsageError(f"{len(right)} right and {len(wrong)} wrong attempts give no demonstration: both are needed")
    demonstrated.episodes += [episode for pair in zip(right[:each], wrong[:each], strict=True) for episode in pair]
    demonstrated.counts |= {"right": each, "wrong": each}
    return demonstrated


def _demonstration(attempt: Episode, question: Question, form: TokenFormat, agent: LoadedAgent) -> Episode:
    """Returns an attempt, if it is right, with the refiner's output; else the refiner's output alone."""
    assert isinstance(agent.workflow, Refined)
    turn = first_flawed_turn(attempt, question)
    fields = {"question": question.text, "trace": agent.workflow.trace(attempt)}
    prompt = form.prompt_ids(agent.roles[REFINER].parts(fields, form.protocol.instructions()))
    text = f"<answer>{turn}</answer>"
    reply = turn_ids(response_after(form.thought_after(None), text), form, "eos")
    spans = [Span("prompt", prompt), Span("model", reply, np.zeros(len(reply), np.float32))]
    call = Call(0, len(prompt), len(prompt) + len(reply), REFINER, MODEL_KEY, attempt.turns + 1, text=text)
    if turn:
        return dataclasses.replace(attempt, agent=AGENT, contexts=[Context(None, 0, spans)], calls=[call])
    calls = [dataclasses.replace(call, model_key=MODEL_KEY) for call in attempt.calls]
    whole = dataclasses.replace(attempt, agent=AGENT, calls=calls, contexts=list(attempt.contexts))
    whole.append([call], [Context(None, 0, spans)])
    return whole
