import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toy_training import exact

from searchgym.corpora.files import iter_jsonl


def script(name, out, kills, values=()):
    """Runs one of the scripts beside this file; returns its output."""
    command = [sys.executable, str(Path(__file__).with_name(name)), str(out), str(kills), "0", *values]
    paths = [str(folder) for folder in (Path(__file__).parent, Path(__file__).parents[1], Path(__file__).parents[2])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """A whole run and one that was killed ten times, both in the same folder."""
    out = tmp_path_factory.mktemp("crash")
    assert script("crash_training.py", out, kills=10).split().count("killed") == 10
    return out


@pytest.mark.slow
def test_a_run_killed_ten_times_has_the_same_metrics(crashed):
    whole, parts = (
        exact([row for _, row in iter_jsonl(crashed / name / "metrics.jsonl")]) for name in ("whole", "parts")
    )
    assert parts == whole
    assert whole[-1]["step"] == 20


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", ["last", "best"])
def test_a_run_killed_ten_times_has_the_same_weights(crashed, checkpoint):
    whole, parts = (
        load_file(crashed / name / "checkpoints" / checkpoint / "model.safetensors") for name in ("whole", "parts")
    )
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.slow
def test_a_run_killed_ten_times_has_the_same_optimizer_and_files(crashed):
    whole, parts = (torch.load(crashed / name / "checkpoints/last/optimizer.pt") for name in ("whole", "parts"))
    assert whole["version"] == parts["version"] >= 20
    for index, moments in whole["optimizer"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(value, parts["optimizer"]["state"][index][name])
    for name in ("episodes.jsonl", "episodes.tokens.bin", "episodes.advantages.jsonl"):
        assert (crashed / "whole" / name).read_bytes() == (crashed / "parts" / name).read_bytes()
    assert not list((crashed / "parts" / "checkpoints").glob(".*.part"))


@pytest.mark.study
@pytest.mark.engine
def test_two_ranks_killed_and_resumed_come_to_the_same_weights(tmp_path):
    """More kills: ``python tests/train/zero_crash.py OUT 10 0`` with tests and tests/train on the path."""
    assert "killed" in script("zero_crash.py", tmp_path, kills=2)
    whole, parts = (
        exact([row for _, row in iter_jsonl(tmp_path / name / "metrics.jsonl")]) for name in ("whole", "parts")
    )
    assert [row["step"] for row in parts] == [row["step"] for row in whole] == list(range(21))
    for row, wanted in zip(parts, whole, strict=True):
        assert row == pytest.approx(wanted, abs=1e-6)
    whole, parts = (
        load_file(tmp_path / name / "checkpoints" / "last" / "model.safetensors") for name in ("whole", "parts")
    )
    for name, weight in whole.items():
        torch.testing.assert_close(parts[name], weight, rtol=0, atol=1e-6)
