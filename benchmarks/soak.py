"""A long training whose retrieval server and vLLM engine are restarted: does memory grow, is an episode lost?

    MALLOC_ARENA_MAX=1 python benchmarks/soak.py [--steps 2000] [--leak KIB] [--out runs/soak]

``tiny-grpo`` draws 8 episodes a step. The server is stopped every so many steps and started again while the training
goes on; the engine's processes get SIGKILL. After each step the resident memory, sockets and threads of this process
are written to ``soak.jsonl`` in the run's folder; free memory goes back to the system first, else an update's buffers
come and go in it. The timer of a step may count as a thread, so medians of `BLOCK` steps are compared. Memory grows if
the 95 % interval of their slope (least squares, from step `SETTLED` on) reaches `MOST`. ``--leak`` holds that many KiB
more after each step, to show that a leak is seen. The exit status is 1 if anything grows or is lost.

Without MALLOC_ARENA_MAX, glibc gives every thread a heap of its own, which grows to what that thread needs at most: in
jumps of up to 50 MiB over a thousand steps, more than any leak that is looked for.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.stats import linregress
from scipy.stats import t as student

from searchgym.cli.output import emit
from searchgym.corpora import open_corpus
from searchgym.questions.worlds import build_world, write_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.retrieval import build_index
from searchgym.rollout import read_episodes
from searchgym.train import load_recipe
from searchgym.train.loop.assembly import assemble, trainer_of

EPISODES: Final = 8
"""Number of episodes per step."""
BLOCK: Final = 50
"""Number of steps whose median counts."""
SETTLED: Final = 200
"""Number of first steps that do not count, while caches fill."""
MOST: Final = 0.5
"""Slope of resident memory that counts as growth, in MiB per 100 steps."""


def main() -> None:
    """Runs the training with its restarts, and prints what grew and what was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--server-every", type=int, default=200, help="steps between restarts of the retrieval server")
    parser.add_argument("--engine-every", type=int, default=500, help="steps between kills of the engine")
    parser.add_argument("--leak", type=int, default=0, help="KiB of memory that each step leaves behind")
    parser.add_argument("--out", type=Path, default=Path("runs/soak"), help="folder, replaced if it exists")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if args.steps < SETTLED + 3 * BLOCK:
        parser.error(f"{SETTLED + 3 * BLOCK} steps are the fewest that give a slope")
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    # Small, so that the tokenizer's cache of words has every word before steps count.
    world = write_world(build_world(WorldSpec(size=200, split="train", seed=1)), args.out / "world")
    build_index(open_corpus(world / "corpus.jsonl"), args.out / "index")
    with Server(args.out / "index") as server:
        settings = [f"steps={args.steps}", "rollout.questions=4", f"rollout.attempts={EPISODES // 4}"]
        settings += ["rollout.sampler=vllm", "rollout.sampler.max_context=2048", "rollout.sampler.eager=true"]
        settings += ["rollout.sampler.cache_gib=1", "validation.every=0", "checkpoint.every=100"]
        settings += ["log.tensorboard=false", "log.episodes_every=1"]
        # Two connections are in use all the time; of eight, those in use vary with the moment.
        retriever = {"kind": "http", "url": server.url, "connections": 2}
        options = {"questions": str(world / "questions.jsonl"), "retriever": retriever}
        recipe = load_recipe("tiny-grpo", [*settings, f"env_options={json.dumps(options)}"])
        with contextlib.redirect_stdout(sys.stderr), contextlib.closing(assemble(recipe, args.out)) as parts:
            watch = Watch(args, server, parts.sampler)
            trainer_of(recipe, parts, args.out / "run", report=watch.after_step).run()
    stops = Counter(str(episode.stop_reason) for episode in read_episodes(args.out / "run" / "episodes.jsonl"))
    found = summary(watch.rows, args.steps * EPISODES, stops) | watch.restarts
    emit(found, args.json, "soak")
    sys.exit(bool(found["problems"]))


class Server:
    """A retrieval server in a process of its own, on a port that stays the same.

    Args:
        index: Index folder.
    """

    def __init__(self, index: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._command = [sys.executable, "-m", "searchgym", "serve", "retriever", str(index), "--port", str(port)]
        self._process = self._started()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def restart(self) -> None:
        """Stops the server and starts it again; the first requests find nobody there."""
        self.__exit__()
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Watch:
    """Restarts what the training depends on, and counts what its process holds after each step.

    Args:
        args: The command's arguments.
        server: The retrieval server.
        sampler: The training's vLLM sampler.
    """

    def __init__(self, args: argparse.Namespace, server: Server, sampler: Any) -> None:
        self._args, self._server, self._engine = args, server, sampler.engine
        self._leaked: list[bytearray] = []
        self._file = args.out / "soak.jsonl"
        self.rows: list[dict[str, float]] = []
        self.restarts = {"server restarts": 0, "engine kills": 0}

    def after_step(self, row: Any) -> None:
        """Counts, and then restarts what is due."""
        step = int(row["step"])
        if not step:
            return
        self._leaked.append(bytearray(os.urandom(self._args.leak * 1024)))
        self.rows.append({"step": step} | held())
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.rows[-1]) + "\n")
        if step % 100 == 0:
            print(f"step {step} of {self._args.steps}: {self.rows[-1]}", file=sys.stderr)
        if step < self._args.steps and step % self._args.server_every == 0:
            self._server.restart()
            self.restarts["server restarts"] += 1
        if step < self._args.steps and step % self._args.engine_every == 0:
            for process in self._engine.backend.processes:
                os.kill(process, signal.SIGKILL)
            self.restarts["engine kills"] += 1


def held() -> dict[str, float]:
    """Returns the resident memory (MiB), sockets and threads of this process, after free memory was returned."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    links = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that reads this folder
            links.append(str(link.readlink()))
    threads = len(list(Path("/proc/self/task").iterdir()))
    sockets = sum(link.startswith("socket:") for link in links)
    return {"mib": pages * os.sysconf("SC_PAGE_SIZE") / 2**20, "sockets": sockets, "threads": threads}


def summary(rows: Sequence[dict[str, float]], episodes: int, stops: Counter[str]) -> dict[str, Any]:
    """Returns what was held and lost, and the problems.

    Args:
        rows: What was held after each step.
        episodes: Number of episodes that were asked for.
        stops: Number of episodes by the reason of their end.
    """
    slope, low, high = slope_of([row["mib"] for row in rows[SETTLED:]])
    settled, last = typical(rows[SETTLED - BLOCK : SETTLED]), typical(rows[-BLOCK:])
    lost = episodes - stops.total() + stops["retriever_error"]
    problems = [f"memory grows by {slope:.2f} MiB per 100 steps"] if not high < MOST else []
    problems += [
        f"{name}: {settled[name]:g} to {last[name]:g}" for name in ("sockets", "threads") if last[name] != settled[name]
    ]
    problems += [f"{lost} episodes are lost"] if lost else []
    return {
        "steps": len(rows),
        "MiB": f"{settled['mib']:.0f} to {last['mib']:.0f}",
        "MiB per 100 steps": f"{slope:.3f} ({low:.3f} to {high:.3f})",
        "sockets": f"{settled['sockets']:g} to {last['sockets']:g}",
        "threads": f"{settled['threads']:g} to {last['threads']:g}",
        "episodes": stops.total(),
        "lost": lost,
        "problems": problems,
    }


def typical(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Returns the median of each number of some rows."""
    return {name: float(np.median([row[name] for row in rows])) for name in rows[0]}


def slope_of(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns the slope of values per 100 steps and its 95 % interval, by least squares over medians of `BLOCK`."""
    medians = [float(np.median(values[at : at + BLOCK])) for at in range(0, len(values) - BLOCK + 1, BLOCK)]
    fit: Any = linregress(np.arange(len(medians)), medians)
    half = float(student.ppf(0.975, len(medians) - 2) * fit.stderr)
    scale, slope = 100 / BLOCK, float(fit.slope)
    return scale * slope, scale * (slope - half), scale * (slope + half)


if __name__ == "__main__":
    main()
