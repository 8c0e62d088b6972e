"""vLLM engines in child processes of this one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import InvalidStateError
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from searchgym.errors import EngineLostError, ModelError, UsageError
from searchgym.rollout.samplers.vllm import Vllm
from searchgym.rollout.transfer.folders import Folders
from searchgym.rollout.vllm.engine import Adapter, Asked, Completion, check_reset, rank_for, visible

GUARD: Final = """
import os, sys
sys.stdin.read()
for number in sys.argv[1:]:
    try:
        os.kill(int(number), 9)
    except OSError:
        pass
"""
"""Program of the guard process: when its input closes, because this process ended, it kills the given processes."""

LAST_WORDS: Final = 1.0
"""Seconds to wait, after an engine's error message, for its processes to end."""

_starting = threading.Lock()
"""Lock held while an engine starts, since its processes inherit the environment variables set at that time."""


class LocalVllm:
    """Backend that runs a vLLM engine in child processes, which end with this process.

    Args:
        folder: Folder of the base model, in Hugging Face format.
        dtype: Type of weights and computation.
        requests: Maximum number of concurrent requests; further ones wait in the engine.
        options: Set-up of the engine.
        adapters: Maximum number of adapters in use at once; 0 disables adapters.
        rank: Maximum rank of an adapter.
        gpus: Indices of the GPUs that the engine may use. Default: all.

    Raises:
        UsageError: vLLM is not installed.
        ModelError: The engine does not start; its messages are on standard error.
    """

    name = "vLLM's engine"

    def __init__(
        self,
        folder: Path,
        *,
        dtype: str,
        requests: int,
        options: Vllm,
        adapters: int = 0,
        rank: int = 8,
        gpus: Sequence[int] | None = None,
    ) -> None:
        self._folder, self._dtype, self._requests, self._options = folder, dtype, requests, options
        self._adapters, self._rank = adapters, rank_for(rank)
        self._gpus = gpus
        self._engine = self._start()
        self.max_context = int(self._engine.model_config.max_model_len)

    def new_folders(self) -> Folders:
        """Returns an empty set of folders, in this machine's memory."""
        return Folders()

    def restart(self) -> None:
        """Stops what is left of the engine and starts it again, with the model's original weights."""
        with contextlib.suppress(Exception):
            self.close()
        try:
            self._engine = self._start()
        except ModelError as error:
            raise EngineLostError(str(error)) from error

    def add(self, name: str, asked: Asked) -> None:
        """Adds a request under a name that no other request ever had."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        adapter = asked.adapter and _lora(asked.adapter)
        with self._lost():
            parameters = SamplingParams(**asked.parameters, output_kind=RequestOutputKind.FINAL_ONLY)
            self._engine.add_request(name, {"prompt_token_ids": asked.prompt}, parameters, lora_request=adapter)

    def step(self) -> list[tuple[str, Completion | Exception]]:
        """Runs one step of the engine; returns (name, completion) of each request that ended."""
        with self._lost():
            outputs = self._engine.step()
        ended = [output for output in outputs if output.finished]
        if any(output.outputs[0].finish_reason == "abort" for output in ended):  # this process aborts no requests
            raise EngineLostError("its process was told to end")
        return [(output.request_id, _completion(output.outputs[0])) for output in ended]

    def load(self, folder: str) -> None:
        """Loads the base model's weights from a folder."""
        with self._lost():
            self._engine.collective_rpc("reload_weights", kwargs={"weights_path": folder})

    def take(self, adapter: Adapter) -> None:
        """Loads an adapter."""
        with self._lost():
            self._engine.add_lora(_lora(adapter))

    def drop(self, adapter: Adapter) -> None:
        """Unloads an adapter."""
        with self._lost():
            self._engine.remove_lora(adapter.number)

    def forget(self) -> None:
        """Clears cached keys and values of earlier requests."""
        with self._lost():
            check_reset(self._engine.reset_prefix_cache())

    def sleep(self, level: int) -> None:
        """Frees GPU memory until `wake`; level 1 keeps the weights in main memory, 2 drops them."""
        with self._lost():
            self._engine.sleep(level)

    def wake(self) -> None:
        """Takes GPU memory again after `sleep`."""
        with self._lost():
            self._engine.wake_up()

    def close(self) -> None:
        """Stops the engine's processes and their guard."""
        self._engine.engine_core.shutdown()
        self._guard.kill()
        self._guard.communicate()

    @property
    def processes(self) -> list[int]:
        """Ids of the engine's processes."""
        return [process.pid for process in self._engine.engine_core.resources.engine_manager.processes]

    @contextlib.contextmanager
    def _lost(self) -> Any:
        """Translates vLLM's exceptions: `EngineLostError` if the engine has ended, else `ModelError`."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            yield
        except EngineDeadError as error:
            raise EngineLostError(str(error).splitlines()[0] or "its process ended") from error
        except ModelError:
            raise
        except Exception as error:  # errors of the engine's processes arrive as text, even the one it dies of
            processes = self._engine.engine_core.resources.engine_manager.processes
            if not isinstance(error, ValueError | TypeError) and wait([one.sentinel for one in processes], LAST_WORDS):
                raise EngineLostError(f"{type(error).__name__}: {error}") from error
            raise ModelError(f"vLLM: {type(error).__name__}: {error}") from error

    def _start(self) -> Any:
        """Starts an engine, its guard process and the thread that watches it."""
        with _starting, _environment(self._options, self._gpus):
            try:
                from vllm.v1.engine.llm_engine import LLMEngine
            except ImportError as error:
                why = f"sampling by vLLM needs vllm ({error}): searchgym doctor says how to get it"
                raise UsageError(why) from error
            arguments = self._arguments()
            try:
                with _hidden_program():
                    engine = LLMEngine.from_engine_args(arguments)
            except Exception as error:  # vLLM raises many types here
                raise ModelError(f"vLLM's engine does not start on {self._folder}: {error}") from error
            core: Any = engine.engine_core
            # inside the lock: a process may fail to start while another thread changes the environment
            self._guard = _guard([process.pid for process in core.resources.engine_manager.processes])
        threading.Thread(target=_watch, args=(core,), name="vllm-watch", daemon=True).start()
        return engine

    def _arguments(self) -> Any:
        """Returns vLLM's `EngineArgs` for the options."""
        from vllm import EngineArgs

        options = self._options
        return EngineArgs(
            model=str(self._folder),
            dtype=self._dtype,  # type: ignore[arg-type]
            generation_config="vllm",
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=True,
            enable_chunked_prefill=None if torch.cuda.is_available() else False,  # with seeds it crashes a CPU engine
            max_model_len=options.max_context,  # type: ignore[arg-type]
            max_num_seqs=self._requests,
            gpu_memory_utilization=options.gpu_share,
            tensor_parallel_size=options.tensor_parallel,
            enforce_eager=options.eager,
            enable_sleep_mode=options.sleep > 0,
            enable_lora=self._adapters > 0,
            max_loras=max(1, self._adapters),
            max_cpu_loras=2 * max(1, self._adapters),  # a new version is loaded before the old one is dropped
            max_lora_rank=self._rank,  # type: ignore[arg-type]
            disable_log_stats=True,
            seed=0,
        )


def _guard(processes: Sequence[int]) -> subprocess.Popen[bytes]:
    """Starts a process that outlives this one only to kill an engine's processes, which vLLM leaves behind."""
    command = [sys.executable, "-P", "-c", GUARD, *map(str, processes)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def _watch(core: Any) -> None:
    """Waits until a process of the engine ends, then fails every waiting call: vLLM 0.32 would leave them waiting."""
    from vllm.v1.engine.exceptions import EngineDeadError

    wait([process.sentinel for process in core.resources.engine_manager.processes])
    core.resources.engine_dead = True  # later calls raise
    core.outputs_queue.put_nowait(EngineDeadError())
    for future in list(core.utility_results.values()):
        with contextlib.suppress(InvalidStateError):  # answered in the meantime
            future.set_exception(EngineDeadError())


@contextlib.contextmanager
def _environment(options: Vllm, gpus: Sequence[int] | None) -> Any:
    """Sets the environment variables that a starting vLLM engine inherits, and restores the old ones afterwards.

    SIGINT is blocked, so that Ctrl-C in a terminal does not end the engine's processes before the loop decides to.
    """
    wanted = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",  # in this process, its threads would compete with torch's
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would copy locks that our threads hold
        "VLLM_CPU_KVCACHE_SPACE": str(options.cache_gib),
        "PYTHONSAFEPATH": "1",  # a spawned process would look for modules in the working folder first
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output is for what commands print
        "VLLM_NO_USAGE_STATS": "1",
    }
    if gpus is not None:
        wanted["CUDA_VISIBLE_DEVICES"] = visible(gpus)
    resource_tracker.ensure_running()  # otherwise it starts with the first process and unblocks SIGINT
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _hidden_program() -> Any:
    """Hides the main program's file, so that spawned processes do not run it again.

    The file may lack an ``if __name__ == "__main__"`` guard, and its imports (numba's libraries) can crash vLLM.
    """
    main = vars(sys.modules["__main__"])
    saved: dict[str, Any] = {name: main[name] for name in ("__spec__", "__file__") if name in main}
    main["__spec__"] = None
    main.pop("__file__", None)  # setting it to None would break `inspect`, and with it imports
    try:
        yield
    finally:
        main.update(saved)


def _lora(adapter: Adapter) -> Any:
    """Converts an adapter to vLLM's `LoRARequest`."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(adapter.name, adapter.number, adapter.folder)


def _completion(output: Any) -> Completion:
    """Converts an output of vLLM to a `Completion`."""
    steps = zip(output.token_ids, output.logprobs, strict=True)
    logp = np.array([choices[token].logprob for token, choices in steps], np.float32)
    return Completion(np.array(output.token_ids, np.int32), logp, output.finish_reason, output.stop_reason)
