"""Adapter to SkyRL-gym: environments of this package under the id ``searchgym``, for SkyRL's trainers.

Importing this module registers the id. A row of the data set has ``env_class: searchgym``, ``prompt`` and
``question_id`` (see `rows`); the environment's section of SkyRL's configuration has ``env`` and ``options``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from searchgym.adapters.episodes import ended, numbers, question_of, shared_task
from searchgym.envs.single import SearchEnv
from searchgym.packages import check

check("skyrl-gym")
# pyright: reportMissingImports=false
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput  # noqa: E402 (after the check)
from skyrl_gym.envs.registration import register, registry  # noqa: E402

ID: Final = "searchgym"
"""Id of the environment in SkyRL-gym, the ``env_class`` of its data rows."""


class SkyRlEnv(BaseTextEnv):
    """One episode of an environment of this package.

    Args:
        env_config: ``{"env": "World", "options": {"reward": "f1"}}``; options as in `TaskOptions`.
        extras: The data row without its prompt: ``question_id``, at the top or in ``extra_info``.

    Raises:
        UsageError: The row has no question id.
        UnknownNameError: The environment has no such question.
    """

    def __init__(self, env_config: Mapping[str, Any] | None = None, extras: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        config, question_id = dict(env_config or {}), question_of(extras or {})
        self._env = SearchEnv(shared_task(config.get("env", "Demo"), config.get("options")))
        self._env.reset(options={"question_id": question_id})
        self.max_turns = self._env.task.rules.max_turns
        self._told: dict[str, Any] = {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Executes one turn. At the end, ``metadata`` also has the summary of `ended`."""
        observation, reward, terminated, truncated, info = self._env.step(action)
        self.turns += 1
        done = terminated or truncated
        if done:
            self._told = ended(info, reward)
        return BaseTextEnvStepOutput(
            observations=[] if done else [{"role": "user", "content": observation}],
            reward=reward,
            done=done,
            metadata=info | self._told,
        )

    def get_metrics(self) -> dict[str, Any]:
        """Returns reward, scores, searches and turns of the episode; empty before its end."""
        return dict(numbers(self._told))


if ID not in registry:
    register(ID, entry_point=SkyRlEnv)
