"""Functions that all adapters share: shared tasks, prompts, and summaries of finished episodes."""

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
"""Default agent, whose prompt asks the question."""


@dataclass(frozen=True, slots=True)
class _Shared:
    """Task of a process, with its card and the retrieval batcher of all its episodes."""

    card: EnvCard
    task: Task
    retrieval: Batcher[Queries, list[list[Hit]]]


_shared: dict[tuple[str, str], _Shared] = {}
_loading = threading.Lock()


def shared_task(env: str, options: Mapping[str, Any] | None = None) -> Task:
    """Returns the task of an environment, which is loaded once per process and shared by all episodes.

    Args:
        env: An id, a short name or a path to a card, as for ``searchgym eval``.
        options: See `TaskOptions`; only values of JSON.

    Raises:
        UsageError: An option is not a value of JSON: register an environment with it instead.
        SearchGymError: The environment cannot be loaded; see `load_task`.
    """
    return _load(env, options).task


def _load(env: str, options: Mapping[str, Any] | None) -> _Shared:
    plain_options: dict[str, Any] = _plain(options or {})
    try:
        key = (full_id(env), json.dumps(plain_options, sort_keys=True))
    except TypeError as error:
        raise UsageError(
            f"{env}: options of an adapter must be values of JSON ({error}): pass others to "
            "searchgym.register(id, ...), and the id to the adapter"
        ) from None
    card = find_env(key[0])
    with _loading:
        shared = _shared.get(key)
        if shared is None or shared.card is not card:  # the id was registered again, for example in a notebook
            task = load_task(card, **(env_options(env, plain_options)))
            batcher = retrieval_batcher(task.retriever, task.rules.top_k, task.rules.deadline)
            shared = _shared[key] = _Shared(card, task, batcher)
        return shared


def _plain(value: Any) -> Any:
    """Converts mappings and sequences of a host's configuration, such as OmegaConf's, to dicts and lists."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def shared_engine(
    env: str, options: Mapping[str, Any] | None, agent: LoadedAgent, models: Mapping[str, Model]
) -> Engine:
    """Returns an episode engine of an environment; all such engines share search batches.

    Args:
        env: See `shared_task`.
        options: See `shared_task`.
        agent: The agent.
        models: Models by role name.
    """
    shared = _load(env, options)
    engine = Engine(shared.task, agent, models)
    engine.retrieval = shared.retrieval
    return engine


def prompts(task: Task, agent: str = AGENT) -> Callable[[Question], str]:
    """Returns a function from a question to the first message of its episode.

    Args:
        task: The task; the message explains its action grammar.
        agent: Agent whose prompt is used; it must have a single role, with the fields ``question`` and
            ``instructions``.

    Raises:
        UsageError: The agent has another number of roles.
    """
    roles = load_agent(agent).roles
    if len(roles) != 1:
        raise UsageError(f"agent {agent} has {len(roles)} roles that use a model: this adapter's episodes have one")
    (role,) = roles.values()
    instructions = task.rules.protocol.instructions()
    return lambda question: role.render(question=question.text, instructions=instructions)


def rows(env: str, options: Mapping[str, Any] | None = None, agent: str = AGENT) -> Iterator[dict[str, Any]]:
    """Yields one row per question for a trainer's data set, with ``question_id`` and ``prompt`` (one user message).

    Args:
        env: See `shared_task`.
        options: See `shared_task`; the adapter needs the same options.
        agent: See `prompts`.
    """
    task = shared_task(env, options)
    ask = prompts(task, agent)
    for question in task.questions:
        yield {"question_id": question.id, "prompt": [{"role": "user", "content": ask(question)}]}


def question_of(row: Mapping[str, Any]) -> str:
    """Returns the question's id in a trainer's data row: ``question_id``, at the top or in ``extra_info``.

    Raises:
        UsageError: The row has no question id.
    """
    question_id = row.get("question_id", (row.get("extra_info") or {}).get("question_id"))
    if question_id is None:
        raise UsageError(
            f"a row has no question_id, only {', '.join(sorted(row)) or 'nothing'}: create rows with rows()"
        )
    return str(question_id)


def ended(info: Mapping[str, Any], reward: float) -> dict[str, Any]:
    """Returns the summary of a finished episode of `SearchEnv`, from the info and the reward of its last step.

    Returns:
        ``reward``, the scores (``em``, ``f1``, ...), ``searches``, ``turns``, ``stop_reason``, ``answer``, and
        ``error`` if retrieval failed.
    """
    summary = {name: value for name, value in info.items() if name not in ("hits", "turn", "turns_left", "action")}
    return {"reward": reward, "turns": info["turn"], **summary}


def of_episode(episode: Episode) -> dict[str, Any]:
    """Returns the summary of an episode of the engine, with the same names as `ended`."""
    summary: dict[str, Any] = {
        "reward": episode.reward,
        "turns": episode.turns,
        "question_id": episode.question_id,
        "searches": len(episode.searches),
        "stop_reason": episode.stop_reason or "",
        **episode.scores,
        "answer": "" if episode.answer is None else episode.answer.text,
    }
    return summary if episode.error is None else summary | {"error": episode.error}


def answered(task: Task, question_id: str, text: str) -> dict[str, Any]:
    """Returns the summary of an answer without an episode, for example from a host's agent with a search tool.

    Args:
        task: Task whose reward is used.
        question_id: Question that was answered.
        text: Last text of the agent; the answer is its ``<answer>``, or the whole text.
    """
    action = task.rules.protocol.parse(text)
    answer = action if isinstance(action, Answer) else Answer(text.strip())
    state, _ = begin(State(task.find(question_id)), answer, task.rules)
    reward, scores = score_episode(task.reward, state)
    return {"reward": reward, "question_id": question_id, "stop_reason": "answer", **scores, "answer": answer.text}


def numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers in a summary of an episode: reward, scores, searches, turns."""
    return {name: float(value) for name, value in summary.items() if isinstance(value, (int, float))}
