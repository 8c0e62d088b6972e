"""benchmarks/same_bits.py finds every difference between two runs, one bit of one weight included."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

pytestmark = pytest.mark.slow  # of pages, scripts and the machinery of tests, which a change of code seldom breaks

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "same_bits.py"
spec = importlib.util.spec_from_file_location("same_bits", SCRIPT)
assert spec is not None and spec.loader is not None
same_bits = importlib.util.module_from_spec(spec)
spec.loader.exec_module(same_bits)

WEIGHTS = "checkpoints/step-000002/model.safetensors"
OPTIMIZER = "checkpoints/step-000002/optimizer.pt"


def write_run(folder):
    """A run of two steps with one checkpoint."""
    checkpoint = folder / "checkpoints" / "step-000002"
    checkpoint.mkdir(parents=True)
    write_lines(folder / "metrics.jsonl", [{"step": n, "loss": 0.1 * n, "time/draw": 1.5} for n in (1, 2)])
    write_lines(folder / "episodes.jsonl", [{"id": f"q{n}", "reward": n / 3} for n in range(3)])
    (folder / "episodes.tokens.bin").write_bytes(bytes(range(64)))
    save_file({"body": torch.arange(6.0).reshape(2, 3), "head": torch.ones(4, dtype=torch.bfloat16)}, folder / WEIGHTS)
    moments = {0: {"exp_avg": torch.zeros(3), "step": torch.tensor(2.0)}}
    torch.save({"optimizer": {"state": moments, "param_groups": [{"lr": 0.1}]}, "version": 2}, folder / OPTIMIZER)
    (folder / "checkpoints" / "last").symlink_to("step-000002")
    return folder


def write_lines(file, rows):
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def runs(tmp_path):
    first = write_run(tmp_path / "first")
    shutil.copytree(first, tmp_path / "second", symlinks=True)
    return first, tmp_path / "second"


def differing(first, second):
    """Returns {file: first difference} of the files that are not equal, the same by `digests`."""
    found = {
        row["file"]: row["first_difference"] for row in same_bits.compare(first, second) if row["first_difference"]
    }
    digests = [same_bits.digests(run) for run in (first, second)]
    assert set(found) == {n for n in digests[0] | digests[1] if digests[0].get(n) != digests[1].get(n)}
    return found


def test_equal_runs(runs):
    metrics = lines_of(runs[1] / "metrics.jsonl")
    write_lines(runs[1] / "metrics.jsonl", [row | {"time/draw": 9.0} for row in metrics])
    rows = {row["file"]: (row["parts"], row["equal"]) for row in same_bits.compare(*runs)}
    assert rows == {
        "metrics.jsonl": (2, 2),
        "episodes.jsonl": (3, 3),
        "episodes.tokens.bin": (1, 1),
        WEIGHTS: (2, 2),
        OPTIMIZER: (4, 4),
    }
    assert differing(*runs) == {}


def test_one_bit_of_a_weight(runs):
    state = same_bits.parts_of(runs[1] / WEIGHTS)
    state["body"].view(torch.int32)[1, 2] ^= 1
    save_file(state, runs[1] / WEIGHTS)
    assert differing(*runs) == {WEIGHTS: "body: 1 of 6 numbers, by 4.77e-07 at most"}


def test_a_negative_zero_and_a_learning_rate_of_the_optimizer(runs):
    state = torch.load(runs[1] / OPTIMIZER, weights_only=True)
    state["optimizer"]["state"][0]["exp_avg"][1] = -0.0
    torch.save(state, runs[1] / OPTIMIZER)
    assert differing(*runs) == {OPTIMIZER: "optimizer/state/0/exp_avg: 1 of 3 numbers, by 0 at most"}
    state["optimizer"]["state"][0]["exp_avg"][1] = 0.0
    state["optimizer"]["param_groups"][0]["lr"] = 0.1 + 2**-56
    torch.save(state, runs[1] / OPTIMIZER)
    assert "optimizer/param_groups/0/lr: 0.1 and 0.1000" in differing(*runs)[OPTIMIZER]


def test_the_last_bit_of_a_metric_and_a_metric_that_is_missing(runs):
    rows = lines_of(runs[1] / "metrics.jsonl")
    write_lines(runs[1] / "metrics.jsonl", [rows[0], rows[1] | {"loss": 0.2 + 2**-55}])
    assert differing(*runs) == {"metrics.jsonl": "row 1: loss: 0.2 and 0.20000000000000004"}
    write_lines(runs[1] / "metrics.jsonl", [rows[0], {"step": 2}])
    assert differing(*runs) == {"metrics.jsonl": "row 1: loss: only in the first run"}


@pytest.mark.parametrize("file", ["metrics.jsonl", "episodes.jsonl"])
def test_a_row_that_is_missing(runs, file):
    rows = lines_of(runs[1] / file)
    write_lines(runs[1] / file, rows[:-1])
    assert differing(*runs) == {file: f"row {len(rows) - 1}: only in the first run"}


def test_a_checkpoint_and_a_byte_of_the_tokens(runs):
    (runs[1] / OPTIMIZER).unlink()
    (runs[1] / "episodes.tokens.bin").write_bytes(bytes(range(63)) + b"x")
    found = differing(*runs)
    assert found["episodes.tokens.bin"] == "bytes: 64 and 64 bytes, not the same from byte 63"
    assert found[OPTIMIZER].endswith("only in the first run")


def test_the_command(runs, monkeypatch, capsys):
    (runs[1] / "episodes.jsonl").write_text("")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, runs), "--json"])
    with pytest.raises(SystemExit) as ended:
        same_bits.main()
    assert ended.value.code == 1
    result = json.loads(capsys.readouterr().out)
    assert result["same_bits"] is False
    assert [row["equal"] for row in result["results"]] == [2, 0, 1, 2, 4]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(runs[0]), str(runs[0])])
    with pytest.raises(SystemExit) as ended:
        same_bits.main()
    assert ended.value.code == 0
    assert OPTIMIZER in capsys.readouterr().out
