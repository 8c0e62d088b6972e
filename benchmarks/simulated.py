"""Sampling engines of given speed, without a model: they answer with scripted searches and an answer, at their pace.

An engine has a number of rows, and every row gains a token per step, however many rows are taken: a GPU behaves so as
long as reading the weights dominates. Reading prompts costs nothing here.
"""

from __future__ import annotations

import heapq
import itertools
import time
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from searchgym.records import Answer, Search
from searchgym.rollout import Sampled, SampleRequest, TokenFormat
from searchgym.rollout.sampler import Deliver, Key, Pull

TICK: Final = 0.002
"""Seconds between two polls for new requests, as an engine polls between two steps."""
SPREAD: Final = 0.5
"""Lengths of responses are uniform between 1 - SPREAD and 1 + SPREAD of their mean."""


class Script:
    """Responses of a scripted episode: searches, then an answer, each after a thought that fills its length.

    Args:
        format: Token format of the model whose tokens are written.
        queries: Queries to draw from.
        searches: Number of searches per episode.
        tokens: Mean tokens of a response, the thought included; an action is never cut.
    """

    def __init__(self, format: TokenFormat, queries: Sequence[str], searches: int, tokens: int) -> None:
        def encoded(text: str) -> npt.NDArray[np.int32]:
            return format.observation_ids(text, "stop")

        write = format.protocol.write
        self.searches, self._tokens = searches, tokens
        self._queries = [encoded(write(Search((query,)))) for query in queries]
        self._answer = encoded(write(Answer("nothing")))
        self._open, self._close = encoded("<think>"), encoded("</think>")
        filler = encoded(" ".join(queries[:200]))
        self._filler = np.tile(filler, 1 + int(2 * tokens / len(filler)))
        self._asked: dict[str, int] = {}

    def response(self, request: SampleRequest) -> npt.NDArray[np.int32]:
        """Returns the token ids of the next response in the request's episode, (N,) int32."""
        turn = self._asked.get(request.episode, 0)
        draw = zlib.crc32(f"{request.episode}/{turn}".encode())
        if turn < self.searches:
            self._asked[request.episode] = turn + 1
            action = self._queries[draw % len(self._queries)]
        else:
            del self._asked[request.episode]
            action = self._answer
        length = int(self._tokens * (1 - SPREAD + 2 * SPREAD * (draw % 1009) / 1008))
        thought = max(length - len(action) - len(self._open) - len(self._close), 0)
        return np.concatenate([self._open, self._filler[:thought], self._close, action])


@dataclass
class Engines:
    """Streaming sampler that behaves like several engines of given speed, with one queue for all.

    Attributes:
        script: Responses.
        rows: Rows of all engines together.
        step: Seconds per token; 0 answers at once.
    """

    script: Script
    rows: int = 1
    step: float = 0.0
    max_context: int = 1 << 20
    version: int = 0

    def __post_init__(self) -> None:
        self._taken, self._since, self._spent = 0, time.perf_counter(), 0.0

    def row_seconds(self) -> float:
        """Returns the seconds that rows have been taken, summed over rows, since the start."""
        return self._spent + self._taken * (time.perf_counter() - self._since)

    def _take(self, rows: int, now: float) -> None:
        """Takes rows at a time of the clock, or frees them if the number is negative."""
        self._spent += self._taken * (now - self._since)
        self._taken, self._since = self._taken + rows, now

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Raises an error: the episode engine streams where it can."""
        raise NotImplementedError

    def stream(self, pull: Pull[Key], deliver: Deliver[Key]) -> None:
        """Answers each request once its row has gained all tokens; requests wait while all rows are taken."""
        waiting: deque[tuple[Key, Sampled]] = deque()
        running: list[tuple[float, int, Key, Sampled]] = []
        count = itertools.count()
        while True:
            for key, request in pull():
                ids = self.script.response(request)
                waiting.append((key, Sampled(ids, np.zeros(len(ids), np.float32), "stop", self.version)))
            now = time.perf_counter()
            while running and running[0][0] <= now:
                *_, done, response = heapq.heappop(running)
                self._take(-1, now)
                deliver(done, response)
            while waiting and len(running) < self.rows:
                key, response = waiting.popleft()
                self._take(1, now)
                heapq.heappush(running, (now + self.step * len(response.ids), next(count), key, response))
            if not running:
                return
            if self.step:
                time.sleep(min(TICK, max(running[0][0] - time.perf_counter(), 0.0)))

    def update(self, state: Mapping[str, Any], version: int) -> None:
        """Raises an error: there are no weights."""
        raise NotImplementedError

    def forget(self) -> None:
        """Does nothing: nothing is cached."""

    def close(self) -> None:
        """Does nothing: no process was started."""
