"""vLLM behind a server (``vllm serve``), on this machine or on another one with access to the same files.

`serve_command` configures the server for training: token ids in and out, log-probabilities after the temperature, and
loading of weights. Weights are passed through a folder that both sides can read.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import queue
import re
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import torch

from searchgym.errors import EngineLostError, ModelError, SearchGymError, UsageError
from searchgym.rollout.sampler import VllmOptions
from searchgym.rollout.vllm.engine import Adapter, Asked, Completion, check_reset, rank_for

PATIENCE: Final = 300.0
"""Seconds to wait for a server, at the start and after it went away."""
MOMENT: Final = 0.05
"""Seconds for which one step waits for responses."""
SLOW: Final = 3600.0
"""Seconds after which a request is given up."""


def serve_command(
    folder: Path,
    address: str,
    *,
    dtype: str,
    requests: int,
    options: VllmOptions,
    adapters: int = 0,
    rank: int = 8,
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
        "no-enable-prefix-caching": not options.prefix_caching,
        "no-enable-chunked-prefill": not torch.cuda.is_available(),  # with seeds it crashes a CPU engine
        "enforce-eager": options.eager,
        "enable-sleep-mode": options.sleep > 0,
        "disable-uvicorn-access-log": True,
        "seed": 0,
    }
    if adapters:
        flags |= {
            "enable-lora": True,
            "max-loras": adapters,
            "max-cpu-loras": 2 * adapters,
            "max-lora-rank": rank_for(rank),
        }
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
    }


class ServedVllm:
    """Backend that uses a running ``vllm serve``; the server keeps running after `close`.

    Args:
        address: Address of the server, ``http://HOST:PORT``.
        requests: Maximum number of concurrent requests.
        patience: Seconds to wait for the server, at the start and after it went away.

    Raises:
        UsageError: The server was not started by `serve_command`, or another run uses it.
        EngineLostError: No server answers.
    """

    def __init__(self, address: str, *, requests: int, patience: float = PATIENCE) -> None:
        self.address, self._patience = address.rstrip("/"), patience
        self.near = _near(self.address)
        self._claim = _claimed(self.address)
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({})
        )  # no proxy: these are the user's machines
        self._pool = ThreadPoolExecutor(requests, thread_name_prefix="vllm-server")
        self._ended: queue.SimpleQueue[tuple[int, str, Completion | Exception]] = queue.SimpleQueue()
        self._life = 0
        """Number of restarts; responses to requests from before the last one are ignored."""
        self._adapters: set[str] = set()
        self.max_context = 0
        try:
            self.restart()
        except BaseException:
            self.close()
            raise

    def restart(self) -> None:
        """Waits until the server answers again."""
        self._life += 1
        self._adapters.clear()
        end = time.monotonic() + self._patience
        while True:
            try:
                models = self._post("/v1/models", None)
                break
            except EngineLostError:
                if time.monotonic() > end:
                    raise
                threading.Event().wait(0.5)
        try:
            self.max_context = int(
                next(model["max_model_len"] for model in models["data"] if model.get("max_model_len"))
            )
        except (LookupError, TypeError, AttributeError, StopIteration) as error:
            raise UsageError(
                f"{self.address} is not a vLLM server for training: start one with `searchgym engine`"
            ) from error

    def add(self, name: str, asked: Asked) -> None:
        """Sends a request, in a thread, under a name that no other request ever had."""
        body: dict[str, Any] = {"token_ids": asked.prompt, "sampling_params": dict(asked.parameters)}
        if asked.adapter is not None:
            self.take(asked.adapter)
            body["model"] = asked.adapter.name
        self._pool.submit(self._answer, self._life, name, body)

    def step(self) -> list[tuple[str, Completion | Exception]]:
        """Waits briefly for responses; returns (name, completion or error) of each request that ended."""
        try:
            ended = [self._ended.get(timeout=MOMENT)]
            while not self._ended.empty():
                ended.append(self._ended.get())
        except queue.Empty:
            return []
        ended = [one for one in ended if one[0] == self._life]
        for *_, completion in ended:
            if isinstance(completion, EngineLostError):
                raise completion
        return [(name, completion) for _, name, completion in ended]

    def load(self, folder: str) -> None:
        """Has the server load the base model's weights from a folder."""
        self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})

    def take(self, adapter: Adapter) -> None:
        """Has the server load an adapter, unless it has it already."""
        if adapter.name not in self._adapters:
            try:
                self._post("/v1/load_lora_adapter", {"lora_name": adapter.name, "lora_path": adapter.folder})
            except EngineLostError as error:
                # A server answers 500 to an adapter that it cannot load: if it still answers this, it has not ended.
                self._post("/v1/models", None)
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
                self._post("/v1/unload_lora_adapter", {"lora_name": adapter.name})
            except ModelError as error:
                if isinstance(error, EngineLostError) or ": 404: " not in str(error):
                    raise  # otherwise the server was restarted and no longer has it

    def forget(self) -> None:
        """Clears the server's cached keys and values of earlier requests."""
        check_reset(self._post("/reset_prefix_cache", {}).get("success"))

    def sleep(self, level: int) -> None:
        """Has the server free GPU memory until `wake`; level 1 keeps the weights in main memory, 2 drops them."""
        self._post(f"/sleep?level={level}", {})

    def wake(self) -> None:
        """Has the server take GPU memory again after `sleep`."""
        self._post("/wake_up", {})

    def close(self) -> None:
        """Drops queued requests and releases the lock on the server, which keeps running."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._claim.close()

    def _answer(self, life: int, name: str, body: dict[str, Any]) -> None:
        """Sends one request and queues its completion or error for `step`."""
        ended: Completion | Exception
        try:
            choice = self._post("/inference/v1/generate", body)["choices"][0]
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

    def _post(self, path: str, body: dict[str, Any] | None) -> Any:
        """Sends a POST, or a GET if there is no body, and returns the JSON reply.

        Raises:
            EngineLostError: The server does not answer, fails, or its answer is not JSON.
            UsageError: The server has no such path, so it was not started by `serve_command`.
            ModelError: The server refuses the request.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"})
        try:
            with self._opener.open(request, timeout=SLOW) as reply:
                text = reply.read().decode()
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")[:500]
            if error.code == 404 and "adapter" not in path:
                raise UsageError(f"{self.address} has no {path}: start it by `searchgym engine`") from error
            if error.code < 500:
                raise ModelError(f"{self.address}{path}: {error.code}: {said}") from error
            raise EngineLostError(f"{self.address}{path}: {error.code}: {said}") from error
        except (OSError, http.client.HTTPException) as error:
            raise EngineLostError(f"{self.address} does not answer: {error}") from error
        try:
            return json.loads(text) if text.startswith(("{", "[")) else {}
        except ValueError as error:
            raise EngineLostError(f"{self.address}{path} answered {text[:200]!r}") from error


def _claimed(address: str) -> IO[str]:
    """Locks a file that marks a server as in use (two runs would overwrite each other's weights); returns it open."""
    name = re.sub(r"\W+", "-", address.replace("localhost", "127.0.0.1"))
    path = Path(tempfile.gettempdir()) / f"searchgym-{name}.lock"
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{address} may sample for another user's run: {error}; if it does not, remove {path}"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise UsageError(
            f"{address} samples for another run of this machine: start a separate server for each run"
        ) from None
    return file


def _near(address: str) -> bool:
    """Returns whether an address belongs to this machine."""
    host = urllib.parse.urlsplit(address).hostname or ""
    return host in ("localhost", "::1", socket.gethostname()) or host.startswith("127.")
