"""A workflow that is ended when it goes on after its episode's end, for `AgentTests`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from searchgym.agents.base import Agent, EpisodeIO
from searchgym.errors import EpisodeError
from searchgym.records import Question

MISUSES: Final = 100
"""Uses of an episode after its end until an agent counts as one that never returns."""


class NeverReturnsError(BaseException):
    """Raised inside an agent that goes on after its episode's end; an agent that catches every `Exception` hears it."""


class Watched:
    """An agent's workflow that is ended when it goes on after its episode's end again and again."""

    def __init__(self, workflow: Agent) -> None:
        self._workflow = workflow

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
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

    async def step(self, action: Any) -> Any:
        return await self._counted(self._inner.step, action)

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
