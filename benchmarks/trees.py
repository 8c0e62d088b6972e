"""A tree of attempts beside as many separate ones: seconds, tokens generated and repeated, memory.

    python benchmarks/trees.py [--recipe tiny-grpo] [--questions 2] [--leaves 64] [--roots 8] [--runs 3] [--json]
        [--set KEY=VALUE ...]

*separate*: all attempts at a question begin at the question. *tree*: the roots do; seven rounds of forks begin at turns
of earlier attempts, before the least likely tokens. Both run on the engine of a training, in turn. Reported are medians
over the runs: wall-clock seconds, tokens that the model generated, tokens of repeated turns, tokens in the training
sequences, and the growth of the process's peak memory while the attempts ran.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from searchgym.cli.output import emit, emit_rows, say
from searchgym.records import Episode, Question
from searchgym.rollout.replay.prefix import Start
from searchgym.train import load_recipe
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.curriculum.forks import TreeOptions, grow
from searchgym.train.loop.assembly import assemble
from searchgym.train.loop.rollout import EngineRollout, generated_tokens

ROUNDS: Final = 7
"""Number of rounds of forks."""


def peak_mib(restart: bool = False) -> float:
    """Returns the peak of the process's memory in MiB, since its start or the last restart."""
    if restart:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # give freed memory back, or it would hide what is allocated next
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def attempts(
    rollout: EngineRollout, questions: Sequence[Question], leaves: int, roots: int, step: int
) -> list[Episode]:
    """Returns the attempts of a step: separate ones if all are roots, else a tree of each question."""
    episodes = rollout(questions, roots, step, False)
    if roots == leaves:
        return episodes

    def run(starts: Sequence[Start]) -> list[Episode]:
        return rollout.continued(starts, step)

    options = TreeOptions(roots=roots, rounds=ROUNDS)
    return grow(episodes, options, leaves, np.random.default_rng(step), run)


def measured(rollout: EngineRollout, questions: Sequence[Question], given: argparse.Namespace, step: int) -> list[Any]:
    """Returns a row for each of the two ways."""
    rows = []
    for name, roots in (("separate", given.leaves), ("tree", given.roots)):
        before, started = peak_mib(restart=True), time.perf_counter()
        episodes = attempts(rollout, questions, given.leaves, roots, step)
        seconds, peak = time.perf_counter() - started, peak_mib()
        repeated = sum(call.end - call.start for e in episodes for call in e.calls[: e.replayed])
        learnt = sum(len(s.ids) for e in episodes for s in samples_from(e, replayed=True))
        row = {"way": name, "attempts": len(episodes), "seconds": seconds, "generated": generated_tokens(episodes)}
        rows.append(row | {"repeated": repeated, "in sequences": learnt, "peak MiB": max(peak - before, 0.0)})
    return rows


def main() -> None:
    """Prints a row for each way, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="tiny-grpo")
    parser.add_argument("--questions", type=int, default=2)
    parser.add_argument("--leaves", type=int, default=64)
    parser.add_argument("--roots", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="recipe values")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if (given.leaves - given.roots) % ROUNDS:
        parser.error(f"{given.leaves} leaves less {given.roots} roots are not {ROUNDS} rounds of forks")
    recipe = load_recipe(given.recipe, given.set)
    runs = []
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(sys.stderr),
        contextlib.closing(assemble(recipe, Path(folder))) as assembly,
    ):
        questions = assembly.task.questions[: given.questions]
        for step in range(given.runs + 1):
            say(f"run {step} of {given.runs}" if step else "warming up ...")
            runs.append(measured(assembly.rollout, questions, given, step))
    rows = []
    for way in range(2):
        values = {key: [run[way][key] for run in runs[1:]] for key in runs[0][way]}
        rows.append({key: of[0] if key == "way" else statistics.median(of) for key, of in values.items()})
    ratios = {key: rows[1][key] / rows[0][key] if rows[0][key] else None for key in rows[0] if key != "way"}
    rows.append({"way": "tree / separate"} | ratios)
    if given.json:
        emit({"results": rows}, True)
        return
    emit_rows(rows, False, "ways", f"{given.questions} questions, medians of {given.runs} runs")


if __name__ == "__main__":
    main()
