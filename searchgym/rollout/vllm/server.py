"""vLLM behind a server of its own: ``vllm serve``, on this machine or another one that sees the same files.

`serve_command` gives the server what training needs of it: token ids in and out, log-probs after the temperature,
loading of weights. Weights travel through a folder that both sides can read.
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
"""Seconds that a server may take to come, at first and when it has gone away."""
MOMENT: Final = 0.05
"""Seconds that a look for responses waits."""
SLOW: Final = 3600.0
"""Seconds until a request is given up."""


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
    """Returns the command that starts a server for training, and what its environment needs beside one's own.

    Args:
        folder: The base model.
        address: ``http://HOST:PORT``.
        dtype: Of weights and computation.
        requests: Most requests under way at once.
        options: See `VllmOptions`.
        adapters: Adapters that it samples from at once.
        rank: Largest rank of an adapter.
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
        "no-enable-chunked-prefill": not torch.cuda.is_available(),  # with seeds, it ends a CPU's engine
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
    # what ``vllm serve`` runs; that itself does not start where the CPU build is installed
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    for name, value in flags.items():
        if value is True:
            command.append(f"--{name}")
        elif value is not None and value is not False:
            command += [f"--{name}", str(value)]
    return command, {
        "VLLM_SERVER_DEV_MODE": "1",  # opens what loads weights: not for a network of strangers
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_CPU_KVCACHE_SPACE": str(options.cache_gib),
        "VLLM_NO_USAGE_STATS": "1",
    }


class ServedVllm:
    """A `Backend` behind ``vllm serve``. The server outlives it.

    Args:
        address: ``http://HOST:PORT``.
        requests: Most requests under way at once.
        patience: Seconds that the server may take to come, at first and when it has gone away.

    Raises:
        UsageError: What answers there is not what `serve_command` starts, or another run has it.
        EngineLostError: Nothing answers.
    """

    def __init__(self, address: str, *, requests: int, patience: float = PATIENCE) -> None:
        self.address, self._patience = address.rstrip("/"), patience
        self.near = _near(self.address)
        self._claim = _claimed(self.address)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the user's own machines
        self._pool = ThreadPoolExecutor(requests, thread_name_prefix="vllm-server")
        self._ended: queue.SimpleQueue[tuple[int, str, Completion | Exception]] = queue.SimpleQueue()
        self._life = 0
        """Counts restarts: what an earlier life answers is not wanted any more."""
        self._adapters: set[str] = set()
        self.max_context = 0
        try:
            self.restart()
        except BaseException:
            self.close()
            raise

    def restart(self) -> None:
        """See `Backend`: waits for the server to come back."""
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
            raise UsageError(f"{self.address} is no server of vLLM: start one by `searchgym engine`") from error

    def add(self, name: str, asked: Asked) -> None:
        """See `Backend`."""
        body: dict[str, Any] = {"token_ids": asked.prompt, "sampling_params": dict(asked.parameters)}
        if asked.adapter is not None:
            self.take(asked.adapter)
            body["model"] = asked.adapter.name
        self._pool.submit(self._answer, self._life, name, body)

    def step(self) -> list[tuple[str, Completion | Exception]]:
        """See `Backend`."""
        try:
            found = [self._ended.get(timeout=MOMENT)]
            while not self._ended.empty():
                found.append(self._ended.get())
        except queue.Empty:
            return []
        found = [one for one in found if one[0] == self._life]
        for *_, completion in found:
            if isinstance(completion, EngineLostError):
                raise completion
        return [(name, completion) for _, name, completion in found]

    def load(self, folder: str) -> None:
        """See `Backend`."""
        self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})

    def take(self, adapter: Adapter) -> None:
        """See `Backend`."""
        if adapter.name not in self._adapters:
            try:
                self._post("/v1/load_lora_adapter", {"lora_name": adapter.name, "lora_path": adapter.folder})
            except EngineLostError as error:
                self._post("/v1/models", None)  # it is there: it says 500 to adapters that it cannot take
                raise ModelError(str(error)) from error
            except ModelError as error:
                if "already" not in str(error):
                    raise  # else it kept it while it did not answer; names are used once
            self._adapters.add(adapter.name)

    def drop(self, adapter: Adapter) -> None:
        """See `Backend`."""
        if adapter.name in self._adapters:
            self._adapters.discard(adapter.name)
            try:
                self._post("/v1/unload_lora_adapter", {"lora_name": adapter.name})
            except ModelError as error:
                if isinstance(error, EngineLostError) or ": 404: " not in str(error):
                    raise  # else it has been started again and never had it

    def forget(self) -> None:
        """See `Backend`."""
        check_reset(self._post("/reset_prefix_cache", {}).get("success"))

    def sleep(self, level: int) -> None:
        """See `Backend`."""
        self._post(f"/sleep?level={level}", {})

    def wake(self) -> None:
        """See `Backend`."""
        self._post("/wake_up", {})

    def close(self) -> None:
        """See `Backend`."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._claim.close()

    def _answer(self, life: int, name: str, body: dict[str, Any]) -> None:
        """Has the server answer a request."""
        ended: Completion | Exception
        try:
            choice = self._post("/inference/v1/generate", body)["choices"][0]
            logp = np.array([token["logprob"] for token in choice["logprobs"]["content"]], np.float32)
            ids = np.array(choice["token_ids"], np.int32)
            ended = Completion(ids, logp, choice["finish_reason"], choice.get("stop_reason"))
            if ended.reason == "abort":  # by nobody here
                ended = EngineLostError(f"{self.address} was told to end")
        except SearchGymError as error:
            ended = error
        except (LookupError, TypeError, ValueError) as error:
            ended = ModelError(f"{self.address} answered something else than a completion ({error!r})")
        self._ended.put((life, name, ended))

    def _post(self, path: str, body: dict[str, Any] | None) -> Any:
        """Asks the server, by GET if there is no body; returns its JSON.

        Raises:
            EngineLostError: It does not answer, or not with sense.
            UsageError: It knows no such address: it was started otherwise.
            ModelError: It refuses the request.
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
    """Returns the open file that says that a server is in use: two runs would load their weights over each other's."""
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
            f"{address} samples for another run of this machine: each run needs a server of its own"
        ) from None
    return file


def _near(address: str) -> bool:
    """Says whether an address is this machine's own."""
    host = urllib.parse.urlsplit(address).hostname or ""
    return host in ("localhost", "::1", socket.gethostname()) or host.startswith("127.")
