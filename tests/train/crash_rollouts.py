"""Kills a training at moments drawn by a seed and resumes it: ``crash_rollouts.py OUT KILLS SEED [KEY=VALUE ...]``.

Every response that reaches the journal is also noted in ``OUT/parts.log``, so that one that is sampled twice shows. The
last line of the output is JSON: kills, responses sampled, sampled twice, reused, and the seconds that this saved.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import torch

from searchgym.rollout.replay.journal import Journal, Page
from searchgym.train import load_recipe, train

VALUES = [
    "steps=4",
    "rollout.questions=3",
    "rollout.attempts=4",
    "validation.every=2",
    "validation.questions=4",
    "checkpoint.every=2",
    "log.tensorboard=false",
    "log.curve=false",
    "env_options={questions: {split: train, size: 40, seed: 1}}",
    "validation.env_options={questions: {split: validation, size: 40, seed: 1}}",
]


def note(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text + "\n")


def watch(log: Path) -> None:
    """Notes every response that is written, and the count of each rollout."""
    write, close, start = Page.write, Page.close, Journal.start

    def noted_write(page, replies):
        write(page, replies)
        note(log, "\n".join(f"sampled {page._file.name} {digest}" for digest in replies))

    def noted_close(page, complete):
        reuse = close(page, complete)
        note(log, f"closed {reuse.reused} {reuse.sampled} {reuse.repeated} {reuse.seconds}")
        return reuse

    def noted_start(journal, step):
        start(journal, step)
        note(log, "started")

    Page.write, Page.close, Journal.start = noted_write, noted_close, noted_start


def child(out: Path, values: list[str], kill_after: float | None) -> tuple[bool, float]:
    """Runs or resumes the training in a child, and kills it some seconds after it has started to sample.

    Returns:
        Whether it was killed, and the seconds since it had started to sample.
    """
    log = out.with_suffix(".log")
    log.touch()
    begun = log.read_text().count("started")
    pid = os.fork()
    if not pid:
        os.setsid()  # an engine of vLLM is a process of its own, which dies with the training
        code = 1
        try:
            watch(log)
            train(load_recipe("tiny-grpo", [*VALUES, *values]), out, resume=(out / "recipe.yaml").exists())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    while log.read_text().count("started") == begun:
        assert not os.waitpid(pid, os.WNOHANG)[0], "the training ended before it sampled"
        time.sleep(0.005)
    started = time.monotonic()
    while time.monotonic() < started + (1e9 if kill_after is None else kill_after):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            assert status == 0, f"the training ended with {status}"
            return False, time.monotonic() - started
        time.sleep(0.002)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True, time.monotonic() - started


def main() -> None:
    out, kills, draw, values = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3])), sys.argv[4:]
    torch.set_num_threads(1)
    _, whole = child(out / "whole", values, None)
    killed = 0
    while killed < kills and child(out / "parts", values, draw.uniform(0, whole / kills * 2))[0]:
        killed += 1
    child(out / "parts", values, None)
    lines = [line.split() for line in (out / "parts.log").read_text().splitlines()]
    counts = Counter(line[2] for line in lines if line[0] == "sampled")
    closed = [line[1:] for line in lines if line[0] == "closed"]
    result = {
        "kills": killed,
        "sampled": sum(counts.values()),
        "twice": sum(count - 1 for count in counts.values()),
        "reused": sum(int(row[0]) for row in closed),
        "saved_seconds": round(sum(float(row[3]) for row in closed), 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
