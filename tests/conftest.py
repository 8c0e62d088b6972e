"""Fixtures that several test files share, and a guard that keeps the quick tests quick."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CPU_SECONDS = 5.0
"""CPU time on a free core that a test without a marker may take in CI, children included."""
YARDSTICK_SECONDS = 0.1
"""CPU time of `yardstick` on the free core that `CPU_SECONDS` is meant for."""
os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray reads it once, when anything imports it
MARKERS = {"smoke", "slow", "engine", "adapter", "cluster", "study", "gpu"}
GPU_REQUIRED = "SEARCHGYM_GPU"
"""Environment variable that makes a test with the marker ``gpu`` fail, not skip, where FAISS finds no GPU."""
APART = {
    "test_selfcheck.py",
    "test_vllm_training.py",
    "test_benchmarks.py",
    "test_agent_recipes.py",
}
"""Names of files whose tests are long and share no costly fixture."""
SETUP = pytest.StashKey[float]()
SAMPLED: list[float] = []
"""CPU seconds of `yardstick` after the first ten tests of a second or more: how slow this run's cores are at times."""


def cpu_seconds() -> float:
    """Returns the CPU time that this process and its finished children have taken."""
    return sum(os.times()[:4])


def yardstick() -> float:
    """Returns the CPU time that a fixed piece of work takes here and now.

    A second of CPU time is not the same amount of work everywhere: two processes that share a core's units need nearly
    twice the seconds each that one of them needs alone.
    """
    before = time.process_time()
    for _ in range(200):
        text = json.dumps({str(key): [key, str(key) * 3] for key in range(300)})
        assert len(json.loads(text)) + len(re.findall(r"\d+", text)) == 1200
    return time.process_time() - before


def too_slow(markers: set[str], seconds: float, work: float) -> str | None:
    """Returns the message for a test that took too much CPU time, None if it took little or is marked.

    Args:
        markers: Names of the test's markers.
        seconds: CPU seconds that the test took.
        work: CPU seconds of `yardstick` in this run; on slower cores the test may take longer in proportion.
    """
    allowed = CPU_SECONDS * max(1.0, work / YARDSTICK_SECONDS)
    if markers & MARKERS or seconds <= allowed:
        return None
    return (
        f"took {seconds:.1f} CPU seconds, children included; a test without a marker may take {allowed:.1f} here "
        f"({CPU_SECONDS:g} on a free core): make it cheaper, or mark it slow (engine, if it starts one) and leave a "
        "quick sibling"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives whole files to one process, but tests of `APART` one by one: a long file would leave others idle."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist is not typed
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            return nodeid if Path(file).name in APART else file

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all cases but the first of a test with the marker ``slow_cases`` as slow: before tests are chosen by it."""
    seen: set[str] = set()
    for item in items:
        if item.get_closest_marker("slow_cases"):
            test = item.nodeid.partition("[")[0]
            if test in seen:
                item.add_marker(pytest.mark.slow)
            seen.add(test)


def missing_gpu() -> str | None:
    """Returns why tests with the marker ``gpu`` cannot run here, None if they can."""
    import faiss

    if not hasattr(faiss, "StandardGpuResources"):
        return "NOT TESTED HERE: this FAISS has no GPU support (make setup LOCK=requirements/cuda.txt)"
    return None if faiss.get_num_gpus() else "NOT TESTED HERE: FAISS finds no GPU"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says which tests were skipped for want of a GPU, whatever the options of the run."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "gpu" in report.keywords]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} tests with the marker gpu: {skipped[0].longrepr[2]}", yellow=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Notes the CPU time of a test's fixtures; one that is shared counts for the test that needs it first."""
    if item.get_closest_marker("gpu") and (missing := missing_gpu()):
        (pytest.fail if os.environ.get(GPU_REQUIRED) else pytest.skip)(missing)
    before = cpu_seconds()
    yield
    item.stash[SETUP] = cpu_seconds() - before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fails a test that took too much CPU time, in CI."""
    before = cpu_seconds()
    yield
    seconds = item.stash[SETUP] + cpu_seconds() - before
    if not os.environ.get("CI"):
        return
    if seconds > CPU_SECONDS or (seconds > 1.0 and len(SAMPLED) < 10):
        SAMPLED.append(yardstick())
    if seconds > CPU_SECONDS and (
        message := too_slow({mark.name for mark in item.iter_markers()}, seconds, max(SAMPLED))
    ):
        pytest.fail(message, pytrace=False)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real questions and passages that SEARCHGYM_DATA names; a wrong name is a failure, not a skip."""
    name = os.environ.get("SEARCHGYM_DATA")
    if not name:
        pytest.skip("SEARCHGYM_DATA is not set: no real data to test on")
    folder = Path(name)
    if not folder.is_dir():
        pytest.fail(f"SEARCHGYM_DATA names {folder}, which is no folder")
    return folder
