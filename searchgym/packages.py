"""Packages of other projects that parts of SearchGym are written for, and the versions that these parts work with."""

from __future__ import annotations

from importlib import metadata
from typing import Final

from packaging.specifiers import SpecifierSet

from searchgym.errors import UsageError

WORKS: Final = {
    "inspect-ai": ">=0.3.285,<0.4",
    "mcp": ">=2.3,<3",
    "openenv": ">=0.10,<0.11",
    "openrlhf": ">=0.11.2,<0.12",
    "skyrl-gym": ">=0.4,<0.5",
    "verifiers": ">=0.4,<0.5",
    "verl": ">=0.9.1,<0.10",
}
"""Package to the versions that its adapter works with; where an extra asks for the package, it asks for these."""
EXTRAS: Final = {
    "inspect-ai": "view",
    "mcp": "mcp",
    "openenv": "openenv",
    "skyrl-gym": "skyrl",
    "verifiers": "verifiers",
}
"""Package to the extra of ``setup.cfg`` that installs it; the others come with the trainer that they belong to."""


def check(package: str) -> None:
    """Checks the installed version of another project's package without importing it.

    Raises:
        UsageError: The package is missing, or has a version that its adapter does not work with.
    """
    works = WORKS[package]
    asked = f"pip install '{package}{works}'"
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        extra = EXTRAS.get(package)
        install = asked if extra is None else f"pip install 'searchgym[{extra}]'"
        raise UsageError(f"{package} is not installed: {install}") from None
    if not SpecifierSet(works).contains(version, prereleases=True):
        raise UsageError(f"{package} {version} is installed, and this adapter works with {package}{works}: {asked}")
