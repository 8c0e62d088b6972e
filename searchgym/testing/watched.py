"""Guard for `AgentTests` that stops workflows that continue after the end of their episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from searchgym.agents.base import Agent, EpisodeIO
from searchgym.errors import EpisodeError
from searchgym.records import Question

MISUSES: Final = 100
"""Calls that an agent may make after the end of its episode before it counts as never returning."""


class NeverReturnsError(BaseException):
    """Error raised inside an agent that continues after its episode's end; no `except Exception` catches it."""


class Watched:
    """A wrapper of an agent's workflow that stops it if it keeps acting after the end of its episode."""

    def __init__(self, workflow: Agent) -> None:
        self._workflow = workflow

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode of the wrapped workflow."""
        watched: Any = _WatchedIO(io)
        await self._workflow.run(question, watched)


class _WatchedIO:
    """A wrapper of `EpisodeIO`, or of the `Chat` that `open` returns, that counts wrong uses of it."""

    def __init__(self, inner: Any, misuses: list[str] | None = None) -> None:
        self._inner, self._misuses = inner, [] if misuses is None else misuses

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open(self, role: str, **fields: str) -> Any:
        return _WatchedIO(self._inner.open(role, **fields), self._misuses)

    def fork(self, role: str, **fields: str) -> Any:
        return _WatchedIO(self._inner.fork(role, **fields), self._misuses)

    async def step(self, action: Any, *args: Any, **more: Any) -> Any:
        return await self._counted(self._inner.step, action, *args, **more)

    async def generate(self, *args: Any, **fields: Any) -> Any:
        return await self._counted(self._inner.generate, *args, **fields)

    async def _counted(self, use: Callable[..., Any], *args: Any, **fields: Any) -> Any:
        try:
            return await use(*args, **fields)
        except EpisodeError as error:
            self._misuses.append(str(error))
            if len(self._misuses) > MISUSES:
                raise NeverReturnsError(f"the agent continued {MISUSES} times after: {self._misuses[0]}") from error
            raise
