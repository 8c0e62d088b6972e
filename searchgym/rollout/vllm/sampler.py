"""Sampling with vLLM, from the base model of an engine or from an adapter on it.

vLLM is configured to report log-probabilities as the trainer defines them (``processed_logprobs``: after temperature
and top-p), to ignore the model's ``generation_config.json``, and to stop at the same tokens as `TransformersSampler`.
Tokens are sampled with vLLM's generators, seeded per request: from the same distribution as with `TransformersSampler`,
but not the same tokens. The rest of a batch changes logits by rounding.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from torch import Tensor

from searchgym.errors import EngineLostError, ModelError, UsageError
from searchgym.rollout.folders import ADAPTER, ADAPTER_WEIGHTS
from searchgym.rollout.sampler import Deliver, Finish, Key, Pull, Sampled, SampleRequest, sample_all
from searchgym.rollout.transfer.fingerprint import DTYPE, adapter_fingerprint, fingerprint
from searchgym.rollout.transfer.folders import with_head
from searchgym.rollout.vllm.backend import Adapter, Completion, EngineRequest
from searchgym.rollout.vllm.engine import VllmEngine
from searchgym.rollout.vllm.replicas import Replicas

LOOK: Final = 0.002
"""Seconds between checks for new requests while waiting for responses."""

_Done = queue.SimpleQueue[tuple[Key, SampleRequest, Completion | Exception, int]]
"""Requests that have ended: key, request, result, and the version of the weights."""
_numbers = itertools.count(1)
_RUN: Final = uuid.uuid4().hex[:12]
"""Part of adapter names that distinguishes this process's adapters from others on a server."""


class VllmSampler:
    """Streaming sampler on a vLLM engine.

    Args:
        engine: One engine, or several of one model; `close` closes it unless it is `shared`.
        ends: Token ids that end a response.
        adapter: Contents of peft's ``adapter_config.json``, to sample from an adapter instead of the base model;
            `update` then expects the adapter's weights, and before the first update the base model is used.
        shared: True if other samplers use the engine too.
    """

    def __init__(
        self,
        engine: VllmEngine | Replicas,
        *,
        ends: Iterable[int],
        adapter: Mapping[str, Any] | None = None,
        shared: bool = False,
    ) -> None:
        self.engine, self.ends = engine, frozenset(ends)
        self.max_context = engine.max_context
        self._config, self._shared = adapter, shared
        self._folders = engine.new_folders()
        self._adapter: Adapter | None = None
        self._lock = threading.Lock()
        """Lock with which requests for an adapter reach the engine before the adapter is dropped."""

    @property
    def version(self) -> int:
        """Version of the weights that new requests are sampled from."""
        return self.engine.version if self._adapter is None else self._adapter.version

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Returns one response per request, in the same order."""
        return sample_all(self, requests)

    def stream(self, pull: Pull[Key], deliver: Deliver[Key]) -> None:
        """Samples requests as they arrive; see `StreamingSampler`.

        Raises:
            UsageError: A token id is not in the model's vocabulary.
            ModelError: The engine fails repeatedly, or its output is not finite.
        """
        done: _Done[Key] = queue.SimpleQueue()
        under_way = 0
        while True:
            for key, request in pull():
                if len(request.ids) >= self.max_context:
                    deliver(key, Sampled(np.zeros(0, np.int32), np.zeros(0, np.float32), "context", self.version))
                else:
                    self._ask(key, request, done)
                    under_way += 1
            if not under_way:
                return
            try:
                key, request, output, version = done.get(timeout=LOOK)
            except queue.Empty:
                continue
            under_way -= 1
            if isinstance(output, Exception):
                raise output
            deliver(key, _sampled(output, request, version))

    def update(self, state: Mapping[str, Tensor], version: int) -> None:
        """Loads new weights and clears the cache of the old ones.

        Base weights are loaded once running requests are done; running requests of an adapter end with its old version.

        Args:
            state: All weights of the model by name, or the adapter's weights by peft's names.
            version: Policy version of these weights.

        Raises:
            ModelError: The engine refuses the weights.
        """
        if self._config is None:
            self.engine.wake()
            self.engine.load(state, version)
            return
        self.engine.revive()
        self.engine.wake()
        config, number = {ADAPTER: json.dumps(self._config).encode()}, next(_numbers)
        folder = self._folders.tensors(state, ADAPTER_WEIGHTS, version, config)
        # vLLM identifies adapters, and their cached keys and values, by name and number: with new ones, nothing of an
        # older version is used
        new = Adapter(f"adapter-{_RUN}-{number}-v{version}", number, folder, version)
        self.engine.take(new)
        with self._lock:
            before, self._adapter = self._adapter, new
        if before is not None:
            self.engine.drop(before)
        self._folders.clear(2)  # a dead replica's requests may move to an engine that has yet to load the old adapter

    def pins(self) -> dict[str, str]:
        """Returns the names of the engines by an episode id whose requests go to each; see `SpreadSampler`."""
        return self.engine.pins()

    def fingerprints(self, state: Mapping[str, Tensor]) -> dict[str, tuple[str, str]]:
        """Returns fingerprints of expected and actual weights by engine; see `FingerprintedSampler`.

        `Receiver.weights_fingerprint` says what is compared inside vLLM.
        """
        pairs = dict[str, tuple[str, str]]()
        for name, actual in self.engine.fingerprints(self._adapter).items():
            if actual is None:
                continue
            if self._config is None:
                expected = fingerprint(with_head(state.items()))
            else:
                dtype = actual.partition(DTYPE)[2] or "float32"
                expected = adapter_fingerprint(state, self._config["lora_alpha"] / self._config["r"], dtype)
            pairs[name] = (expected, actual)
        return pairs

    def forget(self) -> None:
        """Clears cached keys and values of earlier requests."""
        self.engine.forget()

    def close(self) -> None:
        """Closes the engine unless it is shared, else drops this sampler's adapter; removes the weight folders."""
        if not self._shared:
            self.engine.close()
        elif self._adapter is not None:
            with contextlib.suppress(EngineLostError):
                self.engine.drop(self._adapter)
        self._folders.clear()

    def _ask(self, key: Key, request: SampleRequest, done: _Done[Key]) -> None:
        low, high, last = request.ids.min(), request.ids.max(), self.engine.vocabulary - 1
        if low < 0 or high > last:
            raise UsageError(f"token ids must be from 0 to {last}, got {low} to {high}")
        with self._lock:
            adapter = self._adapter

            def end(completion: Completion | Exception, version: int) -> None:
                done.put((key, request, completion, version if adapter is None else adapter.version))

            parameters = request_parameters(request, self.ends, self.max_context)
            self.engine.ask(EngineRequest(request.ids.tolist(), parameters, end, adapter, request.episode))


def request_parameters(request: SampleRequest, ends: Iterable[int], max_context: int) -> dict[str, Any]:
    """Returns the keyword arguments of vLLM's `SamplingParams` for a request.

    Args:
        request: The request.
        ends: Token ids that end a response.
        max_context: Maximum number of tokens of request and response.
    """
    sampling = request.sampling
    return {
        "max_tokens": min(sampling.max_tokens, max_context - len(request.ids)),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p if sampling.temperature else 1.0,
        "seed": request.seed % 2**63,
        "stop": list(sampling.stop),
        "include_stop_str_in_output": True,
        "stop_token_ids": sorted(ends),
        "ignore_eos": True,  # only `stop_token_ids` end a response
        "logprobs": 0,
        "detokenize": bool(sampling.stop),
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }


def _sampled(completion: Completion, request: SampleRequest, version: int) -> Sampled:
    """Converts a completion of vLLM to a response."""
    if not np.isfinite(completion.logp).all():
        raise ModelError("the log-probs that vLLM returned are not finite: training diverged?")
    finish: Finish
    if completion.reason == "stop":
        finish = "stop" if isinstance(completion.stop, str) else "eos"
    elif completion.reason == "length":
        finish = "length" if len(completion.ids) == request.sampling.max_tokens else "context"
    else:
        raise ModelError(f"vLLM ended a request with {completion.reason!r}")
    return Sampled(completion.ids, completion.logp, finish, version)
