"""A retriever that asks a retrieval server over HTTP."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import urllib3
from urllib3.util import parse_url

from searchgym.corpora.retrieval.cards import TOKEN
from searchgym.corpora.retrieval.remote.wire import read_contents, scored
from searchgym.corpora.retrieval.retriever import check_request
from searchgym.errors import RetrieverError, UsageError
from searchgym.records import Hit

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
SHOWN: Final = 300
"""Maximum number of characters of a server's reply in an error message."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """Reason why an attempt failed."""

    reason: str
    """Description of the fault for the error message."""
    after: float | None = None
    """Seconds after which the server wants a retry; None if it does not say."""
    final: bool = False
    """Whether a retry would be pointless."""


class HttpRetriever:
    """Retriever that asks a server with Search-R1's end point ``/retrieve`` or the M-ASK family's ``/search``.

    Threads may share it; connections are reused. Copying it returns the same object. After a fault (no connection, a
    late or truncated reply, a status such as 503, no JSON) it retries, with growing random pauses, until the deadline.

    Args:
        url: ``http://host:port``, or the full URL of the end point.
        schema: End point to use. Default: the one that `url` ends with, else ``retrieve``.
        connections: Maximum number of simultaneous calls.
        deadline: Seconds for one call of `search`, pauses included.
        most: Maximum number of queries per request; more queries are sent in several requests, one after the other.
        token: Token that the server asks for. Default: the environment variable ``SEARCHGYM_TOKEN``, if it is set.

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
        if parse_url(self.url).scheme not in ("http", "https"):
            raise UsageError(f"{url}: the address of a retrieval server begins with http:// or https://")
        self.calls_at_once, self.deadline, self.most = connections, deadline, most
        self.tried_again = 0
        """Number of retries so far."""
        token = token or os.environ.get(TOKEN)
        headers = {"Authorization": f"Bearer {token}"} if token else None
        self._pool = urllib3.PoolManager(maxsize=connections, block=True, retries=False, headers=headers)
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
            reply = self._pool.request("GET", f"{self.url}/readyz", timeout=5.0)
        except urllib3.exceptions.HTTPError:
            return False
        return reply.status in (200, 404, 405)

    def wait(self, seconds: float) -> None:
        """Waits until the server is ready, for a number of seconds at most.

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
        """sha256 of the server's corpus, as its ``/info`` gives it; None if it gives none."""
        corpus = self.identity().get("corpus")
        return corpus if isinstance(corpus, str) else None

    def identity(self) -> dict[str, Any]:
        """Returns the server's description of its index, from ``/info``; empty if it gives none."""
        try:
            reply = self._pool.request("GET", f"{self.url}/info", timeout=5.0)
            info = json.loads(reply.data) if reply.status == 200 else {}
        except (urllib3.exceptions.HTTPError, ValueError):
            return {}
        return dict(info) if isinstance(info, dict) else {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def _attempt(self, body: dict[str, Any], expected: int, k: int, seconds: float) -> list[list[Hit]] | _Fault:
        """Sends one request and returns the hits of the reply, or the fault."""
        timeout = urllib3.Timeout(total=max(seconds, 0.001))
        try:
            reply = self._pool.request(
                "POST",
                f"{self.url}/{self.schema}",
                body=json.dumps(body).encode(),
                headers={**self._pool.headers, "Content-Type": "application/json"},
                timeout=timeout,
                pool_timeout=max(seconds, 0.001),
            )
        except urllib3.exceptions.HTTPError as error:
            return _Fault(f"{type(error).__name__}: {error}")
        text = reply.data.decode("utf-8", "replace")
        if reply.status != 200:
            reason = f"status {reply.status}: {_reason(text)}"
            return _Fault(reason, _after(reply.headers.get("Retry-After")), final=reply.status not in AGAIN)
        try:
            results = self._read(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return _Fault(f"the reply is not in the schema of /{self.schema}: {text[:SHOWN]!r}")
        if len(results) != expected or any(len(hits) > k for hits in results):
            most = max(map(len, results), default=0)
            return _Fault(
                f"{expected} queries, {k} hits each at most: got {len(results)} lists, up to {most}", final=True
            )
        return results

    def _read(self, reply: Any) -> list[list[Hit]]:
        """Returns the hits of a reply; those of ``/search``, which has no scores, get 1 / rank."""
        if self.schema == "retrieve":
            return [[scored(row) for row in rows] for rows in reply["result"]]
        lists = [answer["top_k_docs"] for answer in reply]
        return [[Hit(read_contents(text), 1.0 / rank) for rank, text in enumerate(texts, start=1)] for texts in lists]


def _reason(text: str) -> str:
    """Returns the reason in the body of an error reply: its ``detail``, else the start of the body."""
    try:
        body = json.loads(text)
        return str(body["detail"])[:SHOWN]
    except (ValueError, KeyError, TypeError):
        return repr(text[:SHOWN])


def _after(header: str | None) -> float | None:
    """Returns the seconds of a ``Retry-After`` header, at most 60; None if it is absent or a date."""
    try:
        return None if header is None else min(max(float(header), 0.0), 60.0)
    except ValueError:
        return None
