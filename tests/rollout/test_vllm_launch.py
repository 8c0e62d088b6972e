"""The start of a vLLM engine: its guard, what it reports, and who holds the memory that it lacks. Without vLLM."""

import json
import logging
import os
import pkgutil
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from searchgym.rollout.transformers.sampler import slow_on_gpu
from searchgym.rollout.vllm.launch.gpu_memory import memory_shortage, nvidia_smi
from searchgym.rollout.vllm.launch.progress import StageHandler, log_settings, timed

GUARDED = """
import multiprocessing, os, subprocess, sys, threading
from searchgym.rollout.vllm.launch.guard import Guard

def engine(numbers):
    numbers.send(subprocess.Popen(["sleep", "60"]).pid)
    threading.Event().wait(60)

if __name__ == "__main__":
    guard, context = Guard(), multiprocessing.get_context("spawn")
    if sys.argv[1] == "forked" and os.fork() == 0:  # it holds the guard's input open
        threading.Event().wait(20)
        os._exit(0)
    here, there = context.Pipe()
    with guard.starting():
        child = context.Process(target=engine, args=(there,))
        child.start()
        below = here.recv()
        while child.pid not in guard._seen:
            threading.Event().wait(0.01)
        print(child.pid, below, flush=True)
        threading.Event().wait(60)
"""


@pytest.mark.parametrize("forked", ["alone", "forked"])
def test_guarded_processes_end_with_a_killed_program(tmp_path, forked):
    """And with them those that they started, also if a forked process keeps the guard's input open."""
    script = tmp_path / "program.py"
    script.write_text(GUARDED)
    with subprocess.Popen([sys.executable, str(script), forked], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        numbers = [int(word) for word in process.stdout.readline().split()]
        others = {child.pid for child in psutil.Process(process.pid).children()} - set(numbers)
        process.kill()
        for _ in range(500):
            if not any(map(psutil.pid_exists, numbers)):
                break
            threading.Event().wait(0.02)
        for number in [*numbers, *others]:  # of this test's: the guard, a forked process, Python's tracker
            if psutil.pid_exists(number):
                assert number in others, f"process {number} is still there"
                psutil.Process(number).kill()
    assert len(numbers) == 2


# -- memory of GPUs ------------------------------------------------------------------------------------------------


def smi(free, holders):
    """A machine with two GPUs of 139.8 GiB, of which the second is free."""
    gpus = [["0", "GPU-a", str(free), "143155"], ["1", "GPU-b", "143000", "143155"]]
    return lambda query: holders if "apps" in query else gpus


def test_who_holds_a_gpus_memory_is_named_with_the_remedy():
    holders = [
        ["GPU-a", str(os.getpid()), "107520", "python"],
        ["GPU-a", "77", "2048", "/usr/bin/python", "serve.py"],
        ["GPU-b", "78", "100", "other"],
    ]
    why = memory_shortage(0.4, ["0"], smi(33792, holders))
    assert why is not None
    assert "GPU 0 has 33.0 of 139.8 GiB free, the engine's share of 0.4 is 55.9" in why
    assert "this process: 105.0 GiB, process 77 (/usr/bin/python,serve.py): 2.0 GiB" in why
    assert "78" not in why
    assert all(word in why for word in ("gpu_share", "XLA_PYTHON_CLIENT_PREALLOCATE=false", "JAX_PLATFORMS=cpu"))


@pytest.mark.parametrize(("share", "gpus"), [(0.4, ["1"]), (0.4, ["GPU-b"]), (0.2, ["0"])])
def test_gpus_with_enough_memory_explain_nothing(share, gpus):
    assert memory_shortage(share, gpus, smi(33792, [])) is None


def test_memory_of_processes_that_are_not_listed_or_have_no_size():
    why = memory_shortage(0.4, ["GPU-a"], smi(0, []))
    assert why is not None
    assert "held by processes that nvidia-smi does not show here" in why
    why = memory_shortage(0.4, ["0"], smi(0, [["GPU-a", "77", "[N/A]", "python"]]))
    assert why is not None
    assert "process 77 (python): an unknown size" in why


def test_nvidia_smi_is_read_and_may_be_missing_or_fail(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia_smi("--query-gpu=index") == []
    program = tmp_path / "nvidia-smi"
    for body, rows in (("echo '0, GPU-a, 5'", [["0", "GPU-a", "5"]]), ("exit 9", [])):
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        assert nvidia_smi("--query-gpu=index") == rows


# -- transformers on a GPU -----------------------------------------------------------------------------------------


def test_vllm_is_advised_on_a_gpu_for_models_of_some_size_only():
    assert "ten times slower than vLLM" in slow_on_gpu("cuda", 500_000_000)
    assert slow_on_gpu("cpu", 500_000_000) == slow_on_gpu("cuda:0", 4_000_000) == ""


# -- messages ------------------------------------------------------------------------------------------------------


def test_stages_and_errors_are_reported_and_nothing_else(capsys):
    logger = logging.Logger("vllm.test")
    logger.addHandler(StageHandler())
    logger.info("Model loading took %s GiB memory and %.1f seconds", "2.9", 3.25)
    logger.info("a detail")
    logger.warning("a warning")
    logger.error("no memory")
    written = "vLLM: Model loading took 2.9 GiB memory and 3.2 seconds\nvLLM, ERROR: no memory\n"
    assert capsys.readouterr().err == written


def test_processes_of_vllm_log_by_the_handler_of_stages():
    with log_settings() as variables:
        file = Path(variables["VLLM_LOGGING_CONFIG_PATH"])
        settings = json.loads(file.read_text())
    assert pkgutil.resolve_name(settings["handlers"]["stages"]["class"]) is StageHandler
    assert settings["loggers"]["vllm"]["handlers"] == ["stages"]
    assert not file.exists()


def test_a_stage_that_fails_has_no_seconds(capsys):
    with timed("imports"):
        pass
    with pytest.raises(ValueError, match="x"), timed("weights"):
        raise ValueError("x")
    assert [line.split(":")[1].strip() for line in capsys.readouterr().err.splitlines()] == [
        "imports ...",
        "imports",
        "weights ...",
    ]
