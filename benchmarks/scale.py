"""Capacity of one controller, measured part by part, and the limits of a training on 8, 64 and 512 GPUs.

The controller is the real one: the episode engine, agent `search-r1`, its tokens and a BM25 index. Engines are scripted
(simulated.py): no model is loaded, so the costs are those of a training's Python process without its models.

- `controller`: episodes per second with engines that answer at once, over a retriever that finds nothing, over BM25 in
  the same process, and over BM25 behind `searchgym serve retriever`; beside it the raw retriever on the same queries.
  Both run in turn in one process; medians are reported.
- `engines`: episodes per second and the share of time that the engines' rows were taken, against the number of engines,
  of which each has ``--rows`` rows and gives every row a token each ``--step`` seconds. With ``--controllers`` the
  engines and episodes are dealt out to several processes.
- `server`: queries per second of `searchgym serve retriever` on this machine.
- `transfer`: seconds to pass weights on: written to a folder, hashed and read, and sent to another process by gloo.
- `limits`: for each number of GPUs, what the parts must carry and how many controllers and servers carry it, from the
  costs measured in the same run and the given speed of an engine; each GPU samples for ``--sampling`` of the time.

    python benchmarks/scale.py                                    # every part, a quarter of an hour on two cores
    python benchmarks/scale.py controller --passages 100000
    python benchmarks/scale.py engines --engines 1 2 4 8 16 32 64
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import generated
import serving
from simulated import Engines, Script
from transfers import transfers

from searchgym.agents import load_agent
from searchgym.cli.output import emit_rows
from searchgym.envs import load_task
from searchgym.envs.cards import EnvCard
from searchgym.options.cards import find_card, load_card
from searchgym.records import Episode, Question
from searchgym.retrieval import HttpRetriever, NullRetriever, Retriever, build_index, load_index
from searchgym.rollout import Engine, Model, TokenFormat
from searchgym.rollout.loading import load_tokenizer

PARTS: Final = ("controller", "engines", "server", "transfer", "limits")
SEARCHES: Final = 3
"""Number of searches per episode."""
TOP_K: Final = 3
BATCH: Final = 256
"""Queries per call of the raw retriever."""
DISTINCT: Final = 8192
"""Number of distinct queries."""
GPUS: Final = (8, 64, 512)
TITLES: Final = {
    "controller": f"one controller, engines that answer at once, {SEARCHES} searches per episode",
    "engines": "engines of given speed",
    "server": "retrieval server",
    "transfer": "weights",
    "limits": "what each number of GPUs asks for",
}


def main() -> None:
    """Measures the chosen parts and prints one table for each, or one JSON object."""
    args = parse_args()
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        index = args.index or Path(folder) / "index"
        if not index.exists() and set(args.parts) - {"transfer"}:
            print(f"indexing {args.passages} passages ...", file=sys.stderr)
            build_index(generated.passages(args.passages), index)
        for part in PARTS:
            if part in args.parts:
                found[part] = measured(part, index, args, found)
                if not args.json:
                    emit_rows(found[part], False, part, TITLES[part])
    if args.json:
        print(json.dumps({"results": [{"part": part} | row for part, rows in found.items() for row in rows]}))


def parse_args() -> argparse.Namespace:
    """Parses the command-line arguments; `limits` needs the costs of all other parts but `engines`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"any of {', '.join(PARTS)}; default: all")
    parser.add_argument("--passages", type=int, default=100_000, help="number of generated passages")
    parser.add_argument("--index", type=Path, help="existing index folder of these passages, instead of a new one")
    parser.add_argument("--folder", help="where to put the index")
    parser.add_argument("--tokenizer", default="tiny", help="model whose tokenizer the controller uses")
    parser.add_argument("--tokens", type=int, default=128, help="mean tokens of a response")
    parser.add_argument("--episodes", type=int, default=1024, help="number of episodes per run of `controller`")
    parser.add_argument("--concurrency", type=int, default=512, help="concurrent episodes in `controller`")
    parser.add_argument("--runs", type=int, default=5, help="number of runs of each kind, after one warm-up run")
    parser.add_argument("--engines", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32], help="numbers of engines")
    parser.add_argument("--rows", type=int, default=64, help="rows of an engine")
    parser.add_argument("--step", type=float, default=0.02, help="seconds per token of an engine")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds that `engines` measures each number for")
    parser.add_argument("--controllers", type=int, default=1, help="processes that share the engines")
    parser.add_argument("--requests", type=int, default=2000, help="requests to the server, of 32 queries each")
    parser.add_argument("--clients", type=int, default=16, help="connections to the server")
    parser.add_argument("--mib", type=int, default=512, help="MiB of weights in `transfer`")
    parser.add_argument("--parameters", type=float, default=7.6e9, help="parameters of the model in `limits`, bfloat16")
    parser.add_argument("--batch", type=int, default=2560, help="episodes per training step in `limits`")
    parser.add_argument("--sampling", type=float, default=0.5, help="share of its time that a GPU samples in `limits`")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    args.parts = args.parts or list(PARTS)
    if unknown := sorted(set(args.parts) - set(PARTS)):
        parser.error(f"no part {', '.join(unknown)}: the parts are {', '.join(PARTS)}")
    if "limits" in args.parts:
        args.parts = sorted({*args.parts, "controller", "server", "transfer"})
    return args


def measured(part: str, index: Path, args: argparse.Namespace, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Measures one part and returns the rows of its table."""
    print(f"{part} ...", file=sys.stderr)
    if part == "controller":
        return controller(index, args)
    if part == "engines":
        return [engines(number, index, args) for number in args.engines]
    if part == "server":
        rows = [serving.load("served", "ours", index, index, size, args.requests, args) for size in (32, 1)]
        return [{name: row[name] for name in ("queries", "queries_per_s", "p50_ms", "p99_ms")} for row in rows]
    if part == "transfer":
        return transfers(args.mib)
    return limits(found["controller"], found["server"], found["transfer"], args)


# -- the controller ------------------------------------------------------------------------------------------------


class Controller:
    """A controller with scripted engines over one retriever.

    Args:
        retriever: Retriever of the episodes.
        rows: Rows of all engines together.
        step: Seconds per token; 0 answers at once.
        concurrency: Concurrent episodes.
        args: Arguments of the command line.
    """

    def __init__(
        self, retriever: Retriever, rows: int, step: float, concurrency: int, args: argparse.Namespace
    ) -> None:
        card = load_card(EnvCard, find_card("envs", "demo"))
        self.questions = [Question(f"q{n}", f"Which thing is number {n}?", (f"thing {n}",)) for n in range(4096)]
        self.task = load_task(card, questions=self.questions, retriever=retriever, max_turns=SEARCHES + 1, top_k=TOP_K)
        form = TokenFormat(load_tokenizer(args.tokenizer), self.task.rules.protocol, chat=False)
        self.queries = generated.queries(DISTINCT, args.passages)
        self.sampler = Engines(Script(form, self.queries, SEARCHES, args.tokens), rows, step)
        agent = load_agent("search-r1")
        models = dict.fromkeys(agent.roles, Model.over("scripted", self.sampler, form))
        self.engine = Engine(self.task, agent, models, concurrency=concurrency, temperature=1.0)

    def run(self, episodes: int) -> float:
        """Runs a number of episodes and returns the wall-clock seconds."""
        done: list[Episode] = []
        todo = ((self.questions[n % len(self.questions)], n // len(self.questions)) for n in range(episodes))
        started = time.perf_counter()
        asyncio.run(self.engine.run_attempts(todo, done.append))
        seconds = time.perf_counter() - started
        wrong = [e.id for e in done if e.stop_reason != "answer" or len(e.searches) != SEARCHES]
        if wrong or len(done) != episodes:
            raise RuntimeError(f"{len(done)} of {episodes} episodes, of which {len(wrong)} went wrong: {wrong[:3]}")
        return seconds

    def search(self, episodes: int) -> float:
        """Sends as many queries as the episodes do to the raw retriever; returns the wall-clock seconds."""
        asked = list(itertools.islice(itertools.cycle(self.queries), episodes * SEARCHES))
        started = time.perf_counter()
        for at in range(0, len(asked), BATCH):
            self.task.retriever.search(asked[at : at + BATCH], TOP_K)  # type: ignore[union-attr]
        return time.perf_counter() - started

    async def steady(self, warm: float, seconds: float) -> tuple[float, float]:
        """Runs episodes without end for a while; returns episodes per second, and the share of rows that were taken."""
        done, stop = [0], False

        def todo() -> Iterator[tuple[Question, int]]:
            for number in itertools.count():
                if stop:
                    return
                yield self.questions[number % len(self.questions)], number // len(self.questions)

        def count(_: Episode) -> None:
            done[0] += 1

        running = asyncio.create_task(self.engine.run_attempts(todo(), count))
        await asyncio.sleep(warm)
        before, taken, started = done[0], self.sampler.row_seconds(), time.perf_counter()
        await asyncio.sleep(seconds)
        passed = time.perf_counter() - started
        rate = (done[0] - before) / passed
        share = (self.sampler.row_seconds() - taken) / passed / self.sampler.rows
        stop, self.sampler.step = True, 0.0
        await running
        return rate, share


def controller(index: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures the controller over each retriever."""
    rows = []
    with serving.running("ours", index, index) as address:
        retrievers: tuple[Retriever, ...] = (NullRetriever(), load_index(index), HttpRetriever(f"http://{address}"))
        for name, retriever in zip(("null", "bm25", "bm25 served"), retrievers, strict=True):
            print(f"controller over {name} ...", file=sys.stderr)
            own = Controller(retriever, args.concurrency, 0.0, args.concurrency, args)
            played, raw, cpu = [], [], []
            for run in range(args.runs + 1):
                searched = own.search(args.episodes)
                began = time.process_time()
                took = own.run(args.episodes)
                if run:
                    played.append(args.episodes / took)
                    raw.append(SEARCHES * args.episodes / searched)
                    cpu.append((time.process_time() - began) / args.episodes)
            ratios = [SEARCHES * p / r for p, r in zip(played, raw, strict=True)]
            none = name == "null"
            rows.append(
                {
                    "retriever": name,
                    "passages": 0 if none else args.passages,
                    "episodes_per_s": round(statistics.median(played), 1),
                    "searches_per_s": round(SEARCHES * statistics.median(played), 1),
                    "raw_queries_per_s": None if none else round(statistics.median(raw), 1),
                    "ratio": None if none else round(statistics.median(ratios), 3),
                    "ratio_min": None if none else round(min(ratios), 3),
                    "ratio_max": None if none else round(max(ratios), 3),
                    "cpu_ms_per_episode": round(1000 * statistics.median(cpu), 2),
                }
            )
    return rows


# -- engines of given speed ----------------------------------------------------------------------------------------


def engines(number: int, index: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Measures a number of engines, which the controllers share."""
    print(f"{number} engines ...", file=sys.stderr)
    processes = min(args.controllers, number)
    shares = [number // processes + (n < number % processes) for n in range(processes)]
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        parts = list(pool.map(steady, shares, [str(index)] * processes, [args] * processes))
    rate = sum(part[0] for part in parts)
    possible = number * args.rows / episode_seconds(args)
    return {
        "engines": number,
        "controllers": processes,
        "concurrent": number * args.rows,
        "episodes_per_s": round(rate, 2),
        "engines_allow": round(possible, 2),
        "of_that": round(rate / possible, 3),
        "rows_taken": round(sum(own * part[1] for own, part in zip(shares, parts, strict=True)) / number, 3),
    }


def steady(number: int, index: str, args: argparse.Namespace) -> tuple[float, float]:
    """Runs one controller over some engines in a separate process; see `Controller.steady`."""
    rows = number * args.rows
    own = Controller(load_index(index), rows, args.step, rows, args)
    return asyncio.run(own.steady(2 * episode_seconds(args), args.seconds))


def episode_seconds(args: argparse.Namespace) -> float:
    """Returns the mean seconds that an episode's responses take in a row of an engine."""
    return float((SEARCHES + 1) * args.tokens * args.step)


# -- what limits ---------------------------------------------------------------------------------------------------


def limits(
    controllers: Sequence[dict[str, Any]],
    servers: Sequence[dict[str, Any]],
    weights: Sequence[dict[str, Any]],
    args: argparse.Namespace,
) -> list[dict[str, Any]]:
    """Returns the load on every part for each number of GPUs, and the number of parts that this requires."""
    served = next(row for row in controllers if row["retriever"] == "bm25 served")
    queries = max(row["queries_per_s"] for row in servers)
    through = {row["by"]: row["mib_per_s"] for row in weights}
    mib = 2 * args.parameters / 2**20
    rows = []
    for gpus in GPUS:
        rate = args.sampling * gpus * args.rows / episode_seconds(args)
        step = args.batch / rate
        rows.append(
            {
                "gpus": gpus,
                "episodes_per_s": round(rate, 1),
                "step_s": round(step, 1),
                "controllers": math.ceil(rate / served["episodes_per_s"]),
                "searches_per_s": round(SEARCHES * rate, 1),
                "servers": math.ceil(SEARCHES * rate / queries),
                "folder_s": round(mib / through["folder"], 1),
                "gloo_s": round(mib / through["gloo"], 1),
            }
        )
    return rows


if __name__ == "__main__":
    main()
