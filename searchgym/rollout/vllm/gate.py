"""The gate of a sampling server: a middleware inside ``vllm serve`` that checks every call.

It requires a key, lets one training at a time use the server, checks the hashes of weight files before they are loaded,
and accepts a request only if the server has the weights named in it. Time is measured only by the server's clock, so
that other machines' clocks may differ. Its calls, after ``/searchgym/``:

    free        -- claim -->                            used by a run
    used        -- release, or LEASE without a call --> free
    weights     -- load -->                             those of the call, None if it fails half way
    any weights -- a question while free -->            the original ones

``about`` is open to all callers with the key, ``claim`` to runs whose files the server sees; ``beat``, ``release``,
``load``, ``adapter`` and ``fingerprint`` only to the run that uses the server.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from searchgym.corpora.files import sha256_file
from searchgym.errors import DataError
from searchgym.rollout.vllm.client import GENERATE, KEY, LEASE, OTHER_FILE, PROCESSES, RUN, SERVES, STALE, WEIGHTS

PREFIX: Final = "/searchgym/"
"""Prefix of the paths that the gate handles."""
CHATS: Final = {"/v1/chat/completions", "/v1/completions"}
"""Paths of OpenAI's interface, which other agents may call while no training uses the server."""


@dataclass(slots=True)
class _Claim:
    """The training that uses the server."""

    run: str
    who: str
    last_call: float
    """Time of the run's last call, by the monotonic clock."""


class ServerGate:
    """ASGI middleware of the server (``vllm serve --middleware searchgym.rollout.vllm.gate.ServerGate``).

    Args:
        app: The server's application.
        clock: Monotonic clock in seconds.
    """

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._clock = app, clock
        self._key = os.environ.get(KEY, "")
        self._serves = json.loads(os.environ.get(SERVES) or "{}")
        self._processes = int(os.environ.get(PROCESSES) or 1)
        self._claim: _Claim | None = None
        self._weights: str | None = ""
        """Name of the weights in use; empty for the original ones, None if a load failed half way."""
        self._adapters: dict[str, list[str | None]] = {}
        """Fingerprints of each loaded adapter by name, one of each process."""
        self._loading = False
        self._lock, self._restoring = asyncio.Lock(), asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request, passes it on to vLLM, or refuses it."""
        reply: Response | None = None
        try:
            if scope["type"] != "lifespan":
                reply = await self._reply(scope, receive)
        except HTTPException as error:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            reply = JSONResponse({"detail": error.detail}, error.status_code)
        await (reply or self._app)(scope, receive, send)

    async def _reply(self, scope: Scope, receive: Receive) -> Response | None:
        """Returns the reply to one of the gate's calls; None for an allowed call of vLLM."""
        headers, path = Headers(scope=scope), scope["path"]
        sent_key, server_key = headers.get("authorization", ""), f"Bearer {self._key}"
        if self._key and not hmac.compare_digest(sent_key.encode(), server_key.encode()):
            raise HTTPException(401, f"refuses the key: set {KEY} to the server's, here and there")
        if path.startswith(PREFIX):
            return await self._answer(path.removeprefix(PREFIX), Request(scope, receive))
        if scope.get("method") != "POST":
            return None
        if not self._in_use():
            if path in CHATS:
                await self._restore(scope)
                return None
            if RUN not in headers:
                chats = " and ".join(sorted(CHATS))
                raise HTTPException(403, f"serves {chats} to other programs, and {path} to trainings")
        self._check_run(headers)
        if path == GENERATE and (weights := headers.get(WEIGHTS, "")) != self._weights:
            raise HTTPException(STALE, f"it has {_named(self._weights)}, the request is for {_named(weights)}")
        return None

    def _in_use(self) -> bool:
        """Returns True if a training uses the server and called it less than `LEASE` seconds ago."""
        return self._claim is not None and self._clock() - self._claim.last_call < LEASE

    async def _restore(self, scope: Scope) -> None:
        """Loads the original weights again if a training left other weights."""
        async with self._restoring:
            if self._weights == "":
                return
            reply = await self._load(scope, {"name": ""})
            if reply.status_code == 200:  # otherwise vLLM would reuse keys and values of the training's weights
                reply = await self._pass_on(scope, "/reset_prefix_cache", {})
            if reply.status_code != 200:
                self._weights = None
                text = bytes(reply.body).decode(errors="replace")
                raise HTTPException(503, f"cannot load its original weights again: {text}")

    def _check_run(self, headers: Headers) -> None:
        """Refuses calls except from the training that uses the server, and records the time of its call."""
        if self._claim is None:
            raise HTTPException(STALE, "it was started again, or given back, and has no weights of this run")
        if headers.get(RUN) != self._claim.run:
            raise self._taken(self._claim)
        self._claim.last_call = self._clock()

    def _taken(self, claim: _Claim) -> HTTPException:
        """Returns the error for a run while another run uses the server."""
        age = f"heard of {self._clock() - claim.last_call:.0f} s ago"
        return HTTPException(
            409,
            f"samples for another run ({claim.who}, {age}): start a separate server for each run; if that one has "
            f"ended, this server is free {LEASE:g} s after it was last heard of",
        )

    async def _answer(self, name: str, request: Request) -> Response:
        """Executes the gate's call `name`."""
        if name == "about":
            about = {"serves": self._serves, "weights": self._weights, "processes": self._processes}
            return JSONResponse(about)
        body = await _body(request)
        if name == "claim":
            await _check_files(body, 409)
            run = request.headers.get(RUN, "")
            if self._claim and self._claim.run != run and self._in_use():
                raise self._taken(self._claim)
            self._claim = _Claim(run, str(body.get("who")), self._clock())
            return JSONResponse({})
        self._check_run(request.headers)
        if name == "beat":  # while weights are loading, vLLM answers no other call
            return JSONResponse({}) if self._loading else await self._call_workers(request.scope, "check_health")
        if name == "release":
            self._claim = None
            return JSONResponse({})
        if name == "load":
            return await self._load(request.scope, body)
        if name == "adapter":
            await _check_files(body)
            adapter = {"lora_name": body["name"], "lora_path": body["folder"]}
            reply = await self._pass_on(request.scope, "/v1/load_lora_adapter", adapter)
            if reply.status_code == 200:
                self._adapters[body["name"]] = await self._fingerprints(request.scope, 0)
            return reply
        if name == "fingerprint":
            adapter_name = body.get("adapter")
            results = self._adapters.get(adapter_name) if adapter_name else await self._fingerprints(request.scope)
            return JSONResponse({"fingerprints": results or []})
        raise HTTPException(404, f"has no {PREFIX}{name}")

    async def _load(self, scope: Scope, body: Mapping[str, Any]) -> Response:
        """Loads weights from a folder or a group, or the original ones if the body names neither.

        An invitation to a group without tensors loads nothing; it tests that the processes can join.
        """
        invitation = body.get("invitation", {})
        if not isinstance(invitation, dict):
            raise HTTPException(400, f"the invitation to a group is {invitation!r:.80}")
        if invitation and not invitation.get("tensors"):
            return await self._join(scope, invitation)
        async with self._lock:  # a load continues if its client disconnects
            if not invitation:
                await _check_files(body)
            self._weights, self._loading = None, True
            try:
                if invitation:
                    reply = await self._join(scope, invitation)
                else:
                    folder = body.get("folder", self._serves.get("model"))
                    reply = await self._call_workers(scope, "load_folder", folder=folder)
            finally:
                self._loading = False
            if reply.status_code == 200:
                self._weights = str(body["name"])
            return reply

    async def _join(self, scope: Scope, invitation: Mapping[str, Any]) -> Response:
        """Makes the workers join a group; see `Receiver.receive_weights`, which returns errors."""
        reply = await self._call_workers(scope, "receive_weights", invitation=invitation)
        results = json.loads(bytes(reply.body))["results"] if reply.status_code == 200 else []
        failed = [error for error in results if error is not None]
        return JSONResponse({"detail": str(failed[0])}, 500) if failed else reply

    async def _fingerprints(self, scope: Scope, adapter: int | None = None) -> list[str | None]:
        """Returns the fingerprint of each worker's weights; see `Receiver.weights_fingerprint`."""
        reply = await self._call_workers(scope, "weights_fingerprint", adapter=adapter)
        return json.loads(bytes(reply.body))["results"] if reply.status_code == 200 else []

    async def _call_workers(self, scope: Scope, method: str, **options: Any) -> Response:
        """Calls a method of the processes with the weights."""
        return await self._pass_on(scope, "/collective_rpc", {"method": method, "kwargs": options})

    async def _pass_on(self, scope: Scope, path: str, body: Mapping[str, Any]) -> Response:
        """Executes one of vLLM's calls."""
        inner = JSONResponse(body)  # for its bytes and headers
        called = {"method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
        messages: list[Message] = [{"type": "http.request", "body": inner.body, "more_body": False}]
        status, parts = 500, list[bytes]()

        async def receive() -> Message:
            if not messages:
                await asyncio.Event().wait()  # until the call ends: this client does not disconnect
            return messages.pop()

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        try:
            await self._app({**scope, **called, "headers": inner.raw_headers}, receive, send)
        except Exception as error:
            return JSONResponse({"detail": f"{type(error).__name__}: {error}"}, 500)
        return Response(b"".join(parts), status, media_type="application/json")


async def _check_files(body: Mapping[str, Any], status: int = OTHER_FILE) -> None:
    """Raises an HTTP error with a status if the call's files differ between this machine and the training's."""
    folder = Path(str(body.get("folder")))
    for name, expected in dict(body.get("files") or {}).items():
        try:
            actual = await asyncio.to_thread(sha256_file, folder / name)
        except DataError as error:
            raise HTTPException(
                status, f"does not see the file {error}; rollout.sampler.shared must be on both machines"
            ) from error
        if actual != expected:
            raise HTTPException(
                status, f"sees another file as {folder / name}: it is incomplete, or the folder is not shared"
            )


async def _body(request: Request) -> dict[str, Any]:
    """Returns the JSON object in a request's body."""
    try:
        body = json.loads(await request.body() or b"{}")
    except ClientDisconnect:
        raise HTTPException(400, "the client has disconnected") from None
    except ValueError as error:
        raise HTTPException(400, f"the request is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise HTTPException(400, "the request is not a JSON object")
    return body


def _named(weights: str | None) -> str:
    """Returns a description of weights for messages."""
    return "incompletely loaded weights" if weights is None else f"weights {weights or 'of the original model'}"
