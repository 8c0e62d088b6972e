"""HTTP client of a sampling server, whose calls can all be aborted at once, and names shared with the server."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, Final

import urllib3

from searchgym.errors import EngineLostError, ModelError, UsageError
from searchgym.http_client import HttpConnection, HttpsConnection, excerpt, read_body

KEY: Final = "SEARCHGYM_ENGINE_KEY"
"""Environment variable with the secret shared by servers and trainings."""
SERVES: Final = "SEARCHGYM_ENGINE_SERVES"
"""Environment variable of a server with its `Identity` in JSON."""
PROCESSES: Final = "SEARCHGYM_ENGINE_PROCESSES"
"""Environment variable of a server with the number of processes that hold its weights."""
RUN: Final = "X-SearchGym-Run"
"""Header with the name of the training's run."""
WEIGHTS: Final = "X-SearchGym-Weights"
"""Header with the name of the weights that a request needs; empty for the model's original weights."""
GENERATE: Final = "/inference/v1/generate"
"""vLLM's path for requests with token ids."""
LEASE: Final = 30.0
"""Seconds without a call of the training after which another training may use the server."""
STALE: Final = 412
"""HTTP status of a server whose weights are not those of the request."""
OTHER_FILE: Final = 422
"""HTTP status of a server that sees other files than the client."""
CONNECT: Final = 5.0
"""Maximum seconds for a server to accept a connection."""
FAULTS: Final = (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError)
"""Exceptions of a call without a server or without a complete reply."""
REPLY_BYTES: Final = 64 * 2**20
"""Maximum number of bytes in a reply; a response of 100,000 tokens has about 25 million."""
START_HINT: Final = "start it by `searchgym serve model RECIPE --host HOST --port PORT`"
"""Hint for a server that was started in another way."""


class Client:
    """JSON client of one server; it uses no proxy, because servers are the user's machines.

    Args:
        address: Address of the server, ``http://HOST:PORT``.
        headers: Headers of every call.
    """

    def __init__(self, address: str, headers: Mapping[str, str]) -> None:
        self.address, self._headers = address, {"Content-Type": "application/json", **headers}
        self._lock = threading.Lock()
        self._open = set[HttpConnection]()
        self.ended = threading.Event()
        """Event set by `cut`."""

    def call(
        self, path: str, body: Mapping[str, Any] | None = None, *, timeout: float, headers: Mapping[str, str] = {}
    ) -> Any:
        """Sends a POST, or a GET if there is no body, and returns the JSON reply.

        Args:
            path: Path on the server.
            body: JSON object to send.
            timeout: Maximum seconds until the complete reply.
            headers: Further headers.

        Raises:
            EngineLostError: The server does not reply, fails, has other weights, or its reply is not JSON.
            UsageError: The server has no such path, requires another key, or samples for another run.
            ModelError: The server refuses the request.
        """
        data = None if body is None else json.dumps(body).encode()
        try:
            with self._connection(timeout) as connection:
                how = {**self._headers, **headers}
                connection.request("GET" if data is None else "POST", path, data, how, preload_content=False)
                reply = connection.getresponse()
                status, text = reply.status, read_body(reply, REPLY_BYTES).decode(errors="replace")
        except FAULTS as error:
            refused = isinstance(error, urllib3.exceptions.NewConnectionError)  # urllib3 counts it as a time-out
            if isinstance(error, (TimeoutError, urllib3.exceptions.TimeoutError)) and not refused:
                raise EngineLostError(f"{self.address} has not answered for {timeout:g} s: it stands still") from error
            raise EngineLostError(f"{self.address} does not answer: {excerpt(str(error))}") from error
        if status != 200:
            with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
                text = str(json.loads(text)["detail"])
            text = excerpt(text)
            if status == 404 and "adapter" not in path:
                raise UsageError(f"{self.address} has no {path}: {START_HINT}")
            if status in (401, 409):
                raise UsageError(f"{self.address} {text}")
            lost = status >= 500 or status in (STALE, OTHER_FILE)
            raise (EngineLostError if lost else ModelError)(f"{self.address}{path}: {status}: {text}")
        try:
            return json.loads(text) if text.startswith(("{", "[")) else {}
        except (ValueError, RecursionError) as error:
            raise EngineLostError(f"{self.address}{path} answered {text[:200]!r}") from error

    def local_address(self) -> str:
        """Returns this machine's address in the connection to the server.

        Raises:
            EngineLostError: The server does not accept a connection.
        """
        try:
            with self._connection(CONNECT) as connection:
                return str(connection.sock.getsockname()[0])
        except FAULTS as error:
            raise EngineLostError(f"{self.address} does not answer: {excerpt(str(error))}") from error

    def cut(self) -> None:
        """Aborts all waiting calls, and refuses later ones, with an EngineLostError."""
        with self._lock:
            self.ended.set()
            for connection in self._open:
                with contextlib.suppress(OSError, AttributeError):  # it may be connecting, or have ended
                    connection.sock.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _connection(self, timeout: float) -> Iterator[HttpConnection]:
        """Connects to the server; `cut` can close the connection while it is open."""
        parts = urllib.parse.urlsplit(self.address)
        kind, end = HttpsConnection if parts.scheme == "https" else HttpConnection, time.monotonic() + timeout
        connection = kind(parts.hostname or "", parts.port, timeout=min(timeout, CONNECT))
        with self._lock:
            self._open.add(connection)
        try:
            connection.connect()
            with self._lock:
                if self.ended.is_set():
                    raise ConnectionAbortedError("it was given up")
            connection.timeout = end - time.monotonic()
            yield connection
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()
