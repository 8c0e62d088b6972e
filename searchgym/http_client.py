"""HTTP calls with a time limit and a size limit for the whole reply, however the server sends it.

The time-outs of urllib3 and `http.client` restart with each read, so a server that sends a byte now and then blocks its
client for ever, and neither limits how much is read. Here a connection's time-out is a deadline. Only the resolution of
host names is limited by the system instead.
"""

from __future__ import annotations

import base64
import http.client
import io
import logging
import math
import socket
import threading
import time
import urllib.request
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import urllib3
import urllib3.connection
from urllib3.exceptions import HTTPError, NameResolutionError, NewConnectionError
from urllib3.util import Url, parse_url

from searchgym.errors import UsageError, drawable

PIECE: Final = 2**16
"""Bytes per read or write."""
HEAD_BYTES: Final = 2**16
"""Maximum number of bytes of a reply's status and headers."""
MOST_PAUSE: Final = 60.0
"""Maximum wait in seconds that a server's ``Retry-After`` can request; longer ones are cut to it."""
SHOWN_BYTES: Final = 300
"""Maximum number of characters of a server's reply that an error message quotes."""
logging.getLogger("urllib3").setLevel(logging.ERROR)  # a warning of it prints a server's headers, with a traceback


def _left(end: float) -> float | None:
    """Returns the seconds left until `end`, a time on the clock of `time.monotonic`; None if it is infinite.

    Raises:
        TimeoutError: `end` has passed.
    """
    seconds = end - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return None if seconds == math.inf else seconds


class ReplyError(HTTPError):
    """Raised when a reply is longer than allowed, or compressed, since its true size is then unknown."""


class HttpReply(NamedTuple):
    """Status, headers and whole body of an HTTP server's reply."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Timed(io.RawIOBase):
    """Stream of a socket's bytes that fails once the socket's time-out, counted from construction, has passed.

    It also fails once it has read `most` bytes.

    Args:
        raw: Unlimited stream of the socket. sock: The socket.
    """

    def __init__(self, raw: io.RawIOBase, sock: socket.socket) -> None:
        self._raw, self._sock = raw, sock
        seconds = sock.gettimeout()
        self._end = math.inf if seconds is None else time.monotonic() + seconds
        self.most: float = HEAD_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        if self.most <= 0:
            raise http.client.HTTPException(f"the headers of the reply have over {HEAD_BYTES:,} bytes")
        self._sock.settimeout(_left(self._end))
        size = self._raw.readinto(buffer)
        self.most -= size or 0
        return size

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Pieces(io.BufferedReader):
    """Buffered stream that refuses to read without a size, which a chunk of negative length would trigger."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            raise http.client.HTTPException(f"a part of the reply has the length {size}")
        return super().read(size)


class _Response(http.client.HTTPResponse):
    """Response whose headers and body must both arrive within its socket's time-out."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self._timed = _Timed(self.fp.detach(), sock)
        self.fp = _Pieces(self._timed)

    def begin(self) -> None:
        """Reads status and headers, for which http.client sets no limit below 6 MB."""
        super().begin()
        self._timed.most = math.inf


class HttpConnection(urllib3.connection.HTTPConnection):
    """HTTP connection whose `timeout` is one deadline for all later operations; setting it starts the clock."""

    response_class: Any = _Response
    _end = math.inf

    @property
    def timeout(self) -> float | None:
        """Seconds left until the deadline, at least 0.001; None without a limit."""
        return None if self._end == math.inf else max(self._end - time.monotonic(), 0.001)

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:  # pyright: ignore
        self._end = math.inf if seconds is None else time.monotonic() + seconds

    def _new_conn(self) -> socket.socket:
        """Connects to the first address of the host that answers."""
        try:
            addresses = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        except UnicodeError as error:
            raise NewConnectionError(self, f"{self.host!r} is no name of a host: {error}") from error
        failed: OSError | None = None
        for family, kind, protocol, _, address in addresses:
            sock = socket.socket(family, kind, protocol)
            try:
                for option in self.socket_options or ():
                    sock.setsockopt(*option)
                sock.settimeout(_left(self._end))
                sock.connect(address)
                sock.settimeout(_left(self._end))  # for the handshake of TLS
                return sock
            except OSError as error:
                sock.close()
                failed = error
        raise NewConnectionError(self, f"Failed to establish a new connection: {failed}") from failed

    def send(self, data: Any) -> None:
        """Sends data in pieces; the timeout of each is the time left, so a slow server cannot exceed the deadline."""
        view = memoryview(data)
        for start in range(0, len(view), PIECE):
            if self.sock is not None:
                self.sock.settimeout(_left(self._end))
            super().send(view[start : start + PIECE])


class HttpsConnection(HttpConnection, urllib3.connection.HTTPSConnection):  # pyright: ignore
    """HTTPS connection whose `timeout` is a deadline, as in `HttpConnection`."""


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls: Any = HttpConnection


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls: Any = HttpsConnection


class HttpClient:
    """Client of one server with reused connections, safe to share between threads. Redirects are not followed.

    Args:
        url: ``http://host:port`` or ``https://host:port``, with or without a path. A user name and password in it are
            sent as basic authentication and appear in no message.
        connections: Maximum number of simultaneous calls; further calls wait, at most for their own time limit.
        proxies: Whether to use the proxies that the environment names (``HTTPS_PROXY``, ``NO_PROXY``).

    Raises:
        UsageError: `url` is not such an address.
    """

    def __init__(self, url: str, connections: int = 1, *, proxies: bool = False) -> None:
        try:
            parsed = parse_url(url)
        except HTTPError:
            parsed = Url()
        if parsed.scheme not in ("http", "https") or not parsed.host:
            address = "an address with a login" if "@" in url else repr(url)
            raise UsageError(f"the address of a server is http://host:port or https://host:port, got {address}")
        self.url = parsed._replace(auth=None).url.rstrip("/")
        """Address without user name and password."""
        self._headers = {"Accept-Encoding": "identity"} | _basic("Authorization", parsed.auth)
        through = proxies and not urllib.request.proxy_bypass(parsed.host)
        proxy = urllib.request.getproxies().get(parsed.scheme) if through else None
        self._pool = urllib3.PoolManager(maxsize=connections)
        if proxy is not None:
            proxy = proxy if "://" in proxy else f"http://{proxy}"
            login = _basic("Proxy-Authorization", parse_url(proxy).auth)
            self._pool = urllib3.ProxyManager(proxy, maxsize=connections, proxy_headers=login)
        self._pool.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
        self._free = threading.BoundedSemaphore(connections)

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        seconds: float,
        most: int,
    ) -> HttpReply:
        """Sends one request and returns the whole reply.

        Args:
            method: ``GET`` or ``POST``.
            path: Path below `url`, with its slash.
            body: Body of the request.
            headers: Further headers.
            seconds: Time limit in seconds, from now to the last byte of the reply.
            most: Maximum number of bytes of the reply's body.

        Raises:
            HTTPError: No complete reply arrived in time (an error of urllib3), or the reply was too long
                (`ReplyError`).
        """
        end = time.monotonic() + seconds
        if not self._free.acquire(timeout=max(seconds, 0.0)):
            raise urllib3.exceptions.TimeoutError(f"no connection was free within {seconds:g} s")
        try:
            reply = self._pool.request(
                method,
                self.url + path,
                body=body,
                headers=self._headers | dict(headers or {}),
                timeout=urllib3.Timeout(total=max(end - time.monotonic(), 0.001)),
                preload_content=False,
                redirect=False,
                retries=False,
            )
            try:
                return HttpReply(reply.status, reply.headers, read_body(reply, most))
            finally:
                reply.release_conn()
        finally:
            self._free.release()


def _basic(header: str, login: str | None) -> dict[str, str]:
    """Returns the basic-authentication header for a URL's ``user:password``; no header if `login` is None."""
    return {} if login is None else {header: "Basic " + base64.b64encode(unquote(login).encode()).decode()}


def read_body(reply: urllib3.BaseHTTPResponse, most: int) -> bytes:
    """Reads and returns the body of a reply in pieces; a reply that cannot be read to its end is closed.

    Raises:
        ReplyError: The body is longer than `most` bytes, or compressed.
        HTTPError: The body did not arrive completely in time.
    """
    body = bytearray()
    try:
        encoding = reply.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            raise ReplyError(
                f"the reply is compressed ({excerpt(encoding)}), though the request asked for none of that"
            )
        while piece := reply.read(PIECE, decode_content=False):
            body += piece
            if len(body) > most:
                raise ReplyError(f"the reply has over {most:,} bytes")
    except BaseException:
        reply.close()  # the unread rest must not be taken for the next reply
        raise
    return bytes(body)


def excerpt(text: str) -> str:
    """Returns the start of a server's text as one printable line, for quoting in an error message."""
    return drawable(" ".join(text[:SHOWN_BYTES].split()))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Returns the seconds of a ``Retry-After`` header, clipped to 0 to `MOST_PAUSE`; None if absent or not a number."""
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:  # absent, or a date
        return None
    return min(max(seconds, 0.0), MOST_PAUSE) if math.isfinite(seconds) else None
