"""Shared code of single and vector environments: spaces, turns, infos, counters and argument checks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from searchgym.envs.cards import EnvCard
from searchgym.envs.core import State, begin, fail, finish
from searchgym.envs.options import TaskOptions
from searchgym.envs.reward import score_episode
from searchgym.envs.spaces import UnicodeText
from searchgym.envs.task import Task, load_task
from searchgym.errors import RetrieverError, UnknownNameError, UsageError
from searchgym.options import read
from searchgym.options.cards import find_card, load_card
from searchgym.protocol import MAX_ACTION_CHARS, MAX_RESULT_CHARS
from searchgym.records import Answer, Cite, Find, More, Open, Question, Search
from searchgym.retrieval.retriever import retrieve

MAX_OBSERVATION_CHARS = MAX_RESULT_CHARS + 2**10
"""Upper bound of an observation's length, in characters, including tags and notices."""


@dataclass(slots=True)
class Stats:
    """Counters and times of an environment since its creation; not part of `info`, which is deterministic."""

    episodes: int = 0
    """Number of episodes started."""
    steps: int = 0
    """Number of actions executed."""
    retriever_calls: int = 0
    """Number of calls to the retriever; one call may contain many queries."""
    queries: int = 0
    """Number of queries sent."""
    retriever_errors: int = 0
    """Number of episodes that ended with a failed retrieval."""
    retriever_seconds: float = 0.0
    """Wall-clock seconds spent in the retriever."""


def spaces_for(task: Task) -> tuple[UnicodeText, UnicodeText]:
    """Returns the observation space and the action space of a task."""
    protocol = task.rules.protocol
    samples = [protocol.write(Search(("{}",))), protocol.write(Answer("{}")), "{}"]
    samples += [protocol.write(Search(("{}",), source)) for source in protocol.sources]
    samples += [protocol.write(Open("{}")), protocol.write(More())] if protocol.browse else []
    samples += [protocol.write(Find("{}"))] if protocol.find else []
    samples += [protocol.write(Cite("{}", "{}"))] if protocol.cite else []
    return UnicodeText(MAX_OBSERVATION_CHARS), UnicodeText(MAX_ACTION_CHARS, samples)


def step_info(task: Task, state: State) -> dict[str, Any]:
    """Returns the Gymnasium info of a state; it is deterministic, so it has no times or random ids."""
    action = "" if state.action is None else type(state.action).__name__.lower()
    info: dict[str, Any] = {
        "question_id": state.question.id,
        "turn": state.turn,
        "turns_left": task.rules.max_turns - state.turn,
        "searches": len(state.searches),
        "action": action,
        "hits": [
            {"id": hit.passage.id, "title": hit.passage.title, "score": hit.score}
            for s in state.searches
            if s.turn == state.turn
            for hit in s.hits
        ],
        "stop_reason": state.stop_reason or "",
    }
    rules = task.rules
    info |= {} if rules.pages is None else {"opens": len(state.opens)}
    info |= {"cites": len(state.cites)} if rules.protocol.cite else {}
    return info if rules.token_budget is None else info | {"tokens_left": max(rules.token_budget - state.tokens, 0)}


def first_info(task: Task, state: State) -> dict[str, Any]:
    """Returns the info of a state before the first action, with a description of the action grammar."""
    return step_info(task, state) | {"instructions": task.rules.protocol.instructions()}


def outcome(task: Task, state: State) -> tuple[float, bool, bool, dict[str, Any], dict[str, float]]:
    """Returns the result of a turn: reward, terminated, truncated, info and scores.

    Raises:
        RewardError: The reward function raised, or returned something other than a finite number.
    """
    info, reward, scores = step_info(task, state), 0.0, dict[str, float]()
    if state.done:
        reward, scores = score_episode(task.reward, state)
        info |= {**scores, "answer": state.answer_text}
        info |= {} if state.error is None else {"error": state.error}
    failed = state.stop_reason == "retriever_error"
    return reward, state.done and not failed, failed, info, scores


def draw_question(task: Task, rng: Any, question_id: object) -> Question:
    """Returns the question with an id, or one drawn with the environment's random generator if the id is None."""
    if question_id is not None:
        return task.find(str(question_id))
    return task.questions[int(rng.integers(len(task.questions)))]


def take_turns(task: Task, acting: Sequence[tuple[State, object]], stats: Stats) -> list[tuple[State, str]]:
    """Executes one turn in each of several episodes, with one batched call per retriever.

    A retrieval that fails past its deadline ends every episode that took part in it.

    Args:
        task: Task of the episodes.
        acting: State of each episode, and the action that a user passed to `step`.
        stats: Counters, which are updated.

    Returns:
        The new state and the observation of each episode.

    Raises:
        EpisodeError: An episode has ended.
        UsageError: An action is not a string.
    """
    rules = task.rules
    begun = []
    for state, action in acting:
        if not isinstance(action, str):
            raise UsageError(f"an action is a string such as '<search>query</search>', got {type(action).__name__}")
        begun.append(begin(state, rules.protocol.parse(action), rules))
    stepped = {i: finish(state, [], rules) for i, (state, queries) in enumerate(begun) if not queries}
    for source in dict.fromkeys(state.source for state, queries in begun if queries):
        asking = {i: pair for i, pair in enumerate(begun) if pair[1] and pair[0].source == source}
        all_queries = [query for _, queries in asking.values() for query in queries]
        ids = [state.question.id for state, queries in asking.values() for _ in queries]
        start = time.perf_counter()
        try:
            hits = iter(retrieve(task.source(source), ids, all_queries, rules.top_k, rules.deadline))
        except RetrieverError as error:
            stats.retriever_errors += len(asking)
            stepped |= {i: (fail(state, str(error)), "") for i, (state, _) in asking.items()}
        else:
            for i, (state, queries) in asking.items():
                stepped[i] = finish(state, [next(hits) for _ in queries], rules)
        finally:
            stats.retriever_calls += 1
            stats.queries += len(all_queries)
            stats.retriever_seconds += time.perf_counter() - start
    return [stepped[i] for i in range(len(begun))]


def resolve(card: EnvCard | Task | Mapping[str, Any] | str, options: TaskOptions) -> Task:
    """Returns the task for a card in any of the forms that `SearchEnv` accepts.

    Raises:
        UsageError: Options were passed with a loaded task.
    """
    if isinstance(card, Task):
        if options:
            raise UsageError(f"a Task is complete: leave out {', '.join(options)}")
        return card
    if isinstance(card, str):
        card = load_card(EnvCard, find_card("envs", card))
    if not isinstance(card, EnvCard):
        card = read(EnvCard, card, "card")
    return load_task(card, **options)


def reset_options(options: dict[str, Any] | None, accepted: tuple[str, ...]) -> dict[str, Any]:
    """Checks the names of the options of `reset` and returns the options; an empty dict for None.

    Raises:
        UnknownNameError: An option does not exist.
    """
    for name in options or {}:
        if name not in accepted:
            raise UnknownNameError("reset option", str(name), accepted)
    return options or {}
