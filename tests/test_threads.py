"""The number of threads: one for small models, torch's own for others, and whatever was set stays."""

import os
import subprocess
import sys

import pytest
import torch

from searchgym import threads
from searchgym.rollout.loading import load_model

CORES = len(os.sched_getaffinity(0))
SMALL, LARGE = threads.SMALL - 1, threads.SMALL


@pytest.fixture
def fresh(monkeypatch):
    """A process in which nothing was chosen and torch has a thread for each core."""
    for name in threads.SET:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "_choice", threads._Choice())
    before = torch.get_num_threads()
    torch.set_num_threads(CORES)
    yield
    torch.set_num_threads(before)


def chosen(*parameters):
    found = []
    for number in parameters:
        threads.choose_threads(number)
        found.append(torch.get_num_threads())
    return found


@pytest.mark.usefixtures("fresh")
def test_the_largest_model_of_a_process_decides():
    assert chosen(SMALL, 5, LARGE, SMALL, 10**9) == [1, 1, CORES, CORES, CORES]


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", threads.SET)
def test_the_environment_stays(name, monkeypatch):
    monkeypatch.setenv(name, "2")
    assert chosen(SMALL, LARGE) == [CORES, CORES]


@pytest.mark.usefixtures("fresh")
def test_a_number_that_was_set_stays():
    torch.set_num_threads(CORES + 3)
    assert chosen(SMALL, LARGE, SMALL) == [CORES + 3] * 3


@pytest.mark.usefixtures("fresh")
def test_a_number_that_is_set_later_stays():
    assert chosen(SMALL) == [1]
    torch.set_num_threads(CORES + 3)
    assert chosen(SMALL, LARGE) == [CORES + 3] * 2


@pytest.mark.usefixtures("fresh")
def test_loading_the_shipped_model_takes_one_thread():
    load_model("tiny")
    assert torch.get_num_threads() == 1


@pytest.mark.slow
def test_a_new_process_begins_with_torchs_own_number():
    """So that the number is recognised as nobody's choice."""
    code = "import torch; from searchgym.threads import *; choose_threads(5); print(torch.get_num_threads())"
    environment = {name: value for name, value in os.environ.items() if name not in threads.SET}
    for setting, wanted in (({}, "1"), ({"OMP_NUM_THREADS": "2"}, "2")):  # with one core the first is 1 anyway
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment | setting, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == wanted
