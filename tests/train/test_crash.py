import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toy_training import exact

from searchgym.corpora.files import iter_jsonl


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """A whole run and one that was killed five times, both in the same folder."""
    out = tmp_path_factory.mktemp("crash")
    command = [sys.executable, str(Path(__file__).with_name("crash_training.py")), str(out), "5", "0"]
    paths = [str(folder) for folder in (Path(__file__).parent, Path(__file__).parents[1], Path(__file__).parents[2])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split().count("killed") == 5, result.stdout
    return out


def test_a_run_killed_five_times_has_the_same_metrics(crashed):
    whole, parts = (
        exact([row for _, row in iter_jsonl(crashed / name / "metrics.jsonl")]) for name in ("whole", "parts")
    )
    assert parts == whole
    assert whole[-1]["step"] == 20


@pytest.mark.parametrize("checkpoint", ["last", "best"])
def test_a_run_killed_five_times_has_the_same_weights(crashed, checkpoint):
    whole, parts = (
        load_file(crashed / name / "checkpoints" / checkpoint / "model.safetensors") for name in ("whole", "parts")
    )
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_run_killed_five_times_has_the_same_optimizer_and_files(crashed):
    whole, parts = (torch.load(crashed / name / "checkpoints/last/optimizer.pt") for name in ("whole", "parts"))
    assert whole["version"] == parts["version"] >= 20
    for index, moments in whole["optimizer"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(value, parts["optimizer"]["state"][index][name])
    for name in ("episodes.jsonl", "episodes.tokens.bin", "episodes.advantages.jsonl"):
        assert (crashed / "whole" / name).read_bytes() == (crashed / "parts" / name).read_bytes()
    assert not list((crashed / "parts" / "checkpoints").glob(".*.part"))
