"""Several engines of one model; each episode uses one engine, whose cache contains its prefix."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from searchgym.errors import EngineLostError, SearchGymError
from searchgym.rollout.transfer.folders import Folders
from searchgym.rollout.vllm.backend import Adapter, Completion, EngineRequest
from searchgym.rollout.vllm.engine import VllmEngine


@dataclass(slots=True, eq=False)
class _Replica:
    start: Callable[[], VllmEngine]
    engine: VllmEngine | None
    """Engine of the replica; None once it has ended."""
    under_way: int = 0


class Replicas:
    """Group of engines of one model with the interface of a single `VllmEngine`.

    An episode's first request goes to the engine with the fewest running requests, and later ones to the same engine.
    If an engine dies, its unfinished requests go to the others; it is started again before the next weights are loaded.

    Args:
        start: Functions that start the engines, with ``deaths=1``, so that an engine ends at its first failure.
        again: Functions that start the engines again after a failure. Default: `start`.
    """

    def __init__(
        self, start: Sequence[Callable[[], VllmEngine]], again: Sequence[Callable[[], VllmEngine]] | None = None
    ) -> None:
        with ThreadPoolExecutor(len(start)) as pool:
            futures = [pool.submit(one) for one in start]
        failed = next((error for future in futures if (error := future.exception())), None)
        if failed is not None:  # start all or none
            for future in futures:
                if future.exception() is None:
                    future.result().close()
            raise failed
        engines = [future.result() for future in futures]
        self._replicas = [_Replica(one, engine) for one, engine in zip(again or start, engines, strict=True)]
        self.max_context = min(engine.max_context for engine in engines)
        self.vocabulary, self.version = engines[0].vocabulary, engines[0].version
        self._names = [engine.name for engine in engines]
        self.new_folders: Callable[[], Folders] = engines[0].new_folders
        """Function that returns an empty set of folders for passing weights to all engines."""
        self.folders = self.new_folders()
        self._homes: dict[str, _Replica] = {}
        self._lock = threading.Lock()
        self._lost: list[VllmEngine] = []
        """Failed engines that are not closed yet."""
        self.moved = 0
        """Number of requests sent again because their engine failed."""

    def ask(self, request: EngineRequest) -> None:
        """Sends a request to the engine of its episode, or to the least busy one.

        Raises:
            EngineLostError: All engines have ended.
        """
        with self._lock:
            home = self._homes.get(request.episode)
            if home is None or home.engine is None:
                self._check_left()
                home = min((one for one in self._replicas if one.engine is not None), key=lambda one: one.under_way)
                if request.episode:
                    self._homes[request.episode] = home
            home.under_way += 1
            replica, engine = home, home.engine
            assert engine is not None

        def done(completion: Completion | Exception, version: int) -> None:
            with self._lock:
                replica.under_way -= 1
            if not isinstance(completion, EngineLostError):
                request.done(completion, version)
                return
            self._leave(replica, engine, completion)
            with self._lock:
                self.moved += 1
            try:
                self.ask(request)
            except EngineLostError as lost:
                request.done(lost, self.version)

        try:
            engine.ask(replace(request, done=done))
        except EngineLostError as error:
            done(error, self.version)

    def load(self, state: Mapping[str, Tensor], version: int) -> None:
        """Loads new base weights in every engine; failed engines are restarted with these weights.

        Args:
            state: All weights of the base model, by name.
            version: Policy version of these weights.
        """
        self.version, folder = version, self.folders.model(state, version)
        self._each(lambda engine: engine.load_folder(folder, version))
        self._start_again(lambda engine: engine.load_folder(folder, version))
        self.folders.clear(1)

    def pins(self) -> dict[str, str]:
        """Assigns one new episode id to each live engine; returns the engines' names by these ids."""
        with self._lock:
            alive = {f"pinned to {n}": one for n, one in enumerate(self._replicas) if one.engine is not None}
            self._homes |= alive
        return {episode: self._named(replica) for episode, replica in alive.items()}

    def take(self, adapter: Adapter) -> None:
        """Loads an adapter in every engine, without waiting for running requests."""
        self._each(lambda engine: engine.take(adapter))
        self._check_left()

    def fingerprints(self, adapter: Adapter | None) -> dict[str, str | None]:
        """Returns the fingerprint of the weights in every live engine, by the engine's name."""
        results = dict[VllmEngine | None, str | None]()

        def read(engine: VllmEngine) -> None:
            (results[engine],) = engine.fingerprints(adapter).values()

        self._each(read)
        return {self._named(each): results[each.engine] for each in self._replicas if each.engine in results}

    def drop(self, adapter: Adapter) -> None:
        """Unloads an adapter in every engine, once no request is running there."""
        self._each(lambda engine: engine.drop(adapter))

    def forget(self) -> None:
        """Clears cached keys and values of earlier requests in every engine."""
        self._each(VllmEngine.forget)

    def sleep(self, level: int) -> None:
        """Frees the GPU memory of every engine until `wake`; see `VllmEngine.sleep` for the levels."""
        self._each(lambda engine: engine.sleep(level))

    def wake(self) -> None:
        """Allocates GPU memory again in every sleeping engine."""
        self._each(VllmEngine.wake)

    def revive(self) -> None:
        """Restarts failed engines with the base model's original weights, before an adapter is loaded."""
        self._start_again(lambda engine: None)

    def _start_again(self, prepare: Callable[[VllmEngine], None]) -> None:
        """Restarts failed engines; an engine that fails again stays down until the next call.

        Args:
            prepare: Function called with each restarted engine before it gets requests.

        Raises:
            EngineLostError: No engine is left.
        """
        for replica in self._replicas:
            if replica.engine is not None:
                continue
            self._close_lost()  # the failed engine may still use a GPU, or the lock of a server
            engine: VllmEngine | None = None
            try:
                engine = replica.start()
                prepare(engine)
            except BaseException as error:
                if engine is not None:
                    engine.close()
                if not isinstance(error, SearchGymError):
                    raise
                self._say(replica, f"cannot be restarted ({error})")
            else:
                replica.engine = engine  # gets requests from now on
        self._check_left()
        with self._lock:
            self._homes.clear()  # caches are cleared anyway, so episodes may be assigned anew

    def close(self) -> None:
        """Closes all engines and removes the weight folders."""
        self._each(VllmEngine.close)
        self._close_lost()
        self.folders.clear()

    def _leave(self, replica: _Replica, engine: VllmEngine, error: EngineLostError) -> None:
        """Marks a replica's engine as ended, and reports it once on standard error."""
        with self._lock:
            if replica.engine is not engine:
                return
            replica.engine = None
            self._lost.append(engine)
        self._say(replica, f"has ended ({error}): its episodes continue on other engines")

    def _named(self, replica: _Replica) -> str:
        number = self._replicas.index(replica)
        name = self._names[number]
        return name if self._names.count(name) == 1 else f"replica {number} of {name}"

    def _say(self, replica: _Replica, what: str) -> None:
        sys.stderr.write(f"{self._named(replica)} {what}\n")

    def _close_lost(self) -> None:
        """Closes failed engines."""
        with self._lock:
            lost, self._lost = self._lost, []
        for engine in lost:
            engine.close()

    def _check_left(self) -> None:
        """Raises an EngineLostError if every replica has ended."""
        if all(replica.engine is None for replica in self._replicas):
            raise EngineLostError("every replica of vLLM's engine has ended; see its messages")

    def _each(self, call: Callable[[VllmEngine], Any]) -> None:
        """Calls a function with every live engine in parallel; engines that fail in it are marked as ended."""

        def one(replica: _Replica) -> None:
            engine = replica.engine
            if engine is None:
                return
            try:
                call(engine)
            except EngineLostError as error:
                self._leave(replica, engine, error)

        with ThreadPoolExecutor(len(self._replicas)) as pool:
            list(pool.map(one, self._replicas))
