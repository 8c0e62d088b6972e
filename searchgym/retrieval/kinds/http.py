"""Retriever ``http``: queries a retrieval server over HTTP."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from annotated_types import Interval
from typing_extensions import override
from urllib3.exceptions import HTTPError

from searchgym.errors import RetrieverError, UsageError
from searchgym.http_client import HttpClient, HttpReply, ReplyError, excerpt, retry_after
from searchgym.records import Hit
from searchgym.retrieval.cards import RetrieverCard, Sources
from searchgym.retrieval.retriever import check_request, checked
from searchgym.retrieval.wire import TOKEN, read_hit


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
    """Environment variable with the server's token: ``SEARCHGYM_TOKEN``, or a name that begins ``SEARCHGYM_TOKEN_``."""

    @override
    def problems(self) -> Iterable[str]:
        # A card made by somebody else must not make the client send another secret of this machine to its server.
        if self.token_env != TOKEN and not self.token_env.startswith(f"{TOKEN}_"):
            yield f"token_env must be {TOKEN} or begin with {TOKEN}_, got {self.token_env!r}"

    @override
    def open(self, sources: Sources) -> HttpRetriever:
        token = os.environ.get(self.token_env)
        if token is None and self.token_env != TOKEN:
            raise UsageError(f"{self.url}: its card takes the token from {self.token_env}, which is not set")
        return HttpRetriever(self.url, self.schema, connections=self.connections, deadline=self.deadline, token=token)


Schema = Literal["retrieve", "search"]
"""End point of a server, which decides the form of requests and replies."""
AGAIN: Final = {408, 429, 500, 502, 503, 504}
"""HTTP statuses of temporary faults, after which a request is retried."""
FIRST_PAUSE: Final = 0.1
"""Seconds before the first retry; the pause doubles with each further retry."""
LEAST_PAUSE: Final = 0.01
"""Shortest pause between retries in seconds, in case the server's ``Retry-After`` is 0."""
LONGEST_PAUSE: Final = 5.0
"""Longest pause between retries in seconds."""
MOST: Final = 512
"""Default number of queries per request; a server of this project accepts 1,024 by default."""
MOST_HITS: Final = 10_240
"""Maximum number of hits per request, its queries times k, which is also a server's default limit."""
REPLY_BYTES: Final = 16 * 2**20
"""Maximum number of bytes of a reply, to which `HIT_BYTES` are added for each requested hit."""
HIT_BYTES: Final = 64 * 2**10
"""Number of bytes by which one hit may lengthen a reply; a passage of 100 words takes about 700."""
INFO_BYTES: Final = 64 * 2**10
"""Maximum number of bytes of a server's description of its index."""
INFO_BRACKETS: Final = 200
"""Maximum number of lists and objects in that description, which is written to files that limit nesting."""
INFO_SECONDS: Final = 5.0
"""Seconds for a server to report whether it is ready, or to describe its index."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """Reason why an attempt failed."""

    reason: str
    """Description of the fault for the error message."""
    after: float | None = None
    """Seconds after which the server accepts a retry; None if it names no time."""
    final: bool = False
    """Whether a retry would be pointless."""


class HttpRetriever:
    """Retriever that queries a server with Search-R1's end point ``/retrieve`` or the M-ASK family's ``/search``.

    Threads may share it; connections are reused. Copying it returns the same object. After a fault (no connection, a
    late or truncated reply, a status such as 503, no JSON) it retries, with growing random pauses, until the deadline.
    A reply in another schema, or of more bytes than `REPLY_BYTES` and `HIT_BYTES` allow, is final.

    Args:
        url: ``http://host:port``, or the full URL of the end point. A user name and password in it are sent as basic
            authentication, unless there is a token, and never appear in messages.
        schema: End point to use. Default: the one that `url` ends with, else ``retrieve``.
        connections: Maximum number of simultaneous calls.
        deadline: Seconds for one call of `search`, pauses included.
        most: Maximum number of queries per request; more queries are sent in several requests, one after the other.
        token: Token that the server requires. Default: the environment variable ``SEARCHGYM_TOKEN``, if it is set.

    Raises:
        UsageError: `url` does not begin with http:// or https://.
    """

    tries_again = True

    def __init__(
        self,
        url: str,
        schema: Schema | None = None,
        *,
        connections: int = 8,
        deadline: float = 30.0,
        most: int = MOST,
        token: str | None = None,
    ) -> None:
        base, _, last = url.rstrip("/").rpartition("/")
        named: Schema | None = "retrieve" if last == "retrieve" else "search" if last == "search" else None
        self.url = base if named else url.rstrip("/")
        self.schema: Schema = schema or named or "retrieve"
        self._client = HttpClient(self.url, connections)
        self.url = self._client.url
        self.calls_at_once, self.deadline, self.most = connections, deadline, most
        self.tried_again = 0
        """Number of retries so far."""
        token = token or os.environ.get(TOKEN)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._random = random.Random()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits per query, in the server's order and with its scores.

        Raises:
            RetrieverError: No valid reply came before the deadline; the message names the last fault.
            UsageError: `queries` is a single string, or `k` is below 1.
        """
        check_request(queries, k)
        results: list[list[Hit]] = []
        end = time.monotonic() + self.deadline
        size = max(min(self.most, MOST_HITS // k), 1)
        for start in range(0, len(queries), size):
            results += self._ask(queries[start : start + size], k, end)
        return results

    def _ask(self, queries: Sequence[str], k: int, end: float) -> list[list[Hit]]:
        """Sends one request, with retries until the time `end`, and returns the hits."""
        if self.schema == "retrieve":
            body: dict[str, Any] = {"queries": list(queries), "topk": k, "return_scores": True}
        else:
            body = {"questions": list(queries), "N": k}
        pause, attempts = FIRST_PAUSE, 0
        while True:
            outcome = self._attempt(body, len(queries), k, end - time.monotonic())
            attempts += 1
            if not isinstance(outcome, _Fault):
                return outcome
            wait = pause * self._random.uniform(0.5, 1.0) if outcome.after is None else max(outcome.after, LEAST_PAUSE)
            if outcome.final or time.monotonic() + wait >= end:
                raise RetrieverError(
                    f"{self.url}/{self.schema}: {outcome.reason} (attempt {attempts}, deadline {self.deadline:g} s)"
                )
            time.sleep(wait)
            self.tried_again += 1
            pause = min(2 * pause, LONGEST_PAUSE)

    def ready(self) -> bool:
        """Returns whether the server can answer queries; a server without ``/readyz`` is ready if it replies at all."""
        try:
            return self._get("/readyz").status in (200, 404, 405)
        except HTTPError:
            return False

    def wait(self, seconds: float) -> None:
        """Waits until the server is ready, for at most `seconds`.

        Raises:
            RetrieverError: The server is not ready in time.
        """
        end = time.monotonic() + seconds
        while not self.ready():
            if time.monotonic() >= end:
                raise RetrieverError(f"{self.url} is not ready after {seconds:g} s")
            time.sleep(0.2)

    @property
    def corpus_sha256(self) -> str | None:
        """sha256 of the server's corpus, as reported by its ``/info``; None if it reports none."""
        corpus = self.identity().get("corpus")
        return corpus if isinstance(corpus, str) else None

    def identity(self) -> dict[str, Any]:
        """Returns the server's description of its index, from ``/info``; empty if there is none that can be stored."""
        try:
            reply = self._get("/info")
            if reply.status != 200 or sum(map(reply.body.count, (b"[", b"{"))) > INFO_BRACKETS:
                return {}
            info = json.loads(reply.body)
            json.dumps(info, ensure_ascii=False, allow_nan=False).encode()  # refuses lone surrogates and NaN
        except (HTTPError, ValueError):
            return {}
        return dict(info) if isinstance(info, dict) else {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def _get(self, path: str) -> HttpReply:
        seconds = min(INFO_SECONDS, self.deadline)
        return self._client.call("GET", path, headers=self._headers, seconds=seconds, most=INFO_BYTES)

    def _attempt(self, body: dict[str, Any], expected: int, k: int, seconds: float) -> list[list[Hit]] | _Fault:
        """Sends one request and returns the hits of the reply, or the fault."""
        headers = self._headers | {"Content-Type": "application/json"}
        most = REPLY_BYTES + expected * k * HIT_BYTES
        try:
            data = json.dumps(body).encode()
            reply = self._client.call("POST", f"/{self.schema}", data, headers, seconds=seconds, most=most)
        except HTTPError as error:
            return _Fault(f"{type(error).__name__}: {excerpt(str(error))}", final=isinstance(error, ReplyError))
        text = reply.body.decode("utf-8", "replace")
        if reply.status != 200:
            reason = f"status {reply.status}: {_reason(text)}"
            return _Fault(reason, retry_after(reply.headers), final=reply.status not in AGAIN)
        wrong = f"the reply is not in the schema of /{self.schema}"
        try:
            data = json.loads(text)
            rows = data["result"] if self.schema == "retrieve" else [answer["top_k_docs"] for answer in data]
            if not isinstance(rows, list) or not all(isinstance(row_hits, list) for row_hits in rows):
                raise TypeError("a reply must be a list of lists of hits")
        except (ValueError, LookupError, TypeError, RecursionError):
            return _Fault(f"{wrong}: {excerpt(text)!r}")  # such as a proxy's error page, which is temporary
        if len(rows) != expected or any(len(row_hits) > k for row_hits in rows):
            got = f"got {len(rows)} lists, up to {max(map(len, rows), default=0)}"
            return _Fault(f"{expected} queries, {k} hits each at most: {got}", final=True)
        try:
            return checked(
                [[read_hit(row, rank) for rank, row in enumerate(row_hits, start=1)] for row_hits in rows], expected, k
            )
        except (LookupError, TypeError, AttributeError):
            return _Fault(f"{wrong}: {excerpt(text)!r}", final=True)
        except RetrieverError as error:
            return _Fault(f"{wrong}: {error}", final=True)


def _reason(text: str) -> str:
    """Returns the reason in the body of an error reply: its ``detail``, else the start of the body."""
    try:
        return excerpt(str(json.loads(text)["detail"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return repr(excerpt(text))
