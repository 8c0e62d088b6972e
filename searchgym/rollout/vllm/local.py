"""vLLM engines in child processes of this process."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import InvalidStateError
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from searchgym.errors import EngineLostError, ModelError, UsageError
from searchgym.rollout.samplers.vllm import Vllm
from searchgym.rollout.transfer.fingerprint import common_fingerprint
from searchgym.rollout.transfer.folders import Folders
from searchgym.rollout.transfer.group import environment
from searchgym.rollout.vllm.backend import (
    Adapter,
    Completion,
    EngineBackend,
    EngineRequest,
    check_reset,
)
from searchgym.rollout.vllm.launch.gpu_memory import memory_shortage
from searchgym.rollout.vllm.launch.guard import Guard
from searchgym.rollout.vllm.launch.progress import log_settings, timed
from searchgym.rollout.vllm.setup import EngineSetup, visible

LAST_WORDS: Final = 1.0
"""Seconds to wait for an engine's processes to end after its error message."""

_starting = threading.Lock()
"""Lock held while an engine starts, since its processes inherit the environment variables set at that time."""


class LocalVllm(EngineBackend):
    """Backend that runs a vLLM engine in child processes, which end with this process.

    Args:
        setup: Set-up of the engine.
        gpus: Indices of the GPUs that the engine may use. Default: all.

    Raises:
        UsageError: vLLM is not installed.
        ModelError: The engine does not start; its messages are on standard error.
    """

    name = "vLLM's engine"

    def __init__(self, setup: EngineSetup, gpus: Sequence[int] | None = None) -> None:
        self._setup, self._gpus = setup, gpus
        self._start()
        self.max_context = int(self._engine.model_config.max_model_len)

    @override
    def new_folders(self) -> Folders:
        return Folders()

    @override
    def restart(self) -> None:
        with contextlib.suppress(Exception):
            self.close()
        try:
            self._start()
        except ModelError as error:
            raise EngineLostError(str(error)) from error
        gc.collect()  # 50 MiB of the old engine refer to each other, and few allocations would start the collector

    @override
    def add(self, name: str, request: EngineRequest) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        adapter = request.adapter and _lora(request.adapter)
        with self._lost():
            kind = RequestOutputKind.FINAL_ONLY
            parameters = SamplingParams(**request.parameters, output_kind=kind, flat_logprobs=True)
            prompt = {"prompt_token_ids": request.prompt}
            number = self._engine.add_request(name, prompt, parameters, lora_request=adapter)
            skip_token_texts(self._engine.output_processor, number)

    @override
    def step(self) -> list[tuple[str, Completion | Exception]]:
        with self._lost():
            outputs = self._engine.step()
        ended: list[tuple[str, Completion | Exception]] = []
        for request in outputs:
            if request.finished:
                output = request.outputs[0]
                if output.finish_reason == "abort":  # this process aborts no requests
                    raise EngineLostError("its process is shutting down")
                ids = np.array(output.token_ids, np.int32)
                logp = sampled_logp(output.logprobs, len(ids))
                ended.append((request.request_id, Completion(ids, logp, output.finish_reason, output.stop_reason)))
        return ended

    @override
    def load(self, folder: str) -> None:
        with self._lost():
            self._engine.collective_rpc("load_folder", kwargs={"folder": folder})

    @override
    def take(self, adapter: Adapter) -> None:
        with self._lost():
            self._engine.add_lora(_lora(adapter))

    @override
    def fingerprint(self, adapter: Adapter | None) -> str | None:
        number = None if adapter is None else adapter.number
        with self._lost():
            return common_fingerprint(self._engine.collective_rpc("weights_fingerprint", kwargs={"adapter": number}))

    @override
    def drop(self, adapter: Adapter) -> None:
        with self._lost():
            self._engine.remove_lora(adapter.number)

    @override
    def forget(self) -> None:
        with self._lost():
            check_reset(self._engine.reset_prefix_cache())

    @override
    def sleep(self, level: int) -> None:
        with self._lost():
            self._engine.sleep(level)

    @override
    def wake(self) -> None:
        with self._lost():
            self._engine.wake_up()

    @override
    def close(self) -> None:
        from psutil import NoSuchProcess  # type: ignore[import-untyped]  # comes with vLLM

        with contextlib.suppress(NoSuchProcess):  # one of vLLM's processes may end meanwhile
            self._engine.engine_core.shutdown()
        self._guard.close()

    @property
    def processes(self) -> list[int]:
        """Ids of the engine's processes."""
        return [process.pid for process in self._engine.engine_core.resources.engine_manager.processes]

    @contextlib.contextmanager
    def _lost(self) -> Iterator[None]:
        """Converts vLLM's exceptions: `EngineLostError` if the engine has ended, else `ModelError`."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            yield
        except EngineDeadError as error:
            raise EngineLostError(str(error).splitlines()[0] or "its process ended") from error
        except ModelError:
            raise
        except Exception as error:  # errors of the engine's processes arrive as text, even fatal ones
            processes = self._engine.engine_core.resources.engine_manager.processes
            if not isinstance(error, ValueError | TypeError) and wait([one.sentinel for one in processes], LAST_WORDS):
                raise EngineLostError(f"{type(error).__name__}: {error}") from error
            raise ModelError(f"vLLM: {type(error).__name__}: {error}") from error

    def _start(self) -> None:
        """Starts a guard process, an engine and the thread that watches it.

        No local variable holds the engine: packages that vLLM imports keep errors of their imports, and with them this
        frame, so that the engine's threads and sockets would outlive it.
        """
        with _starting, _inherited(self._setup.options, self._gpus):
            # inside the lock: a process may fail to start while another thread changes the environment
            guard = Guard()
            try:
                with timed("libraries are imported"):
                    from vllm import EngineArgs
                    from vllm.v1.engine.llm_engine import LLMEngine
                arguments = EngineArgs(**self._setup.arguments(), disable_log_stats=True)
                with _hidden_program(), guard.starting(), timed(f"the engine of {self._setup.folder.name} starts"):
                    self._engine: Any = LLMEngine.from_engine_args(arguments)
            except ImportError as error:
                guard.close()
                why = f"sampling with vLLM needs vllm ({error}): searchgym doctor shows how to install it"
                raise UsageError(why) from error
            except Exception as error:  # vLLM raises many types here
                guard.close()
                why = memory_shortage(self._setup.options.gpu_share, self._devices()) or str(error)
                raise ModelError(f"vLLM's engine does not start on {self._setup.folder}: {why}") from error
            self._guard = guard
            guard.watch(self.processes)
        threading.Thread(target=_watch, args=(self._engine.engine_core,), name="vllm-watch", daemon=True).start()

    def _devices(self) -> list[str]:
        """Returns the indices or UUIDs of the engine's GPUs."""
        each = range(self._setup.options.tensor_parallel)
        return visible(each if self._gpus is None else self._gpus).split(",")


def skip_token_texts(processor: Any, number: str) -> None:
    """Makes vLLM return the log-probs of a request without the text of each token.

    vLLM decodes each token a second time for that text, which takes longer than all its other work on outputs. Stop
    strings are searched in a text that another object decodes.

    Args:
        processor: vLLM's ``OutputProcessor``, which has the request.
        number: vLLM's id of the request.
    """
    processor.request_states[number].logprobs_processor.tokenizer = None


def sampled_logp(flat: Any, count: int) -> npt.NDArray[np.float32]:
    """Returns the log-probs of the sampled tokens, (count,) float32, from vLLM's ``FlatLogprobs``.

    Each token has one or more entries, of which the first is the sampled one's.
    """
    return np.array([flat.logprobs[start] for start in flat.start_indices[:count]], np.float32)


def _watch(core: Any) -> None:
    """Waits until a process of the engine ends, then fails all waiting calls, which vLLM 0.32 would leave waiting."""
    from vllm.v1.engine.exceptions import EngineDeadError

    wait([process.sentinel for process in core.resources.engine_manager.processes])
    core.resources.engine_dead = True  # later calls raise
    core.outputs_queue.put_nowait(EngineDeadError())
    for future in list(core.utility_results.values()):
        with contextlib.suppress(InvalidStateError):  # answered in the meantime
            future.set_exception(EngineDeadError())


@contextlib.contextmanager
def _inherited(options: Vllm, gpus: Sequence[int] | None) -> Iterator[None]:
    """Sets the environment variables that a starting vLLM engine inherits, and restores the old ones afterwards.

    SIGINT is blocked, so that Ctrl-C in a terminal does not end the engine's processes before the loop decides to.
    """
    variables = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",  # in this process, its threads would compete with torch's
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would copy locks that our threads hold
        "VLLM_CPU_KVCACHE_SPACE": str(options.cache_gib),
        "PYTHONSAFEPATH": "1",  # a spawned process would look for modules in the working folder first
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output is for the output of commands
        "VLLM_NO_USAGE_STATS": "1",
    }
    if gpus is not None:
        variables["CUDA_VISIBLE_DEVICES"] = visible(gpus)
    resource_tracker.ensure_running()  # otherwise it starts with the first process and unblocks SIGINT
    variables["VLLM_ENABLE_STARTUP_PLAN"] = os.environ.get("VLLM_ENABLE_STARTUP_PLAN", "1")  # remembers the profiling
    chosen = {"VLLM_LOGGING_LEVEL", "VLLM_LOGGING_CONFIG_PATH"} & os.environ.keys()
    logging: contextlib.AbstractContextManager[dict[str, str]]
    logging = contextlib.nullcontext({}) if chosen else log_settings()
    with logging as logs, environment(variables | logs):
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def _hidden_program() -> Iterator[None]:
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
