"""One vLLM engine, local or remote, driven by a thread that sends requests, restarts it and changes its weights.

Weights change only while no request is running, so every response is of one version. An engine that dies is restarted
with the weights it had, and its unfinished requests are sent again.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from searchgym.errors import EngineLostError, ModelError, UsageError
from searchgym.rollout.transfer.folders import Folders

DEATHS: Final = 3
"""Number of consecutive deaths, without a response in between, after which an engine is given up."""
RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Maximum adapter ranks that vLLM can be configured with."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """LoRA adapter in a folder that the engine can read."""

    name: str
    """Name, which no other adapter may share."""
    number: int
    """Number above 0, which no other adapter may share: vLLM identifies adapters by both."""
    folder: str
    """Folder with peft's configuration and weight files."""


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """Result of a request to vLLM."""

    ids: npt.NDArray[np.int32]
    """(N,) int32 sampled token ids, the end id included."""
    logp: npt.NDArray[np.float32]
    """(N,) float32 natural-log probabilities of the sampled tokens, in the engine's log-probability mode."""
    reason: str | None
    """vLLM's finish reason: ``"stop"``, ``"length"`` or another."""
    stop: str | int | None = None
    """Stop string or token id that ended the response."""


Done = Callable[[Completion | Exception, int], None]
"""Callback that receives the completion, or the error instead, and the version of the base model's weights."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Request to the engine, with the callback for its result."""

    prompt: list[int]
    """Token ids of the prompt."""
    parameters: Mapping[str, Any]
    """Keyword arguments of vLLM's `SamplingParams`."""
    done: Done
    """Callback for the result."""
    adapter: Adapter | None = None
    """Adapter to sample with; None for the base model."""
    episode: str = ""
    """Id of the episode; its requests share a long prefix, so replicas keep them on one engine."""


class Backend(Protocol):
    """Interface of a vLLM engine in child processes or behind a server.

    Every method raises `EngineLostError` if the engine has ended; `restart` then starts it again. A request that it
    refuses raises `ModelError`.
    """

    @property
    def max_context(self) -> int:
        """Maximum tokens of request and response."""
        ...

    @property
    def name(self) -> str:
        """Name for messages."""
        ...

    def new_folders(self) -> Folders:
        """Returns an empty set of folders through which weights reach the engine."""
        ...

    def restart(self) -> None:
        """Starts the engine again, with the model's original weights."""
        ...

    def add(self, name: str, asked: Asked) -> None:
        """Adds a request under a name that no other request ever had."""
        ...

    def step(self) -> list[tuple[str, Completion | Exception]]:
        """Runs the engine briefly; returns (name, completion or error) of each request that ended."""
        ...

    def load(self, folder: str) -> None:
        """Loads the base model's weights from a folder."""
        ...

    def take(self, adapter: Adapter) -> None:
        """Loads an adapter.

        Raises:
            ModelError: The adapter does not fit the base model.
        """
        ...

    def drop(self, adapter: Adapter) -> None:
        """Unloads an adapter."""
        ...

    def forget(self) -> None:
        """Clears cached keys and values of earlier requests."""
        ...

    def sleep(self, level: int) -> None:
        """Frees GPU memory until `wake`; level 1 keeps the weights in main memory, 2 drops them."""
        ...

    def wake(self) -> None:
        """Takes GPU memory again after `sleep`."""
        ...

    def close(self) -> None:
        """Stops the processes and threads that the backend started."""
        ...


class VllmEngine:
    """Engine on a backend, driven by a thread.

    Args:
        backend: Backend, owned by the engine: `close` closes it.
        vocabulary: Number of token ids that the model knows.
        version: Policy version of the weights as loaded.
        deaths: Number of consecutive deaths, without a response in between, after which the engine is given up.
    """

    def __init__(self, backend: Backend, *, vocabulary: int, version: int = 0, deaths: int = DEATHS) -> None:
        self.backend, self.vocabulary, self.version = backend, vocabulary, version
        self.max_context, self.name = backend.max_context, backend.name
        self.restarts = 0
        """Number of restarts so far."""
        self.folders = backend.new_folders()
        self._weights: str | None = None
        """Folder of the weights loaded last; None for the model's original weights."""
        self._news = threading.Condition()
        self._inbox: deque[Asked | _Call] = deque()
        self._under_way: dict[str, Asked] = {}
        self._closed, self._asleep, self._names, self._deaths, self._most = False, False, 0, 0, deaths
        self._thread = threading.Thread(target=self._drive, name="vllm", daemon=True)
        self._thread.start()

    # -- for samplers ----------------------------------------------------------------------------------------------

    def ask(self, asked: Asked) -> None:
        """Queues a request; requests are sent in the order of the calls."""
        self._tell(asked)

    def new_folders(self) -> Folders:
        """Returns an empty set of folders through which weights reach the engine."""
        return self.backend.new_folders()

    def load(self, state: Mapping[str, Tensor], version: int) -> None:
        """Loads new base weights once no request is running, and clears the cache of the old ones.

        Args:
            state: All weights of the base model, by name.
            version: Policy version of these weights.
        """
        self.load_folder(self.folders.model(state, version), version)
        self.folders.clear(1)

    def load_folder(self, folder: str, version: int) -> None:
        """Loads new base weights, as `load`, from a folder of `Folders.model`, which must exist while they are used."""
        self._call(lambda: self._load(folder, version))

    def pins(self) -> dict[str, str]:
        """Returns an episode id whose requests this engine gets, as all others, with the engine's name."""
        return {"": self.name}

    def take(self, adapter: Adapter) -> None:
        """Loads an adapter without waiting for running requests."""
        self._call(lambda: self.backend.take(adapter), alone=False)

    def drop(self, adapter: Adapter) -> None:
        """Unloads an adapter once no request is running."""
        self._call(lambda: self.backend.drop(adapter))

    def forget(self) -> None:
        """Clears cached keys and values of earlier requests, once no request is running."""
        self._call(self.backend.forget)

    def sleep(self, level: int) -> None:
        """Frees the GPU's memory once no request is running, until `wake`.

        Args:
            level: 1 keeps the weights in main memory; 2 drops them, so that they must be loaded after waking.
        """
        self._call(lambda: self.backend.sleep(level))
        self._asleep = True

    def revive(self) -> None:
        """Does nothing, since a single engine restarts by itself; `Replicas` need it."""

    def wake(self) -> None:
        """Takes the GPU's memory again, if the engine sleeps."""
        if self._asleep:
            self._call(self.backend.wake)
            self._asleep = False

    def close(self) -> None:
        """Stops the engine and its thread, and removes its weight folders."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join()
        with contextlib.suppress(EngineLostError):
            self.backend.close()
        self.folders.clear()

    def _call(self, function: Callable[[], Any], alone: bool = True) -> None:
        """Calls a function in the engine's thread, while no request runs if `alone`, and raises its exception here."""
        call = _Call(function, alone)
        self._tell(call)
        call.future.result()

    def _tell(self, news: Asked | _Call) -> None:
        with self._news:
            if self._closed:
                raise EngineLostError("vLLM's engine has been closed")
            self._inbox.append(news)
            self._news.notify()

    # -- the thread ------------------------------------------------------------------------------------------------

    def _drive(self) -> None:
        """Runs the thread's loop until the engine is closed or given up."""
        try:
            while self._wait():
                try:
                    self._take_up()
                    if self._under_way:
                        self._step()
                except EngineLostError as error:
                    self._restart(error)
        except Exception as error:
            self._give_up(error)

    def _wait(self) -> bool:
        """Waits for work; returns False once the engine is closed."""
        with self._news:
            while not (self._closed or self._inbox or self._under_way):
                self._news.wait()
            return not self._closed

    def _take_up(self) -> None:
        """Passes new requests to the backend and makes calls, up to a call that must wait for running requests."""
        while True:
            with self._news:
                if not self._inbox:
                    return
                news = self._inbox[0]
                if isinstance(news, _Call) and news.alone and self._under_way:
                    return
                self._inbox.popleft()
            if isinstance(news, Asked):
                self._names += 1
                self._under_way[str(self._names)] = news  # before add(): the engine may die in it
                self._add(str(self._names), news)
                continue
            try:
                news.future.set_result(news.function())
            except EngineLostError:
                with self._news:
                    self._inbox.appendleft(news)
                raise
            except Exception as error:
                news.future.set_exception(error)

    def _add(self, name: str, asked: Asked) -> None:
        """Passes a request to the backend; if it is refused, reports the error to its callback."""
        try:
            self.backend.add(name, asked)
        except ModelError as error:
            if isinstance(error, EngineLostError):
                raise
            del self._under_way[name]
            asked.done(error, self.version)

    def _step(self) -> None:
        for name, completion in self.backend.step():
            self._deaths = 0
            self._under_way.pop(name).done(completion, self.version)

    def _restart(self, error: EngineLostError) -> None:
        """Restarts the engine and sends it the unfinished requests again."""
        while True:
            self._deaths += 1
            if self._deaths >= self._most:
                if self._most == 1:  # one of several, which report it
                    raise error
                raise EngineLostError(f"{self.name} ended {self._deaths} times in a row: {error}") from error
            sys.stderr.write(f"{self.name} has ended ({error}): it is begun again\n")
            try:
                self.backend.restart()
                self.restarts += 1
                if self._weights is not None:
                    self.backend.load(self._weights)
                for name, asked in [*self._under_way.items()]:
                    self._add(name, asked)
            except EngineLostError as next_error:
                error = next_error
                continue
            return

    def _give_up(self, error: Exception) -> None:
        """Reports an error to every request and call that waits."""
        with self._news:
            self._closed = True
            waiting = [*self._under_way.values(), *self._inbox]
            self._under_way.clear()
            self._inbox.clear()
        for news in waiting:
            if isinstance(news, Asked):
                news.done(error, self.version)
            else:
                news.future.set_exception(error)

    def _load(self, folder: str, version: int) -> None:
        """Loads weights from a folder, in the engine's thread."""
        self._weights, self.version = folder, version  # first, so that an engine that dies here restarts with them
        self.backend.load(folder)
        self.backend.forget()  # otherwise vLLM would reuse keys and values of the old weights


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """Function for an engine's thread to call."""

    function: Callable[[], Any]
    alone: bool
    """Whether the call must wait until no request is running."""
    future: Future[Any] = field(default_factory=Future)


def rank_for(rank: int) -> int:
    """Returns the maximum rank to configure vLLM with for adapters of a rank: the next one it supports."""
    return next((known for known in RANKS if known >= rank), rank)


def visible(gpus: Sequence[int]) -> str:
    """Returns ``CUDA_VISIBLE_DEVICES`` for a child process that may use some of this process's GPUs.

    Args:
        gpus: Indices among the GPUs that this process sees, counted from 0.

    Raises:
        UsageError: This process does not see that many GPUs.
    """
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen is None:
        return ",".join(map(str, gpus))
    names = seen.split(",")
    if max(gpus) >= len(names):
        raise UsageError(f"there is no GPU {max(gpus)}: CUDA_VISIBLE_DEVICES is {seen}, counted from 0")
    return ",".join(names[gpu] for gpu in gpus)


def check_reset(done: Any) -> None:
    """Raises a ModelError unless vLLM reported that it cleared its prefix cache."""
    if not done:
        raise ModelError("vLLM did not reset its prefix cache: it would mix keys and values of old and new weights")
