"""Installation of SearchGym, and the versions of other projects' packages that its adapters support."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.specifiers import SpecifierSet

from searchgym.errors import UsageError

PUBLISHED: Final = False
"""Whether SearchGym is on a package index; decides every installation command that is printed."""
WORKS: Final = {
    "inspect-ai": ">=0.3.285,<0.4",
    "mcp": ">=2.3,<3",
    "openenv": ">=0.10,<0.11",
    "openrlhf": ">=0.11.2,<0.12",
    "skyrl-gym": ">=0.4,<0.5",
    "verifiers": ">=0.4,<0.5",
    "verl": ">=0.9.1,<0.10",
}
"""Package to the versions that its adapter supports; extras require the same versions."""
EXTRAS: Final = {
    "inspect-ai": "view",
    "mcp": "mcp",
    "openenv": "openenv",
    "skyrl-gym": "skyrl",
    "verifiers": "verifiers",
}
"""Package to the extra of ``setup.cfg`` that installs it; all others are installed with their own trainer."""


def install_command(extra: str = "") -> str:
    """Returns the shell command that installs SearchGym, optionally with an extra.

    While SearchGym is on no package index, the command names the checkout or the folder of the wheel.
    """
    extras = f"[{extra}]" if extra else ""
    checkout = Path(__file__).parents[1]
    if PUBLISHED:
        return f'pip install "searchgym{extras}"'
    if (checkout / "setup.cfg").is_file():
        return f'pip install -e "{checkout}{extras}"'
    return f'pip install --find-links FOLDER_OF_THE_WHEEL "searchgym{extras}"'


def check(package: str) -> None:
    """Checks the installed version of another project's package without importing it.

    Raises:
        UsageError: The package is missing, or its adapter does not support the version.
    """
    works = WORKS[package]
    install = f"pip install '{package}{works}'"
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        extra = EXTRAS.get(package)
        install = install if extra is None else install_command(extra)
        raise UsageError(f"{package} is not installed: {install}") from None
    if not SpecifierSet(works).contains(version, prereleases=True):
        raise UsageError(f"{package} {version} is installed, and this adapter works with {package}{works}: {install}")
