"""Programs that Ray starts on nodes; each class here is the body of an actor.

No training data passes through Ray: ranks communicate with the training over an authenticated connection
(`searchgym.train.distributed.worker`), servers over HTTP, and weights are exchanged in a folder.
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
"""Seconds to wait for a server to end after each signal."""


def free_port(address: str = "") -> int:
    """Returns a free port of this machine at an address. Default: at all its addresses."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


class Node:
    """Base class of actors, which report the node they run on."""

    def where(self) -> tuple[str, str, int]:
        """Returns the node's id, the node's address, and a free port of the node."""
        import ray

        util: Any = ray.util
        address: str = util.get_node_ip_address()
        return ray.get_runtime_context().get_node_id(), address, free_port(address)


class RankActor(Node):
    """Actor of one rank of the learner."""

    def run(self, training: str, rank: int, environment: Mapping[str, str]) -> None:
        """Joins a training and executes its calls until the training closes the connection.

        Args:
            training: HOST:PORT at which the training listens.
            rank: Number of the rank.
            environment: Variables that torchrun would set, and the training's key.
        """
        os.environ.update(environment)
        worker.serve(worker.join(training, rank), rank)


class ServerActor(Node):
    """Actor of a server in a separate process, which ends with the actor."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path()

    def start(self, command: Sequence[str], environment: Mapping[str, str], log: str) -> None:
        """Starts the server.

        Args:
            command: Arguments of the Python interpreter that start the server.
            environment: Environment variables to add.
            log: Path of the server's log file.
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
                preexec_fn=functools.partial(
                    worker.end_with_parent, signal.SIGTERM
                ),  # for example when a node is removed
            )

    def ended(self) -> str | None:
        """Returns a description of how the server ended; None while it runs."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        return worker.ended_with(code, self._log)

    def stop(self) -> None:
        """Ends the server and the processes it started."""
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(STOP_SECONDS)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
