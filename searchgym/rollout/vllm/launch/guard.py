"""Guard process that ends a vLLM engine's processes when the program that started them has ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Final

PROGRAM: Final = """
import os, select, sys
import psutil
parent, text = int(sys.argv[1]), b""
while True:
    if select.select([0], [], [], 1.0)[0]:
        data = os.read(0, 4096)
        if not data:
            break
        text += data
    elif os.getppid() != parent:
        break
doomed = []
for number in text.split():
    try:
        process = psutil.Process(int(number))
        doomed += [process, *process.children(recursive=True)]
    except psutil.Error:
        pass
for process in doomed:
    try:
        process.kill()
    except psutil.Error:
        pass
"""
"""Program of the guard process. It reads process ids until its input closes, because the program ended; if a forked
process keeps the input open, it notices within a second that it has another parent. It then kills the processes and all
that they started, which vLLM would leave running for a while."""
POLL: Final = 0.1
"""Seconds between checks for new processes while an engine starts."""


class Guard:
    """Guard of processes that must not outlive this one, however it ends.

    It has a session of its own, so that signals to this program's group do not end it.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-c", PROGRAM, str(os.getpid())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._seen: set[int] = set()

    def watch(self, numbers: Iterable[int | None]) -> None:
        """Adds processes, by their ids."""
        assert self._process.stdin is not None
        new = {number for number in numbers if number is not None} - self._seen
        self._seen |= new
        with contextlib.suppress(OSError):  # somebody ended the guard: that must not end a training
            self._process.stdin.write("".join(f"{number}\n" for number in new).encode())
            self._process.stdin.flush()

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Adds the processes that this one starts by `multiprocessing` during the block, as soon as they exist."""
        before = {child.pid for child in multiprocessing.active_children()}
        ended = threading.Event()

        def poll() -> None:
            while not ended.wait(POLL):
                self.watch({child.pid for child in multiprocessing.active_children()} - before)

        thread = threading.Thread(target=poll, name="vllm-guard", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def close(self) -> None:
        """Ends the guard; it kills nothing."""
        self._process.kill()
        self._process.communicate()
