"""The simulation of benchmarks/scale.py: engines keep pace, limits are counted by hand, every part prints rows."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow  # of pages, scripts and the machinery of tests, which a change of code seldom breaks

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from scale import GPUS, Controller, limits  # noqa: E402
from simulated import Engines  # noqa: E402

from searchgym.retrieval import NullRetriever  # noqa: E402


class Fixed:
    """Script whose responses have a given number of tokens."""

    def response(self, request: int) -> np.ndarray:
        return np.zeros(request, np.int32)


def test_an_engine_gives_every_row_a_token_per_step() -> None:
    """Two rows, 3 ms a token: of lengths 10, 20 and 5 the last waits for the first, so the order is 10, 5, 20."""
    engines = Engines(Fixed(), rows=2, step=0.003)  # type: ignore[arg-type]
    todo, order = [(0, 10), (1, 20), (2, 5)], []

    def pull() -> list[tuple[int, int]]:
        new = todo.copy()
        todo.clear()
        return new

    began = time.perf_counter()
    engines.stream(pull, lambda key, response: order.append((key, len(response.ids))))  # type: ignore[arg-type]
    assert order == [(0, 10), (2, 5), (1, 20)]
    assert time.perf_counter() - began >= 20 * 0.003
    assert engines.row_seconds() >= (10 + 20 + 5) * 0.003


@pytest.mark.slow
def test_the_controller_plays_scripted_episodes() -> None:
    """Every episode searches three times and answers; `run` raises otherwise."""
    args = argparse.Namespace(tokenizer="tiny", tokens=24, passages=2000)
    own = Controller(NullRetriever(), 8, 0.0, 8, args)
    assert own.run(12) > 0
    own.sampler.script.searches = 2
    with pytest.raises(RuntimeError, match="went wrong"):
        own.run(2)


def test_limits_by_hand() -> None:
    """A row takes 4 x 100 x 0.01 = 4 s for an episode: 64 rows give 16 a second, half of the time 8 a GPU."""
    args = argparse.Namespace(rows=64, step=0.01, tokens=100, sampling=0.5, batch=2560, parameters=2**30)
    controllers = [{"retriever": "bm25", "episodes_per_s": 1.0}, {"retriever": "bm25 served", "episodes_per_s": 100.0}]
    servers = [{"queries_per_s": 1000.0}, {"queries_per_s": 50.0}]
    weights = [{"by": "folder", "mib_per_s": 512.0}, {"by": "gloo", "mib_per_s": 1024.0}]
    first, second, third = limits(controllers, servers, weights, args)
    assert [first["gpus"], second["gpus"], third["gpus"]] == list(GPUS)
    assert (first["episodes_per_s"], first["step_s"], first["controllers"], first["servers"]) == (64.0, 40.0, 1, 1)
    assert (second["episodes_per_s"], second["step_s"], second["controllers"], second["servers"]) == (512.0, 5.0, 6, 2)
    assert (third["episodes_per_s"], third["controllers"], third["servers"]) == (4096.0, 41, 13)
    assert (third["folder_s"], third["gloo_s"]) == (4.0, 2.0)  # 2 GiB


def script(*arguments: str) -> list[dict[str, object]]:
    command = [sys.executable, str(ROOT / "benchmarks" / "scale.py"), *arguments, "--json"]
    found = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)["results"]


@pytest.mark.study
def test_every_part_prints_its_rows() -> None:
    small = ["--passages", "2000", "--episodes", "32", "--runs", "1", "--requests", "20", "--clients", "2"]
    rows = script("limits", *small, "--concurrency", "16", "--mib", "65", "--tokens", "24")
    assert [row["part"] for row in rows] == ["controller"] * 3 + ["server"] * 2 + ["transfer"] * 5 + ["limits"] * 3
    assert all(row["episodes_per_s"] > 0 for row in rows[:3])
    assert {row["by"] for row in rows[5:10]} == {"written", "hashed", "read", "gloo", "folder"}


@pytest.mark.study
def test_engines_in_two_controllers() -> None:
    small = ["--passages", "2000", "--tokens", "24", "--rows", "4", "--step", "0.01", "--seconds", "2"]
    one, two = script("engines", *small, "--engines", "1", "2", "--controllers", "2")
    assert (one["engines"], one["controllers"], two["controllers"]) == (1, 1, 2)
    assert one["engines_allow"] == pytest.approx(4 / (4 * 24 * 0.01), abs=0.01)
    assert 0 < one["rows_taken"] <= 1.01 and two["episodes_per_s"] > 0
