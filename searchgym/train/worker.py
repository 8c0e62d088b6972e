"""One rank of a learner, in a process of its own: does what the training loop asks, call by call.

    python -m searchgym.train.worker DESCRIPTOR RANK FOLDER

is started by `searchgym.train.remote.RemoteLearner`, never by hand.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

PR_SET_PDEATHSIG: Final = 1
STACKS: Final = signal.SIGUSR1
"""Makes a rank write the stacks of its threads."""


def stacks_file(folder: Path, rank: int) -> Path:
    """Returns where a rank writes its stacks."""
    return folder / f"stacks-rank{rank}.txt"


def send(connection: Connection, message: Any) -> None:
    """Sends anything; tensors travel as bytes, not in shared memory, which containers limit."""
    connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def receive(connection: Connection) -> Any:
    """Returns what `send` sent from the other end."""
    return pickle.loads(connection.recv_bytes())


def main() -> None:
    """Serves until the connection closes."""
    descriptor, rank, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    stacks = stacks_file(folder, rank).open("w", encoding="utf-8")
    faulthandler.register(STACKS, file=stacks, all_threads=True)
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the loop decides when to end
    serve(Connection(descriptor), rank)


def _die_with_parent() -> None:
    """Has Linux end this process when the loop's is gone, however it ended; elsewhere the closed pipe does it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(connection: Connection, rank: int) -> None:
    """Makes the learner that the first message describes, then answers calls ``(method, arguments)``."""
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


def make_learner(rank: int, world: int, rendezvous: str, recipe: Any) -> Any:
    """Joins the process group and loads the recipe's models."""
    import torch
    import torch.distributed as dist

    from searchgym.rollout.loading import device_of, load_model
    from searchgym.train.deepspeed_updater import DeepSpeedUpdater
    from searchgym.train.learner import LocalLearner
    from searchgym.train.ranks import ProcessRanks

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    device = device_of(recipe.learner.device)
    if device == "cuda":
        device = f"cuda:{rank}"
        torch.cuda.set_device(rank)
    backend = "cpu:gloo,cuda:nccl" if device != "cpu" else "gloo"
    dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=world)
    options = recipe.learner
    model, _ = load_model(recipe.model, options.dtype, device=device)
    return LocalLearner(
        recipe, model, ranks=ProcessRanks(), updater=functools.partial(DeepSpeedUpdater, learner=options)
    )


if __name__ == "__main__":
    main()
