"""A learner in several processes: every call goes to all ranks, and ranks that hang or die are detected."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge, wait
from pathlib import Path
from typing import Any, Final, cast

from torch import Tensor
from typing_extensions import override

from searchgym.errors import HangError, TrainingError, UsageError
from searchgym.rollout.vllm.setup import visible
from searchgym.threads import interrupt_held_back
from searchgym.train.algorithms.samples import Sample
from searchgym.train.distributed.worker import KEY, STACKS, START_SECONDS, ended_with, receive, send, stacks_file
from searchgym.train.learner.batching import Flat, Metrics
from searchgym.train.learner.learner import Learner
from searchgym.train.recipe.backends.deepspeed import DeepSpeed
from searchgym.train.recipe.recipe import Recipe

CLOSE_SECONDS: Final = 2.0
"""Maximum seconds for the ranks to write their stacks."""
APART: Final = 10.0
"""Maximum seconds for a rank to reply after another rank failed, and to identify itself on connecting."""


class RemoteLearner(Learner):
    """A learner in processes started on this machine, or joining from several machines (`DeepSpeed.listen`).

    Args:
        recipe: Recipe whose learner's backend is `DeepSpeed`.
        folder: Folder for the ranks' logs and stacks; created if needed.
        deadline: Maximum seconds of a call.
        adapter: Folder of an adapter to continue training, which all ranks can read. Default: a new adapter, if any.

    Calls raise a TrainingError if a rank ended or the learner cannot be created, and a HangError after the deadline.
    """

    def __init__(self, recipe: Recipe, folder: Path, deadline: float, adapter: Path | None = None) -> None:
        self._version, self._adapter = 0, adapter and adapter.resolve()
        self._recipe, self._folder, self._deadline = recipe, folder, deadline
        self._connections: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._meeting: tempfile.TemporaryDirectory[str] | None = None
        self._closed = False
        self._lock = threading.Lock()

    def _begin(self) -> None:
        """Starts the ranks or waits for them, and creates their learner; called before the first call."""
        options = cast(DeepSpeed, self._recipe.learner.backend)
        world, rendezvous = options.ranks, "env://"  # which torchrun has set up
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            if options.listen is None:
                self._meeting = tempfile.TemporaryDirectory(prefix="searchgym-")
                rendezvous = f"file://{self._meeting.name}/ranks"
                for rank in range(world):
                    self._start(rank, world, options.gpus)
            else:
                self._connections = _joined(options.listen, world)
            start = (world, rendezvous, self._recipe, self._adapter)
            self._call("start", *start, within=max(START_SECONDS, self._deadline))
        except BaseException:
            self._kill()
            raise

    def _start(self, rank: int, world: int, gpus: Sequence[int] | None) -> None:
        """Starts a rank, connected by a pipe."""
        here, theirs = multiprocessing.Pipe()
        environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // world)), **os.environ}
        environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        if gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible(gpus)
        command = [sys.executable, "-P", "-m", "searchgym.train.distributed.worker"]
        with (self._folder / f"rank{rank}.log").open("wb") as log, theirs:
            process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(self._folder)],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is for the loop, which decides when to end
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        self._connections.append(here)

    # -- Learner ---------------------------------------------------------------------------------------------------

    @property
    @override
    def version(self) -> int:
        return self._version

    @override
    def prepare(self, samples: Sequence[Sample]) -> list[Sample]:
        return cast(list[Sample], self._call("prepare", samples))

    @override
    def logp(self, samples: Sequence[Sample]) -> Flat:
        return cast(Flat, self._call("logp", samples))

    @override
    def learn(self, samples: Sequence[Sample], step: int) -> Metrics:
        return cast(Metrics, self._call("learn", samples, step))

    @override
    def weights(self, adapter: bool = False) -> Mapping[str, Tensor]:
        return cast(Mapping[str, Tensor], self._call("weights", adapter))

    @override
    def save(self, folder: Path) -> None:
        self._call("save", folder.resolve())  # ranks may have been started in another folder

    @override
    def load(self, folder: Path) -> None:
        self._call("load", folder.resolve())

    @override
    def close(self) -> None:
        """Closes the connections, so that the ranks exit, and waits for them."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            try:
                process.wait(CLOSE_SECONDS if self._connections else 0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._connections, self._processes, self._closed = [], [], True
        if self._meeting is not None:
            self._meeting.cleanup()

    # -- calls -----------------------------------------------------------------------------------------------------

    def _call(self, method: str, *arguments: Any, within: float | None = None) -> Any:
        """Calls all ranks and returns the reply of rank 0.

        Ctrl-C takes effect after the replies; a second one ends the ranks.

        Raises:
            TrainingError: A rank ended, or raised; the others are ended too, unless all of them raised.
            HangError: The deadline has passed; the ranks' stacks are written.
        """
        if self._closed:
            raise TrainingError("the learner's ranks have ended")
        if not self._connections:
            self._begin()
        # an unread reply would be taken for that of the next call; before the start there is none
        with nullcontext() if method == "start" else interrupt_held_back():
            if not self._lock.acquire(blocking=False):  # called by a watchdog while another thread waits
                raise TrainingError(f"{method}: the ranks are still at work on another call")
            try:
                for rank, connection in enumerate(self._connections):
                    try:
                        send(connection, (method, arguments))
                    except OSError:
                        raise self._died(rank) from None
                answers = self._answers(within or self._deadline, method)
            except BaseException:
                self._kill()
                raise
            finally:
                self._lock.release()
            errors = [content for kind, content in answers if kind == "error"]
            if errors:
                if len(errors) < len(answers) or method == "start":
                    self._kill()
                raise TrainingError(errors[0])
            reply, self._version = answers[0][1]
        return reply

    def _answers(self, seconds: float, method: str) -> list[Any]:
        """Waits until every rank has answered."""
        end = time.monotonic() + seconds
        waiting = dict(enumerate(self._connections))
        answers: dict[int, Any] = {}
        while waiting:
            ready = wait(list(waiting.values()), timeout=max(0.0, end - time.monotonic()))
            if not ready:
                failed = [content for kind, content in answers.values() if kind == "error"]
                raise TrainingError(failed[0]) if failed else self._hang(sorted(waiting), method, seconds)
            for rank in [rank for rank, connection in waiting.items() if connection in ready]:
                try:
                    answers[rank] = receive(waiting.pop(rank))
                except (EOFError, OSError):
                    raise self._died(rank) from None
                if answers[rank][0] == "error":
                    end = min(end, time.monotonic() + APART)
        return [answers[rank] for rank in range(len(self._connections))]

    def _died(self, rank: int) -> TrainingError:
        """Returns the error of a rank that ended."""
        if not self._processes:
            return TrainingError(f"rank {rank} has ended; see the output of its launcher")
        try:
            code: int | str = self._processes[rank].wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            code = "unknown"
        return TrainingError(f"rank {rank} ended with {ended_with(code, self._folder / f'rank{rank}.log')}")

    def _hang(self, ranks: Sequence[int], method: str, seconds: float) -> HangError:
        """Makes the ranks write their stacks, and returns an error that names the ranks without a reply."""
        names = ", ".join(f"rank {rank}" for rank in ranks)
        message = f"{method}: no answer from {names} within {seconds:g} s"
        if not self._processes:
            return HangError(f"{message}; end the launchers of the ranks")
        for process in self._processes:
            process.send_signal(STACKS)
        time.sleep(CLOSE_SECONDS)
        stacks = ", ".join(str(stacks_file(self._folder, rank)) for rank in range(len(self._processes)))
        return HangError(f"{message}; stacks: {stacks}")

    def _kill(self) -> None:
        """Kills all ranks."""
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
        self.close()


def _joined(address: str, world: int) -> list[Connection]:
    """Returns the connections of the ranks that join at an address, in rank order."""
    if not (key := os.environ.get(KEY)):
        raise UsageError(f"learner.backend.listen needs a shared key: set {KEY} here and where the ranks start")
    host, _, port = address.rpartition(":")
    end, joined = time.monotonic() + START_SECONDS, dict[int, Connection]()
    with socket.create_server((host, int(port))) as server:
        while len(joined) < world:
            server.settimeout(max(0.01, end - time.monotonic()))
            try:
                accepted, _ = server.accept()
            except TimeoutError:
                raise TrainingError(
                    f"{len(joined)} of {world} ranks joined at {address} within {START_SECONDS:g} s"
                ) from None
            with accepted:
                connection = Connection(os.dup(accepted.fileno()))
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(APART), 0))
                try:
                    deliver_challenge(connection, key.encode())
                    answer_challenge(connection, key.encode())
                    rank, theirs = receive(connection)
                except (AuthenticationError, EOFError, OSError):
                    connection.close()  # not one of our ranks
                    continue
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
            if theirs != world:
                raise TrainingError(
                    f"{theirs} ranks were started for learner.backend.ranks {world}: the numbers must be equal"
                )
            joined[rank] = connection
    return [joined[rank] for rank in range(world)]
