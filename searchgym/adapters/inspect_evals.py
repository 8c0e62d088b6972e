"""Adapter to Inspect AI: environments of this package as tasks, agents as solvers, scores as a scorer.

``inspect eval searchgym/search -T env=World --model PROVIDER/NAME`` evaluates any model that Inspect supports. The
episode engine runs the agent's workflow in the sample's asyncio task, so every call of the model is in Inspect's
transcript and counts against its limits, and searches of all samples share batches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from searchgym.adapters.episodes import AGENT, answered, numbers, of_episode, shared_engine, shared_task
from searchgym.adapters.hosts import chat_model
from searchgym.agents.base import load_agent, with_max_tokens
from searchgym.errors import drawable
from searchgym.packages import check
from searchgym.protocol import Protocol
from searchgym.records import Episode
from searchgym.rollout.api.replies import ServerReply, read_choice
from searchgym.rollout.models import Loading, Model, load_models, parse_models
from searchgym.rollout.sampler import Finish, Sampling

check("inspect-ai")
from inspect_ai import Task, task  # noqa: E402 (after the check, which names the version that works)
from inspect_ai.dataset import MemoryDataset, Sample  # noqa: E402
from inspect_ai.model import (  # noqa: E402
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageUser,
    ContentReasoning,
    GenerateConfig,
    ModelOutput,
    get_model,
)
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr  # noqa: E402
from inspect_ai.solver import Generate, Solver, TaskState, solver  # noqa: E402

TOLD: Final = "searchgym"
"""Key of the sample's store under which the solver saves the episode's summary."""
FINISH: Final[dict[str, Finish]] = {"max_tokens": "length", "model_length": "context"}
"""This package's finish reasons by Inspect's stop reasons; all others mean ``eos``."""


@task
def search(
    env: str = "Demo",
    agent: str = AGENT,
    model: str | None = None,
    options: dict[str, Any] | None = None,
    max_tokens: int | None = None,
) -> Task:
    """Inspect task: questions of an environment, answered by a search agent.

    Args:
        env: Environment: an id, a short name or a path to a card.
        agent: Agent of this package: ``search-r1``, ``m-ask``, a card's path, ``module:Class`` ...
        model: Model of this package for all roles, instead of Inspect's: a folder, ``tiny`` ...; see `load_models`.
        options: Options of the environment, see `TaskOptions`.
        max_tokens: Maximum length of a response in tokens. Default: the number in the agent's card.
    """
    loaded = shared_task(env, options)
    samples = [
        # Inspect names files by ids, so ids must not have control characters and lone surrogates
        Sample(
            question.text, target=list(question.golds), id=drawable(question.id), metadata={"question_id": question.id}
        )
        for question in loaded.questions
    ]
    return Task(
        MemoryDataset(samples, name=loaded.card.id),
        solver=searcher(env, agent, model, options, max_tokens),
        scorer=outcome(env, options),
        name="search",
    )


@solver
def searcher(
    env: str,
    agent: str = AGENT,
    model: str | None = None,
    options: dict[str, Any] | None = None,
    max_tokens: int | None = None,
) -> Solver:
    """Inspect solver: an agent of this package in one of its environments; arguments as for `search`.

    Each role uses Inspect's model for that role (``--model-role ROLE=MODEL``), by default the evaluated model.
    """
    loaded, workflow = shared_task(env, options), with_max_tokens(load_agent(agent), max_tokens)
    protocol = loaded.rules.protocol
    models: dict[str, Model]
    if model is None:
        models = {role: chat_model(role, _Asks(role, protocol), protocol) for role in workflow.roles}
    else:
        models = load_models(parse_models([model], workflow.roles), protocol, Loading())
    engine = shared_engine(env, options, workflow, models)

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        episode = await engine.episode(loaded.find(state.metadata["question_id"]), state.epoch - 1)
        state.store.set(TOLD, of_episode(episode))
        state.messages = _conversation(episode, models) or state.messages
        answer = "" if episode.answer is None else episode.answer.text
        state.output = ModelOutput.from_content(str(state.model), answer)
        state.completed = True
        return state

    return solve


@scorer(metrics={"*": [mean(), stderr()]})
def outcome(env: str, options: dict[str, Any] | None = None) -> Scorer:
    """Inspect scorer: reward, EM, F1, searches and turns of an episode.

    After a solver other than `searcher`, such as Inspect's ``react`` with a search tool, the answer is the ``<answer>``
    in the model's last text, or the whole text.

    Args:
        env: See `search`.
        options: See `search`.
    """
    loaded = shared_task(env, options)

    async def score(state: TaskState, target: Target) -> Score:
        summary = state.store.get(TOLD) or answered(loaded, state.metadata["question_id"], state.output.completion)
        words = {name: summary[name] for name in ("stop_reason", "error") if name in summary}
        return Score(value=numbers(summary), answer=summary["answer"], metadata=words)

    return score


class _Asks:
    """Async function that calls Inspect's model for a role."""

    def __init__(self, role: str, protocol: Protocol) -> None:
        self._role, self._protocol = role, protocol

    async def __call__(self, messages: list[dict[str, str]], sampling: Sampling) -> ServerReply:
        model = get_model(role=self._role)
        config = GenerateConfig(
            max_tokens=model.config.max_tokens or sampling.max_tokens, stop_seqs=list(sampling.stop) or None
        )
        output = await model.generate([_message(**message) for message in messages], config=config)
        parts = output.message.content
        message = {
            "content": output.completion,
            "reasoning": "".join(part.reasoning for part in parts if isinstance(part, ContentReasoning)),
            "tool_calls": [
                {"function": {"name": call.function, "arguments": call.arguments}}
                for call in output.message.tool_calls or ()
            ],
        }
        choice = {"message": message, "finish_reason": output.stop_reason}
        reply = read_choice(choice, sampling.stop, self._protocol)
        return replace(reply, finish=FINISH.get(output.stop_reason, "eos"))


def _message(role: str, content: str) -> ChatMessage:
    return ChatMessageAssistant(content=content) if role == "assistant" else ChatMessageUser(content=content)


def _conversation(episode: Episode, models: dict[str, Model]) -> list[ChatMessage]:
    """Returns the texts of an episode's contexts as messages, in order; empty without model calls."""
    forms = {call.context: models[call.role].format for call in episode.calls}
    return [
        _message("assistant" if span.kind == "model" else "user", forms[number].decode(span.ids.tolist()))
        for number, context in enumerate(episode.contexts)
        if number in forms
        for span in context.spans
    ]
