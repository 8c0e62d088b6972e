"""Retriever ``http``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Interval

from searchgym.errors import UsageError
from searchgym.retrieval.cards import RetrieverCard, Sources
from searchgym.retrieval.remote.wire import TOKEN

if TYPE_CHECKING:
    from searchgym.retrieval.remote.client import HttpRetriever


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCard(RetrieverCard):
    """A retrieval server, reached over HTTP."""

    url: str
    """URL of the server or of its end point."""
    schema: Literal["retrieve", "search"] | None = None
    """Schema of requests and replies. Default: that of the end point in the URL, else ``retrieve``."""
    connections: Annotated[int, Interval(ge=1, le=4096)] = 8
    """Maximum number of simultaneous calls."""
    deadline: Annotated[float, Interval(ge=0, le=1e6)] = 30.0
    """Seconds for one call, retries included."""
    token_env: str = TOKEN
    """Environment variable with the server's token, ``SEARCHGYM_TOKEN`` or a name that begins so and an underscore."""

    def problems(self) -> Iterable[str]:
        """See `Options.problems`."""
        # A card from elsewhere must not make the client send another secret of this machine to its server.
        if self.token_env != TOKEN and not self.token_env.startswith(f"{TOKEN}_"):
            yield f"token_env is {TOKEN} or begins with {TOKEN}_, got {self.token_env!r}"

    def open(self, sources: Sources) -> HttpRetriever:
        """See `RetrieverCard.open`."""
        from searchgym.retrieval.remote.client import HttpRetriever

        token = os.environ.get(self.token_env)
        if token is None and self.token_env != TOKEN:
            raise UsageError(f"{self.url}: its card takes the token from {self.token_env}, which is not set")
        return HttpRetriever(self.url, self.schema, connections=self.connections, deadline=self.deadline, token=token)
