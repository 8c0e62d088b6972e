"""One rank of a learner in a separate process: it executes the calls of the training loop one by one.

    torchrun ... -m searchgym.train.distributed.worker HOST:PORT FOLDER

joins the training that listens at this address (`DeepSpeed.listen`), with the key from the environment. Otherwise
`searchgym.train.distributed.remote.RemoteLearner` starts the ranks, with the file descriptor of a pipe instead of the
address.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import signal
import sys
import time
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, Final

START_SECONDS: Final = 600.0
"""Maximum seconds for a rank to start, connect to the training and load its models."""
PR_SET_PDEATHSIG: Final = 1
STACKS: Final = signal.SIGUSR1
"""Signal that makes a rank write the stacks of its threads."""
KEY: Final = "SEARCHGYM_LEARNER_KEY"
"""Environment variable with the secret that ranks must share with the training they join."""


def stacks_file(folder: Path, rank: int) -> Path:
    """Returns the file to which a rank writes its stacks."""
    return folder / f"stacks-rank{rank}.txt"


def ended_with(code: int | str, log: Path) -> str:
    """Describes how a process ended: its exit code, and the last line of its log."""
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] if log.exists() else []
    return f"exit code {code} ({' '.join(last) or 'no output'}); see {log}"


def send(connection: Connection, message: Any) -> None:
    """Sends an object; tensors are sent as bytes, not through shared memory, which containers limit."""
    connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def receive(connection: Connection) -> Any:
    """Receives an object sent by `send`."""
    return pickle.loads(connection.recv_bytes())


def main() -> None:
    """Executes the training's calls until the connection closes."""
    where, folder, rank = sys.argv[1], Path(sys.argv[2]), int(os.environ["RANK"])
    folder.mkdir(parents=True, exist_ok=True)
    stacks = stacks_file(folder, rank).open("w", encoding="utf-8")
    faulthandler.register(STACKS, file=stacks, all_threads=True)
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal where torchrun started it: the loop decides
    serve(Connection(int(where)) if where.isdigit() else join(where, rank), rank)


def join(address: str, rank: int) -> Connection:
    """Connects to the training at HOST:PORT, waiting until it listens."""
    if not (key := os.environ.get(KEY)):
        sys.exit(f"set {KEY} to the same value as where the training runs")
    host, _, port = address.rpartition(":")
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            connection = Client((host, int(port)), authkey=key.encode())
        except ConnectionRefusedError:
            if time.monotonic() > end:
                sys.exit(
                    f"no training listened at {address} for {START_SECONDS:g} s: start the training with "
                    "learner.backend.listen"
                )
            time.sleep(0.5)
        else:
            send(connection, (rank, int(os.environ["WORLD_SIZE"])))
            return connection


def end_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Makes Linux send this process a signal when its parent ends; elsewhere a closed pipe ends a rank."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, by)


def serve(connection: Connection, rank: int) -> None:
    """Creates the learner described by the first message, then executes calls ``(method, arguments)``."""
    from searchgym.errors import SearchGymError

    learner: Any = None
    while True:
        try:
            method, arguments = receive(connection)
        except EOFError:
            return
        try:
            if learner is None:
                learner, reply = make_learner(rank, *arguments), None
            else:
                reply = getattr(learner, method)(*arguments)
            answer: tuple[str, Any] = ("reply", (reply if rank == 0 else None, learner.version))
        except SearchGymError as error:
            answer = ("error", str(error))
        send(connection, answer)


def make_learner(rank: int, world: int, rendezvous: str, recipe: Any, adapter: Path | None) -> Any:
    """Joins the process group and loads the recipe's models.

    Args:
        rank: Number of this rank.
        world: Number of ranks.
        rendezvous: Address at which the ranks meet, as torch takes it.
        recipe: Recipe of the model key.
        adapter: Folder of the adapter to continue training; None for a new one, or none.
    """
    import torch
    import torch.distributed as dist

    from searchgym.rollout.folders import adapter_base
    from searchgym.rollout.loading import device_of, load_model
    from searchgym.train.distributed.rank_learner import RankLearner

    device = device_of(recipe.learner.device)
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device != "cpu" else "gloo"
    dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=world)
    name = recipe.model if adapter is None else adapter_base(adapter)
    model, _ = load_model(name, recipe.learner.dtype, device=device)
    return RankLearner(recipe, model, adapter=adapter)


if __name__ == "__main__":
    main()
