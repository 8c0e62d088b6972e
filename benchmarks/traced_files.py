"""Number of files of the package that one training step, and one evaluated question, pass through.

    python benchmarks/traced_files.py

A file counts if one of its functions is called. Both use the shipped tiny model and agent ``search-r1``: the step is
the second of a small GRPO training, the question the second of an evaluation on the demo environment, with the scoring
that follows; the first of each loads everything and is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import searchgym
from searchgym.agents import load_agent
from searchgym.cli.output import emit_rows
from searchgym.envs import find_env, load_task
from searchgym.eval import EvalOptions, evaluate
from searchgym.rollout import load_models
from searchgym.train import load_recipe, train

PACKAGE = Path(searchgym.__file__).parent
SMALL = ["steps=2", "rollout.questions=2", "rollout.attempts=4", "advantage.drop_zero_variance=false"]
SMALL += ["optimizer.warmup_steps=0", "validation.every=0", "log.tensorboard=false"]


class Passed:
    """Collects files of the package whose functions are called, in every thread, while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.names: set[str] = set()

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        """Records the file of a called function; the signature is that of `sys.setprofile`."""
        if self.on and event == "call" and frame.f_code.co_name != "<module>":
            self.names.add(frame.f_code.co_filename)

    def begin(self) -> None:
        """Begins to collect."""
        self.on = True
        sys.setprofile(self)  # of this thread; the others have it from their start, see `watching`

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watches threads that begin in the block, and those that call `begin`."""
        threading.setprofile(self)
        try:
            yield
        finally:
            self.on = False
            sys.setprofile(None)
            threading.setprofile(None)

    def files(self) -> list[str]:
        """Returns the files of the package, by their paths in it."""
        found = [Path(name) for name in self.names if name.endswith(".py")]
        return sorted(str(file.relative_to(PACKAGE)) for file in found if file.is_relative_to(PACKAGE))


def training_step(out: Path) -> list[str]:
    """Returns the files that one training step passes through."""
    passed = Passed()

    def report(row: Any) -> None:
        if row["step"] == 1:
            passed.begin()
        else:
            passed.on = False

    with passed.watching():
        train(load_recipe("tiny-grpo", SMALL), out, report=report)
    return passed.files()


def evaluated_question(out: Path) -> list[str]:
    """Returns the files that one evaluated question passes through."""
    passed = Passed()

    def progress(done: int, of: int) -> None:
        if done == 1:
            passed.begin()

    task, agent = load_task(find_env("Demo")).subset(2), load_agent("search-r1")
    with passed.watching():
        models = load_models(dict.fromkeys(agent.roles, "tiny"), task.rules.protocol)
        evaluate(task, agent, out, models, EvalOptions(concurrency=1), progress=progress)
    for model in models.values():
        model.sampler.close()
    return passed.files()


def main() -> None:
    """Prints a table, or one object with the names of the files too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object, with the files")
    args = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:  # libraries print
        print("a training step ...")
        step = training_step(Path(folder) / "train")
        print("a question ...")
        found = {"training step": step, "evaluated question": evaluated_question(Path(folder) / "eval")}
    whole = len(list(PACKAGE.rglob("*.py")))
    rows = [
        {"way of": name, "files": len(files), "rooms": len({str(Path(file).parent) for file in files}), "of": whole}
        | ({"names": files} if args.json else {})
        for name, files in found.items()
    ]
    emit_rows(rows, args.json, "results")


if __name__ == "__main__":
    main()
