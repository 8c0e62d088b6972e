"""Bridge to TRL, whose GRPOTrainer can train in SearchGym environments.

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

TRL (read at version 1.16) creates one environment per concurrent episode, calls its `reset` with a row of the data set,
offers its public methods to the model as tools, and inserts their results as tokens that are not trained on. The answer
is not a tool: `outcome` reads it from the model's last text. Rules, budgets, observations and the reward are the
environment core's. ``docs/do/trl.md`` lists the differences from a training by this package. Nothing here imports
TRL.
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
"""A message in TRL's form: ``role``, ``content``, and ``tool_calls`` if the model called a tool."""

ASK_A_TOOL: Final = (
    "Search with the tool search; what it finds comes back as its result. "
    "Give the final answer with <answer>your answer</answer>."
)
"""Instructions for models whose chat template explains how to call a tool."""

NOT_READ: Final = (
    "a model wrote <search> and TRL saw no tool call: make the trainer inside use_tags(model, tokenizer), or, for a "
    'model whose chat template has tools, the environments with protocol="tool_calls"'
)


class TrlEnvironment:
    """One episode in the form that TRL expects: all public methods except `reset` are tools of the model.

    Args:
        task: Task that all episodes share.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.state: State | None = None
        """State of the episode without the answer, which `final_state` adds; None before `reset`."""

    def reset(self, question_id: str | None = None, **row: object) -> None:
        """Starts an episode; TRL calls it with a row of `EnvironmentFactory.dataset`.

        Args:
            question_id: Id of the question in the row's prompt.
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
    """Reads a tool's argument by the grammar's rules: a query that is empty or contains tags is not valid."""
    if not isinstance(query, str):
        return Invalid(f"query is a text, got {type(query).__name__}")
    return protocol.parse(protocol.write(Search((query,))))


def _ended(state: State, protocol: Protocol) -> str:
    """Returns a tool's result after the end of the episode."""
    why = "The search could not be made" if state.stop_reason == "retriever_error" else "No search is left"
    return _result(protocol, f"\n\n{why}. The episode has ended.\n\n")


def _result(protocol: Protocol, observation: str) -> str:
    """Returns an observation as a tool's result, without the grammar's frame if the chat template has one."""
    if protocol.name == "tags":
        return observation
    bare = observation.strip()
    return bare.removeprefix(protocol.result_marks[0]).removesuffix(protocol.result_marks[1]).strip()


class EnvironmentFactory:
    """Factory for TRL's ``environment_factory``: each call returns a new environment with the same task and retriever.

    Args:
        env: An id, a short name or a path to a card, as for ``searchgym eval``.
        agent: Agent whose prompt is used; it must have one role, with the fields ``question`` and ``instructions``.
        **options: See `TaskOptions`; ``protocol="tool_calls"`` for a model whose chat template has tools.

    Raises:
        UsageError: The agent does not have exactly one role.
        SearchGymError: The environment or the agent cannot be loaded; see `load_task` and `load_agent`.
    """

    def __init__(self, env: str, *, agent: str = "search-r1", **options: Unpack[TaskOptions]) -> None:
        roles = load_agent(agent).roles
        if len(roles) != 1:
            raise UsageError(f"agent {agent} has {len(roles)} roles that use a model: TRL trains one, with one prompt")
        (self._role,) = roles.values()
        merged_options = env_options(env, options)
        self.task: Task = load_task(find_env(env), **merged_options)
        if self.task.rules.pages is not None:
            raise UsageError(f"{env}: browse is on, but TRL's environments have only the tool search: turn browse off")

    def __call__(self) -> TrlEnvironment:
        """Returns an environment for one concurrent episode."""
        return TrlEnvironment(self.task)

    @property
    def max_searches(self) -> int:
        """Maximum number of searches before the answer; pass it to TRL as ``max_tool_calling_iterations``."""
        return self.task.rules.max_turns - 1

    def dataset(self, questions: Iterable[Question] | None = None) -> datasets.Dataset:
        """Returns TRL's ``train_dataset``, with ``prompt`` (one user message) and ``question_id``.

        Args:
            questions: Questions of the environment. Default: all.

        Raises:
            UnknownNameError: A question is not in the environment.
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
    """Reward function for TRL: the environment's reward of each episode.

    Args:
        completions: Messages after each prompt.
        environments: Environment of each episode.
        log_metric: TRL's function for metrics, called with ``searches`` (mean per episode) and ``retriever_errors``
            (share of episodes).
        **columns: Further arguments from TRL, not used.

    Returns:
        One reward per episode, None if the retriever failed: TRL then excludes the episode from its group's mean and
        gives it advantage 0.

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

    The answer is read from the last message if that is the model's and calls no tool, never from a tool's result. Each
    tool result counts as a turn, even if the call did not reach the environment: an answer after `max_turns` results is
    not accepted. Without an answer, the state has none, and no `stop_reason` if turns were left.

    Args:
        environment: Environment of the episode.
        completion: Messages of the episode after the prompt.

    Raises:
        EpisodeError: The environment was not reset.
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
