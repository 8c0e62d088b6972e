"""Several controllers: processes that share the episodes of each step, each with engines of its own.

One Python process prepares the prompts, parses the outputs and searches for some hundred episodes a second. With
``rollout.controllers`` the groups of a step are dealt out to several; the training's own process is the first. Each
episode has the seed that it has with one controller. A controller that ends is not started again: the others draw its
episodes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from torch import Tensor
from typing_extensions import override

from searchgym.errors import TrainingError
from searchgym.records import Episode, Question
from searchgym.rollout.replay.prefix import Start
from searchgym.train.distributed.worker import ended_with, receive, send
from searchgym.train.loop.rollout import EngineRollout
from searchgym.train.recipe.recipe import Recipe

Todo = Sequence[tuple[Question, int] | Start]
"""Episodes to run: attempts at questions, or beginnings of earlier episodes."""
CLOSE_SECONDS: Final = 10.0
"""Maximum seconds for a controller to close its engines."""


class Controllers:
    """The controllers beside the training's own process. They start with the first call.

    Args:
        recipe: Recipe of the run, with the sampler of the whole run.
        folder: Folder for their logs, created if needed.
    """

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self._recipe, self._folder = recipe, folder
        self._connections: dict[int, Connection] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._started = False

    def _start(self) -> None:
        """Starts the controllers, and returns when each is ready.

        Raises:
            TrainingError: A controller cannot start.
        """
        self._started = True
        self._folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, self._recipe.rollout.controllers):
            here, theirs = multiprocessing.Pipe()
            command = [sys.executable, "-P", "-m", "searchgym.cli.training.controller", str(theirs.fileno())]
            with self._log(number).open("wb") as log, theirs:
                self._processes[number] = subprocess.Popen(
                    command,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,  # a terminal's Ctrl-C is for the training, which decides when to end
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            self._connections[number] = here
            self.ask(number, "start", self._recipe, number)
        try:
            for number in list(self._connections):
                if self.answer(number) is None:
                    raise TrainingError(f"controller {number} did not start; see {self._log(number)}")
        except BaseException:
            self.kill()
            raise

    @property
    def alive(self) -> list[int]:
        """Numbers of the controllers that have not ended, from 1 on; the first call starts them."""
        if not self._started:
            self._start()
        return list(self._connections)

    def ask(self, number: int, method: str, *arguments: Any) -> None:
        """Sends a call to a controller; its reply must be read by `answer`."""
        with contextlib.suppress(OSError):  # `answer` finds that it has ended
            send(self._connections[number], (method, arguments))

    def answer(self, number: int) -> Any:
        """Returns a controller's reply to a call, or None if it has ended, which is written to standard error.

        Raises:
            TrainingError: The call failed there.
        """
        try:
            kind, content = receive(self._connections[number])
        except (EOFError, OSError):
            self._connections.pop(number).close()
            code = self._processes[number].wait()
            sys.stderr.write(f"controller {number} ended with {ended_with(code, self._log(number))}\n")
            return None
        if kind == "error":
            raise TrainingError(f"controller {number}: {content}")
        return content

    def update(self, key: str, weights: Mapping[str, Tensor], version: int) -> None:
        """Sends new weights of a model key to every controller's sampler."""
        copies = {name: tensor.detach().cpu() for name, tensor in weights.items()}
        for number in self.alive:
            self.ask(number, "update", key, copies, version)
        for number in self.alive:
            self.answer(number)

    def kill(self) -> None:
        """Ends the controllers at once, whose replies nobody reads any more."""
        for process in self._processes.values():
            process.send_signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Ends the controllers, which close their engines."""
        for connection in self._connections.values():
            connection.close()
        self._connections = {}
        for process in self._processes.values():
            try:
                process.wait(CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _log(self, number: int) -> Path:
        return self._folder / f"controller{number}.log"


class DealtRollout(EngineRollout):
    """A rollout whose groups are dealt out to several controllers; parameters as `EngineRollout`.

    Args:
        controllers: The controllers beside this process.
    """

    def __init__(self, *args: Any, controllers: Controllers, **options: Any) -> None:
        super().__init__(*args, **options)
        self._controllers = controllers

    @override
    def run_all(self, todo: Todo, step: int, greedy: bool) -> list[Episode]:
        episodes: list[Episode] = []
        try:
            while todo:
                numbers = [0, *self._controllers.alive]
                shares = dict(zip(numbers, deal(todo, len(numbers)), strict=True))
                for number in numbers[1:]:
                    self._controllers.ask(number, "run", shares[number], step, greedy)
                episodes += super().run_all(shares[0], step, greedy)
                todo = []
                for number in numbers[1:]:
                    answer = self._controllers.answer(number)
                    if answer is None:
                        todo = [*todo, *shares[number]]
                    else:
                        episodes += answer
        except BaseException:
            self._controllers.kill()  # their replies would be taken for those of the next call
            raise
        return episodes

    @override
    def close(self) -> None:
        super().close()
        self._controllers.close()


def deal(todo: Todo, count: int) -> list[list[tuple[Question, int] | Start]]:
    """Returns the shares of `count` controllers: whole groups, in turn."""
    groups: dict[str, list[tuple[Question, int] | Start]] = {}
    for item in todo:
        name = f"{item.episode.id}~{item.turns}" if isinstance(item, Start) else item[0].id
        groups.setdefault(name, []).append(item)
    dealt = list(groups.values())
    return [[item for group in dealt[number::count] for item in group] for number in range(count)]
