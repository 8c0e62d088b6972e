"""A guard for `AgentTests` that ends workflows which continue after the end of their episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from searchgym.agents.base import Agent, EpisodeIO
from searchgym.errors import EpisodeError
from searchgym.records import Question

MISUSES: Final = 100
"""Number of calls after an episode's end from which an agent counts as never returning."""


class NeverReturnsError(BaseException):
    """Error raised inside an agent that continues after its episode's end; no `except Exception` catches it."""


class Watched:
    """A wrapper of an agent's workflow that ends it if it keeps acting after its episode's end."""

    def __init__(self, workflow: Agent) -> None:
        self._workflow = workflow

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode of the wrapped workflow."""
        watched: Any = _WatchedIO(io)
        await self._workflow.run(question, watched)


class _WatchedIO:
    """`EpisodeIO` (and, for what `open` returns, `Chat`) that counts the errors of its use."""

    def __init__(self, inner: Any, misuses: list[str] | None = None) -> None:
        self._inner, self._misuses = inner, [] if misuses is None else misuses

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open(self, role: str, **fields: str) -> Any:
        return _WatchedIO(self._inner.open(role, **fields), self._misuses)

    def fork(self, role: str, **fields: str) -> Any:
        return _WatchedIO(self._inner.fork(role, **fields), self._misuses)

    async def step(self, action: Any, *given: Any, **more: Any) -> Any:
        return await self._counted(self._inner.step, action, *given, **more)

    async def generate(self, *given: Any, **fields: Any) -> Any:
        return await self._counted(self._inner.generate, *given, **fields)

    async def _counted(self, use: Callable[..., Any], *given: Any, **fields: Any) -> Any:
        try:
            return await use(*given, **fields)
        except EpisodeError as error:
            self._misuses.append(str(error))
            if len(self._misuses) > MISUSES:
                raise NeverReturnsError(f"the agent went on {MISUSES} times after: {self._misuses[0]}") from error
            raise
