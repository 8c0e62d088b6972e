"""Folders in which weights travel from a trainer to an engine's processes."""

from __future__ import annotations

import glob
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from torch import Tensor

PREFIX: Final = "searchgym-weights-"
"""Begins the names of folders with weights, before the machine and the process that they belong to."""
MEMORY: Final = Path("/dev/shm")
"""A file system in memory: where weights go on their way to an engine, if they fit."""


class Folders:
    """Folders in which weights travel; all that are left go with `clear`.

    Args:
        near: All that read them run on this machine: they may lie in its memory.
    """

    def __init__(self, near: bool = True) -> None:
        self.near = near
        self._folders: list[tempfile.TemporaryDirectory[str]] = []

    def model(self, state: Mapping[str, Tensor]) -> str:
        """Writes a model's whole state and returns its folder."""
        whole = dict(state)
        if "lm_head.weight" not in whole and "model.embed_tokens.weight" in whole:  # tied: loaded by both names
            whole["lm_head.weight"] = whole["model.embed_tokens.weight"]
        return self.tensors(whole, "model.safetensors")

    def tensors(self, state: Mapping[str, Tensor], name: str) -> str:
        """Writes tensors into a file of a new folder, in memory if there is room, and returns the folder."""
        self._folders.append(_write_tensors(state, name, self.near))
        return self._folders[-1].name

    def clear(self, keep: int = 0) -> None:
        """Removes all but the newest folders."""
        while len(self._folders) > keep:
            self._folders.pop(0).cleanup()


def _own_prefix() -> str:
    """Returns what begins the names of this machine's folders; a container with processes of its own is another one."""
    space = Path("/proc/self/ns/pid")
    return f"{PREFIX}{socket.gethostname()}-{space.stat().st_ino if space.exists() else 0}-"


def _clear_left_over() -> None:
    """Removes weights of programs that were killed: memory does not come back by itself."""
    own = _own_prefix()
    for place in {MEMORY, Path(tempfile.gettempdir())}:
        for folder in place.glob(f"{glob.escape(own)}*"):
            number = folder.name.removeprefix(own).partition("-")[0]
            if number.isdigit() and not _lives(int(number)):
                shutil.rmtree(folder, ignore_errors=True)


def _lives(number: int) -> bool:
    """Says whether there is a process of a number."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _write_tensors(state: Mapping[str, Tensor], name: str, near: bool) -> tempfile.TemporaryDirectory[str]:
    """See `Folders.tensors`."""
    from safetensors.torch import save_file

    whole = {key: tensor.detach().contiguous() for key, tensor in state.items()}
    size = sum(tensor.numel() * tensor.element_size() for tensor in whole.values())
    _clear_left_over()
    roomy = near and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 1.1 * size
    folder = tempfile.TemporaryDirectory(prefix=f"{_own_prefix()}{os.getpid()}-", dir=MEMORY if roomy else None)
    seen = set[int]()
    for key, tensor in whole.items():  # safetensors refuses two names of one tensor
        if tensor.data_ptr() in seen:
            whole[key] = tensor.clone()
        seen.add(tensor.data_ptr())
    save_file(whole, Path(folder.name) / name)
    return folder
