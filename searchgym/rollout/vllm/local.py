"""vLLM's engine in processes of this one."""

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
from searchgym.rollout.sampler import VllmOptions
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
"""Waits for the end of whoever holds the other end of its input."""

LAST_WORDS: Final = 1.0
"""Seconds between an engine's last words and its end."""

_starting = threading.Lock()
"""Held while an engine starts: its processes take over the environment as it is then."""


class LocalVllm:
    """A `Backend` in processes of its own, which end with this one.

    Args:
        folder: The base model, in Hugging Face format.
        dtype: Of weights and computation.
        requests: Most requests under way at once; the others wait in the engine.
        options: See `VllmOptions`.
        adapters: Adapters that it samples from at once; 0: none can be used.
        rank: Largest rank of an adapter.
        gpus: Numbers of the GPUs that it may see; all if not given.

    Raises:
        UsageError: vLLM is not installed.
        ModelError: The engine does not start; its own words are on standard error.
    """

    near = True

    def __init__(
        self,
        folder: Path,
        *,
        dtype: str,
        requests: int,
        options: VllmOptions,
        adapters: int = 0,
        rank: int = 8,
        gpus: Sequence[int] | None = None,
    ) -> None:
        self._folder, self._dtype, self._requests, self._options = folder, dtype, requests, options
        self._adapters, self._rank = adapters, rank_for(rank)
        self._gpus = gpus
        self._engine = self._start()
        self.max_context = int(self._engine.model_config.max_model_len)

    def restart(self) -> None:
        """See `Backend`."""
        with contextlib.suppress(Exception):
            self.close()
        try:
            self._engine = self._start()
        except ModelError as error:
            raise EngineLostError(str(error)) from error

    def add(self, name: str, asked: Asked) -> None:
        """See `Backend`."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        adapter = asked.adapter and _lora(asked.adapter)
        with self._lost():
            parameters = SamplingParams(**asked.parameters, output_kind=RequestOutputKind.FINAL_ONLY)
            self._engine.add_request(name, {"prompt_token_ids": asked.prompt}, parameters, lora_request=adapter)

    def step(self) -> list[tuple[str, Completion | Exception]]:
        """See `Backend`."""
        with self._lost():
            outputs = self._engine.step()
        ended = [output for output in outputs if output.finished]
        if any(output.outputs[0].finish_reason == "abort" for output in ended):  # by nobody here
            raise EngineLostError("its process was told to end")
        return [(output.request_id, _completion(output.outputs[0])) for output in ended]

    def load(self, folder: str) -> None:
        """See `Backend`."""
        with self._lost():
            self._engine.collective_rpc("reload_weights", kwargs={"weights_path": folder})

    def take(self, adapter: Adapter) -> None:
        """See `Backend`."""
        with self._lost():
            self._engine.add_lora(_lora(adapter))

    def drop(self, adapter: Adapter) -> None:
        """See `Backend`."""
        with self._lost():
            self._engine.remove_lora(adapter.number)

    def forget(self) -> None:
        """See `Backend`."""
        with self._lost():
            check_reset(self._engine.reset_prefix_cache())

    def sleep(self, level: int) -> None:
        """See `Backend`."""
        with self._lost():
            self._engine.sleep(level)

    def wake(self) -> None:
        """See `Backend`."""
        with self._lost():
            self._engine.wake_up()

    def close(self) -> None:
        """See `Backend`."""
        self._engine.engine_core.shutdown()
        self._guard.kill()
        self._guard.communicate()

    @property
    def processes(self) -> list[int]:
        """Process ids of the engine."""
        return [process.pid for process in self._engine.engine_core.resources.engine_manager.processes]

    @contextlib.contextmanager
    def _lost(self) -> Any:
        """Says in our words that the engine has ended, or what it refuses."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            yield
        except EngineDeadError as error:
            raise EngineLostError(str(error).splitlines()[0] or "its process ended") from error
        except ModelError:
            raise
        except Exception as error:  # of its processes, as text: their last words among them
            processes = self._engine.engine_core.resources.engine_manager.processes
            if not isinstance(error, ValueError | TypeError) and wait([one.sentinel for one in processes], LAST_WORDS):
                raise EngineLostError(f"{type(error).__name__}: {error}") from error
            raise ModelError(f"vLLM: {type(error).__name__}: {error}") from error

    def _start(self) -> Any:
        """Starts an engine."""
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
            except Exception as error:  # of many types, those of its processes among them
                raise ModelError(f"vLLM's engine does not start on {self._folder}: {error}") from error
            core: Any = engine.engine_core
            # in here: a process that starts while another thread changes the environment may not start
            self._guard = _guard([process.pid for process in core.resources.engine_manager.processes])
        threading.Thread(target=_watch, args=(core,), name="vllm-watch", daemon=True).start()
        return engine

    def _arguments(self) -> Any:
        """Returns how the engine is set up."""
        from vllm import EngineArgs

        options = self._options
        return EngineArgs(
            model=str(self._folder),
            dtype=self._dtype,  # type: ignore[arg-type]
            generation_config="vllm",
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=options.prefix_caching,
            enable_chunked_prefill=None if torch.cuda.is_available() else False,  # with seeds, it ends a CPU's engine
            max_model_len=options.max_context,  # type: ignore[arg-type]
            max_num_seqs=self._requests,
            gpu_memory_utilization=options.gpu_share,
            tensor_parallel_size=options.tensor_parallel,
            enforce_eager=options.eager,
            enable_sleep_mode=options.sleep > 0,
            enable_lora=self._adapters > 0,
            max_loras=max(1, self._adapters),
            max_cpu_loras=2 * max(1, self._adapters),  # a new version comes before the one that it replaces has left
            max_lora_rank=self._rank,  # type: ignore[arg-type]
            disable_log_stats=True,
            seed=0,
        )


def _guard(processes: Sequence[int]) -> subprocess.Popen[bytes]:
    """Starts a process that outlives this one only to kill an engine's processes, which vLLM leaves behind."""
    command = [sys.executable, "-c", GUARD, *map(str, processes)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def _watch(core: Any) -> None:
    """Waits for the end of an engine's processes and tells who waits for them: vLLM 0.32 leaves them waiting."""
    from vllm.v1.engine.exceptions import EngineDeadError

    wait([process.sentinel for process in core.resources.engine_manager.processes])
    core.resources.engine_dead = True  # what is called from here on raises
    core.outputs_queue.put_nowait(EngineDeadError())
    for future in list(core.utility_results.values()):
        with contextlib.suppress(InvalidStateError):  # it has just been answered
            future.set_exception(EngineDeadError())


@contextlib.contextmanager
def _environment(options: VllmOptions, gpus: Sequence[int] | None) -> Any:
    """Sets what vLLM takes over when it starts, and puts back what was there.

    Its processes are kept from a terminal's Ctrl-C: the loop decides when to end.
    """
    wanted = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",  # in this process, its threads would take torch's cores
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would take over locks that threads of ours hold
        "VLLM_CPU_KVCACHE_SPACE": str(options.cache_gib),
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # what is printed for a program goes to the other one
        "VLLM_NO_USAGE_STATS": "1",
    }
    if gpus is not None:
        wanted["CUDA_VISIBLE_DEVICES"] = visible(gpus)
    resource_tracker.ensure_running()  # else starting it with the first process unblocks the signal
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
    """Keeps processes that are spawned from running the program's own file again.

    It may have no guard against that, and what it imports (numba's libraries) can end vLLM.
    """
    main = vars(sys.modules["__main__"])
    own: dict[str, Any] = {name: main[name] for name in ("__spec__", "__file__") if name in main}
    main["__spec__"] = None
    main.pop("__file__", None)  # None in its place would break `inspect`, and imports with it
    try:
        yield
    finally:
        main.update(own)


def _lora(adapter: Adapter) -> Any:
    """Returns an adapter in vLLM's words."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(adapter.name, adapter.number, adapter.folder)


def _completion(output: Any) -> Completion:
    """Returns vLLM's completion in our words."""
    found = zip(output.token_ids, output.logprobs, strict=True)
    logp = np.array([choices[token].logprob for token, choices in found], np.float32)
    return Completion(np.array(output.token_ids, np.int32), logp, output.finish_reason, output.stop_reason)
