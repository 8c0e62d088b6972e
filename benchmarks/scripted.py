"""Samplers whose engines do real work while the responses are scripted, so that their lengths are chosen."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from searchgym.envs import Task
from searchgym.records import Answer, Search
from searchgym.rollout import Sampled, SampleRequest, TokenFormat
from searchgym.rollout.sampler import Deliver, Key, Pull, sample_all

NEVER: Final = ("\ue000\ue001",)
"""Stop string of private characters: the engine looks for it in each token, as for a real one."""
SPREAD: Final = 0.6
"""Standard deviation of the logarithm of a response's length."""


@dataclass(frozen=True)
class Workload:
    """Lengths of the episodes of a step."""

    turns: float
    """Mean turns, the last of which answers."""
    tokens: float
    """Mean generated tokens of an episode."""
    words: int
    """Maximum words of an observation."""


class Script:
    """Responses of scripted episodes: searches for words of the question, then an answer, each after a thought.

    Args:
        format: Token format of the model.
        task: Environment whose questions are asked.
        workload: Lengths.
    """

    def __init__(self, format: TokenFormat, task: Task, workload: Workload) -> None:
        self._format, self._task, self._workload = format, task, workload
        self._open, self._close = self._encoded("<think>"), self._encoded("</think>")
        self._filler = np.tile(self._encoded(" So the page about it tells where to look, and when."), 200)
        self._turns: dict[str, int] = {}
        self._numbers: dict[str, int] = {}

    def response(self, request: SampleRequest) -> npt.NDArray[np.int32]:
        """Returns the token ids of the next response in the request's episode, (N,) int32."""
        question_id, _, attempt = request.episode.rpartition("#")
        question, turn = self._task.by_id[question_id], self._turns.get(request.episode, 0)
        rng = np.random.default_rng([zlib.crc32(request.episode.encode()), turn])
        whole = int(self._workload.turns)
        first = np.random.default_rng([zlib.crc32(request.episode.encode())]).random()
        turns = whole + int(first < self._workload.turns - whole)
        mean = self._workload.tokens / self._workload.turns
        length = int(mean * np.exp(SPREAD * rng.standard_normal() - SPREAD**2 / 2))
        if turn + 1 < turns:
            self._turns[request.episode] = turn + 1
            words = question.text.split()
            longest = sorted(range(len(words)), key=lambda n: -len(words[n]))[: min(max(length // 6, 2), 10)]
            action = self._encoded(self._format.protocol.write(Search((" ".join(words[n] for n in sorted(longest)),))))
        else:
            self._turns.pop(request.episode, None)
            number = self._numbers.setdefault(question_id, len(self._numbers))
            right = number * 18 % 32 < 18 and int(attempt) % 2 == 0
            action = self._encoded(self._format.protocol.write(Answer(question.answers[0] if right else "nothing")))
        thought = length - len(action) - len(self._open) - len(self._close)
        if thought < 1:
            return action
        return np.concatenate([self._open, self._filler[:thought], self._close, action])

    def _encoded(self, text: str) -> npt.NDArray[np.int32]:
        return self._format.observation_ids(text, "stop")


@dataclass
class EngineClock:
    """Seconds in which the engine has requests, and its steps if they can be counted."""

    busy: float = 0.0
    steps: int = 0
    stepping: float = 0.0
    """Seconds inside the engine's steps."""
    _open: int = 0
    _since: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, change: int) -> None:
        """Counts requests that begin, or that end if the number is negative."""
        with self._lock:
            now = time.perf_counter()
            if self._open:
                self.busy += now - self._since
            self._open, self._since = self._open + change, now

    def watch_steps(self, sampler: Any) -> bool:
        """Counts the steps of a sampler's vLLM engine; returns False if it has none, or several."""
        backend = getattr(getattr(sampler, "engine", None), "backend", None)
        if backend is None:
            return False

        def step(before: Callable[[], Any] = backend.step) -> Any:
            began = time.perf_counter()
            try:
                return before()
            finally:
                self.steps += 1
                self.stepping += time.perf_counter() - began

        backend.step = step
        return True


class ScriptedSampler:
    """Sampler whose engine samples tokens, which are then replaced by as many of a script's.

    Args:
        sampler: Streaming sampler that does the work; no token ends its responses any more.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler, self.clock = sampler, EngineClock()
        sampler.ends = frozenset()
        self.max_context: int = sampler.max_context
        self.script: Script | None = None
        """Set before the first request."""

    @property
    def version(self) -> int:
        """Version of the weights that new requests are sampled from."""
        return int(self.sampler.version)

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Returns one response per request, in the same order."""
        return sample_all(self, requests)

    def stream(self, pull: Pull[Key], deliver: Deliver[Key]) -> None:
        """Samples requests as they arrive; see `StreamingSampler`."""
        assert self.script is not None
        script, scripted = self.script, dict[Key, npt.NDArray[np.int32]]()

        def pull_scripted() -> list[tuple[Key, SampleRequest]]:
            new = []
            for key, request in pull():
                scripted[key] = script.response(request)
                sampling = replace(request.sampling, max_tokens=len(scripted[key]), stop=NEVER)
                new.append((key, replace(request, sampling=sampling)))
            self.clock.count(len(new))
            return new

        def deliver_scripted(key: Key, reply: Sampled) -> None:
            self.clock.count(-1)
            ids = scripted.pop(key)
            deliver(key, replace(reply, ids=ids, finish="stop") if len(reply.ids) == len(ids) else reply)

        self.sampler.stream(pull_scripted, deliver_scripted)

    def update(self, state: Mapping[str, Any], version: int) -> None:
        """Loads new weights; see `Sampler`."""
        self.sampler.update(state, version)

    def forget(self) -> None:
        """Clears cached keys and values; see `Sampler`."""
        self.sampler.forget()

    def close(self) -> None:
        """Stops what the sampler started; see `Sampler`."""
        self.sampler.close()
