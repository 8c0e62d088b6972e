"""HTTP calls to a sampling server, which can all be cut off at once, and the names that server and training share."""

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
"""Environment variable with the secret that servers and trainings share."""
SERVES: Final = "SEARCHGYM_ENGINE_SERVES"
"""Environment variable of a server with its `Identity` in JSON."""
PROCESSES: Final = "SEARCHGYM_ENGINE_PROCESSES"
"""Environment variable of a server with the number of processes that hold its weights."""
RUN: Final = "X-SearchGym-Run"
"""Header that names the training."""
WEIGHTS: Final = "X-SearchGym-Weights"
"""Header that names the weights that a request is for; empty for the model's original weights."""
GENERATE: Final = "/inference/v1/generate"
"""vLLM's path for requests with token ids."""
LEASE: Final = 30.0
"""Seconds without a sign of life after which another training may use the server."""
STALE: Final = 412
"""Status of a server whose weights are not those that a request names."""
OTHER_FILE: Final = 422
"""Status of a server that sees other files than the client."""
CONNECT: Final = 5.0
"""Seconds for a server to accept a connection."""
FAULTS: Final = (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError)
"""What a call raises if there is no server, or no whole reply."""
REPLY_BYTES: Final = 64 * 2**20
"""Maximum number of bytes of a reply; a response of 100,000 tokens takes about 25 million."""
START_HINT: Final = "start it by `searchgym engine RECIPE --at ADDRESS`"
"""What to do about a server that was started otherwise."""


class Client:
    """Calls one server in JSON; no proxy is asked, since servers are the user's machines.

    Args:
        address: Address of the server, ``http://HOST:PORT``.
        headers: Headers of every call.
    """

    def __init__(self, address: str, headers: Mapping[str, str]) -> None:
        self.address, self._headers = address, {"Content-Type": "application/json", **headers}
        self._lock = threading.Lock()
        self._open = set[HttpConnection]()
        self.ended = threading.Event()
        """Event that is set by `cut`."""

    def call(
        self, path: str, body: Mapping[str, Any] | None = None, *, timeout: float, headers: Mapping[str, str] = {}
    ) -> Any:
        """Sends a POST, or a GET if there is no body, and returns the JSON reply.

        Args:
            path: Path on the server.
            body: JSON object to send.
            timeout: Seconds after which a server that has not sent its whole reply counts as standing still.
            headers: Further headers.

        Raises:
            EngineLostError: The server does not answer, fails, has other weights, or its answer is not JSON.
            UsageError: The server has no such path, wants another key, or samples for another run.
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
            refused = isinstance(error, urllib3.exceptions.NewConnectionError)  # which urllib3 counts as a time-out
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
        """Returns the address of this machine that the server answers to.

        Raises:
            EngineLostError: The server does not accept a connection.
        """
        try:
            with self._connection(CONNECT) as connection:
                return str(connection.sock.getsockname()[0])
        except FAULTS as error:
            raise EngineLostError(f"{self.address} does not answer: {excerpt(str(error))}") from error

    def cut(self) -> None:
        """Ends every call that waits, and refuses later ones, with an EngineLostError."""
        with self._lock:
            self.ended.set()
            for connection in self._open:
                with contextlib.suppress(OSError, AttributeError):  # it may be connecting, or have ended
                    connection.sock.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _connection(self, timeout: float) -> Iterator[HttpConnection]:
        """Connects to the server; the connection is known to `cut` while it is open."""
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
