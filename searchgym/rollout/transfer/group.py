"""Transfer of weights over the network to a server's processes, without a shared folder.

The trainer and the processes of one server form a group for one set of weights: the trainer sends its address
(`Invitation`), the processes join, the tensors are broadcast one by one, and the group ends. So a server that dies does
not stop the others, and a restarted one joins the next group. Nothing is encrypted, and anyone who reaches the
trainer's port during a transfer can join: use it in trusted networks only. The code supports Gloo and NCCL; only Gloo
has been tested.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch._C import _distributed_c10d as dist  # which torch.distributed shows without types

from searchgym.errors import EngineLostError

JOIN_SECONDS: Final = 300.0
"""Seconds for the processes to join, and for each tensor to arrive."""
EXPLANATION_SECONDS: Final = 5.0
"""Maximum seconds to wait for a server's explanation of why its processes left."""
GLANCE: Final = 0.01
"""Seconds between checks of which processes have joined."""
NCCL: Final = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
"""Environment variables that make a lost process raise an error instead of ending this process."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """Data that a process needs to join a group, and a description of the tensors it will receive."""

    backend: str
    """``"gloo"``, between main memories, or ``"nccl"``, between GPUs."""
    host: str
    """Address at which the server's machine reaches the trainer."""
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
    seconds: float = JOIN_SECONDS,
) -> None:
    """Sends tensors to the processes of one server.

    Args:
        tensors: Tensors by name; any dtype and device.
        invite: Function that passes the fields of an `Invitation` to the server, and returns when its processes have
            received all tensors; an exception ends the transfer at once.
        backend: ``"gloo"`` or ``"nccl"``.
        host: Address at which the server's machine reaches this machine.
        processes: Number of the server's processes.
        seconds: Seconds for the processes to join, and for each tensor to arrive.

    Raises:
        EngineLostError: The processes did not join in time, or left.
        SearchGymError: An error raised by `invite`.
    """
    store = _listening(host, seconds)
    named = [(name, str(one.dtype).removeprefix("torch."), list(one.shape)) for name, one in tensors.items()]
    invitation = Invitation(backend, host, store.port, 1 + processes, seconds, named)
    answer = _beside(invite, asdict(invitation))
    sending = _beside(_send_all, store, invitation, answer, tensors)
    wait([answer, sending], return_when=FIRST_EXCEPTION)
    if sending.done() and sending.exception() is not None:
        wait([answer], timeout=min(EXPLANATION_SECONDS, seconds))  # the server may report the reason
    error = next((one.exception() for one in (answer, sending) if one.done() and one.exception() is not None), None)
    try:
        if error is not None:
            raise error
    finally:  # an error keeps its frames, and these would keep the weights
        del error, answer, sending, store


@contextlib.contextmanager
def joined(invitation: Invitation, rank: int) -> Iterator[Iterator[tuple[str, Tensor]]]:
    """Joins a group until the context ends, and yields an iterator over the named tensors as they arrive.

    Args:
        invitation: The invitation.
        rank: Rank of this process in the group, from 1.
    """
    patience = datetime.timedelta(seconds=invitation.seconds)
    store = dist.TCPStore(invitation.host, invitation.port, is_master=False, wait_for_workers=False, timeout=patience)
    store.set(_seat(rank), "here")
    device = "cuda" if invitation.backend == "nccl" else "cpu"

    def received() -> Iterator[tuple[str, Tensor]]:
        for name, dtype, shape in invitation.tensors:
            one = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
            _broadcast(group, _bytes_of(one, invitation.backend))
            yield name, one

    # determines this machine's address towards the trainer; nothing is sent
    family = socket.getaddrinfo(invitation.host, invitation.port, type=socket.SOCK_DGRAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((invitation.host, invitation.port))
        address = str(probe.getsockname()[0])
    with _group(store, invitation, rank, address) as group:
        yield received()


def _beside(function: Callable[..., None], *args: Any) -> Future[None]:
    """Calls a function in a daemon thread."""
    future = Future[None]()
    threading.Thread(target=_run, args=(future, function, args), name="weights", daemon=True).start()
    return future


def _run(future: Future[None], function: Callable[..., None], args: tuple[Any, ...]) -> None:
    try:
        function(*args)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(None)
    finally:
        del future, args  # an error keeps this frame, which would keep the error


def _listening(host: str, seconds: float) -> dist.TCPStore:
    """Returns a store that listens on one of this machine's addresses, at a port chosen by the system."""
    try:
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, 0), family=family)
        port = int(listener.getsockname()[1])
        patience, number = datetime.timedelta(seconds=seconds), listener.detach()
        return dist.TCPStore(
            host, port, is_master=True, wait_for_workers=False, timeout=patience, master_listen_fd=number
        )
    except (OSError, RuntimeError) as error:
        raise EngineLostError(f"this machine cannot listen at {host} for the server's processes: {error}") from error


def _send_all(
    store: dist.TCPStore, invitation: Invitation, answer: Future[None], tensors: Mapping[str, Tensor]
) -> None:
    """Waits for the processes and broadcasts the tensors to them."""
    seats, end = [_seat(rank) for rank in range(1, invitation.size)], time.monotonic() + invitation.seconds
    while not store.check(seats):
        if answer.done():
            if answer.exception() is not None:  # the server refuses
                return
            raise EngineLostError("the server replied before its processes had joined")
        if time.monotonic() > end:
            raise EngineLostError(
                f"the server's processes have not joined at {invitation.host}:{invitation.port} for "
                f"{invitation.seconds:g} s: both machines must reach each other at ports that the system chooses"
            )
        threading.Event().wait(GLANCE)
    try:
        with _group(store, invitation, 0, invitation.host) as group:
            for one in tensors.values():
                _broadcast(group, _bytes_of(one, invitation.backend))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # torch's, of a connection that broke or of a time-out
        raise EngineLostError(f"the weights did not arrive: {str(error).splitlines()[0]}") from None


def _seat(rank: int) -> str:
    """Returns the store's key that a process sets when it has joined."""
    return f"process {rank}"


@contextlib.contextmanager
def _group(store: dist.Store, invitation: Invitation, rank: int, address: str) -> Iterator[Any]:
    """Creates a process group, separate from torch's default group, until the block ends."""
    patience = datetime.timedelta(seconds=invitation.seconds)
    group: Any
    if invitation.backend == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = patience
        with environment(NCCL):  # read by the constructor
            group = dist.ProcessGroupNCCL(store, rank, invitation.size, options)
    else:
        gloo: Any = dist.ProcessGroupGloo  # whose options torch's stubs describe otherwise
        plain = gloo._Options()
        plain._timeout = patience
        plain._devices = [gloo.create_device(hostname=address)]  # the default would be that of the host name
        group = gloo(store, rank, invitation.size, plain)
    try:
        # one byte, so that even without tensors the connection is tested
        _broadcast(group, _bytes_of(torch.zeros(1, dtype=torch.uint8), invitation.backend))
        yield group
    finally:
        with contextlib.suppress(RuntimeError):
            group.shutdown()


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables until the block ends."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _bytes_of(tensor: Tensor, backend: str) -> Tensor:
    """Returns a tensor's memory as (N,) uint8 on a device of the backend, as not every backend sends every dtype."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return flat.cuda() if backend == "nccl" else flat.cpu()


def _broadcast(group: Any, memory: Tensor) -> None:
    """Broadcasts rank 0's memory to every process."""
    if memory.numel():
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        group.broadcast([memory], options).wait()
        if memory.is_cuda:  # otherwise the group might end before the GPU has sent it
            torch.cuda.synchronize()
