"""Kills a training over two ranks of DeepSpeed (ZeRO 2) at random times: ``zero_crash.py OUT KILLS SEED``.

It learns from recorded samples. Every second kill takes the controller alone: its ranks must end by themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from made_models import save_tiny, tiny_tokenizer
from test_learner import random_samples
from toy_training import toy_recipe

from searchgym.corpora.files import write_atomic
from searchgym.train.distributed.remote import RemoteLearner
from searchgym.train.loop.collect import TrainingData
from searchgym.train.loop.trainer import Trainer
from searchgym.train.recipe.recipe import Recipe


def recipe_of(out: Path) -> Recipe:
    """Twenty steps, a checkpoint at every one."""
    return toy_recipe(
        model=str(out / "model"),
        method={"kind": "supervised", "demonstrations": "recorded", "batch": 5},
        steps=20,
        learner={"backend": {"kind": "deepspeed", "ranks": 2, "zero": 2}},
        optimizer={"lr": 1e-3, "schedule": "cosine", "warmup_steps": 2, "micro_batch_tokens": 128},
        validation={"every": 0},
        checkpoint={"every": 1},
    )


def train(out: Path, name: str) -> None:
    """Runs or resumes the training; its last line tells the ranks' process ids."""
    recipe, folder = recipe_of(out), out / name
    learner = RemoteLearner(recipe, folder / "ranks", deadline=300)
    learner.prepare(random_samples(1))
    with write_atomic(out / "pids") as file:
        file.write(json.dumps([process.pid for process in learner._processes]).encode())
    tokenizer, samples = tiny_tokenizer("base"), random_samples(9)
    resume = (folder / "recipe.yaml").exists()
    Trainer(
        recipe, folder, learner=learner, tokenizer=tokenizer, data=TrainingData(demonstrations=samples), resume=resume
    ).run()


def gone(pids: list[int]) -> bool:
    """Waits until processes have ended, half a minute at most."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        states = [Path(f"/proc/{pid}/stat") for pid in pids]
        if not any(path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z" for path in states):
            return True
        time.sleep(0.1)
    return False


def ready(out: Path, name: str) -> tuple[subprocess.Popen[bytes], list[int]]:
    """Starts `train` and waits until its ranks have their models."""
    (out / "pids").unlink(missing_ok=True)
    process = subprocess.Popen([sys.executable, __file__, str(out), name], start_new_session=True)
    while not (out / "pids").exists():
        with contextlib.suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"{name} ended with {process.wait(timeout=0.1)}")
    return process, json.loads((out / "pids").read_text())


def main() -> None:
    if len(sys.argv) == 3:
        train(Path(sys.argv[1]), sys.argv[2])
        return
    out, kills, draw = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    save_tiny(out / "model", "base")
    process, _ = ready(out, "whole")
    began = time.monotonic()
    assert process.wait() == 0
    seconds = time.monotonic() - began
    for number in range(kills):
        process, pids = ready(out, "parts")
        try:  # of the time that a run takes, about as much as brings this one to its share of the steps
            process.wait(timeout=draw.uniform(0.1, 1.5) * seconds / kills)
        except subprocess.TimeoutExpired:
            if number % 2:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        assert gone(pids), f"ranks {pids} go on"
        steps = sorted(path.name for path in (out / "parts" / "checkpoints").glob("step-*"))
        print("killed" if process.wait() == -signal.SIGKILL else f"ended with {process.wait()}", steps, flush=True)
    process, _ = ready(out, "parts")
    assert process.wait() == 0


if __name__ == "__main__":
    main()
