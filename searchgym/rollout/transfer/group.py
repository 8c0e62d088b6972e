"""Weights sent over the network to a server's processes, which need no folder that both machines see.

The trainer and the processes of one server form a group for one set of weights: the trainer says where it waits
(`Invitation`), they join, the tensors are broadcast one by one, and the group is gone. So a server that dies takes no
other one with it, and one that comes back joins the next group. NCCL is chosen by the same code as Gloo; only Gloo has
been run.
"""

from __future__ import annotations

import contextlib
import datetime
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch._C import _distributed_c10d as dist  # which torch.distributed shows without types

from searchgym.errors import EngineLostError

PATIENCE: Final = 300.0
"""Seconds for the processes to join, and for each tensor to arrive."""
WORD: Final = 5.0
"""Seconds for a server to say why its processes left."""
GLANCE: Final = 0.01
"""Seconds between two looks at who has joined."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a process needs to join a group, and the tensors that it will be sent there."""

    backend: str
    """``"gloo"``, between main memories, or ``"nccl"``, between GPUs."""
    host: str
    """Address of the trainer, as the server's machine reaches it."""
    port: int
    """Port at which the trainer's store listens while weights are sent."""
    size: int
    """Number of processes in the group: the trainer, which is rank 0, and the server's."""
    seconds: float
    """Seconds for the processes to join, and for each tensor to arrive."""
    tensors: list[tuple[str, str, list[int]]]
    """Name, dtype (such as ``"bfloat16"``) and shape of each tensor, in the order in which they are sent."""


def send(
    tensors: Mapping[str, Tensor],
    invite: Callable[[Mapping[str, Any]], Any],
    *,
    backend: str,
    host: str,
    processes: int,
    seconds: float | None = None,
) -> None:
    """Sends tensors to the processes of one server.

    Args:
        tensors: Tensors by name; any dtype and device.
        invite: Function that passes the fields of an `Invitation` to the server, and returns once its processes have
            taken all tensors; its exceptions end the sending.
        backend: ``"gloo"`` or ``"nccl"``.
        host: Address of this machine, as the server's reaches it.
        processes: Number of the server's processes.
        seconds: Seconds for the processes to join, and for each tensor to arrive. Default: `PATIENCE`.

    Raises:
        EngineLostError: The processes did not join in time, or left.
        SearchGymError: What `invite` raises.
    """
    limit = PATIENCE if seconds is None else seconds
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=limit))
    named = [(name, str(one.dtype).removeprefix("torch."), list(one.shape)) for name, one in tensors.items()]
    asked = Invitation(backend, host, store.port, 1 + processes, limit, named)
    pool = ThreadPoolExecutor(1, thread_name_prefix="weights")
    answer = pool.submit(invite, asdict(asked))
    try:
        _await_all(store, asked, answer)
        with _group(store, asked, 0, host) as group:
            for one in tensors.values():
                _broadcast(group, _bytes_of(one, backend))
    except RuntimeError as error:  # torch's, of a connection that broke or of a time-out
        wait([answer], timeout=min(WORD, limit))
        if not answer.done() or answer.exception() is None:
            raise EngineLostError(f"the weights did not arrive: {str(error).splitlines()[0]}") from error
    finally:
        pool.shutdown(wait=False)
    answer.result()


class Receiver:
    """Extension of vLLM's workers (``--worker-extension-cls``) that takes new weights from a group."""

    rank: int
    """Number of this process among the server's, from 0."""
    reload_weights: Callable[..., None]
    """vLLM's function that replaces the weights of the model."""

    def receive_weights(self, invitation: Mapping[str, Any]) -> None:
        """Joins a group, and replaces the model's weights by the tensors that it is sent; none change nothing.

        Args:
            invitation: Fields of an `Invitation`.
        """
        asked = Invitation(**invitation)
        with joined(asked, 1 + self.rank) as tensors:
            if asked.tensors:
                self.reload_weights(weights_iterator=tensors)
            for _ in tensors:  # of which the model had no need: the others wait for this process
                pass


@contextlib.contextmanager
def joined(asked: Invitation, rank: int) -> Iterator[Iterator[tuple[str, Tensor]]]:
    """Joins a group for as long as the context lasts, and gives the named tensors that it is sent, as they arrive.

    Args:
        asked: The invitation.
        rank: Rank of this process in the group, from 1.
    """
    patience = datetime.timedelta(seconds=asked.seconds)
    store = dist.TCPStore(asked.host, asked.port, is_master=False, wait_for_workers=False, timeout=patience)
    store.set(_seat(rank), "here")
    device = "cuda" if asked.backend == "nccl" else "cpu"

    def received() -> Iterator[tuple[str, Tensor]]:
        for name, dtype, shape in asked.tensors:
            one = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
            _broadcast(group, _bytes_of(one, asked.backend))
            yield name, one

    with _group(store, asked, rank, _own_address(asked.host, asked.port)) as group:
        yield received()


def _seat(rank: int) -> str:
    """Returns the key under which a process tells the store that it is there."""
    return f"process {rank}"


def _await_all(store: dist.TCPStore, asked: Invitation, answer: Future[Any]) -> None:
    """Waits until every process of the server has joined; raises the server's own error if it refuses."""
    seats, end = [_seat(rank) for rank in range(1, asked.size)], time.monotonic() + asked.seconds
    while not store.check(seats):
        if answer.done():
            answer.result()
            raise EngineLostError("the server answered before its processes had joined")
        if time.monotonic() > end:
            raise EngineLostError(
                f"its processes have not joined at {asked.host}:{asked.port} for {asked.seconds:g} s: a firewall?"
            )
        threading.Event().wait(GLANCE)


@contextlib.contextmanager
def _group(store: dist.Store, asked: Invitation, rank: int, address: str) -> Iterator[dist.Backend]:
    """Makes a process group beside torch's default one, which other code may be using, for as long as it lasts."""
    patience = datetime.timedelta(seconds=asked.seconds)
    group: Any
    if asked.backend == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = patience
        group = dist.ProcessGroupNCCL(store, rank, asked.size, options)
    else:
        made: Any = dist.ProcessGroupGloo  # whose options torch's stubs describe otherwise
        plain = made._Options()
        plain._timeout = patience
        plain._devices = [made.create_device(hostname=address)]  # else the one of the machine's name
        group = made(store, rank, asked.size, plain)
    try:
        yield group
    finally:
        with contextlib.suppress(RuntimeError):
            group.shutdown()


def _bytes_of(tensor: Tensor, backend: str) -> Tensor:
    """Returns a tensor's memory as (N,) uint8 where the backend can send it: not every backend sends every dtype."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return flat.cuda() if backend == "nccl" else flat.cpu()


def _broadcast(group: Any, memory: Tensor) -> None:
    """Broadcasts rank 0's memory to every process."""
    if memory.numel():
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        group.broadcast([memory], options).wait()
        if memory.is_cuda:  # else the group might be gone before the GPU has sent it
            torch.cuda.synchronize()


def _own_address(host: str, port: int) -> str:
    """Returns the address of this machine on its way to another one; nothing is sent."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        address: str = probe.getsockname()[0]
        return address
