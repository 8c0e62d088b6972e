"""The episode engine: its own time beside the sampler's, and what running out of lock-step brings.

    python benchmarks/rollout_engine.py [--model tiny] [--episodes 256] [--runs 5] [--json]

*Own time.* Episodes of the monolithic agent are sampled once, at temperature 1, and recorded with the seconds that the
sampler took. Then the same episodes run on a sampler that answers from the recording at once: what that run takes is
the engine's own time, searches in an index in process included.

*Schedules.* The same questions, with a retriever that takes ``--latency`` seconds per call, as one
behind a network would. In lock-step, as in Search-R1's loop, some episodes begin together; all generate, all search,
and so on; the next ones begin when the last one has ended. Out of lock-step as many episodes are under way, and none
waits for another. Wall seconds of both, in turn: first with the recorded calls and a sampler that takes ``--step``
seconds for a token, however many rows there are, as an engine on a GPU does; then with the model itself, whose tokens
cost more the more rows there are.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from searchgym.agents import load_agent
from searchgym.cli.output import emit, emit_rows
from searchgym.corpora.retrieval import Retriever
from searchgym.envs import Task, find_env, load_task
from searchgym.records import Episode, Hit
from searchgym.rollout import Engine, Model, Sampled, Sampler, SampleRequest, TokenFormat
from searchgym.rollout.sampler import Deliver, Pull
from searchgym.rollout.transformers.sampler import TransformersSampler, load_sampler
from searchgym.train.tiny.demonstrations import AGENT, ROLE

ENV = "searchgym/World-v0"


class Recorder:
    """A sampler that keeps what another one answered, and its seconds."""

    def __init__(self, sampler: TransformersSampler) -> None:
        self.sampler, self.max_context, self.version = sampler, sampler.max_context, sampler.version
        self.replies: dict[tuple[bytes, int], Sampled] = {}
        self.seconds = 0.0

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Refuses: the engine streams here."""
        raise NotImplementedError

    def stream(self, pull: Pull[int], deliver: Deliver[int]) -> None:
        """Samples."""
        asked: dict[int, tuple[bytes, int]] = {}

        def pull_and_note() -> Sequence[tuple[int, SampleRequest]]:
            new = pull()
            asked.update((key, (request.ids.tobytes(), request.seed)) for key, request in new)
            return new

        def note_and_deliver(key: int, reply: Sampled) -> None:
            self.replies[asked.pop(key)] = reply
            self.seconds = before + time.perf_counter() - started  # the last reply may end the program's wait
            deliver(key, reply)

        started, before = time.perf_counter(), self.seconds
        self.sampler.stream(pull_and_note, note_and_deliver)

    def update(self, state: Any, version: int) -> None:
        """Refuses: what was recorded is of these weights."""
        raise NotImplementedError

    def forget(self) -> None:
        """Passes it on."""
        self.sampler.forget()

    def close(self) -> None:
        """Passes it on."""
        self.sampler.close()


class Replay(Recorder):
    """A sampler that answers from a recording, at once."""

    def stream(self, pull: Pull[int], deliver: Deliver[int]) -> None:
        """Gives the recorded responses."""
        while new := pull():
            for key, request in new:
                deliver(key, self.replies[request.ids.tobytes(), request.seed])


class Paced(Replay):
    """A sampler that answers from a recording, and takes as long for a token of all rows as for a token of one.

    So does an engine on a GPU, as long as reading the weights is what takes the time.
    """

    step = 0.0
    """Seconds of a token."""

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Gives the recorded responses once the longest of them is done."""
        replies = [self.replies[request.ids.tobytes(), request.seed] for request in requests]
        time.sleep(self.step * max(len(reply.ids) for reply in replies))
        return replies

    def stream(self, pull: Pull[int], deliver: Deliver[int]) -> None:
        """Gives each recorded response when it is done; requests join between tokens."""
        running: dict[int, tuple[Sampled, int]] = {}
        while True:
            for key, request in pull():
                reply = self.replies[request.ids.tobytes(), request.seed]
                running[key] = (reply, len(reply.ids))
            if not running:
                return
            time.sleep(self.step)
            running = {key: (reply, left - 1) for key, (reply, left) in running.items()}
            for key in [key for key, (_, left) in running.items() if not left]:
                deliver(key, running.pop(key)[0])


class Slow:
    """A retriever whose calls take a while, as those of a server that answers several at once.

    Args:
        index: What is searched.
        latency: Seconds of a call.
    """

    calls_at_once = 8

    def __init__(self, index: Retriever, latency: float) -> None:
        self._index, self._latency = index, latency

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns the index's hits, later."""
        time.sleep(self._latency)
        return self._index.search(queries, k)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="folder or name")
    parser.add_argument("--episodes", type=int, default=256, help="episodes per run")
    parser.add_argument("--concurrent", type=int, nargs="+", default=[8, 16, 32, 64, 128], help="episodes under way")
    parser.add_argument("--runs", type=int, default=5, help="runs of each, after one that is not counted")
    parser.add_argument("--latency", type=float, default=0.1, help="seconds of a retriever's call")
    parser.add_argument("--step", type=float, default=0.01, help="seconds of a token in the paced schedules")
    parser.add_argument("--json", action="store_true", help="print one JSON object per table")
    args = parser.parse_args()
    task = load_task(find_env(ENV))
    task = dataclasses.replace(task, questions=task.questions[: args.episodes])
    sampler, tokenizer = load_sampler(args.model)
    emit(own_time(task, sampler, tokenizer, args.concurrent[-1], args.runs), args.json, "the engine's own time")
    recorder = Recorder(sampler)
    run(task, recorder, tokenizer, args.concurrent[-1])
    paced = Paced(sampler)
    paced.replies, paced.step = recorder.replies, args.step
    called = f"a retriever's call takes {args.latency:g} s"
    for name, title, own in (
        ("paced", f"recorded calls, {args.step:g} s a token for any number of rows; {called}", paced),
        ("schedules", f"{args.model} on {sampler.model.device}; {called}", sampler),
    ):
        rows = [schedules(task, own, tokenizer, count, args) for count in args.concurrent]
        emit_rows(rows, args.json, name, f"{title}; medians of {args.runs} runs")


def run(
    task: Task, sampler: Sampler, tokenizer: PreTrainedTokenizerBase, concurrent: int, lockstep: bool = False
) -> tuple[float, list[Episode]]:
    """Runs all questions of a task; returns wall seconds and episodes."""
    if isinstance(sampler, TransformersSampler):
        sampler.update(sampler.model.state_dict(), 0)  # forgets the prefixes of the last run
    form = TokenFormat(tokenizer, task.rules.protocol, chat=bool(tokenizer.chat_template))
    engine = Engine(
        task,
        load_agent(AGENT),
        {ROLE: Model.over("benchmark", sampler, form)},
        concurrency=concurrent,
        temperature=1.0,
        canonical=lockstep,
    )
    episodes: list[Episode] = []
    together = concurrent if lockstep else len(task.questions)

    async def all_questions() -> None:
        for at in range(0, len(task.questions), together):
            await engine.run(task.questions[at : at + together], episodes.append)

    started = time.perf_counter()
    asyncio.run(all_questions())
    return time.perf_counter() - started, episodes


def own_time(
    task: Task, sampler: TransformersSampler, tokenizer: PreTrainedTokenizerBase, concurrent: int, runs: int
) -> dict[str, Any]:
    """Returns the engine's own seconds beside the sampler's."""
    ratios, own, sampling, episodes = [], [], [], list[Episode]()
    for number in range(runs + 1):
        print(f"own time, run {number} of {runs} ...", file=sys.stderr)
        recorder = Recorder(sampler)
        sampler.update(sampler.model.state_dict(), 0)
        _, episodes = run(task, recorder, tokenizer, concurrent)
        replay = Replay(sampler)
        replay.replies = recorder.replies
        seconds, again = run(task, replay, tokenizer, concurrent)
        if sorted(e.id for e in again if e.answer) != sorted(e.id for e in episodes if e.answer):
            raise RuntimeError("the replayed episodes are not those recorded")
        if number:
            own.append(seconds)
            sampling.append(recorder.seconds)
            ratios.append(seconds / recorder.seconds)
    return {
        "episodes": len(episodes),
        "concurrent": concurrent,
        "generated tokens": sum(call.end - call.start for e in episodes for call in e.calls),
        "sampler's seconds": statistics.median(sampling),
        "engine's own seconds": statistics.median(own),
        "ratio": statistics.median(ratios),
        "smallest and largest": [min(ratios), max(ratios)],
    }


def schedules(
    task: Task, sampler: Sampler, tokenizer: PreTrainedTokenizerBase, concurrent: int, args: Any
) -> dict[str, Any]:
    """Returns seconds in and out of lock-step with a slow retriever, and their ratio."""
    assert isinstance(task.retriever, Retriever)
    slow = dataclasses.replace(task, retriever=Slow(task.retriever, args.latency))
    seconds: dict[bool, list[float]] = {True: [], False: []}
    episodes: list[Episode] = []
    for number in range(args.runs + 1):
        print(f"{concurrent} episodes under way, run {number} of {args.runs} ...", file=sys.stderr)
        for lockstep in (True, False):
            took, episodes = run(slow, sampler, tokenizer, concurrent, lockstep)
            if number:
                seconds[lockstep].append(took)
    ratios = np.array(seconds[True]) / np.array(seconds[False])
    return {
        "concurrent": concurrent,
        "mean turns": statistics.mean(episode.turns for episode in episodes),
        "lock-step s": statistics.median(seconds[True]),
        "asynchronous s": statistics.median(seconds[False]),
        "speed-up": float(np.median(ratios)),
        "smallest and largest": [float(ratios.min()), float(ratios.max())],
    }


if __name__ == "__main__":
    main()
