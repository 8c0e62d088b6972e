"""Access control of a retrieval server: its token, and the host names that it accepts."""

from __future__ import annotations

import functools
import hmac
import ipaddress
import json
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from fastapi import Response
from starlette.types import ASGIApp, Receive, Scope, Send

PROBES: Final = frozenset({"/healthz", "/readyz"})
"""Paths that need no token; they reveal nothing about the index."""
ANY: Final = "*"
"""Host name that allows every other."""


class Access:
    """Decides which requests are answered.

    The header ``Host`` names the server that a request is meant for. A web page that reaches this server through the
    page's own domain (DNS rebinding) sends that domain, so names other than ``localhost`` must be allowed explicitly.
    IP addresses are always allowed, because no web page can have one redirected to this server.

    Args:
        token: Token that requests must send as ``Authorization: Bearer TOKEN``. Default: no token is needed.
        hosts: Names accepted in ``Host``, in addition to ``localhost`` and every IP address; `ANY` allows all.
    """

    def __init__(self, token: str | None = None, hosts: Iterable[str] = ()) -> None:
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._hosts = frozenset({"localhost", *(host.lower() for host in hosts)})

    def refusal(self, scope: Scope) -> Response | None:
        """Returns the error reply to a request that is not allowed, None if it is."""
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if not hosts or not all(_is_allowed(host, self._hosts) for host in hosts):
            names = b", ".join(hosts)[:80].decode("latin-1")
            return _refused(f"this server does not accept the host name {names!r}: see --allow-host", 421)
        if self._expected is None or scope["path"] in PROBES:
            return None
        tokens = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(tokens) == 1 and hmac.compare_digest(tokens[0], self._expected):
            return None
        return _refused(
            "this server needs a token: Authorization: Bearer TOKEN, where TOKEN is its SEARCHGYM_TOKEN", 401
        )


@functools.lru_cache(maxsize=256)
def _is_allowed(host: bytes, names: frozenset[str]) -> bool:
    """Returns whether the value of a ``Host`` header is an address, or one of the names."""
    if ANY in names:
        return True
    try:
        name = urlsplit(f"//{host.decode('latin-1')}").hostname or ""
        if name not in names:
            ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class AccessMiddleware:
    """ASGI application that passes on the requests that `Access` allows and refuses the others."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses a request, or passes it to the application."""
        refusal = self.access.refusal(scope) if scope["type"] == "http" else None
        await (self.app if refusal is None else refusal)(scope, receive, send)


def _refused(reason: str, status: int) -> Response:
    response = Response(json.dumps({"detail": reason}), status, media_type="application/json")
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
