"""The client of a retrieval server: a retriever like any other."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import urllib3
from urllib3.util import parse_url

from searchgym.corpora.retrieval.remote.wire import read_contents, scored
from searchgym.corpora.retrieval.retriever import check_request
from searchgym.errors import RetrieverError, UsageError
from searchgym.records import Hit

Schema = Literal["retrieve", "search"]
AGAIN: Final = {408, 429, 500, 502, 503, 504}
"""Statuses that may be another one a moment later."""
FIRST_PAUSE: Final = 0.1
LEAST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 5.0
MOST: Final = 512
"""Queries of one request; servers of this project take 1,024 at most, unless told otherwise."""
SHOWN: Final = 300
"""Characters of a server's reply in a message."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why an attempt gave nothing."""

    reason: str
    after: float | None = None
    """Seconds after which the server wants to be asked again."""
    final: bool = False
    """Asking again would not help."""


class HttpRetriever:
    """Asks a server that speaks Search-R1's ``/retrieve`` or the M-ASK family's ``/search``.

    Threads may share it: each connection is kept for the next call. A copy is the retriever itself. Faults (no
    connection, a late or cut reply, a status such as 503, no JSON) are tried again, with growing pauses of random
    length, until the deadline.

    Args:
        url: ``http://host:port``, or the whole address of the end point.
        schema: Which of the two; as `url` ends where it names one.
        connections: Calls under way at once.
        deadline: Seconds for one call of `search`, pauses included.
        most: Queries of one request; more are asked in several, one after the other.

    Raises:
        UsageError: The URL is not one.
    """

    tries_again = True

    def __init__(
        self, url: str, schema: Schema | None = None, *, connections: int = 8, deadline: float = 30.0, most: int = MOST
    ) -> None:
        base, _, last = url.rstrip("/").rpartition("/")
        named: Schema | None = "retrieve" if last == "retrieve" else "search" if last == "search" else None
        self.url = base if named else url.rstrip("/")
        self.schema: Schema = schema or named or "retrieve"
        if parse_url(self.url).scheme not in ("http", "https"):
            raise UsageError(f"{url}: the address of a retrieval server begins with http:// or https://")
        self.calls_at_once, self.deadline, self.most = connections, deadline, most
        self.tried_again = 0
        """Attempts that came after another one had failed."""
        self._pool = urllib3.PoolManager(maxsize=connections, block=True, retries=False)
        self._random = random.Random()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits per query; the server's order and scores.

        Raises:
            RetrieverError: What the server, or the connection, said last.
            UsageError: `queries` is a single string, or `k` is below 1.
        """
        check_request(queries, k)
        found: list[list[Hit]] = []
        end = time.monotonic() + self.deadline
        for start in range(0, len(queries), self.most):
            found += self._ask(queries[start : start + self.most], k, end)
        return found

    def _ask(self, queries: Sequence[str], k: int, end: float) -> list[list[Hit]]:
        """Asks one request's queries, until there is an answer."""
        if self.schema == "retrieve":
            body: dict[str, Any] = {"queries": list(queries), "topk": k, "return_scores": True}
        else:
            body = {"questions": list(queries), "N": k}
        pause, attempts = FIRST_PAUSE, 0
        while True:
            found = self._attempt(body, len(queries), k, end - time.monotonic())
            attempts += 1
            if not isinstance(found, _Fault):
                return found
            wait = pause * self._random.uniform(0.5, 1.0) if found.after is None else max(found.after, LEAST_PAUSE)
            if found.final or time.monotonic() + wait >= end:
                raise RetrieverError(
                    f"{self.url}/{self.schema}: {found.reason} (attempt {attempts}, deadline {self.deadline:g} s)"
                )
            time.sleep(wait)
            self.tried_again += 1
            pause = min(2 * pause, LONGEST_PAUSE)

    def ready(self) -> bool:
        """Returns whether the server can answer; a server that does not know ``/readyz`` is ready if it answers."""
        try:
            reply = self._pool.request("GET", f"{self.url}/readyz", timeout=5.0)
        except urllib3.exceptions.HTTPError:
            return False
        return reply.status in (200, 404, 405)

    def wait(self, seconds: float) -> None:
        """Waits until the server is ready.

        Raises:
            RetrieverError: It is not, after so many seconds.
        """
        end = time.monotonic() + seconds
        while not self.ready():
            if time.monotonic() >= end:
                raise RetrieverError(f"{self.url} is not ready after {seconds:g} s")
            time.sleep(0.2)

    @property
    def corpus_sha256(self) -> str | None:
        """What the server says its corpus is; None if it does not say."""
        found = self.identity().get("corpus")
        return found if isinstance(found, str) else None

    def identity(self) -> dict[str, Any]:
        """Returns what the server says of its index; empty if it says nothing."""
        try:
            reply = self._pool.request("GET", f"{self.url}/info", timeout=5.0)
            found = json.loads(reply.data) if reply.status == 200 else {}
        except (urllib3.exceptions.HTTPError, ValueError):
            return {}
        return dict(found) if isinstance(found, dict) else {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def _attempt(self, body: dict[str, Any], expected: int, k: int, seconds: float) -> list[list[Hit]] | _Fault:
        """Asks once."""
        timeout = urllib3.Timeout(total=max(seconds, 0.001))
        try:
            reply = self._pool.request(
                "POST",
                f"{self.url}/{self.schema}",
                body=json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
                timeout=timeout,
                pool_timeout=max(seconds, 0.001),
            )
        except urllib3.exceptions.HTTPError as error:
            return _Fault(f"{type(error).__name__}: {error}")
        text = reply.data.decode("utf-8", "replace")
        if reply.status != 200:
            said = f"status {reply.status}: {_reason(text)}"
            return _Fault(said, _after(reply.headers.get("Retry-After")), final=reply.status not in AGAIN)
        try:
            found = self._read(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return _Fault(f"the reply is not in the schema of /{self.schema}: {text[:SHOWN]!r}")
        if len(found) != expected or any(len(hits) > k for hits in found):
            most = max(map(len, found), default=0)
            return _Fault(
                f"{expected} queries, {k} hits each at most: got {len(found)} lists, up to {most}", final=True
            )
        return found

    def _read(self, reply: Any) -> list[list[Hit]]:
        """Reads a reply of the schema; without scores the rank stands for them."""
        if self.schema == "retrieve":
            return [[scored(row) for row in rows] for rows in reply["result"]]
        lists = [one["top_k_docs"] for one in reply]
        return [[Hit(read_contents(text), 1.0 / rank) for rank, text in enumerate(texts, start=1)] for texts in lists]


def _reason(text: str) -> str:
    """Returns what an error's body says."""
    try:
        body = json.loads(text)
        return str(body["detail"])[:SHOWN]
    except (ValueError, KeyError, TypeError):
        return repr(text[:SHOWN])


def _after(header: str | None) -> float | None:
    """Reads Retry-After in seconds; its other form, a date, is passed over."""
    try:
        return None if header is None else min(max(float(header), 0.0), 60.0)
    except ValueError:
        return None
