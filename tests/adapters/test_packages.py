"""Versions of other projects' packages: what is asked for, and what an adapter says of another version."""

import configparser
import importlib
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from searchgym import packages
from searchgym.errors import UsageError
from searchgym.packages import EXTRAS, WORKS, check, install_command

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def setup_cfg():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def test_extras_ask_for_the_versions_that_work(setup_cfg):
    for package, extra in EXTRAS.items():
        asked = {r.name: r.specifier for r in map(Requirement, setup_cfg["options.extras_require"][extra].split())}
        assert asked[package] == SpecifierSet(WORKS[package])


def test_environments_of_the_tests_have_the_versions_that_work():
    pinned = {}
    for file in (ROOT / "requirements" / "adapters").glob("*.txt"):
        lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        pinned |= {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    for package in WORKS.keys() - {"inspect-ai", "mcp"}:  # those are in the lock
        assert SpecifierSet(WORKS[package]).contains(pinned[package])
        assert f"`{package}` {pinned[package]} " in (ROOT / "docs" / "do" / "adapters.md").read_text()


@pytest.mark.parametrize("package", WORKS)
def test_another_version_is_refused_by_the_one_that_works(package, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "0.0.9")
    with pytest.raises(UsageError) as caught:
        check(package)
    works = f"{package}{WORKS[package]}"
    assert str(caught.value) == (
        f"{package} 0.0.9 is installed, and this adapter works with {works}: pip install '{works}'"
    )


def test_a_package_that_is_missing_is_named_with_what_installs_it(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(UsageError, match=r"pip install -e .*\[verifiers\]"):
        check("verifiers")
    with pytest.raises(UsageError, match=r"verl is not installed: pip install 'verl>=0.9.1,<0.10'"):
        check("verl")


def test_what_installs_searchgym_works_where_it_is(monkeypatch, tmp_path):
    assert install_command("view") == f'pip install -e "{ROOT}[view]"'
    assert install_command() == f'pip install -e "{ROOT}"'
    monkeypatch.setattr(packages, "__file__", str(tmp_path / "searchgym" / "packages.py"))  # from a wheel
    assert install_command("view") == 'pip install --find-links FOLDER_OF_THE_WHEEL "searchgym[view]"'
    monkeypatch.setattr(packages, "PUBLISHED", True)
    assert install_command("view") == 'pip install "searchgym[view]"'


@pytest.mark.parametrize(
    "module",
    [
        "inspect_evals",
        "openenv_client",
        "openenv_server",
        "openrlhf_agent",
        "skyrl_env",
        "verifiers_env",
        "verl_loop",
    ],
)
def test_an_adapter_checks_before_it_imports(module, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "0.0.9")
    for name in list(sys.modules):
        if name.startswith("searchgym.adapters.") and name.endswith((module, "openenv_client")):
            monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UsageError, match=r"0\.0\.9 is installed, and this adapter works with"):
        importlib.import_module(f"searchgym.adapters.{module}")


def test_inspect_finds_the_task(setup_cfg):
    (line,) = setup_cfg["options.entry_points"]["inspect_ai"].split("\n")[1:]
    name, module = line.split(" = ")
    assert name == "searchgym"
    assert hasattr(importlib.import_module(module), "search")
