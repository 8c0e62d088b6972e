"""Bridge to TRL: its GRPOTrainer trains in SearchGym environments.

::

    environments = EnvironmentFactory("World", questions={"split": "train", "size": 200, "seed": 1})
    model, tokenizer = load_model("tiny")
    with use_tags(model, tokenizer):  # not for models whose chat template has tools
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            environment_factory=environments,
            train_dataset=environments.dataset(),
            reward_funcs=outcome,
            args=GRPOConfig(max_tool_calling_iterations=environments.max_searches, ...),
        )
    trainer.train()

TRL (read at version 1.16) makes one environment per concurrent episode, calls its `reset` with a row of the data set,
offers its public methods to the model as tools, and splices what they return as tokens that are not trained on. The
answer is not a tool: it stands in the last text of the model, where `outcome` reads it. Rules, budgets, observations
and the reward are the environment core's own. What differs from a training by this package stands in
``docs/do/trl.md``. Nothing here imports TRL.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Unpack

from searchgym.agents.base import load_agent
from searchgym.envs.core import State, begin, fail, finish
from searchgym.envs.options import TaskOptions
from searchgym.envs.registration import env_options, find_env
from searchgym.envs.reward import score_episode
from searchgym.envs.task import Task, load_task
from searchgym.errors import EpisodeError, RetrieverError, UsageError
from searchgym.protocol import Protocol
from searchgym.records import Action, Answer, Invalid, Question, Search
from searchgym.retrieval.retriever import retrieve

if TYPE_CHECKING:
    import datasets

Message = Mapping[str, Any]
"""A message as TRL keeps it: ``role``, ``content``, and ``tool_calls`` where the model called one."""

ASK_A_TOOL: Final = (
    "Search with the tool search; what it finds comes back as its result. "
    "Give the final answer with <answer>your answer</answer>."
)
"""Instructions where the chat template explains how a tool is called."""

NOT_READ: Final = (
    "a model wrote <search> and TRL saw no tool call: make the trainer inside use_tags(model, tokenizer), or, for a "
    'model whose chat template has tools, the environments with protocol="tool_calls"'
)


class TrlEnvironment:
    """One episode in the form that TRL expects: all public methods except `reset` are tools of the model.

    Args:
        task: Task of the environment, which all episodes share.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.state: State | None = None
        """State of the episode without its answer, which `final_state` adds; None before `reset`."""

    def reset(self, question_id: str | None = None, **row: object) -> None:
        """Starts an episode; TRL calls it with a row of `EnvironmentFactory.dataset`.

        Args:
            question_id: The question that the row's prompt asks.
            **row: The row's other columns, not used.

        Raises:
            UsageError: The row has no question id.
            UnknownNameError: The environment has no such question.
        """
        if question_id is None:
            raise UsageError(
                f"a row of the data set has no question_id, only {', '.join(sorted(row)) or 'nothing'}: "
                "train on EnvironmentFactory.dataset(), or add that column"
            )
        self.state = State(self.task.find(question_id))

    def search(self, query: str) -> str:
        """Searches the corpus.

        Args:
            query: What to look for.

        Returns:
            The pages found.
        """
        if self.state is None:
            raise EpisodeError("reset the environment before the first search")
        rules = self.task.rules
        if self.state.done:
            return _ended(self.state, rules.protocol)
        state, queries = begin(self.state, _read_query(rules.protocol, query), rules)
        ids = [state.question.id] * len(queries)
        try:
            hits = retrieve(self.task.retriever, ids, queries, rules.top_k, rules.deadline) if queries else []
        except RetrieverError as error:
            self.state, observation = fail(state, str(error)), ""
        else:
            self.state, observation = finish(state, hits, rules)
        return _ended(self.state, rules.protocol) if self.state.done else _result(rules.protocol, observation)


def _read_query(protocol: Protocol, query: object) -> Action:
    """Reads a tool's argument by the grammar's own rules: a query that is empty or holds tags is none."""
    if not isinstance(query, str):
        return Invalid(f"query is a text, got {type(query).__name__}")
    return protocol.parse(protocol.write(Search((query,))))


def _ended(state: State, protocol: Protocol) -> str:
    """Returns what a tool says once the episode has ended."""
    why = "The search could not be made" if state.stop_reason == "retriever_error" else "No search is left"
    return _result(protocol, f"\n\n{why}. The episode has ended.\n\n")


def _result(protocol: Protocol, observation: str) -> str:
    """Returns an observation as a tool's result: without the grammar's frame where the chat template has its own."""
    if protocol.name == "tags":
        return observation
    bare = observation.strip()
    return bare.removeprefix(protocol.result_marks[0]).removesuffix(protocol.result_marks[1]).strip()


class EnvironmentFactory:
    """TRL's ``environment_factory``: each call returns one more environment over the same task and retriever.

    Args:
        env: An id, a short name or a path to a card: as ``searchgym eval`` takes it.
        agent: Whose prompt asks the question: an agent with one role and the fields ``question`` and
            ``instructions``.
        **options: See `TaskOptions`; ``protocol="tool_calls"`` for a model whose chat template has tools.

    Raises:
        UsageError: The agent has more than one role, or none.
        SearchGymError: Whatever is wrong with the environment or the agent; see `load_task` and `load_agent`.
    """

    def __init__(self, env: str, *, agent: str = "search-r1", **options: Unpack[TaskOptions]) -> None:
        roles = load_agent(agent).roles
        if len(roles) != 1:
            raise UsageError(f"agent {agent} has {len(roles)} roles that ask a model: TRL trains one, with one prompt")
        (self._role,) = roles.values()
        given = env_options(env, options)
        self.task: Task = load_task(find_env(env), **given)
        if self.task.rules.pages is not None:
            raise UsageError(
                f"{env}: browse is on, and TRL's environments have the tool search alone: leave browse off"
            )

    def __call__(self) -> TrlEnvironment:
        """Returns an environment for one of the episodes that run at once."""
        return TrlEnvironment(self.task)

    @property
    def max_searches(self) -> int:
        """Maximum number of searches before the answer; pass it to TRL as ``max_tool_calling_iterations``."""
        return self.task.rules.max_turns - 1

    def dataset(self, questions: Iterable[Question] | None = None) -> datasets.Dataset:
        """Returns TRL's ``train_dataset``: ``prompt``, one user message, and ``question_id``.

        Args:
            questions: Some of the environment's; all if left out.

        Raises:
            UnknownNameError: A question that is not the environment's.
        """
        import datasets

        protocol, rows = self.task.rules.protocol, []
        instructions = protocol.instructions() if protocol.name == "tags" else ASK_A_TOOL
        for question in self.task.questions if questions is None else questions:
            text = self._role.render(question=self.task.find(question.id).text, instructions=instructions)
            rows.append({"question_id": question.id, "prompt": [{"role": "user", "content": text}]})
        return datasets.Dataset.from_list(rows)


# -- the reward ----------------------------------------------------------------------------------------------------


def outcome(
    completions: Sequence[Sequence[Message]],
    environments: Sequence[TrlEnvironment],
    log_metric: Callable[[str, float], None] | None = None,
    **columns: object,
) -> list[float | None]:
    """TRL's reward function: the environment's own reward of each episode.

    Args:
        completions: The messages after each prompt.
        environments: The environment of each.
        log_metric: TRL's; gets ``searches`` (mean per episode) and ``retriever_errors`` (share of episodes).
        **columns: Whatever else TRL passes.

    Returns:
        One reward per episode. None where the retriever failed: TRL then leaves the episode out of its group's mean
        and gives it advantage 0.

    Raises:
        RewardError: See `score_episode`.
    """
    pairs = list(zip(environments, completions, strict=True))
    states = [final_state(environment, completion) for environment, completion in pairs]
    failed = [state.stop_reason == "retriever_error" for state in states]
    if log_metric is not None:
        log_metric("searches", sum(len(state.searches) for state in states) / max(len(states), 1))
        log_metric("retriever_errors", sum(failed) / max(len(states), 1))
    return [
        None if lost else score_episode(environment.task.reward, state)[0]
        for lost, state, environment in zip(failed, states, environments, strict=True)
    ]


def final_state(environment: TrlEnvironment, completion: Sequence[Message]) -> State:
    """Returns the final state of an episode, for custom rewards; the environment is not changed.

    The answer is read from the last message, if that is the model's and calls no tool; never from a tool's result. Each
    result is a turn, that of a call which never reached the environment too: an answer after `max_turns` of them is
    none. An episode without answer has none in its state, and no `stop_reason` if it had turns left.

    Args:
        environment: Of the episode.
        completion: Its messages after the prompt.

    Raises:
        EpisodeError: The environment has not been reset.
    """
    state, rules = environment.state, environment.task.rules
    if state is None:
        raise EpisodeError("reset the environment before its episode is scored")
    if state.done:
        return state
    state = replace(state, turn=max(state.turn, sum(message["role"] == "tool" for message in completion)))
    if state.turn >= rules.max_turns:
        return replace(state, stop_reason="turns")
    last: Message = completion[-1] if completion else {"role": "tool"}
    if last["role"] != "assistant" or last.get("tool_calls"):
        return state
    action = rules.protocol.parse(str(last["content"]))
    if isinstance(action, Search) and rules.protocol.name == "tags":
        warnings.warn(NOT_READ, stacklevel=2)
    return begin(state, action, rules)[0] if isinstance(action, Answer) else state
