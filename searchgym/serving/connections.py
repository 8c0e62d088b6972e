"""Server connections that are closed when a client takes too long or sends too much between its requests.

uvicorn limits only the time of idle connections; with its faster parser it does not limit the size of headers.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD: Final = 64 * 2**10
"""Maximum number of bytes in the head of a request; one read of the socket may exceed it."""


class _Bounded(asyncio.Protocol):
    """Connection with limits, to be combined with uvicorn's class of connections.

    A request must arrive within `seconds` of the connection's start or of the last reply, and the client must read a
    reply within `seconds` of its end. The time that the server takes to answer does not count.
    """

    seconds: ClassVar[float]
    body: ClassVar[int]
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    cycle: Any
    """uvicorn's latest request on this connection and its reply, None before the first."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._since, self._unasked = self.loop.time(), 0
        self._timer = self.loop.call_later(self.seconds, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        cycle = self.cycle
        reads_body = cycle is not None and cycle.more_body and not cycle.response_complete
        if cycle is not before or reads_body:  # the application limits the body that it reads
            self._unasked = 0
            return
        self._unasked += len(data)
        most = HEAD
        if cycle is not None and (cycle.more_body or not cycle.response_complete):
            # the rest of a refused body may still arrive and is dropped, so that the client reads the reply
            lengths = [value for name, value in cycle.scope["headers"] if name == b"content-length"]
            most += int(lengths[0]) if lengths else self.body
        if self._unasked > most:
            self._refuse(b"431 Request Header Fields Too Large")

    def on_response_complete(self) -> None:
        """Starts the time for the next request; uvicorn calls this after each reply."""
        self._since = self.loop.time()
        super().on_response_complete()  # type: ignore[misc]

    def _check(self) -> None:
        """Ends the connection if its time is up; otherwise checks again later."""
        left = self._since + self.seconds - self.loop.time()
        if self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete:
            left = self.seconds  # the server is still answering
        if left > 0:
            self._timer = self.loop.call_later(left, self._check)
        elif self.transport.is_closing() or self.transport.get_write_buffer_size():
            self.transport.abort()  # the client does not read its reply
        else:
            self._refuse(b"408 Request Timeout")

    def _refuse(self, status: bytes) -> None:
        """Ends the connection, with an error reply unless it is closing already."""
        if not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.transport.close()


def bounded(seconds: float, body: int) -> type[asyncio.Protocol]:
    """Returns a class of connections for ``uvicorn.Config(http=...)``.

    Args:
        seconds: Maximum number of seconds for a request to arrive, and for a reply to be read.
        body: Maximum number of bytes in the body of a request.
    """
    return type("Connection", (_Bounded, AutoHTTPProtocol), {"seconds": seconds, "body": body})
