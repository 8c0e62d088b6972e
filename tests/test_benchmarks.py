"""Every script under benchmarks/ prints a table, or exactly one JSON object with --json; progress goes to stderr."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
QUICK = {  # arguments, and rows at least
    "env_throughput.py": (["--runs", "1", "--steps", "64", "--grow", "0"], 6),
    "worlds.py": (["--size", "100", "--seeds", "1"], 6),
    "gpu.py": (["--shapes", "mini", "--row-tokens", "64", "--step-tokens", "256", "--runs", "2"], 1),
    "memory.py": (["--width", "64", "--layers", "2", "--vocabulary", "500", "--tokens", "512"], 2),
    "contexts.py": (["--passages", "searchgym/demo/corpus.jsonl", "--questions", "searchgym/demo/questions.json"], 2),
    "train.py": (["--groups", "2", "--attempts", "2", "--trl-batch", "2", "--runs", "1"], 2),
}


def script(name, *args):
    env = {name: value for name, value in os.environ.items() if name != "SEARCHGYM_DATA"}
    command = [sys.executable, str(ROOT / "benchmarks" / name), *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env | {"PYTHONPATH": str(ROOT)})


def test_every_script_has_json():
    for path in (ROOT / "benchmarks").glob("*.py"):
        assert '"--json"' in path.read_text(), path.name


@pytest.mark.parametrize("name", QUICK)
def test_scripts_print_a_table_or_one_object(name):
    arguments, rows = QUICK[name]
    found = script(name, *arguments, "--json")
    assert found.returncode == 0, found.stderr
    assert len(json.loads(found.stdout)["results"]) >= rows
    assert "..." in found.stderr
