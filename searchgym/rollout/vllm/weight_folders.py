"""Temporary folders through which weights are passed from a trainer to an engine's processes."""

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
"""Prefix of the names of weight folders, followed by machine and process."""
MEMORY: Final = Path("/dev/shm")
"""File system in memory, used for weight folders if there is room."""


class Folders:
    """Set of temporary folders through which weights are passed to engines; `clear` removes them.

    Args:
        near: Whether all readers run on this machine, so that the folders may be in its shared memory.
    """

    def __init__(self, near: bool = True) -> None:
        self.near = near
        self._folders: list[tempfile.TemporaryDirectory[str]] = []

    def model(self, state: Mapping[str, Tensor]) -> str:
        """Writes all weights of a model to a new folder and returns its path.

        Args:
            state: Weights by name.
        """
        whole = dict(state)
        if (
            "lm_head.weight" not in whole and "model.embed_tokens.weight" in whole
        ):  # tied embeddings: vLLM loads both names
            whole["lm_head.weight"] = whole["model.embed_tokens.weight"]
        return self.tensors(whole, "model.safetensors")

    def tensors(self, state: Mapping[str, Tensor], name: str) -> str:
        """Writes tensors to a safetensors file in a new folder, in memory if there is room.

        Args:
            state: Tensors by name.
            name: File name.

        Returns:
            Path of the folder.
        """
        self._folders.append(_write_tensors(state, name, self.near))
        return self._folders[-1].name

    def clear(self, keep: int = 0) -> None:
        """Removes all folders but the newest `keep`."""
        while len(self._folders) > keep:
            self._folders.pop(0).cleanup()


def _own_prefix() -> str:
    """Returns the name prefix of this machine's folders; each container with its own process ids gets another one."""
    space = Path("/proc/self/ns/pid")
    return f"{PREFIX}{socket.gethostname()}-{space.stat().st_ino if space.exists() else 0}-"


def _clear_left_over() -> None:
    """Removes weight folders of processes that were killed, which would otherwise fill the memory."""
    prefix = _own_prefix()
    for place in {MEMORY, Path(tempfile.gettempdir())}:
        for folder in place.glob(f"{glob.escape(prefix)}*"):
            number = folder.name.removeprefix(prefix).partition("-")[0]
            if number.isdigit() and not _lives(int(number)):
                shutil.rmtree(folder, ignore_errors=True)


def _lives(number: int) -> bool:
    """Returns whether a process with this id exists."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _write_tensors(state: Mapping[str, Tensor], name: str, near: bool) -> tempfile.TemporaryDirectory[str]:
    """Writes tensors to a safetensors file in a new temporary folder and returns the folder."""
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
