"""Names that packages hand on: each is its module's, type checkers know it, and the packages stay light."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = [
    "searchgym.agents",
    "searchgym.corpora",
    "searchgym.retrieval",
    "searchgym.envs",
    "searchgym.eval",
    "searchgym.eval.formats",
    "searchgym.eval.judged",
    "searchgym.eval.leaderboard",
    "searchgym.eval.suites",
    "searchgym.scoring.judges",
    "searchgym.eval.report",
    "searchgym.rollout",
    "searchgym.train",
    "searchgym.adapters.trl",
]
HEAVY = {"datasets", "deepspeed", "faiss", "numba", "pyarrow", "torch", "transformers", "trl", "vllm"}


def for_type_checkers(package):
    """Returns name to module of what a package imports from its modules, under ``TYPE_CHECKING`` or not."""
    tree = ast.parse(Path(package.__file__).read_text())
    lines = [line for line in ast.walk(tree) if isinstance(line, ast.ImportFrom)]
    own = [line for line in lines if line.module.startswith(f"{package.__name__}.")]
    return {alias.name: line.module for line in own for alias in line.names}


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_is_the_one_of_its_module(name):
    package = importlib.import_module(name)
    where = for_type_checkers(package)
    assert sorted(where) == sorted(package.__all__)
    assert set(package.__all__) < set(dir(package))
    for public, module in where.items():
        assert getattr(package, public) is getattr(importlib.import_module(module), public)


def test_a_name_that_is_not_handed_on():
    with pytest.raises(AttributeError, match=r"'searchgym\.train' has no attribute 'trane'"):
        importlib.import_module("searchgym.train").__getattr__("trane")


@pytest.mark.slow
def test_the_packages_are_light():
    code = f"import sys, {', '.join(PACKAGES)}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(found.stdout.split())
