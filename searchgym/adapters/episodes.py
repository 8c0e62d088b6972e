"""Parts that all adapters share: tasks that episodes share, prompts, and what is told of an episode that ended."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from searchgym.agents.base import LoadedAgent, load_agent
from searchgym.envs.cards import EnvCard
from searchgym.envs.core import State, begin
from searchgym.envs.registration import env_options, find_env, full_id
from searchgym.envs.reward import score_episode
from searchgym.envs.task import Task, load_task
from searchgym.errors import UsageError
from searchgym.records import Answer, Episode, Hit, Question
from searchgym.rollout.batcher import Batcher, Queries, retrieval_batcher
from searchgym.rollout.engine import Engine
from searchgym.rollout.models import Model

AGENT: Final = "search-r1"
"""Agent whose prompt asks the question, unless another is named."""


@dataclass(frozen=True, slots=True)
class _Shared:
    """Task of a process, with the card that it was loaded from and the batcher that all its episodes search by."""

    card: EnvCard
    task: Task
    retrieval: Batcher[Queries, list[list[Hit]]]


_shared: dict[tuple[str, str], _Shared] = {}
_loading = threading.Lock()


def shared_task(env: str, options: Mapping[str, Any] | None = None) -> Task:
    """Returns the task of an environment, loaded once per process: questions and index are shared by all episodes.

    Args:
        env: An id, a short name or a path to a card, as ``searchgym eval`` takes it.
        options: See `TaskOptions`; values that JSON can hold.

    Raises:
        UsageError: An option that JSON cannot hold: register an environment with it instead.
        SearchGymError: Whatever is wrong with the environment; see `load_task`.
    """
    return _load(env, options).task


def _load(env: str, options: Mapping[str, Any] | None) -> _Shared:
    given: dict[str, Any] = _plain(options or {})
    try:
        key = (full_id(env), json.dumps(given, sort_keys=True))
    except TypeError as error:
        raise UsageError(
            f"{env}: options of an adapter are values that JSON can hold ({error}): give the others to "
            "searchgym.register(id, ...), and the adapter the id"
        ) from None
    card = find_env(key[0])
    with _loading:
        found = _shared.get(key)
        if found is None or found.card is not card:  # the id was registered again, in a notebook say
            task = load_task(card, **(env_options(env, given)))
            batcher = retrieval_batcher(task.retriever, task.rules.top_k, task.rules.deadline)
            found = _shared[key] = _Shared(card, task, batcher)
        return found


def _plain(value: Any) -> Any:
    """Returns mappings and sequences of a host's configuration, such as OmegaConf's, as dicts and lists."""
    if isinstance(value, Mapping):
        return {str(name): _plain(own) for name, own in value.items()}
    return [_plain(own) for own in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def shared_engine(
    env: str, options: Mapping[str, Any] | None, agent: LoadedAgent, models: Mapping[str, Model]
) -> Engine:
    """Returns an episode engine of an environment; searches of all such engines share batches.

    Args:
        env: See `shared_task`.
        options: See `shared_task`.
        agent: The agent.
        models: Role name to model.
    """
    shared = _load(env, options)
    engine = Engine(shared.task, agent, models)
    engine.retrieval = shared.retrieval
    return engine


def prompts(task: Task, agent: str = AGENT) -> Callable[[Question], str]:
    """Returns a function from a question to the first message of its episode.

    Args:
        task: The task, whose action grammar the message explains.
        agent: Agent whose prompt asks: one with a single role and the fields ``question`` and ``instructions``.

    Raises:
        UsageError: The agent has another number of roles.
    """
    roles = load_agent(agent).roles
    if len(roles) != 1:
        raise UsageError(f"agent {agent} has {len(roles)} roles that ask a model: this adapter's episodes have one")
    (role,) = roles.values()
    instructions = task.rules.protocol.instructions()
    return lambda question: role.render(question=question.text, instructions=instructions)


def rows(env: str, options: Mapping[str, Any] | None = None, agent: str = AGENT) -> Iterator[dict[str, Any]]:
    """Yields one row per question for a trainer's data set: ``question_id`` and ``prompt``, one user message.

    Args:
        env: See `shared_task`.
        options: See `shared_task`; the adapter needs the same.
        agent: See `prompts`.
    """
    task = shared_task(env, options)
    ask = prompts(task, agent)
    for question in task.questions:
        yield {"question_id": question.id, "prompt": [{"role": "user", "content": ask(question)}]}


def question_of(row: Mapping[str, Any]) -> str:
    """Returns the question's id in a trainer's data row: ``question_id``, at the top or in ``extra_info``.

    Raises:
        UsageError: The row has none.
    """
    question_id = row.get("question_id", (row.get("extra_info") or {}).get("question_id"))
    if question_id is None:
        raise UsageError(f"a row has no question_id, only {', '.join(sorted(row)) or 'nothing'}: make it by rows()")
    return str(question_id)


def ended(info: Mapping[str, Any], reward: float) -> dict[str, Any]:
    """Returns what is told of an episode that `SearchEnv` ended, given the info and the reward of its last step.

    Returns:
        ``reward``, the scores (``em``, ``f1``, ...), ``searches``, ``turns``, ``stop_reason``, ``answer``, and
        ``error`` where retrieval failed.
    """
    told = {name: value for name, value in info.items() if name not in ("hits", "turn", "turns_left", "action")}
    return {"reward": reward, "turns": info["turn"], **told}


def of_episode(episode: Episode) -> dict[str, Any]:
    """Returns what is told of an episode that the engine ran, under the same names as `ended`."""
    told: dict[str, Any] = {
        "reward": episode.reward,
        "turns": episode.turns,
        "question_id": episode.question_id,
        "searches": len(episode.searches),
        "stop_reason": episode.stop_reason or "",
        **episode.scores,
        "answer": "" if episode.answer is None else episode.answer.text,
    }
    return told if episode.error is None else told | {"error": episode.error}


def answered(task: Task, question_id: str, text: str) -> dict[str, Any]:
    """Returns what is told of an answer without an episode, such as that of a host's own agent with a search tool.

    Args:
        task: Task whose reward is given.
        question_id: Question that was answered.
        text: Last text of the agent: the answer is its ``<answer>``, or all of it.
    """
    action = task.rules.protocol.parse(text)
    answer = action if isinstance(action, Answer) else Answer(text.strip())
    state, _ = begin(State(task.find(question_id)), answer, task.rules)
    reward, scores = score_episode(task.reward, state)
    return {"reward": reward, "question_id": question_id, "stop_reason": "answer", **scores, "answer": answer.text}


def numbers(told: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of what is told of an episode: reward, scores, searches, turns."""
    return {name: float(value) for name, value in told.items() if isinstance(value, (int, float))}
