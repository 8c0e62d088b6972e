"""Backend on a vLLM server (``vllm serve``), on this or another machine.

Weights are passed through a folder that both sides can read, or sent to the server's processes over the network
(`Vllm.transfer`).
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors import safe_open
from typing_extensions import override

from searchgym.errors import EngineLostError, ModelError, SearchGymError, UsageError
from searchgym.rollout.transfer.fingerprint import common_fingerprint
from searchgym.rollout.transfer.folders import MODEL, SUMS, Folders
from searchgym.rollout.transfer.group import JOIN_SECONDS as SENDING
from searchgym.rollout.transfer.group import send
from searchgym.rollout.vllm.backend import (
    Adapter,
    Completion,
    EngineBackend,
    EngineRequest,
    check_reset,
)
from searchgym.rollout.vllm.client import GENERATE, KEY, LEASE, RUN, START_HINT, WEIGHTS, Client
from searchgym.rollout.vllm.setup import EngineSetup, Identity, check_identity

SERVER_SECONDS: Final = 300.0
"""Maximum seconds to wait for a server, at the start and after it disappeared."""
HELLO: Final = 5.0
"""Maximum seconds for a server to describe what it serves."""
MEET: Final = 20.0
"""Maximum seconds for a server's processes to join a group without tensors; below `LEASE`, as no heartbeats are sent
yet."""
MOMENT: Final = 0.05
"""Maximum seconds that one step waits for responses."""
LOADING: Final = 900.0
"""Maximum seconds for a server to load weights, during which its engine does not respond."""
SLOW: Final = 3600.0
"""Maximum seconds of a request on a responsive server."""


class ServedVllm(EngineBackend):
    """Backend that uses a running ``vllm serve``; the server keeps running after `close`.

    A thread sends heartbeat calls, which check the server and reserve it for this run.

    Args:
        address: Address of the server, ``http://HOST:PORT``.
        setup: Set-up of the engine; its requests, and its options `transfer`, `shared` and `stall`, are used.
        needed: Identity that the server must have.
        run: Name of this run, for which the server is reserved.
        patience: Maximum seconds to wait for the server, at the start and after it disappeared. Default:
            `SERVER_SECONDS`.

    Raises:
        UsageError: The server was not started by `serve_command`, serves something else, requires another key, samples
            for another run or does not see the folder of the weights.
        EngineLostError: No server replies, or its processes cannot join a group with this process.
    """

    def __init__(
        self, address: str, setup: EngineSetup, *, needed: Identity, run: str, patience: float | None = None
    ) -> None:
        options = setup.options
        self.name = self.address = address.rstrip("/")
        self._wanted, self._run = needed, run
        self._patience = SERVER_SECONDS if patience is None else patience
        self._group = None if options.transfer == "folder" else options.transfer
        """Backend of the process groups for weights; None if folders are used."""
        self._processes = 1
        self._shared = None if options.shared is None else Path(options.shared).resolve()
        host = urllib.parse.urlsplit(self.address).hostname or ""
        here = host in ("localhost", "::1", socket.gethostname()) or host.startswith("127.")
        if self._group is None and self._shared is None and not here:
            raise UsageError(
                f"{self.address} is on another machine: set rollout.sampler.shared to a folder that it and this one "
                "mount, or rollout.sampler.transfer to gloo"
            )
        self._stall, self._every = options.stall, min(LEASE, options.stall) / 3
        self._pool = ThreadPoolExecutor(setup.requests, thread_name_prefix="vllm-server")
        self._ended: queue.SimpleQueue[tuple[Client, str, Completion | Exception]] = queue.SimpleQueue()
        self._adapters: set[str] = set()
        self._weights = ""
        """Name of the weights that requests need; empty for the model's original weights."""
        self._lost: SearchGymError | None = None
        """Error after which the server is not used until the next restart; None if there is none."""
        self._client = self._new_client()
        """Client since the last restart; responses to requests through an earlier one are ignored."""
        self.max_context = 0
        try:
            self.restart()
        except BaseException:
            self.close()
            raise

    @override
    def new_folders(self) -> Folders:
        return Folders(self._shared, summed=self._group is None)

    @override
    def restart(self) -> None:
        """Waits until the server replies, and reserves it for this run."""
        self._client.cut()
        self._adapters.clear()
        self._client, self._lost = self._new_client(), None
        about = self._greet()
        check_identity(self._wanted, about["serves"], self.address)
        self._processes = int(about.get("processes", 1))
        claim: dict[str, Any] = {"who": f"{socket.gethostname()}, process {os.getpid()}"}
        folders = self.new_folders()
        try:
            if self._group is None:  # tests that the server sees the folder of the weights
                folder = folders.tensors({}, "seen.safetensors", 0)
                claim |= {"folder": folder, "files": _sums(folder)}
            self._client.call("/searchgym/claim", claim, timeout=HELLO)
        finally:
            folders.clear()
        if self._group is not None:
            self._send({}, MEET)
        threading.Thread(target=self._beat, args=(self._client,), name="vllm-beats", daemon=True).start()
        if about["weights"] != "":  # left by this or an earlier run
            self._call("/searchgym/load", {"name": ""}, timeout=LOADING)
            self.forget()  # otherwise vLLM would reuse keys and values of the last run's weights
        self._weights = ""
        models = self._client.call("/v1/models", timeout=HELLO)
        self.max_context = int(next(model["max_model_len"] for model in models["data"] if model.get("max_model_len")))

    @override
    def add(self, name: str, request: EngineRequest) -> None:
        body: dict[str, Any] = {"token_ids": request.prompt, "sampling_params": dict(request.parameters)}
        if request.adapter is not None:
            self.take(request.adapter)
            body["model"] = request.adapter.name
        self._pool.submit(self._answer, self._client, name, body)

    @override
    def step(self) -> list[tuple[str, Completion | Exception]]:
        if self._lost is not None:
            raise self._lost
        try:
            ended = [self._ended.get(timeout=MOMENT)]
            while not self._ended.empty():
                ended.append(self._ended.get())
        except queue.Empty:
            return []
        ended = [one for one in ended if one[0] is self._client]
        for *_, completion in ended:
            if isinstance(completion, EngineLostError):
                raise self._lost or completion
        return [(name, completion) for _, name, completion in ended]

    @override
    def load(self, folder: str) -> None:
        """Makes the server load weights from a folder, whose files it checks by hash, or sends it the tensors."""
        self._weights = Path(folder).name
        if self._group is None:
            body = {"name": self._weights, "folder": folder, "files": _sums(folder)}
            self._call("/searchgym/load", body, timeout=LOADING)
            return
        with safe_open(Path(folder) / MODEL, framework="pt") as file:  # maps the file without reading tensors
            self._send({name: file.get_tensor(name) for name in file.keys()}, LOADING)  # noqa: SIM118

    @override
    def take(self, adapter: Adapter) -> None:
        if adapter.name not in self._adapters:
            body = {"name": adapter.name, "folder": adapter.folder, "files": _sums(adapter.folder)}
            try:
                self._call("/searchgym/adapter", body)
            except EngineLostError as error:
                # A server replies 500 to an adapter that it cannot load; if it answers this call, it has not ended.
                if ": 500: " not in str(error):
                    raise
                self._call("/v1/models", None)
                raise ModelError(str(error)) from error
            except ModelError as error:
                if "already" not in str(error):
                    raise  # else an earlier attempt loaded it and its reply was lost
            self._adapters.add(adapter.name)

    @override
    def fingerprint(self, adapter: Adapter | None) -> str | None:
        body = {"adapter": None if adapter is None else adapter.name}
        return common_fingerprint(self._call("/searchgym/fingerprint", body).get("fingerprints", []))

    @override
    def drop(self, adapter: Adapter) -> None:
        if adapter.name in self._adapters:
            self._adapters.discard(adapter.name)
            try:
                self._call("/v1/unload_lora_adapter", {"lora_name": adapter.name})
            except ModelError as error:
                if isinstance(error, EngineLostError) or ": 404: " not in str(error):
                    raise  # otherwise the server was restarted and no longer has it

    @override
    def forget(self) -> None:
        check_reset(self._call("/reset_prefix_cache", {}).get("success"))

    @override
    def sleep(self, level: int) -> None:
        self._call(f"/sleep?level={level}", {})

    @override
    def wake(self) -> None:
        self._call("/wake_up", {})

    @override
    def close(self) -> None:
        if self._lost is None and not self._client.ended.is_set():
            with contextlib.suppress(SearchGymError):
                self._client.call("/searchgym/release", {}, timeout=HELLO)
        self._client.cut()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _beat(self, client: Client) -> None:
        """Sends heartbeat calls until the client is cut; a server that does not reply is not used any more."""
        while not client.ended.wait(self._every):
            try:
                client.call("/searchgym/beat", {}, timeout=self._stall)
            except SearchGymError as error:
                if not client.ended.is_set():
                    self._lost = self._lost or error
                    client.cut()

    def _new_client(self) -> Client:
        key = os.environ.get(KEY)
        return Client(self.address, {RUN: self._run} | ({"Authorization": f"Bearer {key}"} if key else {}))

    def _greet(self) -> dict[str, Any]:
        """Waits for the server and returns its self-description."""
        end, reported = time.monotonic() + self._patience, False
        while True:
            try:
                about = self._client.call("/searchgym/about", timeout=HELLO)
                if not isinstance(about, dict) or not {"serves", "weights"} <= about.keys():
                    raise UsageError(f"{self.address} is not a vLLM server for training: {START_HINT}")
                return about
            except EngineLostError as error:
                if time.monotonic() >= end:
                    raise EngineLostError(f"{error}; {START_HINT}") from error
                if not reported:
                    wait = f"waiting for it, up to {self._patience:g} s"
                    sys.stderr.write(f"{error}: {wait}; if it was not started, {START_HINT}\n")
                reported = True
                threading.Event().wait(0.5)

    def _send(self, tensors: Mapping[str, torch.Tensor], timeout: float) -> None:
        """Makes the server's processes join a group and sends them tensors; without tensors, they only join."""
        assert self._group is not None

        def invite(invitation: Mapping[str, Any]) -> None:
            body = {"name": self._weights, "invitation": dict(invitation)}
            self._call("/searchgym/load", body, timeout=timeout + HELLO)

        host, seconds = self._client.local_address(), min(SENDING, timeout)
        try:
            send(tensors, invite, backend=self._group, host=host, processes=self._processes, seconds=seconds)
        except EngineLostError as error:
            raise error if self.address in str(error) else EngineLostError(f"{self.address}: {error}") from None

    def _call(
        self, path: str, body: dict[str, Any] | None, timeout: float = SLOW, headers: Mapping[str, str] = {}
    ) -> Any:
        """Calls the server; if it failed meanwhile, raises the error of that failure."""
        try:
            return self._client.call(path, body, timeout=timeout, headers=headers)
        except EngineLostError as error:
            raise self._lost or error from None

    def _answer(self, client: Client, name: str, body: dict[str, Any]) -> None:
        """Sends one request and queues its completion or error for `step`."""
        ended: Completion | Exception
        try:
            choice = self._call(GENERATE, body, headers={WEIGHTS: self._weights})["choices"][0]
            logp = np.array([token["logprob"] for token in choice["logprobs"]["content"]], np.float32)
            ids = np.array(choice["token_ids"], np.int32)
            ended = Completion(ids, logp, choice["finish_reason"], choice.get("stop_reason"))
            if ended.reason == "abort":  # this process aborts no requests
                ended = EngineLostError(f"{self.address} is shutting down")
        except SearchGymError as error:
            ended = error
        except (LookupError, TypeError, ValueError) as error:
            ended = ModelError(f"{self.address} answered something else than a completion ({error!r})")
        self._ended.put((client, name, ended))


def _sums(folder: str) -> dict[str, str]:
    """Returns the hashes stored in a weight folder, by file name."""
    sums: dict[str, str] = json.loads((Path(folder) / SUMS).read_bytes())
    return sums
