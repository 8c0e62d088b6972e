"""Adapter to verl: an agent loop for an agent and an environment of this package.

A file configures the loop, for ``actor_rollout_ref.rollout.agent.agent_loop_config_path``::

    - name: searchgym
      _target_: searchgym.adapters.verl_loop.SearchGymLoop
      env: World
      options: {reward: f1}

Rows of the data set have ``agent_name: searchgym`` and ``question_id``, at the top or in ``extra_info``. Tokens sampled
by verl's servers are never encoded again.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from searchgym.adapters.episodes import AGENT, of_episode, question_of, shared_engine, shared_task
from searchgym.adapters.hosts import sequence_of, token_format, token_model
from searchgym.agents.base import load_agent, with_max_tokens
from searchgym.errors import UsageError
from searchgym.packages import check
from searchgym.records import Episode

check("verl")
# pyright: reportMissingImports=false
from verl.experimental.agent_loop.agent_loop import (  # noqa: E402 (after the check)
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)


class SearchGymLoop(AgentLoopBase):
    """Agent loop of one episode.

    Args:
        *args: Arguments that verl passes to every loop.
        env: An id, a short name or a path to a card.
        options: Options of the environment, see `TaskOptions`.
        agent: Agent with one role, whose prompt asks the question.
        max_tokens: Maximum length of a response in tokens. Default: the number in the agent's card.
        **kwargs: Keyword arguments that verl passes to every loop.
    """

    def __init__(
        self,
        *args: Any,
        env: str = "Demo",
        options: Mapping[str, Any] | None = None,
        agent: str = AGENT,
        max_tokens: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._env, self._options = env, options
        self._task = shared_task(env, self._options)
        self._workflow = with_max_tokens(load_agent(agent), max_tokens)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Runs the episode of a data row.

        Args:
            sampling_params: verl's sampling parameters for its servers.
            **row: Columns of the row; ``question_id`` is used.

        Raises:
            UsageError: The row has no question id, or the prompt is longer than ``rollout.prompt_length``.
        """
        question = self._task.find(question_of(row))
        form = token_format(self.tokenizer, self._task.rules.protocol)
        request, prompt = uuid.uuid4().hex, list[int]()
        params = {
            **sampling_params,
            "stop": list(form.stop),
            "include_stop_str_in_output": True,
            "stop_token_ids": list(form.end_ids),
        }

        def room(length: int) -> int:
            if not prompt:
                prompt.append(self._checked(length))
            return int(prompt[0] + self.rollout_config.response_length - length)

        async def sample(ids: list[int], most: int) -> tuple[list[int], list[float] | None]:
            output = await self.server_manager.generate(
                request_id=request, prompt_ids=ids, sampling_params={**params, "max_tokens": most}
            )
            return output.token_ids, output.log_probs

        models = {name: token_model(name, sample, form, room) for name in self._workflow.roles}
        engine = shared_engine(self._env, self._options, self._workflow, models)
        return self._output(await engine.episode(question), sampling_params)

    def _checked(self, length: int) -> int:
        """Checks the length of the prompt, in tokens, and returns it."""
        if length > self.rollout_config.prompt_length:
            raise UsageError(
                f"the prompt has {length} tokens, more than rollout.prompt_length ({self.rollout_config.prompt_length})"
            )
        return length

    def _output(self, episode: Episode, sampling_params: Mapping[str, Any]) -> AgentLoopOutput:
        """Converts an episode to verl's output."""
        # every episode of a batch has the same keys
        sequence, summary = sequence_of(episode), {k: v for k, v in of_episode(episode).items() if k != "error"}
        cut, end = sequence.prompt, sequence.prompt + int(self.rollout_config.response_length)
        return AgentLoopOutput(
            prompt_ids=sequence.ids[:cut].tolist(),
            response_ids=sequence.ids[cut:end].tolist(),
            response_mask=sequence.mask[cut:end].astype(int).tolist(),
            response_logprobs=sequence.logp[cut:end].tolist() if sampling_params.get("logprobs") else None,
            reward_score=episode.reward,
            num_turns=2 * len(episode.calls),
            metrics=AgentLoopMetrics(),
            extra_fields={"turn_scores": [], "tool_rewards": [], "reward_extra_info": summary},
        )
