"""vLLM's engine in a process of its own, driven by one thread, shared by the samplers of one base model.

An engine that ends is started again, with the weights it had; what was under way is asked once more. Weights change
only while nothing is under way: every response is of one version.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from searchgym.errors import ModelError, UsageError
from searchgym.rollout.sampler import VllmOptions

TESTED: Final = ("0.32",)
"""Versions of vLLM, by their beginnings, that the tests have run."""
DEATHS: Final = 3
"""Times in a row, without a response between them, that an engine may end before it is given up."""
MEMORY: Final = Path("/dev/shm")
"""A file system in memory: where weights go on their way to the engine, if they fit."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to the engine, and who hears of its end."""

    prompt: list[int]
    parameters: Any
    """vLLM's `SamplingParams`."""
    adapter: Any
    """vLLM's `LoRARequest`, or None."""
    done: Callable[[Any, int], None]
    """Called with vLLM's completion, or with the error that ended everything, and the version of the base's weights."""


class VllmEngine:
    """An engine and the thread that drives it.

    Args:
        folder: The base model, in Hugging Face format.
        dtype: Of weights and computation.
        requests: Most requests under way at once; the others wait in the engine.
        options: See `VllmOptions`.
        version: Policy version of the folder's weights.

    Raises:
        UsageError: vLLM is not installed.
        ModelError: The engine does not start; its own words are on standard error.
    """

    def __init__(
        self, folder: Path, *, dtype: str, requests: int, options: VllmOptions, version: int = 0
    ) -> None:
        self._folder, self._dtype, self._requests, self._options = folder, dtype, requests, options
        self._weights: tempfile.TemporaryDirectory[str] | None = None
        self.starts, self.version = 0, version
        """Times that it was started; policy version of the weights."""
        self._engine = self._start()
        config = self._engine.model_config
        self.max_context, self.vocabulary = int(config.max_model_len), int(config.get_vocab_size())
        self._tied = bool(getattr(config.hf_text_config, "tie_word_embeddings", False))
        self._news = threading.Condition()
        self._inbox: deque[Asked | tuple[Callable[[], Any], Future[Any]]] = deque()
        self._under_way: dict[str, Asked] = {}
        self._closed, self._names, self._deaths = False, 0, 0
        self._thread = threading.Thread(target=self._drive, name="vllm", daemon=True)
        self._thread.start()

    # -- for samplers ----------------------------------------------------------------------------------------------

    def ask(self, asked: Asked) -> None:
        """Hands over a request; in the order of the calls."""
        self._tell(asked)

    def load(self, state: Mapping[str, Tensor], version: int) -> None:
        """Takes over weights once nothing is under way, and forgets what was computed under the old ones.

        Args:
            state: The base model's whole state, by name.
            version: Policy version of these weights.
        """
        folder = self._write(state)
        self._call(lambda: self._take(folder, version))

    def drop(self, adapter: Any) -> None:
        """Forgets an adapter once nothing is under way.

        Args:
            adapter: vLLM's `LoRARequest`.
        """
        self._call(lambda: self._engine.remove_lora(adapter.lora_int_id))

    def forget(self) -> None:
        """Forgets keys and values of earlier requests."""
        self._call(lambda: _forget(self._engine))

    def close(self) -> None:
        """Ends the engine."""
        with self._news:
            if self._closed:
                return
            self._closed = True
            self._news.notify()
        self._thread.join()
        with contextlib.suppress(Exception):
            _end(self._engine)
        if self._weights is not None:
            self._weights.cleanup()

    def _call(self, function: Callable[[], Any]) -> None:
        """Has the thread call something while nothing is under way; raises what it raised."""
        future: Future[Any] = Future()
        self._tell((function, future))
        future.result()

    def _tell(self, news: Asked | tuple[Callable[[], Any], Future[Any]]) -> None:
        with self._news:
            if self._closed:
                raise ModelError("vLLM's engine has been closed")
            self._inbox.append(news)
            self._news.notify()

    # -- the thread ------------------------------------------------------------------------------------------------

    def _drive(self) -> None:
        """Serves until it is closed, or until the engine ends for good."""
        try:
            while self._wait():
                try:
                    self._take_up()
                    if self._under_way:
                        self._step()
                except _dead() as error:
                    self._restart(error)
        except BaseException as error:
            self._give_up(error)

    def _wait(self) -> bool:
        """Waits for something to do; returns whether to go on."""
        with self._news:
            while not (self._closed or self._inbox or self._under_way):
                self._news.wait()
            return not self._closed

    def _take_up(self) -> None:
        """Passes new requests on, up to a call, which must find nothing under way."""
        while True:
            with self._news:
                if not self._inbox:
                    return
                news = self._inbox[0]
                if not isinstance(news, Asked) and self._under_way:
                    return
                self._inbox.popleft()
            if isinstance(news, Asked):
                self._names += 1
                self._under_way[str(self._names)] = news  # before the engine hears of it: it may end on hearing
                self._add(str(self._names), news)
                continue
            function, future = news
            try:
                future.set_result(function())
            except _dead() as error:
                with self._news:
                    self._inbox.appendleft(news)
                raise error
            except Exception as error:
                future.set_exception(error)

    def _step(self) -> None:
        for output in self._engine.step():
            if output.finished:
                self._deaths = 0
                self._under_way.pop(output.request_id).done(output.outputs[0], self.version)

    def _add(self, name: str, asked: Asked) -> None:
        prompt = {"prompt_token_ids": asked.prompt}
        self._engine.add_request(name, prompt, asked.parameters, lora_request=asked.adapter)

    def _restart(self, error: BaseException) -> None:
        """Starts another engine and asks it for what was under way."""
        while True:
            self._deaths += 1
            if self._deaths == DEATHS:
                raise ModelError(f"vLLM's engine ended {DEATHS} times in a row; see its messages") from error
            with contextlib.suppress(Exception):
                _end(self._engine)
            try:
                self._engine = self._start()
                for name, asked in self._under_way.items():
                    self._add(name, asked)
            except _dead():
                continue
            return

    def _give_up(self, error: BaseException) -> None:
        """Tells everyone who waits."""
        with self._news:
            self._closed = True
            waiting = [*self._under_way.values(), *self._inbox]
            self._under_way.clear()
            self._inbox.clear()
        for news in waiting:
            if isinstance(news, Asked):
                news.done(error, self.version)
            else:
                news[1].set_exception(error)

    # -- the engine ------------------------------------------------------------------------------------------------

    def _start(self) -> Any:
        """Starts an engine, with the weights that were loaded last."""
        options = self._options
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"  # in this process, its threads would take torch's cores
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(options.cache_gib)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        try:
            from vllm import EngineArgs
            from vllm.v1.engine.llm_engine import LLMEngine
        except ImportError as error:
            raise UsageError(f"sampling by vLLM needs vllm ({error}): searchgym doctor says how to get it") from error
        arguments = EngineArgs(
            model=str(self._folder),
            dtype=self._dtype,  # type: ignore[arg-type]
            generation_config="vllm",
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=options.prefix_caching,
            max_model_len=options.max_context,
            max_num_seqs=self._requests,
            gpu_memory_utilization=options.gpu_share,
            tensor_parallel_size=options.tensor_parallel,
            enforce_eager=options.eager,
            enable_lora=options.adapters > 0,
            max_loras=max(1, options.adapters),
            max_lora_rank=options.adapter_rank,
            disable_log_stats=True,
            seed=0,
        )
        try:
            engine = LLMEngine.from_engine_args(arguments)
        except Exception as error:  # of many types, those of its processes among them
            raise ModelError(f"vLLM's engine does not start on {self._folder}: {error}") from error
        self.starts += 1
        if self._weights is not None:
            _load(engine, self._weights.name)
        return engine

    def _take(self, folder: tempfile.TemporaryDirectory[str], version: int) -> None:
        """Has the engine load weights; those before them go."""
        self.version = version
        before, self._weights = self._weights, folder  # an engine that ends here begins again with the new ones
        _load(self._engine, folder.name)
        if before is not None and before is not folder:
            before.cleanup()

    def _write(self, state: Mapping[str, Tensor]) -> tempfile.TemporaryDirectory[str]:
        """Writes weights for the engine."""
        whole = dict(state)
        if self._tied and "lm_head.weight" not in whole:  # loaded by both names
            whole["lm_head.weight"] = whole["model.embed_tokens.weight"]
        return write_tensors(whole, "model.safetensors")


def write_tensors(state: Mapping[str, Tensor], name: str) -> tempfile.TemporaryDirectory[str]:
    """Writes tensors into a file of a new folder, in memory if there is room: where an engine's process finds them."""
    from safetensors.torch import save_file

    whole = {key: tensor.detach().contiguous() for key, tensor in state.items()}
    size = sum(tensor.numel() * tensor.element_size() for tensor in whole.values())
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 1.1 * size
    folder = tempfile.TemporaryDirectory(prefix="searchgym-weights-", dir=MEMORY if roomy else None)
    seen = set[int]()
    for key, tensor in whole.items():  # safetensors refuses two names of one tensor
        if tensor.data_ptr() in seen:
            whole[key] = tensor.clone()
        seen.add(tensor.data_ptr())
    save_file(whole, Path(folder.name) / name)
    return folder


def _load(engine: Any, folder: str) -> None:
    """Has an engine load weights from a folder."""
    engine.collective_rpc("reload_weights", kwargs={"weights_path": folder})
    _forget(engine)  # vLLM keeps keys and values of the old weights otherwise


def _forget(engine: Any) -> None:
    """Has an engine forget keys and values."""
    if not engine.reset_prefix_cache():
        raise ModelError("vLLM did not reset its prefix cache: it would mix keys and values of old and new weights")


def _end(engine: Any) -> None:
    """Ends an engine's processes."""
    engine.engine_core.shutdown()


def _dead() -> type[Exception]:
    """Returns what vLLM raises when an engine has ended."""
    from vllm.v1.engine.exceptions import EngineDeadError

    dead: type[Exception] = EngineDeadError
    return dead
