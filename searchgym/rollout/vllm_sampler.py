"""Sampling through vLLM: its engine in a process of its own, its weights those that were published last.

vLLM is asked for what the trainer means by a log-prob (``processed_logprobs``: after temperature and top-p), takes no
setting from the model's ``generation_config.json``, and stops where `TransformersSampler` does. Tokens are drawn by
vLLM's own generators, seeded per request: other ones than those of `TransformersSampler` draw, from the same
distribution; rows that are computed together change logits by rounding.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Generic

import numpy as np
from torch import Tensor

from searchgym.errors import ModelError, UsageError
from searchgym.rollout.sampler import Deliver, Finish, Key, Pull, Sampled, SampleRequest, VllmOptions

TESTED: Final = ("0.32",)
"""Versions of vLLM, by their beginnings, that the tests have run."""
DEATHS: Final = 3
"""Times in a row, without a response between them, that an engine may end before its sampler gives up."""
MEMORY: Final = Path("/dev/shm")
"""A file system in memory: where weights go on their way to the engine, if they fit."""


class VllmSampler:
    """A `StreamingSampler` on vLLM. Threads take turns.

    An engine that ends is started again with the weights that were published last, and what was under way is asked once
    more: callers see it in the time it took.

    Args:
        folder: The model, in Hugging Face format.
        ends: Ids that end a response.
        dtype: Of weights and computation.
        requests: Most requests under way at once; the others wait in the engine.
        options: See `VllmOptions`.
        version: Policy version of the weights in the folder.

    Raises:
        UsageError: vLLM is not installed.
        ModelError: The engine does not start; its own words are on standard error.
    """

    def __init__(
        self,
        folder: Path,
        *,
        ends: Iterable[int],
        dtype: str = "float32",
        requests: int = 256,
        options: VllmOptions | None = None,
        version: int = 0,
    ) -> None:
        self._folder, self._dtype, self._requests = folder, dtype, requests
        self._options = options or VllmOptions()
        self.ends, self.version = frozenset(ends), version
        self._published: tempfile.TemporaryDirectory[str] | None = None
        self._lock = threading.Lock()
        self.starts = 0
        """Times that the engine was started."""
        self._engine = self._start()
        config = self._engine.model_config
        self.max_context, self._vocabulary = int(config.max_model_len), int(config.get_vocab_size())
        self._tied = bool(getattr(config.hf_text_config, "tie_word_embeddings", False))

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Returns one response per request, in the same order."""
        todo: list[tuple[int, SampleRequest]] = list(enumerate(requests))
        replies: dict[int, Sampled] = {}

        def pull() -> list[tuple[int, SampleRequest]]:
            found = todo.copy()
            todo.clear()
            return found

        self.stream(pull, replies.__setitem__)
        return [replies[number] for number in range(len(requests))]

    def stream(self, pull: Pull[Key], deliver: Deliver[Key]) -> None:
        """Samples requests as they come; see `StreamingSampler`.

        Raises:
            UsageError: A token id is not in the model's vocabulary.
            ModelError: The engine ends again and again, or its output is not finite.
        """
        with self._lock:
            flight, deaths = _Flight[Key](deliver), 0
            while True:
                answered = flight.answered
                try:
                    self._stream(pull, flight)
                except _dead() as error:
                    deaths = 1 if flight.answered > answered else deaths + 1
                    if deaths == DEATHS:
                        raise ModelError(f"vLLM's engine ended {DEATHS} times in a row; see its messages") from error
                    self._restart()
                else:
                    return

    def update(self, state: Mapping[str, Tensor], version: int) -> None:
        """Waits for what is under way, loads weights and forgets what was computed under the old ones.

        Args:
            state: The model's whole state, by name.
            version: Policy version of these weights.

        Raises:
            ModelError: The engine does not take them.
        """
        with self._lock:
            folder = self._write(state)
            before, self._published = self._published, folder
            try:
                self._load(self._engine)
            except _dead():
                self._restart()
            if before is not None:
                before.cleanup()
            self.version = version

    def forget(self) -> None:
        """Forgets keys and values of earlier requests."""
        with self._lock:
            _forget(self._engine)

    def close(self) -> None:
        """Ends the engine."""
        with self._lock:
            _end(self._engine)
            if self._published is not None:
                self._published.cleanup()

    # -- the engine ------------------------------------------------------------------------------------------------

    def _start(self) -> Any:
        """Starts an engine, with the weights that were published last."""
        options = self._options
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"  # in this process, its threads would take torch's cores
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(options.cache_gib)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        try:
            from vllm import EngineArgs
            from vllm.v1.engine.llm_engine import LLMEngine
        except ImportError as error:
            raise UsageError(
                f"sampling through vLLM needs vllm ({error}): searchgym doctor says how to get it"
            ) from error
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
            disable_log_stats=True,
            seed=0,
        )
        try:
            engine = LLMEngine.from_engine_args(arguments)
        except Exception as error:  # of many types, those of its processes among them
            raise ModelError(f"vLLM's engine does not start on {self._folder}: {error}") from error
        self.starts += 1
        if self._published is not None:
            self._load(engine)
        return engine

    def _restart(self) -> None:
        with contextlib.suppress(Exception):
            _end(self._engine)
        self._engine = self._start()

    def _load(self, engine: Any) -> None:
        """Has an engine load the weights that were published last."""
        assert self._published is not None
        engine.collective_rpc("reload_weights", kwargs={"weights_path": self._published.name})
        _forget(engine)  # vLLM keeps keys and values of the old weights otherwise

    def _write(self, state: Mapping[str, Tensor]) -> tempfile.TemporaryDirectory[str]:
        """Writes weights where the engine's process finds them: in memory, if there is room."""
        from safetensors.torch import save_file

        whole = {name: tensor.detach().contiguous() for name, tensor in state.items()}
        if self._tied and "lm_head.weight" not in whole:  # loaded by both names
            whole["lm_head.weight"] = whole["model.embed_tokens.weight"]
        size = sum(tensor.numel() * tensor.element_size() for tensor in whole.values())
        roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 1.1 * size
        folder = tempfile.TemporaryDirectory(prefix="searchgym-weights-", dir=MEMORY if roomy else None)
        seen = set[int]()
        for name, tensor in whole.items():  # safetensors refuses two names of one tensor
            if tensor.data_ptr() in seen:
                whole[name] = tensor.clone()
            seen.add(tensor.data_ptr())
        save_file(whole, Path(folder.name) / "model.safetensors")
        return folder

    # -- requests --------------------------------------------------------------------------------------------------

    def _stream(self, pull: Pull[Key], flight: _Flight[Key]) -> None:
        for name, request in flight.again():
            self._engine.add_request(name, {"prompt_token_ids": request.ids.tolist()}, self._sampling(request))
        while True:
            new = [(key, self._checked(request)) for key, request in pull()]
            for name, request in flight.take(new, self.max_context):
                self._engine.add_request(name, {"prompt_token_ids": request.ids.tolist()}, self._sampling(request))
            if not flight.requests:
                return
            for output in self._engine.step():
                if output.finished:
                    flight.land(output.request_id, functools.partial(self._sampled, output.outputs[0]))

    def _checked(self, request: SampleRequest) -> SampleRequest:
        if request.ids.min() < 0 or request.ids.max() >= self._vocabulary:
            raise UsageError(
                f"token ids must be from 0 to {self._vocabulary - 1}, got {request.ids.min()} to {request.ids.max()}"
            )
        return request

    def _sampling(self, request: SampleRequest) -> Any:
        """Returns what is asked for in vLLM's words."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        asked = request.sampling
        return SamplingParams(
            max_tokens=min(asked.max_tokens, self.max_context - len(request.ids)),
            temperature=asked.temperature,
            top_p=asked.top_p if asked.temperature else 1.0,
            seed=request.seed % 2**63,
            stop=list(asked.stop),
            include_stop_str_in_output=True,
            stop_token_ids=sorted(self.ends),
            ignore_eos=True,  # the ends are those of above, and no other
            logprobs=0,
            detokenize=bool(asked.stop),
            skip_special_tokens=False,
            spaces_between_special_tokens=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _sampled(self, output: Any, request: SampleRequest) -> Sampled:
        """Returns a response of vLLM in our words."""
        ids = np.array(output.token_ids, np.int32)
        found = zip(output.token_ids, output.logprobs, strict=True)
        logp = np.array([choices[token].logprob for token, choices in found], np.float32)
        if not np.isfinite(logp).all():
            raise ModelError("the log-probs that vLLM returned are not finite: training diverged?")
        finish: Finish
        if output.finish_reason == "stop":
            finish = "stop" if isinstance(output.stop_reason, str) else "eos"
        elif output.finish_reason == "length":
            finish = "length" if len(ids) == request.sampling.max_tokens else "context"
        else:
            raise ModelError(f"vLLM ended a request with {output.finish_reason!r}")
        return Sampled(ids, logp, finish)


class _Flight(Generic[Key]):
    """Requests that an engine has, or had when it ended.

    Args:
        deliver: Told of each response.
    """

    def __init__(self, deliver: Deliver[Key]) -> None:
        self._deliver, self._names = deliver, 0
        self.requests: dict[str, tuple[Key, SampleRequest]] = {}
        """By the engine's name."""
        self.answered = 0

    def take(self, new: Sequence[tuple[Key, SampleRequest]], room: int) -> list[tuple[str, SampleRequest]]:
        """Names new requests, all of them before an engine hears of any; those that fill the context are answered."""
        named = []
        for key, request in new:
            if len(request.ids) >= room:
                self._deliver(key, Sampled(np.zeros(0, np.int32), np.zeros(0, np.float32), "context"))
            else:
                self._names += 1
                self.requests[str(self._names)] = (key, request)
                named.append((str(self._names), request))
        return named

    def again(self) -> list[tuple[str, SampleRequest]]:
        """Returns what has not been answered, for another engine."""
        return [(name, request) for name, (_, request) in self.requests.items()]

    def land(self, name: str, read: Callable[[SampleRequest], Sampled]) -> None:
        """Delivers a response."""
        key, request = self.requests[name]
        sampled = read(request)
        del self.requests[name]
        self.answered += 1
        self._deliver(key, sampled)


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
