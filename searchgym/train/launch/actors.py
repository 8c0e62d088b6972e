"""The programs that Ray starts on nodes; each class here is the body of an actor.

Nothing of a training's data travels through Ray: ranks answer the training over their own authenticated connection
(`searchgym.train.distributed.worker`), servers over HTTP, and weights go through a folder.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from searchgym.train.distributed import worker

STOP_SECONDS = 10.0
"""Seconds for a server to end when it is asked to."""


def free_port(address: str = "") -> int:
    """Returns a port of this machine that is free at an address. Default: at all of its addresses."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


class Node:
    """An actor that knows where it runs."""

    def where(self) -> tuple[str, str, int]:
        """Returns the id of its node, the node's address, and a port that is free there."""
        import ray

        util: Any = ray.util
        address: str = util.get_node_ip_address()
        return ray.get_runtime_context().get_node_id(), address, free_port(address)


class RankActor(Node):
    """One rank of the learner."""

    def run(self, training: str, rank: int, environment: Mapping[str, str]) -> None:
        """Joins a training and answers its calls until it closes the connection.

        Args:
            training: HOST:PORT where the training listens.
            rank: Number of the rank.
            environment: Variables that torchrun would set, and the training's key.
        """
        os.environ.update(environment)
        worker.serve(worker.join(training, rank), rank)


class ServerActor(Node):
    """A server in a process of its own, which ends with the actor."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path()

    def start(self, command: Sequence[str], environment: Mapping[str, str], log: str) -> None:
        """Starts the server.

        Args:
            command: Its command, without Python.
            environment: Variables to add.
            log: Its log file.
        """
        self._log = Path(log)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-P", *command],
                env=os.environ | dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=functools.partial(worker.end_with_parent, signal.SIGTERM),  # as when a node is taken away
            )

    def ended(self) -> str | None:
        """Returns how the server ended; None while it runs."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        return worker.ended_with(code, self._log)

    def stop(self) -> None:
        """Ends the server and what it has started."""
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(STOP_SECONDS)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
