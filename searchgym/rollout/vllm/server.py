"""vLLM behind a server (``vllm serve``), on this machine or on another one.

`serve_command` configures the server for training: token ids in and out, log-probabilities after the temperature,
loading of weights, and the `Gate` in front. Weights are passed through a folder that both sides can read, or sent to
the server's processes over the network (`Vllm.transfer`).
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

from searchgym.errors import EngineLostError, ModelError, SearchGymError, UsageError
from searchgym.rollout.samplers.vllm import Vllm
from searchgym.rollout.transfer.folders import MODEL, SUMS, Folders
from searchgym.rollout.transfer.group import PATIENCE as SENDING
from searchgym.rollout.transfer.group import send
from searchgym.rollout.vllm.client import START, Client
from searchgym.rollout.vllm.engine import Adapter, Asked, Completion, check_reset, rank_for
from searchgym.rollout.vllm.gate import GENERATE, KEY, LEASE, PROCESSES, RUN, SERVES, WEIGHTS
from searchgym.rollout.vllm.identity import Identity, as_fields, check_identity, identity_of

PATIENCE: Final = 300.0
"""Seconds to wait for a server, at the start and after it went away."""
HELLO: Final = 5.0
"""Seconds for a server to say what it serves."""
MEET: Final = 20.0
"""Seconds for a server's processes to join a group without tensors; below `LEASE`, since no beats are sent yet."""
MOMENT: Final = 0.05
"""Seconds for which one step waits for responses."""
LOADING: Final = 900.0
"""Seconds for a server to load weights; while it does, its engine shows no sign of life."""
SLOW: Final = 3600.0
"""Seconds after which a request is given up, although the server shows signs of life."""


def serve_command(
    folder: Path,
    address: str,
    *,
    dtype: str,
    requests: int,
    options: Vllm,
    adapters: int = 0,
    rank: int = 8,
    tools: Mapping[str, Any] | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Returns the command that starts a vLLM server for training, and the environment variables to add for it.

    Args:
        folder: Folder of the base model.
        address: Address to listen on, ``http://HOST:PORT``.
        dtype: Type of weights and computation.
        requests: Maximum number of concurrent requests.
        options: Set-up of the engine.
        adapters: Maximum number of adapters in use at once; 0 disables adapters.
        rank: Maximum rank of an adapter.
        tools: Further options, for tool calls (`tool_flags`).
    """
    host, _, port = address.rpartition("//")[2].partition(":")
    flags: dict[str, Any] = {
        "host": host,
        "port": port or "8000",
        "dtype": dtype,
        "generation-config": "vllm",
        "logprobs-mode": "processed_logprobs",
        "max-num-seqs": requests,
        "max-model-len": options.max_context,
        "gpu-memory-utilization": options.gpu_share,
        "tensor-parallel-size": options.tensor_parallel,
        "enable-scale-out": True,
        "no-enable-chunked-prefill": not torch.cuda.is_available(),  # with seeds it crashes a CPU engine
        "enforce-eager": options.eager,
        "enable-sleep-mode": options.sleep > 0,
        "disable-uvicorn-access-log": True,
        "middleware": "searchgym.rollout.vllm.gate.Gate",
        "worker-extension-cls": "searchgym.rollout.transfer.group.Receiver",
        "seed": 0,
    }
    if adapters:
        flags |= {
            "enable-lora": True,
            "max-loras": adapters,
            "max-cpu-loras": 2 * adapters,
            "max-lora-rank": rank_for(rank),
        }
    flags |= tools or {}
    # the module that ``vllm serve`` runs; the command itself does not start with the CPU build
    command = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    for name, value in flags.items():
        if value is True:
            command.append(f"--{name}")
        elif value is not None and value is not False:
            command += [f"--{name}", str(value)]
    return command, {
        "VLLM_SERVER_DEV_MODE": "1",  # enables the calls that load weights: not for untrusted networks
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_CPU_KVCACHE_SPACE": str(options.cache_gib),
        "VLLM_NO_USAGE_STATS": "1",
        SERVES: json.dumps(as_fields(identity_of(folder, dtype, adapters, rank))),
        PROCESSES: str(options.tensor_parallel),
    }


class ServedVllm:
    """Backend that uses a running ``vllm serve``; the server keeps running after `close`.

    A thread asks the server for signs of life, and keeps it for this run by them.

    Args:
        address: Address of the server, ``http://HOST:PORT``.
        requests: Maximum number of concurrent requests.
        wanted: What the server must serve.
        run: Name of this run, which the server samples for alone.
        options: Of the engines; `transfer`, `shared` and `stall` are read.
        patience: Seconds to wait for the server, at the start and after it went away. Default: `PATIENCE`.

    Raises:
        UsageError: The server was not started by `serve_command`, serves something else, wants another key, samples for
            another run or does not see the folder of the weights.
        EngineLostError: No server answers, or its processes cannot join a group with this one.
    """

    def __init__(
        self,
        address: str,
        *,
        requests: int,
        wanted: Identity,
        run: str,
        options: Vllm,
        patience: float | None = None,
    ) -> None:
        self.name = self.address = address.rstrip("/")
        self._wanted, self._run = wanted, run
        self._patience = PATIENCE if patience is None else patience
        self._group = None if options.transfer == "folder" else options.transfer
        """Backend of the groups through which weights are sent; None for folders."""
        self._processes = 1
        self._shared = None if options.shared is None else Path(options.shared).resolve()
        if self._group is None and self._shared is None and not _near(self.address):
            raise UsageError(
                f"{self.address} is on another machine: set rollout.sampler.shared to a folder that it and this one "
                "mount, or rollout.sampler.transfer to gloo"
            )
        self._stall, self._every = options.stall, min(LEASE, options.stall) / 3
        self._pool = ThreadPoolExecutor(requests, thread_name_prefix="vllm-server")
        self._ended: queue.SimpleQueue[tuple[int, str, Completion | Exception]] = queue.SimpleQueue()
        self._life = 0
        """Number of restarts; responses to requests from before the last one are ignored."""
        self._adapters: set[str] = set()
        self._weights = ""
        """Name of the weights that requests are for; empty for the model's original ones."""
        self._lost: SearchGymError | None = None
        """Why the server was given up in this life."""
        self._client, self._stop = self._new_client(), threading.Event()
        self.max_context = 0
        try:
            self.restart()
        except BaseException:
            self.close()
            raise

    def new_folders(self) -> Folders:
        """Returns an empty set of folders; the server must see them, unless weights are sent over the network."""
        return Folders(self._shared, summed=self._group is None)

    def restart(self) -> None:
        """Waits until the server answers again, and claims it for this run."""
        self._end_life()
        self._life += 1
        self._adapters.clear()
        self._client, self._stop, self._lost = self._new_client(), threading.Event(), None
        about = self._greet()
        check_identity(self._wanted, about["serves"], self.address)
        self._client.call("/searchgym/claim", {"who": f"{socket.gethostname()}, process {os.getpid()}"}, timeout=HELLO)
        self._processes = int(about.get("processes", 1))
        self._check_way()
        threading.Thread(target=self._beats, args=(self._client, self._stop), name="vllm-beats", daemon=True).start()
        if about["weights"] != "":  # of this run or of an earlier one
            self._call("/searchgym/load", {"name": ""}, timeout=LOADING)
            self.forget()  # otherwise vLLM would reuse keys and values of the last run's weights
        self._weights = ""
        models = self._client.call("/v1/models", timeout=HELLO)
        self.max_context = int(next(model["max_model_len"] for model in models["data"] if model.get("max_model_len")))

    def add(self, name: str, asked: Asked) -> None:
        """Sends a request, in a thread, under a name that no other request ever had."""
        body: dict[str, Any] = {"token_ids": asked.prompt, "sampling_params": dict(asked.parameters)}
        if asked.adapter is not None:
            self.take(asked.adapter)
            body["model"] = asked.adapter.name
        self._pool.submit(self._answer, self._life, name, body)

    def step(self) -> list[tuple[str, Completion | Exception]]:
        """Waits briefly for responses; returns (name, completion or error) of each request that ended."""
        if self._lost is not None:
            raise self._lost
        try:
            ended = [self._ended.get(timeout=MOMENT)]
            while not self._ended.empty():
                ended.append(self._ended.get())
        except queue.Empty:
            return []
        ended = [one for one in ended if one[0] == self._life]
        for *_, completion in ended:
            if isinstance(completion, EngineLostError):
                raise self._lost or completion
        return [(name, completion) for _, name, completion in ended]

    def load(self, folder: str) -> None:
        """Has the server load the base model's weights from a folder, or sends it the folder's tensors.

        The server compares the files by their hash.
        """
        self._weights = Path(folder).name
        if self._group is None:
            body = {"name": self._weights, "folder": folder, "files": _sums(folder)}
            self._call("/searchgym/load", body, timeout=LOADING)
            return
        with safe_open(Path(folder) / MODEL, framework="pt") as file:  # maps the file, and reads no tensor yet
            self._send({name: file.get_tensor(name) for name in file.keys()}, "/searchgym/load", LOADING)  # noqa: SIM118

    def take(self, adapter: Adapter) -> None:
        """Has the server load an adapter, unless it has it already."""
        if adapter.name not in self._adapters:
            body = {"name": adapter.name, "folder": adapter.folder, "files": _sums(adapter.folder)}
            try:
                self._call("/searchgym/adapter", body)
            except EngineLostError as error:
                # A server answers 500 to an adapter that it cannot load: if it still answers this, it has not ended.
                if ": 500: " not in str(error):
                    raise
                self._call("/v1/models", None)
                raise ModelError(str(error)) from error
            except ModelError as error:
                if "already" not in str(error):
                    raise  # otherwise an earlier try loaded it, whose answer got lost: names are used only once
            self._adapters.add(adapter.name)

    def drop(self, adapter: Adapter) -> None:
        """Has the server unload an adapter, if it has it."""
        if adapter.name in self._adapters:
            self._adapters.discard(adapter.name)
            try:
                self._call("/v1/unload_lora_adapter", {"lora_name": adapter.name})
            except ModelError as error:
                if isinstance(error, EngineLostError) or ": 404: " not in str(error):
                    raise  # otherwise the server was restarted and no longer has it

    def forget(self) -> None:
        """Clears the server's cached keys and values of earlier requests."""
        check_reset(self._call("/reset_prefix_cache", {}).get("success"))

    def sleep(self, level: int) -> None:
        """Has the server free GPU memory until `wake`; level 1 keeps the weights in main memory, 2 drops them."""
        self._call(f"/sleep?level={level}", {})

    def wake(self) -> None:
        """Has the server take GPU memory again after `sleep`."""
        self._call("/wake_up", {})

    def close(self) -> None:
        """Drops queued requests and gives the server back, which keeps running."""
        if self._lost is None and not self._stop.is_set():
            with contextlib.suppress(SearchGymError):
                self._client.call("/searchgym/release", {}, timeout=HELLO)
        self._end_life()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def beat(self) -> None:
        """Asks for a sign of life; a server without one is given up, and everything that waits for it is told."""
        self._beat(self._client)

    # -- signs of life ---------------------------------------------------------------------------------------------

    def _beats(self, client: Client, stop: threading.Event) -> None:
        """Asks for signs of life until the client's life ends."""
        while self._client is client and not stop.wait(self._every):
            self._beat(client)

    def _beat(self, client: Client) -> None:
        try:
            client.call("/searchgym/beat", {}, timeout=self._stall)
        except SearchGymError as error:
            if self._client is client and not self._stop.is_set():
                self._lost = self._lost or error
                self._stop.set()
                client.cut()

    def _end_life(self) -> None:
        """Ends the signs of life and all calls of the present life."""
        self._stop.set()
        self._client.cut()

    # -- calls -----------------------------------------------------------------------------------------------------

    def _new_client(self) -> Client:
        key = os.environ.get(KEY)
        return Client(self.address, {RUN: self._run} | ({"Authorization": f"Bearer {key}"} if key else {}))

    def _greet(self) -> dict[str, Any]:
        """Returns what the server says about itself, once it answers."""
        end, told = time.monotonic() + self._patience, False
        while True:
            try:
                about = self._client.call("/searchgym/about", timeout=HELLO)
                if not isinstance(about, dict) or not {"serves", "weights"} <= about.keys():
                    raise UsageError(f"{self.address} is not a vLLM server for training: {START}")
                return about
            except EngineLostError as error:
                if time.monotonic() >= end:
                    raise EngineLostError(f"{error}; {START}") from error
                if not told:
                    sys.stderr.write(
                        f"{error}: waiting for it, up to {self._patience:g} s; if it was not started, {START}\n"
                    )
                told = True
                threading.Event().wait(0.5)

    def _check_way(self) -> None:
        """Raises an error unless weights can reach the server: it sees a file in their folder, or joins a group."""
        if self._group is not None:
            self._send({}, "/searchgym/meet", MEET)
            return
        folders = self.new_folders()
        try:
            folder = folders.tensors({}, "seen.safetensors", 0)
            self._client.call("/searchgym/see", {"folder": folder, "files": _sums(folder)}, timeout=HELLO)
        finally:
            folders.clear()

    def _send(self, tensors: Mapping[str, torch.Tensor], path: str, timeout: float) -> None:
        """Sends tensors to the server's processes, which a call at a path asks to join."""
        assert self._group is not None

        def invite(invitation: Mapping[str, Any]) -> None:
            self._call(path, {"name": self._weights, "invitation": dict(invitation)}, timeout=timeout + HELLO)

        host, seconds = self._client.own_address(), min(SENDING, timeout)
        try:
            send(tensors, invite, backend=self._group, host=host, processes=self._processes, seconds=seconds)
        except EngineLostError as error:
            raise error if self.address in str(error) else EngineLostError(f"{self.address}: {error}") from None

    def _call(
        self, path: str, body: dict[str, Any] | None, timeout: float = SLOW, headers: Mapping[str, str] = {}
    ) -> Any:
        """Calls the server; if it was given up meanwhile, the error says why."""
        try:
            return self._client.call(path, body, timeout=timeout, headers=headers)
        except EngineLostError as error:
            raise self._lost or error from None

    def _answer(self, life: int, name: str, body: dict[str, Any]) -> None:
        """Sends one request and queues its completion or error for `step`."""
        ended: Completion | Exception
        try:
            choice = self._call(GENERATE, body, headers={WEIGHTS: self._weights})["choices"][0]
            logp = np.array([token["logprob"] for token in choice["logprobs"]["content"]], np.float32)
            ids = np.array(choice["token_ids"], np.int32)
            ended = Completion(ids, logp, choice["finish_reason"], choice.get("stop_reason"))
            if ended.reason == "abort":  # this process aborts no requests
                ended = EngineLostError(f"{self.address} was told to end")
        except SearchGymError as error:
            ended = error
        except (LookupError, TypeError, ValueError) as error:
            ended = ModelError(f"{self.address} answered something else than a completion ({error!r})")
        self._ended.put((life, name, ended))


def _sums(folder: str) -> dict[str, str]:
    """Returns the hashes that were written with a weight folder, by file name."""
    sums: dict[str, str] = json.loads((Path(folder) / SUMS).read_bytes())
    return sums


def _near(address: str) -> bool:
    """Returns whether an address belongs to this machine."""
    host = urllib.parse.urlsplit(address).hostname or ""
    return host in ("localhost", "::1", socket.gethostname()) or host.startswith("127.")
