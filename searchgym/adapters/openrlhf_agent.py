"""Adapter to OpenRLHF: an agent executor for an agent and an environment of this package.

OpenRLHF takes a Python file with a class ``AgentExecutor`` (``--train.agent_func_path mine.py``)::

    from searchgym.adapters.openrlhf_agent import agent_executor
    AgentExecutor = agent_executor("World", {"reward": "f1"})

The label of a data row is the question's id. The executor exchanges token ids with OpenRLHF's engine, because
OpenRLHF's multi-turn executor encodes observations as text, so that a page could contain the model's turn markers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from searchgym.adapters.episodes import AGENT, numbers, of_episode, shared_engine, shared_task
from searchgym.adapters.hosts import sequence_of, token_format, token_model
from searchgym.agents.base import load_agent, with_max_tokens
from searchgym.packages import check

check("openrlhf")
# pyright: reportMissingImports=false
from openrlhf.utils.agent import AgentExecutorBase  # noqa: E402 (after the check)


def agent_executor(
    env: str, options: Mapping[str, Any] | None = None, agent: str = AGENT, max_tokens: int | None = None
) -> type[AgentExecutorBase]:
    """Returns the executor class, which OpenRLHF instantiates without arguments.

    Args:
        env: An id, a short name or a path to a card.
        options: Options of the environment, see `TaskOptions`.
        agent: Agent with one role, whose prompt asks the question.
        max_tokens: Maximum length of a response in tokens. Default: the number in the agent's card.

    Raises:
        SearchGymError: The environment or the agent cannot be loaded; raised before a training starts.
    """
    task, workflow = shared_task(env, options), with_max_tokens(load_agent(agent), max_tokens)

    class AgentExecutor(AgentExecutorBase):
        """Executor of episodes in one environment."""

        async def execute(
            self,
            prompt: str,
            label: str,
            sampling_params: Any,
            max_length: int,
            hf_tokenizer: Any,
            llm_engine: Any,
            images: Any = None,
        ) -> dict[str, Any]:
            """Runs one episode; OpenRLHF calls it with a row's prompt and label, and its vLLM engine.

            Returns:
                OpenRLHF's record: token ids, half-open ranges of the model's tokens, log-probs, reward and metrics.
            """
            form = token_format(hf_tokenizer, task.rules.protocol)

            async def sample(ids: list[int], most: int) -> tuple[list[int], list[float] | None]:
                params = copy.deepcopy(sampling_params)
                params.max_tokens, params.stop, params.include_stop_str_in_output = most, list(form.stop), True
                params.stop_token_ids = list(form.end_ids)
                output = (await llm_engine.generate(ids, params)).outputs[0]
                sampled = list(output.token_ids)
                if params.logprobs is None:
                    return sampled, None
                return sampled, [row[i].logprob for i, row in zip(sampled, output.logprobs, strict=True)]

            role = {
                name: token_model(name, sample, form, lambda length: max_length - length) for name in workflow.roles
            }
            episode = await shared_engine(env, options, workflow, role).episode(task.find(label))
            sequence = sequence_of(episode)
            failed = episode.stop_reason == "retriever_error"
            return {
                "prompt": prompt,
                "label": label,
                "images": images,
                "mm_train_inputs": None,
                "reward": episode.reward,
                "scores": episode.reward,
                "observation_tokens": sequence.ids.tolist(),
                "action_ranges": [(call.start, call.end) for call in episode.calls],
                "rollout_log_probs": None if sampling_params.logprobs is None else sequence.logp.tolist(),
                "truncated": episode.stop_reason == "context",
                "extra_logs": {**numbers(of_episode(episode)), "retriever_error": float(failed)},
            }

    return AgentExecutor
