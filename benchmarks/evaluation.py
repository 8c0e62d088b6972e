"""Speed of an evaluation, compared with its sampler alone, and the shares of its parts.

    python benchmarks/evaluation.py [--model tiny] [--questions 200] [--runs 3] [--json]

Each run evaluates the monolithic agent on the first questions of World-v0, greedy, into a run folder: episodes on disk,
scores with intervals. Then the same requests go to the same sampler alone: as many episodes at once, each next request
as soon as the reply to the one before is there, and nothing in between. Shares are of the evaluation's wall time: the
sampler alone; the retriever, timed around its calls; scoring and writing the scores; the rest, which is this project's
own part of running episodes. Medians of the runs, evaluation and sampler in turn, after one that is not counted.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from searchgym.agents import load_agent
from searchgym.cli.output import emit, emit_rows
from searchgym.envs import find_env, load_task
from searchgym.eval import EvalOptions, evaluate, score_episodes
from searchgym.records import Hit
from searchgym.retrieval import Retriever
from searchgym.rollout import Model, Sampled, SampleRequest, TokenFormat, read_episodes
from searchgym.rollout.sampler import Deliver, Pull
from searchgym.rollout.transformers.sampler import TransformersSampler, load_sampler


class Noted:
    """Sampler that records the requests of each episode in their order and forwards them."""

    def __init__(self, sampler: TransformersSampler) -> None:
        self.sampler, self.max_context, self.version = sampler, sampler.max_context, sampler.version
        self.requests: defaultdict[str, list[SampleRequest]] = defaultdict(list)

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Raises an error, since the engine must stream in this benchmark."""
        raise NotImplementedError

    def stream(self, pull: Pull[int], deliver: Deliver[int]) -> None:
        """Samples with the other sampler."""

        def noting() -> Sequence[tuple[int, SampleRequest]]:
            new = pull()
            for _, request in new:
                self.requests[request.episode].append(request)
            return new

        self.sampler.stream(noting, deliver)

    def update(self, state: Any, version: int) -> None:
        """Passes new weights on."""
        self.sampler.update(state, version)

    def forget(self) -> None:
        """Forgets the other sampler's keys and values."""
        self.sampler.forget()

    def close(self) -> None:
        """Closes the other sampler."""
        self.sampler.close()


class Timed:
    """Retriever that adds up the seconds of another one's calls."""

    in_process = True

    def __init__(self, retriever: Retriever) -> None:
        self.retriever, self.seconds = retriever, 0.0

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns the other retriever's hits."""
        started = time.perf_counter()
        hits = self.retriever.search(queries, k)
        self.seconds += time.perf_counter() - started
        return hits


def alone(sampler: TransformersSampler, requests: dict[str, list[SampleRequest]], at_once: int) -> float:
    """Returns the seconds in which a sampler answers the requests of episodes, given the number of concurrent ones."""
    waiting = deque(deque(own) for own in requests.values())
    ready: list[tuple[deque[SampleRequest], SampleRequest]] = []
    sampler.forget()

    def begin() -> None:
        if waiting:
            own = waiting.popleft()
            ready.append((own, own.popleft()))

    for _ in range(at_once):
        begin()
    under_way: dict[int, deque[SampleRequest]] = {}
    keys = iter(range(10**9))

    def pull() -> list[tuple[int, SampleRequest]]:
        new, ready[:] = ready[:], []
        keyed = [(next(keys), own, request) for own, request in new]
        under_way.update((key, own) for key, own, _ in keyed)
        return [(key, request) for key, _, request in keyed]

    def deliver(key: int, reply: Sampled) -> None:
        own = under_way.pop(key)
        if own:
            ready.append((own, own.popleft()))
        else:
            begin()

    started = time.perf_counter()
    sampler.stream(pull, deliver)
    return time.perf_counter() - started


def measure(
    sampler: TransformersSampler, tokenizer: PreTrainedTokenizerBase, count: int, at_once: int
) -> dict[str, float]:
    """Returns the seconds of one evaluation by phase, and of the sampler alone; both begin with an empty cache."""
    task, agent = load_task(find_env("searchgym/World-v0")), load_agent("search-r1")
    task = task.subset(count)
    timed = Timed(task.retriever)  # type: ignore[arg-type]
    task = dataclasses.replace(task, retriever=timed)
    noted = Noted(sampler)
    sampler.forget()
    form = TokenFormat(tokenizer, task.rules.protocol, chat=bool(tokenizer.chat_template))
    models = dict.fromkeys(agent.roles, Model.over("model", noted, form))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        started = time.perf_counter()
        evaluate(task, agent, folder, models, EvalOptions(concurrency=at_once))
        whole = time.perf_counter() - started
        started = time.perf_counter()
        score_episodes(task, list(read_episodes(folder / "episodes.jsonl")))
        scoring = time.perf_counter() - started
    seconds = {"whole": whole, "retriever": timed.seconds, "scoring": scoring}
    # In a thread of its own, as in the evaluation: once torch has computed in two threads, the later one is slower.
    with ThreadPoolExecutor(1) as pool:
        return seconds | {"sampler": pool.submit(alone, sampler, noted.requests, at_once).result()}


def rows_of(runs: Sequence[dict[str, float]], count: int) -> list[dict[str, Any]]:
    """Returns the rows of the table."""
    middle = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    own = statistics.median(run["whole"] - run["sampler"] - run["retriever"] - run["scoring"] for run in runs)
    phases = {
        "evaluation": middle["whole"],
        "sampler alone": middle["sampler"],
        "retriever": middle["retriever"],
        "scoring": middle["scoring"],
        "own part of episodes": own,
        "own part with scoring": own + middle["scoring"],
    }
    return [
        {
            "phase": name,
            "seconds": round(seconds, 3),
            "share": round(seconds / middle["whole"], 3),
            "questions_per_second": round(count / seconds, 1) if name in ("evaluation", "sampler alone") else None,
        }
        for name, seconds in phases.items()
    ]


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    sampler, tokenizer = load_sampler(given.model)
    runs = []
    for number in range(given.runs + 1):  # the first visits shapes for the first time, and is not counted
        print(f"run {number} of {given.runs} ...", file=sys.stderr)
        runs.append(measure(sampler, tokenizer, given.questions, given.concurrency))
    runs = runs[1:]
    rows = rows_of(runs, given.questions)
    if given.json:
        emit({"results": rows, "runs": runs}, True)
    else:
        emit_rows(rows, False, "results", f"{given.questions} questions, {given.concurrency} at once")


if __name__ == "__main__":
    main()
