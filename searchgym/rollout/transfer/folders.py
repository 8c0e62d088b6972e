"""Temporary folders that pass weights from a trainer to an engine's processes or servers."""

from __future__ import annotations

import glob
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from torch import Tensor

from searchgym.corpora.files import sha256_file, write_atomic
from searchgym.errors import DataError

PREFIX: Final = "searchgym-weights-"
"""Prefix of every weight folder's name; then come the machine's name, the process id and the weights' version."""
MEMORY: Final = Path("/dev/shm")
"""File system in memory, used for weight folders if there is room."""
EMBEDDINGS: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"
MODEL: Final = "model.safetensors"
"""File of a weight folder with all weights of a model."""
SUMS: Final = "sha256.json"
"""File with the SHA-256 of each file of a weight folder, by name."""


class Folders:
    """Set of temporary folders that pass weights to engines; `clear` removes them.

    Args:
        parent: Parent folder. Default: this machine's file system in memory if there is room, else its temporary
            folder.
        summed: If True, the hash of each file is written, for readers on other machines.
    """

    def __init__(self, parent: Path | None = None, summed: bool = False) -> None:
        self.parent, self.summed = parent, summed
        self._folders: list[tempfile.TemporaryDirectory[str]] = []

    def model(self, state: Mapping[str, Tensor], version: int) -> str:
        """Writes all weights of a model to a new folder and returns its path.

        Args:
            state: Weights by name.
            version: Policy version of the weights.

        Raises:
            DataError: There is too little space, or the folder cannot be written.
        """
        return self.tensors(dict(with_head(state.items())), MODEL, version)

    def tensors(self, state: Mapping[str, Tensor], name: str, version: int, extra: Mapping[str, bytes] = {}) -> str:
        """Writes tensors to a safetensors file in a new folder.

        Args:
            state: Tensors by name.
            name: File name.
            version: Version of the weights, which becomes part of the folder's name.
            extra: Contents of further files by name.

        Returns:
            Path of the folder.

        Raises:
            DataError: There is too little space, or the folder cannot be written.
        """
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        whole = {key: tensor.detach().contiguous() for key, tensor in state.items()}
        size = sum(tensor.numel() * tensor.element_size() for tensor in whole.values())
        _clear_left_over(self.parent)
        location = self.parent or Path(tempfile.gettempdir())
        if self.parent is None and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 1.1 * size:
            location = MEMORY
        pointers = set[int]()
        for key, tensor in whole.items():  # safetensors refuses two names for one tensor
            if tensor.data_ptr() in pointers:
                whole[key] = tensor.clone()
            pointers.add(tensor.data_ptr())
        folder: tempfile.TemporaryDirectory[str] | None = None
        try:
            if (free := shutil.disk_usage(location).free) < size:
                raise OSError(f"{free / 2**20:,.1f} MiB are free")
            folder = tempfile.TemporaryDirectory(prefix=f"{_machine_prefix()}{os.getpid()}-v{version}-", dir=location)
            save_file(whole, Path(folder.name) / name)
        except (OSError, SafetensorError) as error:
            if folder is not None:
                folder.cleanup()
            other = "TMPDIR" if location == Path(tempfile.gettempdir()) else "rollout.sampler.shared"
            mend = "free some space" if location.is_dir() else "create it where its servers see it too"
            raise DataError(
                f"cannot hold the weights of version {version}, {size / 2**20:,.1f} MiB ({error}): {mend}, or set "
                f"{other} to another folder",
                location,
            ) from error
        self._folders.append(folder)
        for file_name, content in extra.items():
            (Path(folder.name) / file_name).write_bytes(content)
        if self.summed:
            sums = {file.name: sha256_file(file) for file in sorted(Path(folder.name).iterdir())}
            with write_atomic(Path(folder.name) / SUMS) as written:
                written.write(json.dumps(sums).encode())
        return folder.name

    def clear(self, keep: int = 0) -> None:
        """Removes all folders except the newest `keep`."""
        while len(self._folders) > keep:
            self._folders.pop(0).cleanup()


def _machine_prefix() -> str:
    """Returns the name prefix of this machine's folders; it differs between containers with separate process ids."""
    space = Path("/proc/self/ns/pid")
    return f"{PREFIX}{socket.gethostname()}-{space.stat().st_ino if space.exists() else 0}-"


def _clear_left_over(location: Path | None) -> None:
    """Removes weight folders of killed processes of this machine, which would otherwise accumulate."""
    prefix = _machine_prefix()
    for parent in {MEMORY, Path(tempfile.gettempdir())} if location is None else {location}:
        for folder in parent.glob(f"{glob.escape(prefix)}*"):
            number = folder.name.removeprefix(prefix).partition("-")[0]
            if number.isdigit():
                try:
                    os.kill(int(number), 0)
                except ProcessLookupError:
                    shutil.rmtree(folder, ignore_errors=True)
                except PermissionError:  # a process of another user
                    pass


def with_head(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yields named tensors, and tied embeddings again as the output head if that is missing: vLLM loads both."""
    passed: dict[str, Tensor] = {}
    for name, tensor in tensors:
        if name in (EMBEDDINGS, HEAD):
            passed[name] = tensor
        yield name, tensor
    if HEAD not in passed and EMBEDDINGS in passed:
        yield HEAD, passed[EMBEDDINGS]
