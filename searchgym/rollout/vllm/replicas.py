"""Several engines of one model: each episode stays with one of them, whose cache knows its beginning."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from searchgym.errors import EngineLostError, ModelError
from searchgym.rollout.vllm.engine import Adapter, Asked, Completion, VllmEngine
from searchgym.rollout.vllm.weight_folders import Folders


@dataclass(slots=True, eq=False)
class _Replica:
    start: Callable[[], VllmEngine]
    engine: VllmEngine | None
    """None once it has ended."""
    under_way: int = 0


class Replicas:
    """`VllmEngine`s beside each other, asked like one.

    An episode's first request goes where the fewest are under way, the later ones follow it. What an engine leaves when
    it ends is asked of the others; it is started again before the next weights come.

    Args:
        start: Starts each of them; told to give up at its first end (``deaths=1``).
    """

    def __init__(self, start: Sequence[Callable[[], VllmEngine]]) -> None:
        engines = _all_or_none(start)
        self._replicas = [_Replica(one, engine) for one, engine in zip(start, engines, strict=True)]
        self.max_context = min(engine.max_context for engine in engines)
        self.vocabulary, self.version = engines[0].vocabulary, engines[0].version
        self.near = all(engine.near for engine in engines)
        self.folders = Folders(self.near)
        self._homes: dict[str, _Replica] = {}
        self._lock = threading.Lock()
        self._lost: list[VllmEngine] = []
        """Ended, and not closed yet."""
        self.moved = 0
        """Requests that were asked again because their engine ended."""

    def ask(self, asked: Asked) -> None:
        """See `VllmEngine`.

        Raises:
            EngineLostError: All have ended.
        """
        replica, engine = self._choose(asked.episode)

        def done(completion: Completion | Exception, version: int) -> None:
            with self._lock:
                replica.under_way -= 1
            if isinstance(completion, EngineLostError):
                self._again(asked, replica, engine, completion)
            else:
                asked.done(completion, version)

        try:
            engine.ask(replace(asked, done=done))
        except EngineLostError as error:
            done(error, self.version)

    def load(self, state: Mapping[str, Tensor], version: int) -> None:
        """See `VllmEngine`; those that have ended are started again, and asked once they have the weights."""
        self.version, folder = version, self.folders.model(state)
        self._each(lambda engine: engine.load_folder(folder, version))
        self._start_again(lambda engine: engine.load_folder(folder, version))
        self.folders.clear(1)

    def take(self, adapter: Adapter) -> None:
        """See `VllmEngine`."""
        self._each(lambda engine: engine.take(adapter))
        self._check_left()

    def drop(self, adapter: Adapter) -> None:
        """See `VllmEngine`."""
        self._each(lambda engine: engine.drop(adapter))

    def forget(self) -> None:
        """See `VllmEngine`."""
        self._each(VllmEngine.forget)

    def sleep(self, level: int) -> None:
        """See `VllmEngine`."""
        self._each(lambda engine: engine.sleep(level))

    def wake(self) -> None:
        """See `VllmEngine`."""
        self._each(VllmEngine.wake)

    def revive(self) -> None:
        """Starts those again that have ended, with the base's own weights: before the next adapter comes."""
        self._start_again(lambda engine: None)

    def _start_again(self, prepare: Callable[[VllmEngine], None]) -> None:
        """Starts those again that have ended; one that does not start, or ends again at once, waits for the next time.

        Raises:
            EngineLostError: None is left.
        """
        for replica in self._replicas:
            if replica.engine is not None:
                continue
            self._close_lost()  # what is left of it may hold a GPU, or the right to a server
            engine: VllmEngine | None = None
            try:
                engine = replica.start()
                prepare(engine)
            except BaseException as error:
                if engine is not None:
                    engine.close()
                if not isinstance(error, ModelError):
                    raise
                self._say(replica, f"does not come back ({error})")
            else:
                replica.engine = engine  # asked from now on
        self._check_left()
        with self._lock:
            self._homes.clear()  # nothing is remembered of old weights that would be worth a long queue

    def close(self) -> None:
        """Ends all of them."""
        self._each(VllmEngine.close)
        self._close_lost()
        self.folders.clear()

    def home(self, episode: str) -> int | None:
        """Returns the number of the engine that an episode stays with, None if it has none."""
        with self._lock:
            replica = self._homes.get(episode)
            return None if replica is None else self._replicas.index(replica)

    def _choose(self, episode: str) -> tuple[_Replica, VllmEngine]:
        with self._lock:
            replica = self._homes.get(episode)
            if replica is None or replica.engine is None:
                self._check_left()
                there = [replica for replica in self._replicas if replica.engine is not None]
                replica = min(there, key=lambda one: one.under_way)
                if episode:
                    self._homes[episode] = replica
            replica.under_way += 1
            assert replica.engine is not None
            return replica, replica.engine

    def _again(self, asked: Asked, replica: _Replica, engine: VllmEngine, error: EngineLostError) -> None:
        """Asks the others for what an engine left."""
        self._leave(replica, engine, error)
        with self._lock:
            self.moved += 1
        try:
            self.ask(asked)
        except EngineLostError as lost:
            asked.done(lost, self.version)

    def _leave(self, replica: _Replica, engine: VllmEngine, error: EngineLostError) -> None:
        """Notes that an engine has ended, and says so once."""
        with self._lock:
            if replica.engine is not engine:
                return
            replica.engine = None
            self._lost.append(engine)
        self._say(replica, f"has ended ({error}): its episodes go on elsewhere")

    def _say(self, replica: _Replica, what: str) -> None:
        sys.stderr.write(f"replica {self._replicas.index(replica)} of vLLM's engine {what}\n")

    def _close_lost(self) -> None:
        """Closes what has ended."""
        with self._lock:
            lost, self._lost = self._lost, []
        for engine in lost:
            engine.close()

    def _check_left(self) -> None:
        """Raises an EngineLostError if every replica has ended."""
        if all(replica.engine is None for replica in self._replicas):
            raise EngineLostError("every replica of vLLM's engine has ended; see its messages")

    def _each(self, call: Callable[[VllmEngine], Any]) -> None:
        """Calls all that are there, at the same time; one that has ended meanwhile is left out."""

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


def _all_or_none(start: Sequence[Callable[[], VllmEngine]]) -> list[VllmEngine]:
    """Starts engines at the same time; if one does not start, those that did are closed."""
    with ThreadPoolExecutor(len(start)) as pool:
        futures = [pool.submit(one) for one in start]
    failed = next((error for future in futures if (error := future.exception())), None)
    if failed is not None:
        for future in futures:
            if future.exception() is None:
                future.result().close()
        raise failed
    return [future.result() for future in futures]
