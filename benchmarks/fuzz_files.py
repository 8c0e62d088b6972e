"""Damaged and hostile files, through the package's readers: each gives a correct load or one clear error.

    python benchmarks/fuzz_files.py --seed 1 --files 100

Every kind of file begins as a valid one that the package makes (``fuzz_kinds.py``) and is then damaged or used for an
attack (``fuzz_mutations.py``). A child process reads it. Counted are the files that were loaded, those refused with an
error of the package (`SearchGymError`), all others (another exception, a crash, over 10 CPU seconds, over 2 GiB), and
those of which something was executed: each attack tries to make a marker file, and an audit hook watches for programs
started and for code that is compiled or imported from the folder. File 0 of each kind is the valid one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any, Final

import numpy as np
import torch
import yaml
from fuzz_kinds import KINDS
from fuzz_mutations import PLANTED, mutate

from searchgym.cli.output import emit_rows
from searchgym.errors import SearchGymError
from searchgym.options import yaml as yaml_reader

SECONDS: Final = 10
"""Maximum CPU seconds per file."""
WAIT: Final = 60
"""Wall-clock seconds after which a file counts as hanging; other programs may use the machine."""
PEAK: Final = 1536
"""MiB of memory that reading may add: 2 GiB with the 500 that a process of this script begins with."""
ROOM: Final = 4 * 2**30
"""Bytes of addresses that a child may add to those it starts with, so that a huge allocation fails at once."""
STARTED: Final = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.spawn")
"""Audit events of programs that are started."""


@dataclass
class Outcome:
    """Result of reading one file."""

    number: int
    """Number of the file; 0 is the valid one."""
    result: str
    """``loaded``, ``refused`` or ``other``."""
    what: str
    """Description of the change to the file."""
    error: str = ""
    """The error, if there was one."""
    executed: list[str] = field(default_factory=list)
    """Descriptions of code and programs that were executed."""
    peak: int = 0
    """Largest memory of the child so far, in MiB."""
    added: int = 0
    """Part of it that was added after the start of the child, in MiB; a child of a test inherits memory."""


class Watch:
    """Audit hook that records code of a folder that is executed while the hook is on."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.seen: list[str] = []

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Records an event if it executes something."""
        if self.folder is None:
            return
        if event in STARTED:
            self.seen.append(f"{event} {args!r:.200}")
        elif event == "import" and str(args[0]).split(".")[0] == PLANTED and self._beside():
            self.seen.append(f"import {args[0]}")
        elif event == "exec" and isinstance(args[0], CodeType) and self._inside(args[0].co_filename):
            self.seen.append(f"exec {args[0].co_filename}")

    def _inside(self, name: str) -> bool:
        """Checks whether code comes from a file in the folder."""
        return not name.startswith("<") and Path(name).absolute().is_relative_to(self.folder or "/")

    def _beside(self) -> bool:
        """Checks whether the folder is searched for modules."""
        return any(Path(place or ".").absolute() == self.folder for place in sys.path)


def fuzz(name: str, files: int, seed: int, home: Path, planted: str = "") -> list[Outcome]:
    """Reads files of one kind in child processes; a new child continues where the last one ended.

    Args:
        name: Kind of the files.
        files: Number of files besides the valid one.
        seed: Each file follows from it, its kind and its number.
        home: Folder to work in.
        planted: Fault to plant in the readers, to test this test: ``yaml``, ``numpy`` or ``torch``.
    """
    outcomes: list[Outcome] = []
    while len(outcomes) <= files:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            code = 1
            try:
                _read_all(name, range(len(outcomes), files + 1), seed, home, planted, writer)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writer)
        outcomes += _collect(child, reader, len(outcomes), files)
        with contextlib.suppress(FileNotFoundError):
            if (home / "executed").stat().st_size >= 0 and not outcomes[-1].executed:  # by a child that ended
                outcomes[-1].executed.append("marker")
            (home / "executed").unlink()
    return outcomes


def _collect(child: int, reader: int, first: int, files: int) -> list[Outcome]:
    """Returns the outcomes that a child reports until it ends; one that ends too early has crashed on the next."""
    outcomes, text, what, late = [], b"", "", False
    with open(reader, "rb", buffering=0) as pipe:
        while True:
            if not select.select([pipe], [], [], WAIT)[0]:
                late = True
                os.kill(child, signal.SIGKILL)
                break
            piece = pipe.read(2**16)
            if not piece:
                break
            *lines, text = (text + piece).split(b"\n")
            for line in lines:
                row = json.loads(line)
                if isinstance(row, str):
                    what = row
                else:
                    outcomes.append(Outcome(**row))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status or late:
        why = f"ended with {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"
        outcomes.append(Outcome(first + len(outcomes), "other", what, "hangs" if late else why))
    return outcomes


def _read_all(name: str, numbers: range, seed: int, home: Path, planted: str, writer: int) -> None:
    """Makes, damages and reads files, in a child process, and reports each as a line of JSON."""
    out = os.fdopen(writer, "wb", buffering=0)
    sink = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(sink, descriptor)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    first = _peak()
    _limit()
    kind, watch = KINDS[name], Watch()
    valid, folder, marker, empty = home / "valid", home / "files", home / "executed", home / "empty"
    empty.mkdir(exist_ok=True)
    if not valid.exists():
        kind.make(valid)
    shutil.rmtree(folder, ignore_errors=True)  # of a child that ended; never written to through its links
    kind.read(shutil.copytree(valid, folder))  # what is loaded late is loaded now
    sys.addaudithook(watch)
    _plant(planted)
    for number in numbers:
        rng = random.Random(f"{seed} {name} {number}")
        os.chdir(home)
        shutil.rmtree(folder)
        shutil.copytree(valid, folder)
        what = mutate(folder, number, rng, marker) if number else "valid"
        if kind.seal is not None and number and rng.random() < 0.7:
            kind.seal(folder)
            what += ", sealed"
        out.write(json.dumps(what).encode() + b"\n")
        os.chdir(empty if kind.code else folder)
        outcome = _read(name, number, folder, what, watch, first)
        if marker.exists():
            marker.unlink()
            outcome.executed.append("marker")
        out.write(json.dumps(vars(outcome)).encode() + b"\n")
        if outcome.added > PEAK:
            return  # the peak of a process does not go down: the next file is read by another


def _read(name: str, number: int, folder: Path, what: str, watch: Watch, first: int) -> Outcome:
    """Reads one file, in a child that began with `first` MiB, and returns the outcome."""
    watch.folder, watch.seen = folder, []
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # SIGPROF ends the process, in compiled code as well
    started, result, error = time.process_time(), "loaded", ""
    try:
        KINDS[name].read(folder)
    except SearchGymError as raised:
        result, error = "refused", f"{type(raised).__name__}: {raised!s:.300}"
    except BaseException as raised:
        frames = traceback.extract_tb(raised.__traceback__)
        own = [frame for frame in frames if "searchgym" in frame.filename] or frames
        result = "other"
        error = f"{type(raised).__name__}: {raised!s:.200} ({Path(own[-1].filename).name}:{own[-1].lineno})"
    signal.setitimer(signal.ITIMER_PROF, 0)
    watch.folder = None
    peak = _peak()
    if peak - first > PEAK and result != "other":
        result, error = "other", f"{peak - first} MiB more, after {time.process_time() - started:.1f} s; {error}"
    return Outcome(number, result, what, error.encode("utf-8", "replace").decode(), watch.seen[:5], peak, peak - first)


def _peak() -> int:
    """Returns the largest memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _limit() -> None:
    """Limits the addresses of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _plant(fault: str) -> None:
    """Makes a library unsafe, in this process."""
    if fault == "yaml":
        yaml_reader.__dict__["_Loader"] = yaml.UnsafeLoader
    libraries: dict[str, tuple[Any, dict[str, bool]]] = {
        "numpy": (np, {"allow_pickle": True}),
        "torch": (torch, {"weights_only": False}),
    }
    if fault in libraries:
        library, unsafe = libraries[fault]
        load = library.load
        library.load = lambda file, **options: load(file, **options | unsafe)


def table(found: dict[str, list[Outcome]]) -> list[dict[str, Any]]:
    """Returns one row of counts per kind."""
    return [
        {
            "kind": name,
            "files": len(outcomes),
            **{result: sum(o.result == result for o in outcomes) for result in ("loaded", "refused", "other")},
            "executed": sum(bool(o.executed) for o in outcomes),
            "peak_mib": max(o.peak for o in outcomes),
        }
        for name, outcomes in found.items()
    ]


def run(kinds: Sequence[str], files: int, seed: int, planted: str = "") -> Iterator[tuple[str, list[Outcome]]]:
    """Yields the outcomes of each kind."""
    for name in kinds:
        with tempfile.TemporaryDirectory(prefix="searchgym-fuzz-") as home:
            yield name, fuzz(name, files, seed, Path(home).resolve(), planted)


def main() -> int:
    """Prints a table; faults go to standard error as they are found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="seed of all damage")
    parser.add_argument("--files", type=int, default=100, help="number of damaged files of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="kinds of files")
    parser.add_argument("--all", action="store_true", help="show every file, not only faults")
    parser.add_argument("--planted", choices=["yaml", "numpy", "torch"], default="", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    found = {}
    for name, outcomes in run(args.kinds, args.files, args.seed, args.planted):
        found[name] = outcomes
        print(f"{name} ...", file=sys.stderr)
        for o in outcomes:
            if args.all or o.result == "other" or o.executed:
                print(f"  {name} {o.number}: {o.result} ({o.what}) {o.error} {o.executed or ''}", file=sys.stderr)
    rows = table(found)
    emit_rows(rows, args.json, "results")
    return int(any(row["other"] or row["executed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
