"""OpenEnv client, which plays episodes on a server of `searchgym.adapters.openenv_server`."""

from __future__ import annotations

from typing import Any

from searchgym.packages import check

check("openenv")
# pyright: reportMissingImports=false
from openenv.core.client_types import StepResult  # noqa: E402 (after the check)
from openenv.core.env_client import EnvClient  # noqa: E402
from openenv.core.env_server.types import Action, Observation, State  # noqa: E402


class SearchAction(Action):
    """Action of one turn: the text that the model wrote."""

    text: str


class SearchObservation(Observation):
    """Observation of one turn."""

    text: str
    """Text for the model: the first prompt after a reset, an empty text at the end."""
    info: dict[str, Any]
    """Gymnasium's info of the step; at the end also the summary of `ended`."""


class SearchState(State):
    """State of an episode."""

    question_id: str = ""


class SearchGymClient(EnvClient[SearchAction, SearchObservation, SearchState]):
    """Client of one session; ``SearchGymClient(base_url=...).sync()`` is a context manager for plain code.

    ``reset(question_id=...)``, ``reset(split=..., index=...)`` or ``reset(seed=...)`` selects the question.
    """

    def _step_payload(self, action: SearchAction) -> dict[str, Any]:
        return {"text": action.text}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[SearchObservation]:
        done, reward = payload.get("done", False), payload.get("reward")
        observation = SearchObservation(**payload["observation"], done=done, reward=reward)
        return StepResult(observation=observation, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> SearchState:
        return SearchState(**payload)
