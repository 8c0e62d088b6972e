"""The gate of a sampling server: runs inside ``vllm serve``, in front of its own calls.

It asks for a key, lets one training at a time use the server, checks files of weights by their hash before they are
loaded, and answers a request only with the weights that it names. Time is measured by the server's own clock alone, so
that clocks of other machines may differ.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.files import sha256_file
from searchgym.errors import DataError
from searchgym.rollout.vllm.client import OTHER_FILE, STALE

PREFIX: Final = "/searchgym/"
"""Start of the paths that the gate answers itself."""
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
CHATS: Final = {"/v1/chat/completions", "/v1/completions"}
"""Paths of OpenAI's interface, which other agents may ask while no training uses the server (``engine --tools``)."""
LEASE: Final = 30.0
"""Seconds without a sign of life after which another training may use the server."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RefusalError(Exception):
    """Raised for a request that gets an error reply.

    Args:
        status: HTTP status.
        detail: What the client is told.
    """

    def __init__(self, status: int, detail: str) -> None:
        self.status, self.detail = status, detail
        super().__init__(detail)


@dataclass(slots=True)
class _Claim:
    """The training that uses the server."""

    run: str
    who: str
    heard: float
    """Time of its last sign of life, by the monotonic clock."""


class Gate:
    """ASGI middleware of the server (``vllm serve --middleware searchgym.rollout.vllm.gate.Gate``).

    Args:
        app: The server's own application.
        clock: Monotonic clock in seconds.
    """

    def __init__(self, app: App, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._clock = app, clock
        self._key = os.environ.get(KEY, "")
        self._serves = json.loads(os.environ.get(SERVES) or "{}")
        self._processes = int(os.environ.get(PROCESSES) or 1)
        self._claim: _Claim | None = None
        self._weights: str | None = ""
        """Name of the weights in use; empty for the original ones, None if a load failed half way."""
        self._loading = False
        self._lock, self._restoring = asyncio.Lock(), asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, passes it on or refuses it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            if self._key and not hmac.compare_digest(
                headers.get("authorization", "").encode(), f"Bearer {self._key}".encode()
            ):
                raise RefusalError(401, f"refuses the key: set {KEY} to the server's, here and there")
            path = scope["path"]
            if not path.startswith(PREFIX):
                if scope.get("method") == "POST":
                    if path in CHATS and not self._in_use():
                        await self._restore(scope)
                    else:
                        self._check(path, headers)
                await self._app(scope, receive, send)
                return
            status, content = await self._own(path.removeprefix(PREFIX), scope, receive, headers)
        except RefusalError as error:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            status, content = error.status, json.dumps({"detail": error.detail}).encode()
        await _reply(send, status, content)

    def _check(self, path: str, headers: Mapping[str, str]) -> None:
        """Refuses a call of vLLM's own that changes or samples by anyone but the training, or for other weights."""
        if RUN.lower() not in headers and not self._in_use():
            raise RefusalError(403, f"serves {' and '.join(sorted(CHATS))} to other programs, and {path} to trainings")
        self._check_run(headers)
        if path == GENERATE and (wanted := headers.get(WEIGHTS.lower(), "")) != self._weights:
            raise RefusalError(STALE, f"it has {_named(self._weights)}, the request is for {_named(wanted)}")

    def _in_use(self) -> bool:
        """Returns whether a training uses the server and was heard of lately."""
        return self._claim is not None and self._clock() - self._claim.heard < LEASE

    async def _restore(self, scope: Scope) -> None:
        """Loads the original weights again if a training has left its own."""
        async with self._restoring:
            if self._weights == "":
                return
            status, content = await self._load(scope, {"name": ""})
            if status == 200:  # otherwise vLLM would reuse keys and values of the training's weights
                status, content = await self._pass_on(scope, "/reset_prefix_cache", {})
            if status != 200:
                self._weights = None
                raise RefusalError(503, f"cannot load its original weights again: {content.decode(errors='replace')}")

    def _check_run(self, headers: Mapping[str, str]) -> None:
        if self._claim is None:
            raise RefusalError(STALE, "it was started again, or given back, and has no weights of this run")
        if headers.get(RUN.lower()) != self._claim.run:
            raise RefusalError(409, self._taken())
        self._claim.heard = self._clock()

    def _taken(self) -> str:
        assert self._claim is not None
        ago = self._clock() - self._claim.heard
        return (
            f"samples for another run ({self._claim.who}, heard of {ago:.0f} s ago): start a separate server for each "
            f"run; if that one has ended, this server is free {LEASE:g} s after it was last heard of"
        )

    async def _own(self, name: str, scope: Scope, receive: Receive, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Answers the gate's own call `name`."""
        if name == "about":
            return _said(serves=self._serves, weights=self._weights, processes=self._processes)
        body = await _body(receive)
        if name == "claim":
            run = headers.get(RUN.lower(), "")
            if self._claim and self._claim.run != run and self._in_use():
                raise RefusalError(409, self._taken())
            self._claim = _Claim(run, str(body.get("who")), self._clock())
            return _said()
        self._check_run(headers)
        if name == "beat":  # while weights are loaded, vLLM answers nothing else
            return (
                _said() if self._loading else await self._pass_on(scope, "/collective_rpc", {"method": "check_health"})
            )
        if name == "release":
            self._claim = None
            return _said()
        if name == "see":
            await _check_files(body, 409)
            return _said()
        if name == "meet":
            body["invitation"] = {**_invitation(body), "tensors": []}
            return await self._join(scope, body)
        if name == "load":
            return await self._load(scope, body)
        if name == "adapter":
            await _check_files(body)
            adapter = {"lora_name": body["name"], "lora_path": body["folder"]}
            return await self._pass_on(scope, "/v1/load_lora_adapter", adapter)
        raise RefusalError(404, f"has no {PREFIX}{name}")

    async def _load(self, scope: Scope, body: Mapping[str, Any]) -> tuple[int, bytes]:
        """Loads weights from a folder or a group, or the original ones if the body names neither."""
        async with self._lock:  # a client that leaves does not end its load
            if "invitation" not in body:
                await _check_files(body)
            self._weights, self._loading = None, True
            try:
                if "invitation" in body:
                    status, content = await self._join(scope, body)
                else:
                    call: dict[str, Any] = {"method": "load_original", "kwargs": {"folder": self._serves["model"]}}
                    if "folder" in body:
                        call = {"method": "reload_weights", "kwargs": {"weights_path": body["folder"]}}
                    status, content = await self._pass_on(scope, "/collective_rpc", call)
            finally:
                self._loading = False
            if status == 200:
                self._weights = str(body["name"])
            return status, content

    async def _join(self, scope: Scope, body: Mapping[str, Any]) -> tuple[int, bytes]:
        """Has the workers join a group; see `searchgym.rollout.transfer.group.Receiver`, which returns its errors."""
        call = {"method": "receive_weights", "kwargs": {"invitation": _invitation(body)}}
        status, content = await self._pass_on(scope, "/collective_rpc", call)
        if status == 200 and (failed := [one for one in json.loads(content)["results"] if one is not None]):
            return 500, json.dumps({"detail": str(failed[0])}).encode()
        return status, content

    async def _pass_on(self, scope: Scope, path: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
        """Makes one of vLLM's own calls; returns its status and reply."""
        content = json.dumps(body).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        inner = {
            **scope,
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
        }
        messages = [{"type": "http.request", "body": content, "more_body": False}]
        status, parts = 500, list[bytes]()

        async def receive() -> Message:
            if not messages:
                await asyncio.Event().wait()  # until the call ends: this client does not leave
            return messages.pop()

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        try:
            await self._app(inner, receive, send)
        except Exception as error:
            return 500, json.dumps({"detail": f"{type(error).__name__}: {error}"}).encode()
        return status, b"".join(parts)


def _invitation(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the invitation of a call; refuses a call without one."""
    invitation = body.get("invitation")
    if not isinstance(invitation, dict):
        raise RefusalError(400, "the request has no invitation")
    return invitation


async def _check_files(body: Mapping[str, Any], status: int = OTHER_FILE) -> None:
    """Refuses a call, with a status, whose files are not on this machine as they are on the training's."""
    folder = Path(str(body.get("folder")))
    for name, wanted in dict(body.get("files") or {}).items():
        try:
            found = await asyncio.to_thread(sha256_file, folder / name)
        except DataError as error:
            raise RefusalError(
                status, f"does not see the file {error}; rollout.sampler.shared must be on both machines"
            ) from error
        if found != wanted:
            raise RefusalError(status, f"sees another file as {folder / name}: it was cut, or the folder is not shared")


async def _body(receive: Receive) -> dict[str, Any]:
    """Returns the JSON object that a request brings."""
    parts, more = list[bytes](), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RefusalError(400, "the client has left")
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    try:
        body = json.loads(b"".join(parts) or b"{}")
    except ValueError as error:
        raise RefusalError(400, f"the request is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise RefusalError(400, "the request is not a JSON object")
    return body


def _named(weights: str | None) -> str:
    """Returns the name of weights in a sentence."""
    return "weights that were loaded half way" if weights is None else f"weights {weights or 'of the original model'}"


def _said(**content: Any) -> tuple[int, bytes]:
    return 200, json.dumps(content).encode()


async def _reply(send: Send, status: int, content: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
