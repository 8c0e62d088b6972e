"""One of several controllers, in a process of its own; see `searchgym.train.loop.controllers`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from torch import Tensor

from searchgym.errors import SearchGymError
from searchgym.records import Episode
from searchgym.train.distributed.worker import end_with_parent, receive, send
from searchgym.train.loop.assembly import open_rollout
from searchgym.train.loop.controllers import Todo
from searchgym.train.recipe.recipe import Recipe


class Controller:
    """The rollout of one controller, with samplers of its own.

    Args:
        recipe: Recipe of the run, with the sampler of the whole run.
        number: Number of the controller, from 1 on.
    """

    def __init__(self, recipe: Recipe, number: int) -> None:
        self._rollout, self._samplers = open_rollout(recipe, number)

    def run(self, todo: Todo, step: int, greedy: bool) -> list[Episode]:
        """Returns one episode per item, in any order."""
        return self._rollout.run_all(todo, step, greedy) if todo else []

    def update(self, key: str, weights: Mapping[str, Tensor], version: int) -> bool:
        """Loads new weights into the sampler of a key."""
        self._samplers.by_key[key].update(weights, version)
        return True

    def close(self) -> None:
        """Closes the samplers."""
        self._samplers.close()


def serve(connection: Connection) -> None:
    """Executes the training's calls until the connection closes."""
    controller: Controller | None = None
    try:
        while True:
            method, arguments = receive(connection)
            try:
                if controller is None:
                    controller, reply = Controller(*arguments), True
                else:
                    reply = getattr(controller, method)(*arguments)
                answer: tuple[str, Any] = ("reply", reply)
            except SearchGymError as error:
                answer = ("error", str(error))
            send(connection, answer)
    except (EOFError, OSError):  # the training has ended, or needs no more episodes
        return
    finally:
        if controller is not None:
            controller.close()


if __name__ == "__main__":
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    serve(Connection(int(sys.argv[1])))
