"""The ``doctor`` command: reports what is installed, what works with it and what is missing."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import typer

from searchgym.cli.doctor.installed import (
    CORE,
    JAVA,
    PARTS,
    Package,
    faults,
    look_at_packages,
    look_at_parts,
    module_of,
)
from searchgym.cli.doctor.machine import (
    cores,
    import_failure,
    look_at_data,
    look_at_gpus,
    look_at_java,
    memory,
)
from searchgym.cli.output import Json, emit, show, table
from searchgym.version import __version__

PYTHON_ASKED = ">=3.11"


def doctor(
    imports: Annotated[
        bool, typer.Option("--imports", help="Also import each package, in a separate process.")
    ] = False,
    json: Json = False,
) -> None:
    """Report installed packages, the features that work, and how to install the rest; status 1 if any is broken."""
    report = diagnose(imports)
    if json:
        emit(report, True)
    else:
        print_report(report)
    if report["problems"]:
        raise typer.Exit(1)


def diagnose(imports: bool = False) -> dict[str, Any]:
    """Examines packages, GPUs, memory and data folders, and returns a report.

    Args:
        imports: Also import every installed package, which finds broken libraries and is slow.

    Returns:
        ``searchgym`` and ``python`` versions, ``packages`` and ``parts`` (see `installed`), ``torch`` and ``machine``
        and ``data`` (see `machine`; sizes in bytes), and ``problems``: what is broken or outside its range, with the
        command that mends it.
    """
    packages = look_at_packages()
    packages.append(look_at_java())
    if imports:
        packages = try_imports(packages)
    gpus, cuda = look_at_gpus()
    if cuda.problem:
        packages = [_broken(p, cuda.problem) if p.name == "torch" and p.status == "ok" else p for p in packages]
    total, available = memory()
    problems = [{"name": p.name, "problem": p.problem, "command": p.command} for p in faults(packages)]
    return {
        "searchgym": __version__,
        "python": {"version": platform.python_version(), "asked": PYTHON_ASKED},
        "packages": [dataclasses.asdict(package) for package in packages],
        "parts": [dataclasses.asdict(part) for part in look_at_parts(packages)],
        "torch": dataclasses.asdict(cuda),
        "machine": {
            "cores": cores(),
            "memory": total,
            "memory_available": available,
            "gpus": [dataclasses.asdict(gpu) for gpu in gpus],
        },
        "data": look_at_data(),
        "problems": problems,
    }


def try_imports(packages: Sequence[Package]) -> list[Package]:
    """Imports every package whose metadata is fine, in parallel; returns the packages, failed ones marked broken."""

    def tried(package: Package) -> Package:
        if package.status != "ok" or package.name == JAVA:
            return package
        failure = import_failure(module_of(package.name))
        return _broken(package, f"cannot be imported: {failure}") if failure else package

    with ThreadPoolExecutor(cores()) as pool:
        return list(pool.map(tried, packages))


def _broken(package: Package, problem: str) -> Package:
    """Returns the package marked broken, with the problem and the command that reinstalls it."""
    command = f'pip install --force-reinstall "{package.name}{package.asked or ""}"'
    return dataclasses.replace(package, status="broken", problem=problem, command=command)


# -- printing ------------------------------------------------------------------------------------------------------


def print_report(report: dict[str, Any]) -> None:
    """Prints the report as tables."""
    uses = {name: [part.name for part in PARTS if name in part.needs] for name in _needed()}
    rows = []
    for p in report["packages"]:
        used = uses.get(p["name"]) or (["environments"] if p["extra"] == CORE else ["nothing in this version"])
        rows.append(
            (p["name"], show(p["version"]), p["asked"] or "any", p["extra"] or "", p["status"], ", ".join(used))
        )
    title = f"searchgym {report['searchgym']}, Python {report['python']['version']} (asked for: {PYTHON_ASKED})"
    table(("package", "installed", "asked for", "extra", "state", "used by"), rows, title)
    parts = [
        (
            p["name"],
            p["state"] + (f": {', '.join(p['lacks'])}" if p["lacks"] else ""),
            p["gives"],
            "; ".join(p["commands"]),
        )
        for p in report["parts"]
    ]
    table(("part", "state", "what it gives", "what installs the rest"), parts, "parts of SearchGym")
    emit(_places(report), False, "this machine")
    if report["problems"]:
        wrong = [(p["name"], p["problem"], p["command"] or "") for p in report["problems"]]
        table(("broken", "what is wrong", "what mends it"), wrong, "problems")


def _needed() -> set[str]:
    """Returns the names of all packages that a part needs."""
    return {name for part in PARTS for name in part.needs}


def _places(report: dict[str, Any]) -> dict[str, str]:
    """Returns the rows of the table on machine and data folders."""
    machine, data, torch = report["machine"], report["data"], report["torch"]
    base, real = data["home"], data["real_data"]
    gpus = [f"{g['name']}, {_gib(g['memory'])}, {_gib(g['free'])} free" for g in machine["gpus"]]
    how = "SEARCHGYM_HOME" if base["set"] else "SEARCHGYM_HOME is not set"
    said = "on a GPU" if torch["usable"] else torch["problem"] or torch["note"] or "on the CPU"
    fix = torch["command"]
    found = [entry["file"] for entry in data["files"] if entry["there"]]
    own = [entry["file"] for entry in real["files"] if entry["there"]]
    return {
        "cores": str(machine["cores"]),
        "memory": f"{_gib(machine['memory'])}, {_gib(machine['memory_available'])} available",
        "GPUs": "\n".join(gpus) or "none",
        "torch": (f"{torch['build']} build: " if torch["build"] else "") + said + (f"; {fix}" if fix else ""),
        "home": f"{base['path']} ({how}{'' if base['there'] else '; not made yet'}), {_gib(base['free'])} free",
        "data files": f"{len(found)} of {len(data['files'])}: {', '.join(found) or 'none'}",
        "indexes": f"{len(data['indexes'])}: {', '.join(data['indexes'])}" if data["indexes"] else "none",
        "worlds": f"{len(data['worlds'])}: {', '.join(data['worlds'])}" if data["worlds"] else "none",
        "SEARCHGYM_DATA": f"{real['path']}: {', '.join(own) or 'nothing of what tests and benchmarks read'}"
        if real["path"]
        else "not set: tests and benchmarks do without real data",
    }


def _gib(size: int | None) -> str:
    """Formats a number of bytes as GiB."""
    return "n/a" if size is None else f"{size / 2**30:.1f} GiB"
