"""The episode engine: its overhead compared with the sampler's time, and the gain of running without lock-step.

    python benchmarks/rollout_engine.py [--model tiny] [--episodes 256] [--runs 5] [--json]
    python benchmarks/rollout_engine.py --scripted [--episodes 256] [--tokens 108] [--step 0.008]

*Own time.* Episodes of the monolithic agent are sampled once, at temperature 1, and recorded with the seconds that the
sampler took. Then the same episodes run on a sampler that answers from the recording at once: the time of that run is
the engine's overhead, including searches in an in-process index.

*Schedules.* The same questions are run with a retriever that takes ``--latency`` seconds per call, as behind a network.
In lock-step, as in Search-R1's loop, a batch of episodes starts together; all generate, all search, and so on; the next
batch starts when the last episode has ended. Without lock-step, the same number of episodes is running, and none waits
for another. Reported are wall-clock seconds of both, in turn: first with the recorded calls and a sampler that takes
``--step`` seconds per token, however many rows there are, as an engine on a GPU does; then with the model itself, whose
tokens cost more with more rows.

*Scripted.* Episodes of two turns and ``--tokens`` generated tokens on a simulated engine with a row for each, which
takes ``--step`` seconds per token: the seconds of the engine alone are those of the longest episode, whatever the
controller does. Reported are the controller's CPU time per request with an engine that answers at once, the ratio of
the wall-clock seconds to those of the engine alone, and the share of the rows' time in which they generate: the rest is
the tail.
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
from simulated import Engines, Script
from transformers import PreTrainedTokenizerBase

from searchgym.agents import load_agent
from searchgym.cli.output import emit, emit_rows
from searchgym.envs import Task, find_env, load_task
from searchgym.records import Episode, Hit
from searchgym.retrieval import Retriever
from searchgym.rollout import Engine, Model, Sampled, Sampler, SampleRequest, TokenFormat
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.sampler import Deliver, Pull
from searchgym.rollout.transformers.sampler import TransformersSampler, load_sampler
from searchgym.train.demonstrations.play import AGENT, ROLE

ENV = "searchgym/World-v0"


class Recorder:
    """Sampler that records the responses of another one and the seconds it takes."""

    def __init__(self, sampler: TransformersSampler) -> None:
        self.sampler, self.max_context, self.version = sampler, sampler.max_context, sampler.version
        self.replies: dict[tuple[bytes, int], Sampled] = {}
        self.seconds = 0.0

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Raises an error, since the engine must stream in this benchmark."""
        raise NotImplementedError

    def stream(self, pull: Pull[int], deliver: Deliver[int]) -> None:
        """Samples with the other sampler and records its responses and times."""
        asked: dict[int, tuple[bytes, int]] = {}

        def pull_and_note() -> Sequence[tuple[int, SampleRequest]]:
            new = pull()
            asked.update((key, (request.ids.tobytes(), request.seed)) for key, request in new)
            return new

        def note_and_deliver(key: int, reply: Sampled) -> None:
            self.replies[asked.pop(key)] = reply
            self.seconds = (
                before + time.perf_counter() - started
            )  # set now: the last reply may end the wait for this run
            deliver(key, reply)

        started, before = time.perf_counter(), self.seconds
        self.sampler.stream(pull_and_note, note_and_deliver)

    def update(self, state: Any, version: int) -> None:
        """Raises an error, since the recording belongs to the present weights."""
        raise NotImplementedError

    def forget(self) -> None:
        """Clears the cache of the other sampler."""
        self.sampler.forget()

    def close(self) -> None:
        """Closes the other sampler."""
        self.sampler.close()


class Replay(Recorder):
    """Sampler that answers from a recording, at once."""

    def stream(self, pull: Pull[int], deliver: Deliver[int]) -> None:
        """Delivers the recorded responses."""
        while new := pull():
            for key, request in new:
                deliver(key, self.replies[request.ids.tobytes(), request.seed])


class Paced(Replay):
    """Sampler that answers from a recording at a fixed time per token, however many rows there are.

    An engine on a GPU behaves so as long as reading the weights dominates.
    """

    step = 0.0
    """Seconds per token."""

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Returns the recorded responses once the longest of them would be done."""
        replies = [self.replies[request.ids.tobytes(), request.seed] for request in requests]
        time.sleep(self.step * max(len(reply.ids) for reply in replies))
        return replies

    def stream(self, pull: Pull[int], deliver: Deliver[int]) -> None:
        """Delivers each recorded response when it would be done; requests join between tokens."""
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
    """Retriever with slow calls, like a server that answers several calls at once.

    Args:
        index: Retriever that finds the hits.
        latency: Seconds per call.
    """

    calls_at_once = 8

    def __init__(self, index: Retriever, latency: float) -> None:
        self._index, self._latency = index, latency

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns the index's hits after the latency."""
        time.sleep(self._latency)
        return self._index.search(queries, k)


def main() -> None:
    """Measures overhead and schedules, and prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="model folder or name")
    parser.add_argument("--episodes", type=int, default=256, help="number of episodes per run")
    parser.add_argument(
        "--concurrent", type=int, nargs="+", default=[8, 16, 32, 64, 128], help="numbers of concurrent episodes"
    )
    parser.add_argument("--runs", type=int, default=5, help="number of runs of each kind, after one warm-up run")
    parser.add_argument("--latency", type=float, default=0.1, help="seconds per retriever call")
    parser.add_argument("--step", type=float, default=0.01, help="seconds per token in the paced schedules")
    parser.add_argument("--json", action="store_true", help="print one JSON object per table")
    parser.add_argument("--scripted", action="store_true", help="measure scripted episodes only")
    parser.add_argument("--tokens", type=int, default=108, help="mean generated tokens of a scripted episode")
    args = parser.parse_args()
    if args.scripted:
        emit(scripted(args), args.json, f"{args.episodes} scripted episodes, {args.step:g} s a token")
        return
    task = load_task(find_env(ENV)).subset(args.episodes)
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
    """Runs all questions of a task; returns wall-clock seconds and episodes."""
    if isinstance(sampler, TransformersSampler):
        sampler.update(sampler.model.state_dict(), 0)  # clears the prefix cache of the last run
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


def scripted(args: Any) -> dict[str, Any]:
    """Returns the controller's time per request, and the wall-clock seconds beside those of the engine alone."""
    task = load_task(find_env(ENV), questions={"split": "test", "size": args.episodes, "seed": 0})
    tokenizer = load_tokenizer(args.model)
    form = TokenFormat(tokenizer, task.rules.protocol, chat=bool(tokenizer.chat_template))
    cpu, ratios, shares, episodes = [], [], [], list[Episode]()
    for _ in range(args.runs):
        for step in (0.0, args.step):
            script = Script(form, [question.text for question in task.questions], 1, args.tokens // 2)
            engines, begun = Engines(script, args.episodes, step), time.process_time()
            seconds, episodes = run(task, engines, tokenizer, args.episodes)
            if step:
                longest = max(sum(call.end - call.start for call in episode.calls) for episode in episodes)
                ratios.append(seconds / (longest * step))
                shares.append(engines.row_seconds() / (args.episodes * seconds))
            else:
                requests = sum(len(episode.calls) for episode in episodes)
                cpu.append((time.process_time() - begun) / requests)
    return {
        "episodes": len(episodes),
        "generated tokens per episode": sum(c.end - c.start for e in episodes for c in e.calls) / len(episodes),
        "controller's ms per request": 1e3 * statistics.median(cpu),
        "wall-clock seconds / engine's": statistics.median(ratios),
        "share of rows that generate": statistics.median(shares),
    }


def own_time(
    task: Task, sampler: TransformersSampler, tokenizer: PreTrainedTokenizerBase, concurrent: int, runs: int
) -> dict[str, Any]:
    """Returns the seconds of the engine itself and those of the sampler."""
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
    """Returns the seconds with and without lock-step with a slow retriever, and their ratio."""
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
