"""Kills the bandit's training at random moments and resumes it until it is done: ``crash_training.py OUT KILLS SEED``.

Each attempt is a child process that sends itself SIGKILL at a function call whose number is drawn at random, so that
any moment can be hit (in the middle of a rollout, of an update, of a checkpoint) and the same seed hits the same ones.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import torch
from toy_training import toy_model, toy_recipe, toy_trainer

from searchgym.train.loop.checkpoint import list_checkpoints

RECIPE = toy_recipe(
    steps=20,
    loss={"kl_coef": 0.01},
    optimizer={"minibatches": 2, "schedule": "cosine", "warmup_steps": 2},
    validation={"every": 4},
    checkpoint={"every": 3},
)


def child(out: Path, kill_at: int | None, count_file: Path | None) -> int:
    """Runs or resumes the training in a child; returns how it ended (negative: by that signal)."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")
        if calls == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    code = 1
    try:
        trainer = toy_trainer(out, RECIPE, resume=(out / "recipe.yaml").exists())
        sys.setprofile(count)
        trainer.run()
        sys.setprofile(None)
        if count_file is not None:
            count_file.write_text(str(calls))
        code = 0
    finally:
        os._exit(code)


def main() -> None:
    out, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    toy_model().save_pretrained(out / "warm")  # imports what a checkpoint needs, so that no child dies importing it
    toy_model().from_pretrained(out / "warm")
    assert child(out / "whole", None, out / "calls") == 0
    calls = int((out / "calls").read_text())
    draw = random.Random(seed)
    for number in range(kills):
        done = max(list_checkpoints(out / "parts" / "checkpoints"), default=0)
        left = calls * (RECIPE.steps - done + 1) // (RECIPE.steps + 1)
        at = draw.randrange(1, 2 * left // (kills - number + 1))  # so that there is something left for the other kills
        print("killed" if child(out / "parts", at, None) == -signal.SIGKILL else "finished", "after step", done, at)
    assert child(out / "parts", None, None) == 0


if __name__ == "__main__":
    main()
