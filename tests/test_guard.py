"""The guard of conftest.py: a test without a marker that takes much CPU time fails in CI."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # of pages, scripts and the machinery of tests, which a change of code seldom breaks

CONFTEST = Path(__file__).with_name("conftest.py")
TESTS = """
import pytest

def burn():
    return sum(range(10**7))

@pytest.fixture
def burnt():
    return burn()

def test_quick():
    pass

def test_long():
    burn()

def test_long_fixture(burnt):
    pass

def test_long_child():
    import subprocess, sys
    subprocess.run([sys.executable, "-c", "sum(range(10**7))"], check=True)

@pytest.mark.slow
def test_marked():
    burn()
"""


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("ci", "failed"), [(True, {"test_long", "test_long_fixture", "test_long_child"}), (False, set())]
)
def test_tests_without_a_marker_have_a_limit_in_ci(tmp_path: Path, ci: bool, failed: set[str]) -> None:
    """The limit is lowered, so that a tenth of a second is too long."""
    limit = CONFTEST.read_text(encoding="utf-8").replace("CPU_SECONDS = 5.0", "CPU_SECONDS = 0.06")
    assert "0.06" in limit
    (tmp_path / "conftest.py").write_text(limit, encoding="utf-8")
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: of minutes\n", encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | ({"CI": "true"} if ci else {})
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", "-p", "no:xdist", "test_some.py"]
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    assert {line.split("::")[1].split(" ")[0] for line in said.splitlines() if line.startswith("FAILED")} == failed
    assert (f"{len(failed)} failed" in said) == bool(failed)
    assert "a test without a marker may take" in said or not ci


def test_the_limit_is_of_a_free_core() -> None:
    """Half the speed, twice the seconds; a faster core than the one of the limit gets no less."""
    conftest = runpy.run_path(str(CONFTEST))
    too_slow, free = conftest["too_slow"], conftest["YARDSTICK_SECONDS"]
    assert "may take 5.0 here" in too_slow(set(), 5.1, free)
    assert too_slow(set(), 9.9, 2 * free) is None
    assert "may take 10.0 here" in too_slow(set(), 10.1, 2 * free)
    assert too_slow(set(), 4.9, free / 2) is None
    assert too_slow({"slow"}, 99.0, free) is None
