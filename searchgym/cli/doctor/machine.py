"""State of the machine: Java, torch and its GPUs, cores, memory, disk, and the data folders.

Programs and imports run in separate processes with a time limit, so that none of them can end or hang the report.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from searchgym.cli.doctor.installed import JAVA, Package, Status
from searchgym.corpora.folders import home
from searchgym.envs.cards import EnvCard
from searchgym.errors import UsageError
from searchgym.options.cards import CorpusCard, list_cards, load_card
from searchgym.retrieval.lucene.java import JDK, find_jdk

JAVA_COMMAND = f"conda install -c conda-forge openjdk={JDK}"
IMPORT_SECONDS = 120.0
"""Time limit of an import, in seconds; DeepSpeed and vLLM take tens of seconds on a cold disk."""
PROGRAM_SECONDS = 20.0
"""Time limit of ``java`` and ``nvidia-smi``, in seconds."""
DRIVER_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Device files of which one exists if a GPU driver is loaded: NVIDIA's, AMD's or that of WSL."""
REAL_DATA = (
    "hotpotqa/questions.json",
    "hotpotqa/corpus.json",
    "hotpotqa/dev_simplified.json",
    "2wikimultihopqa/corpus.json",
)
"""Files in ``SEARCHGYM_DATA`` that tests and benchmarks read."""
TORCH_PROBE = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
seen = [torch.cuda.get_device_properties(i) for i in range(count)]
print(json.dumps([{"name": one.name, "memory": one.total_memory, "free": None} for one in seen]))
"""


# -- trying --------------------------------------------------------------------------------------------------------


def import_failure(module: str, seconds: float = IMPORT_SECONDS) -> str | None:
    """Imports a module in a separate process; returns the error message, None on success."""
    return python_result(f"import {module}", seconds)[1]


def python_result(code: str, seconds: float) -> tuple[str, str | None]:
    """Runs Python code in a process that finds the modules this one finds; returns what it printed, what went wrong."""
    paths = os.pathsep.join(path for path in sys.path if path)
    status, out, err = run([sys.executable, "-P", "-c", code], seconds, {"PYTHONPATH": paths})
    if status == 0:
        return out, None
    if status is None:
        return out, f"no end within {seconds:g} s"
    return out, last_line(err) or (f"ended by signal {-status}" if status < 0 else f"ended with status {status}")


def run(
    command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None
) -> tuple[int | None, str, str]:
    """Runs a program; returns its status (None: not to be started, or no end in time), output and error output."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            env={**os.environ, **(environment or {})},
        )
    except subprocess.TimeoutExpired:
        return None, "", ""
    except OSError as error:
        return None, "", str(error)
    return done.returncode, done.stdout, done.stderr


def last_line(text: str) -> str:
    """Returns the last line of a program's words that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


# -- Java ----------------------------------------------------------------------------------------------------------


def look_at_java() -> Package:
    """Returns the state of the Java that the Lucene back end would start, or of an unsuitable one if installed."""
    asked = f">={JDK}"
    program: Path | None
    unfit = None
    try:
        program = find_jdk() / "bin" / "java"
    except UsageError as error:
        program, unfit = _any_java(), str(error)
    if program is None:
        return Package(name=JAVA, version=None, asked=asked, extra=None, status="missing", command=JAVA_COMMAND)
    _, _, said = run([str(program), "-version"], PROGRAM_SECONDS)  # Java says its version on standard error
    found = re.search(r'version "(?:1\.)?([^"]+)"', said)
    version = found[1] if found else None
    status: Status = "ok"
    problem = None
    if version is None:
        status, problem = "broken", f"{program} does not start: {last_line(said) or 'it says nothing'}"
    elif unfit:
        status, problem = "outside", f"{program} is Java {version}; {unfit}"
    command = JAVA_COMMAND if problem else None
    return Package(name=JAVA, version=version, asked=asked, extra=None, status=status, problem=problem, command=command)


def _any_java() -> Path | None:
    """Returns ``JAVA_HOME``'s program, else the one on the path; None if there is neither."""
    own = os.environ.get("JAVA_HOME")
    program = str(Path(own) / "bin" / "java") if own else shutil.which("java")
    return Path(program) if program else None


# -- GPUs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    name: str
    memory: int | None
    """Total memory in bytes; None if unknown."""
    free: int | None
    """Free memory in bytes; None if unknown."""


@dataclass(frozen=True, slots=True)
class Cuda:
    """What torch can do with GPUs."""

    build: str | None
    """``"cpu"``, ``"CUDA 13.0"``, ``"ROCm 7.1"``; None without torch."""
    usable: bool
    """Whether torch computes on a GPU here."""
    note: str | None
    """Explanation if torch uses no GPU although nothing is broken."""
    problem: str | None = None
    """Description of what is broken; None if nothing is."""
    command: str | None = None
    """Shell command that makes torch use the GPU; None if there is none."""


def driver_gpus() -> list[Gpu]:
    """Returns the GPUs that NVIDIA's driver sees."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    status, out, _ = run(query, PROGRAM_SECONDS)
    found = []
    for line in out.splitlines() if status == 0 else ():
        name, *sizes = (cell.strip() for cell in line.rsplit(",", 2))
        memory, free = (int(cell) * 2**20 if cell.isdigit() else None for cell in (*sizes, "", "")[:2])
        found.append(Gpu(name, memory, free))
    return found


def torch_build(own: metadata.Distribution) -> str:
    """Reads from torch's own files what it was built for: ``"cpu"``, ``"CUDA 13.0"`` or ``"ROCm 7.1"``."""
    text = Path(str(own.locate_file("torch/version.py"))).read_text(encoding="utf-8")
    for variable, name in (("cuda", "CUDA"), ("hip", "ROCm")):
        if found := re.search(rf"^{variable}\b[^=]*= *['\"]([^'\"]+)['\"]", text, re.MULTILINE):
            return f"{name} {found.group(1)}"
    return "cpu"


def look_at_gpus() -> tuple[list[Gpu], Cuda]:
    """Returns the GPUs, and whether torch can use them.

    Torch is imported, in a separate process, only if it was built for GPUs and a driver is loaded.
    """
    gpus = driver_gpus()
    try:
        build = torch_build(metadata.distribution("torch"))
    except metadata.PackageNotFoundError:
        return gpus, Cuda(None, False, "no torch")
    except (OSError, UnicodeDecodeError) as error:
        return gpus, Cuda(None, False, f"torch/version.py cannot be read: {error}")
    if build == "cpu":
        lock = "make setup LOCK=requirements/cuda.txt" if gpus else None
        return gpus, Cuda(
            build, False, "torch was built without CUDA: the GPU is not used" if gpus else None, None, lock
        )
    if not gpus and not any(there(Path(device)) for device in DRIVER_DEVICES):
        return gpus, Cuda(build, False, "no driver, no GPU")
    out, failure = python_result(TORCH_PROBE, IMPORT_SECONDS)
    if failure is not None:
        return gpus, Cuda(build, False, None, f"torch fails: {failure}")
    seen = [Gpu(**one) for one in json.loads(last_line(out) or "[]")]
    if seen:
        return gpus or seen, Cuda(build, True, None)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        return gpus, Cuda(build, False, f"CUDA_VISIBLE_DEVICES={hidden!r} hides the GPUs")
    problem = (
        f"the driver shows {len(gpus)} GPUs, torch (built for {build}) can use none: is the driver older than that?"
    )
    return gpus, Cuda(build, False, None, problem if gpus else None)


# -- cores, memory, disk -------------------------------------------------------------------------------------------


def cores(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns the cores that this process may use: its affinity, and a container's share rounded up."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _words(group / "cpu.max")
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit() and int(quota[1]):
        own = min(own, max(1, -(-int(quota[0]) // int(quota[1]))))
    return own


def memory(group: Path = Path("/sys/fs/cgroup"), info: Path = Path("/proc/meminfo")) -> tuple[int | None, int | None]:
    """Returns bytes of memory in all and available, both at most what a container may use; None where unknown."""
    words = _words(info)
    sizes = {name: int(size) * 1024 for name, size in itertools.pairwise(words) if size.isdigit()}
    total, free = sizes.get("MemTotal:"), sizes.get("MemAvailable:")
    limit, used = _words(group / "memory.max"), _words(group / "memory.current")
    if limit and limit[0].isdigit():
        total = min(total or int(limit[0]), int(limit[0]))
        rest = max(int(limit[0]) - (int(used[0]) if used else 0), 0)
        free = min(rest if free is None else free, rest)
    return total, free


def _words(file: Path) -> list[str]:
    """Returns the words of a small file; none if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError):
        return []


def free_disk(folder: Path) -> int | None:
    """Returns the free bytes of the disk on which a folder is, or would be made."""
    for place in (folder, *folder.absolute().parents):
        try:
            return shutil.disk_usage(place).free
        except OSError:
            continue
    return None


# -- data ----------------------------------------------------------------------------------------------------------


def look_at_data() -> dict[str, Any]:
    """Returns where data files are expected and which of them exist.

    Returns:
        ``home`` (path, whether ``SEARCHGYM_HOME`` names it, whether it is there, free bytes), ``files`` of the shipped
        environment and corpus cards with whether each is there, names of ``indexes`` and ``worlds``, and
        ``real_data``: what ``SEARCHGYM_DATA`` names, with the files that tests and benchmarks read there.
    """
    base = home()
    wanted: dict[str, str] = {}
    for card in (load_card(EnvCard, path) for path in list_cards("envs").values()):
        if needed := card.questions.needs_file:
            wanted[needed] = f"questions of {card.id}"
    for corpus in (load_card(CorpusCard, path) for path in list_cards("corpora").values()):
        if not corpus.bundled:
            wanted[corpus.file] = f"corpus {corpus.name}"
    real = os.environ.get("SEARCHGYM_DATA")
    return {
        "home": {
            "path": str(base.absolute()),
            "set": bool(os.environ.get("SEARCHGYM_HOME")),
            "there": there(base),
            "free": free_disk(base),
        },
        "files": [{"file": name, "what": what, "there": there(base / "data" / name)} for name, what in wanted.items()],
        "indexes": _folders(base / "indexes"),
        "worlds": _folders(base / "worlds"),
        "real_data": {
            "path": real,
            "files": [{"file": name, "there": there(Path(real) / name)} for name in REAL_DATA] if real else [],
        },
    }


def there(path: Path) -> bool:
    """Returns whether a path exists; paths in unreadable folders count as absent."""
    try:
        return path.exists()
    except OSError:
        return False


def _folders(path: Path) -> list[str]:
    """Returns the names of the finished folders in a folder."""
    try:
        return sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return []
