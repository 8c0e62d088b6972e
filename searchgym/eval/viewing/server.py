"""Server of Inspect's viewer for logs, which only this machine can reach."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from searchgym.errors import SearchGymError, UsageError

HOST: Final = "127.0.0.1"
COMMAND = ("-m", "inspect_ai", "view", "start")
"""Arguments of Python that start the viewer."""
START_SECONDS: Final = 60.0
"""Maximum wall-clock seconds until the viewer accepts connections."""


class Viewer(NamedTuple):
    """A running viewer."""

    wait: Callable[[], object]
    """Function that waits until the viewer ends."""
    port: int
    """Port that the viewer listens on."""
    url: str
    """Address of the list of logs, or of the list of episodes if there is one log."""


@contextmanager
def viewer(logs: Sequence[tuple[str, Path]], port: int = 7575) -> Iterator[Viewer]:
    """Serves logs with ``inspect view`` on 127.0.0.1 while the block runs.

    Args:
        logs: Name and file of each log; names may be equal.
        port: Port to listen on; 0 selects a free one.

    Raises:
        UsageError: The port is in use.
        SearchGymError: The viewer ended, or did not answer in time.
    """
    try:
        with socket.create_server((HOST, port)) as listener:
            port = int(listener.getsockname()[1])
    except (OSError, OverflowError) as error:
        reason = f"cannot listen on {HOST}:{port} ({error}): give another --port, or 0 for a free one"
        raise UsageError(reason) from error
    with tempfile.TemporaryDirectory(prefix="searchgym-view-") as folder:
        log_folder = Path(folder) / "runs"
        log_folder.mkdir()
        names = [_link(log_folder, name, log) for name, log in logs]
        # -P and a separate working folder, so that modules and .env files of the user's folder are not used. Inspect
        # kills the process whose id it has recorded for a port, which may be another one by now: hence a separate home.
        command = [sys.executable, "-P", *COMMAND, "--log-dir", str(log_folder)]
        command += ["--host", HOST, "--port", str(port), "--no-trust-content"]
        variables = {"XDG_DATA_HOME": folder, "HOME": folder, "INSPECT_VIEW_AUTHORIZATION_TOKEN": ""}
        log = Path(folder) / "output.txt"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=folder, env=os.environ | variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        page = f"#/logs/{urllib.parse.quote(names[0])}/samples" if len(names) == 1 else ""
        try:
            _await(process, port, log)
            yield Viewer(process.wait, port, f"http://{HOST}:{port}/{page}")
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _link(folder: Path, name: str, log: Path) -> str:
    """Links a log into a folder under its name, with a number if the name is taken; returns the file's name."""
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"
    names = (f"{plain}{suffix}.eval" for suffix in ["", *(f"-{n}" for n in range(2, 10_000))])
    free = next(candidate for candidate in names if not (folder / candidate).exists())
    (folder / free).symlink_to(log.resolve())
    return free


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Waits until the viewer accepts connections."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            socket.create_connection((HOST, port), timeout=1.0).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    output = log.read_text(encoding="utf-8", errors="replace").strip()[-500:]
    raise SearchGymError(f"inspect view did not start: {output or f'no answer within {START_SECONDS:g} s'}")
