"""Sampling through vLLM: the base model of an engine, or one adapter on it.

vLLM is asked for what the trainer means by a log-prob (``processed_logprobs``: after temperature and top-p), takes no
setting from the model's ``generation_config.json``, and stops where `TransformersSampler` does. Tokens are drawn by
vLLM's own generators, seeded per request: other ones than those of `TransformersSampler` draw, from the same
distribution; rows that are computed together change logits by rounding.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import Tensor

from searchgym.errors import EngineLostError, ModelError, UsageError
from searchgym.rollout.loading import ADAPTER, ADAPTER_WEIGHTS
from searchgym.rollout.sampler import Deliver, Finish, Key, Pull, Sampled, SampleRequest, sample_all
from searchgym.rollout.vllm.engine import Adapter, Asked, Completion, VllmEngine
from searchgym.rollout.vllm.replicas import Replicas
from searchgym.rollout.vllm.weight_folders import Folders

LOOK: Final = 0.002
"""Seconds between looks at whether new requests have come, while responses are waited for."""

_numbers = itertools.count(1)
_RUN: Final = uuid.uuid4().hex[:12]
"""Tells adapters of this process from those of others that a server may remember."""


class VllmSampler:
    """A `StreamingSampler` on a vLLM engine.

    Args:
        engine: Or several of one model. Belongs to the sampler unless `shared`: `close` ends it.
        ends: Ids that end a response.
        adapter: What peft's ``adapter_config.json`` says of the adapter that is sampled from, in the place of the
            base; `update` then takes the adapter's weights, and until the first one the base answers.
        shared: Whether other samplers use the engine too.
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
        self._folders = Folders(engine.near)
        self._adapter: _Version | None = None
        self._lock = threading.Lock()
        """What is asked before an adapter is replaced goes to the engine before it is dropped."""

    @property
    def version(self) -> int:
        """Policy version of the weights that new requests are sampled from."""
        return self.engine.version if self._adapter is None else self._adapter.version

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Returns one response per request, in the same order."""
        return sample_all(self, requests)

    def stream(self, pull: Pull[Key], deliver: Deliver[Key]) -> None:
        """Samples requests as they come; see `StreamingSampler`.

        Raises:
            UsageError: A token id is not in the model's vocabulary.
            ModelError: The engine ends again and again, or its output is not finite.
        """
        done: queue.SimpleQueue[tuple[Key, SampleRequest, Any, int]] = queue.SimpleQueue()
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
            if isinstance(output, BaseException):
                raise output
            deliver(key, _sampled(output, request, version))

    def update(self, state: Mapping[str, Tensor], version: int) -> None:
        """Waits for what is under way, loads weights and forgets what was computed under the old ones.

        Args:
            state: The model's whole state, by name; or the adapter's, by peft's names.
            version: Policy version of these weights.

        Raises:
            ModelError: The engine does not take them.
        """
        if self._config is None:
            self.engine.wake()
            self.engine.load(state, version)
            return
        self.engine.revive()
        self.engine.wake()
        new = _version(self._config, self._folders.tensors(state, ADAPTER_WEIGHTS), version)
        self.engine.take(new.adapter)
        with self._lock:
            before, self._adapter = self._adapter, new
        if before is not None:
            self.engine.drop(before.adapter)
        self._folders.clear(2)  # a replica's last requests may have moved to where the one before is not loaded yet

    def sleep(self, level: int) -> None:
        """Gives a GPU's memory back until the next `update`; see `VllmEngine.sleep`."""
        self.engine.sleep(level)

    def forget(self) -> None:
        """Forgets keys and values of earlier requests."""
        self.engine.forget()

    def close(self) -> None:
        """Ends the engine, unless it is shared."""
        if not self._shared:
            self.engine.close()
        elif self._adapter is not None:
            with contextlib.suppress(EngineLostError):
                self.engine.drop(self._adapter.adapter)
        self._folders.clear()

    # -- one request -----------------------------------------------------------------------------------------------

    def _ask(
        self, key: Key, request: SampleRequest, done: queue.SimpleQueue[tuple[Key, SampleRequest, Any, int]]
    ) -> None:
        low, high, last = request.ids.min(), request.ids.max(), self.engine.vocabulary - 1
        if low < 0 or high > last:
            raise UsageError(f"token ids must be from 0 to {last}, got {low} to {high}")
        with self._lock:
            own = self._adapter

            def end(completion: Completion | Exception, version: int) -> None:
                done.put((key, request, completion, version if own is None else own.version))

            adapter = None if own is None else own.adapter
            self.engine.ask(Asked(request.ids.tolist(), self._parameters(request), end, adapter, request.episode))

    def _parameters(self, request: SampleRequest) -> dict[str, Any]:
        """Returns what is asked for in the words of vLLM's `SamplingParams`."""
        asked = request.sampling
        return {
            "max_tokens": min(asked.max_tokens, self.max_context - len(request.ids)),
            "temperature": asked.temperature,
            "top_p": asked.top_p if asked.temperature else 1.0,
            "seed": request.seed % 2**63,
            "stop": list(asked.stop),
            "include_stop_str_in_output": True,
            "stop_token_ids": sorted(self.ends),
            "ignore_eos": True,  # the ends are those of above, and no other
            "logprobs": 0,
            "detokenize": bool(asked.stop),
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
        }


@dataclass(frozen=True, slots=True)
class _Version:
    """An adapter of one version, under a name that no other one ever had.

    vLLM knows adapters, and the keys and values that they made, by name and number: what has a new name is never
    mistaken for what it was before.
    """

    adapter: Adapter
    version: int


def _version(config: Mapping[str, Any], folder: str, version: int) -> _Version:
    """Returns the version of an adapter whose weights are in a folder, with its configuration beside them."""
    (Path(folder) / ADAPTER).write_text(json.dumps(config), encoding="utf-8")
    number = next(_numbers)
    return _Version(Adapter(f"adapter-{_RUN}-{number}-v{version}", number, folder), version)


def _sampled(completion: Completion, request: SampleRequest, version: int) -> Sampled:
    """Returns a completion as a response."""
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
