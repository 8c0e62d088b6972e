"""One vLLM engine, local or remote, with a thread that sends requests, restarts the engine and changes its weights.

Weights change only while no request is running, so every response has a single version. An engine that dies is
restarted with its last weights, and its unfinished requests are sent again.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor

from searchgym.errors import EngineLostError, ModelError
from searchgym.rollout.vllm.backend import Adapter, EngineBackend, EngineRequest

DEATHS: Final = 3
"""Number of consecutive failures, without a response in between, after which an engine is not restarted."""


class VllmEngine:
    """Engine on a backend, driven by a thread.

    Args:
        backend: Backend of the engine; `close` closes it.
        vocabulary: Number of token ids in the model's vocabulary.
        version: Version of the loaded weights.
        deaths: Number of consecutive failures, without a response in between, after which the engine is not restarted.
    """

    def __init__(self, backend: EngineBackend, *, vocabulary: int, version: int = 0, deaths: int = DEATHS) -> None:
        self.backend, self.vocabulary, self.version = backend, vocabulary, version
        self.max_context, self.name = backend.max_context, backend.name
        self.restarts = 0
        """Number of restarts so far."""
        self.new_folders = backend.new_folders
        self.folders = self.new_folders()
        self._weights: str | None = None
        """Folder of the last loaded weights; None for the model's original weights."""
        self._news = threading.Condition()
        self._inbox: deque[EngineRequest | _Call] = deque()
        self._under_way: dict[str, EngineRequest] = {}
        self._closed, self._asleep, self._names, self._deaths, self._most = False, False, 0, 0, deaths
        self._thread = threading.Thread(target=self._drive, name="vllm", daemon=True)
        self._thread.start()

    # -- for samplers ----------------------------------------------------------------------------------------------

    def ask(self, news: EngineRequest | _Call) -> None:
        """Queues a request; requests are sent in the order of the calls."""
        with self._news:
            if self._closed:
                raise EngineLostError("vLLM's engine has been closed")
            self._inbox.append(news)
            self._news.notify()

    def load(self, state: Mapping[str, Tensor], version: int) -> None:
        """Loads new base weights once no request is running, and clears the cache of the old ones.

        Args:
            state: All weights of the base model, by name.
            version: Policy version of these weights.
        """
        self.load_folder(self.folders.model(state, version), version)
        self.folders.clear(1)

    def load_folder(self, folder: str, version: int) -> None:
        """Loads new base weights from a folder of `Folders.model`, which must exist while they are in use."""

        def load() -> None:
            self._weights, self.version = folder, version  # set first: an engine that dies here restarts with them
            self.backend.load(folder)
            self.backend.forget()  # otherwise vLLM would reuse keys and values of the old weights

        self._call(load)

    def pins(self) -> dict[str, str]:
        """Returns the engine's name by an episode id; this engine gets the requests of all episodes."""
        return {"": self.name}

    def take(self, adapter: Adapter) -> None:
        """Loads an adapter without waiting for running requests."""
        self._call(lambda: self.backend.take(adapter), alone=False)

    def fingerprints(self, adapter: Adapter | None) -> dict[str, str | None]:
        """Returns the fingerprint of the weights in use by the engine's name; see `EngineBackend.fingerprint`."""

        def read() -> str | None:
            if adapter is not None:
                self.backend.take(adapter)  # an engine that was restarted meanwhile has no adapters
            return self.backend.fingerprint(adapter)

        return {self.name: self._call(read, alone=False)}

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
        """Does nothing, because a single engine restarts itself; `Replicas` override it."""

    def wake(self) -> None:
        """Allocates the GPU's memory again if the engine sleeps."""
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

    def _call(self, function: Callable[[], Any], alone: bool = True) -> Any:
        """Calls a function in the engine's thread, while no request runs if `alone`; returns or raises its outcome."""
        call = _Call(function, alone)
        self.ask(call)
        return call.future.result()

    # -- the thread ------------------------------------------------------------------------------------------------

    def _drive(self) -> None:
        """Runs the thread's loop until the engine is closed or fails for good; then every request gets the error."""
        try:
            while True:
                with self._news:
                    self._news.wait_for(lambda: self._closed or self._inbox or self._under_way)
                    if self._closed:
                        return
                try:
                    self._take_up()
                    if self._under_way:
                        self._step()
                except EngineLostError as error:
                    self._restart(error)
        except Exception as error:
            with self._news:
                self._closed = True
                waiting = [*self._under_way.values(), *self._inbox]
                self._under_way.clear()
                self._inbox.clear()
            for news in waiting:
                if isinstance(news, EngineRequest):
                    news.done(error, self.version)
                else:
                    news.future.set_exception(error)

    def _step(self) -> None:
        """Lets the engine compute once, and delivers the responses that are complete."""
        for name, completion in self.backend.step():
            self._deaths = 0
            self._under_way.pop(name).done(completion, self.version)

    def _take_up(self) -> None:
        """Passes new requests to the backend and executes calls, up to a call that must wait for running requests."""
        while True:
            with self._news:
                if not self._inbox:
                    return
                news = self._inbox[0]
                if isinstance(news, _Call) and news.alone and self._under_way:
                    return
                self._inbox.popleft()
            if isinstance(news, EngineRequest):
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

    def _add(self, name: str, request: EngineRequest) -> None:
        """Passes a request to the backend; if it is refused, reports the error to its callback."""
        try:
            self.backend.add(name, request)
        except ModelError as error:
            if isinstance(error, EngineLostError):
                raise
            del self._under_way[name]
            request.done(error, self.version)

    def _restart(self, error: EngineLostError) -> None:
        """Restarts the engine and sends it the unfinished requests again."""
        while True:
            self._deaths += 1
            if self._deaths >= self._most:
                if self._most == 1:  # one of several replicas, which report it
                    raise error
                raise EngineLostError(f"{self.name} ended {self._deaths} times in a row: {error}") from error
            sys.stderr.write(f"{self.name} has ended ({error}): it is restarted\n")
            try:
                self.backend.restart()
                self.restarts += 1
                if self._weights is not None:
                    self.backend.load(self._weights)
                for name, request in [*self._under_way.items()]:
                    self._add(name, request)
            except EngineLostError as next_error:
                error = next_error
                continue
            return


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """Function for an engine's thread to call."""

    function: Callable[[], Any]
    alone: bool
    """True if the call must wait until no request is running."""
    future: Future[Any] = field(default_factory=Future)
