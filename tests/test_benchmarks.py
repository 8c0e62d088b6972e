"""Every script under benchmarks/ prints a table, or exactly one JSON object with --json; progress goes to stderr."""

import io
import json
import os
import runpy
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from searchgym.errors import SearchGymError

ROOT = Path(__file__).parent.parent
QUICK = {  # arguments, and rows at least
    "attack_server.py": (
        ["--passages", "2000", "--slow-seconds", "3", "--timeout", "1", "--seconds", "1", "--requests", "500"],
        15,
    ),
    "evaluation.py": (["--questions", "8", "--runs", "1"], 6),
    "threads.py": (["--widths", "64", "--layers", "1", "--runs", "1"], 1),
    "precision.py": (["--corpus", "searchgym/demo/corpus.jsonl", "--prompts", "4"], 5),
    "docstrings.py": (["--number", "3"], 3),
    "dialect_fuzz.py": (["--texts", "20", "--runs", "1"], 7),
    "viewing.py": (["--episodes", "200"], 14),
    "env_throughput.py": (["--runs", "1", "--steps", "64", "--grow", "0"], 6),
    "report.py": (["--episodes", "20"], 1),
    "worlds.py": (["--size", "100", "--seeds", "1"], 6),
    "gpu.py": (["--shapes", "mini", "--rows", "64", "--step-tokens", "256", "--runs", "2", "--product", "256"], 2),
    "workload.py": (["--workload", "mini", "--episodes", "16", "--steps", "1"], 1),
    "decode_attention.py": (["--rows", "4", "--columns", "40", "--runs", "2"], 4),
    "memory.py": (["--width", "64", "--layers", "2", "--vocabulary", "500", "--tokens", "512"], 2),
    "contexts.py": (["--passages", "searchgym/demo/corpus.jsonl", "--questions", "searchgym/demo/questions.json"], 2),
    "trees.py": (["--questions", "1", "--leaves", "9", "--roots", "2", "--runs", "1"], 3),
    "train.py": (["--groups", "2", "--attempts", "2", "--trl-batch", "2", "--runs", "1"], 2),
}

ALONE = {"attack_server.py", "memory.py", "report.py", "train.py", "trees.py", "viewing.py"}
"""Scripts that measure their process or leave threads behind: each runs in one of its own, which costs seconds."""


def script(name, *args):
    """Runs a script, named by its path in the repository, in a process of its own."""
    env = {name: value for name, value in os.environ.items() if name != "SEARCHGYM_DATA"}
    command = [sys.executable, str(ROOT / name), *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env | {"PYTHONPATH": str(ROOT)})


def here(name, *args):
    """Runs a script in this process, which has the heavy libraries; returns what `script` does."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(ROOT)
        patch.delenv("SEARCHGYM_DATA", raising=False)
        patch.syspath_prepend(str((ROOT / name).parent))
        patch.setattr(sys, "argv", [name, *args])
        try:
            runpy.run_path(str(ROOT / name), run_name="__main__")
        except SystemExit as ended:
            code = ended.code or 0
        except SearchGymError as error:
            code = 1
            print(error, file=err)
    return subprocess.CompletedProcess([name, *args], code, out.getvalue(), err.getvalue())


def test_every_script_has_json():
    texts = {path.name: path.read_text() for path in (ROOT / "benchmarks").glob("*.py")}
    scripts = [name for name, text in texts.items() if "__main__" in text]
    assert {"retrieval.py", "serving.py"} < set(scripts) < texts.keys()
    for name in scripts:
        assert '"--json"' in texts[name], name


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", ["retrieval.py", "serving.py"])
def test_help(name):
    found = script(f"benchmarks/{name}", "--help")
    assert (found.returncode, "--json" in found.stdout) == (0, True), found.stderr


@pytest.mark.study
@pytest.mark.parametrize("name", QUICK)
def test_scripts_print_a_table_or_one_object(name):
    arguments, rows = QUICK[name]
    found = (script if name in ALONE else here)(f"benchmarks/{name}", *arguments, "--json")
    assert found.returncode == 0, found.stderr
    assert len(json.loads(found.stdout)["results"]) >= rows
    assert "..." in found.stderr


@pytest.mark.slow
def test_structure():
    found = script("benchmarks/structure.py", "--json")
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    rooms = {row["room"]: row for row in result["rooms"]}
    assert rooms["searchgym.retrieval.bm25"]["floor"] > rooms["searchgym.corpora"]["floor"] > 0
    assert sum(row["lines"] for row in rooms.values()) > 20_000
    assert [row["of"] for row in result["sizes"]] == ["files", "functions"]
    assert (result["circles_of_modules"], result["packages_that_import_each_other"]) == ([], [])
    assert result["counts"]["options"] > result["counts"]["options in no recipe"] > 0
    assert [
        row["member"] for row in result["kinds"] if row["places"] is None
    ] == []  # the table of members is up to date


@pytest.mark.engine
def test_engines_of_retrieval():
    """On generated passages and vectors; pyserini's own searcher takes longer to import than all else."""
    text = ["--sizes", "200", "--queries", "16", "--engines", "bm25", "lucene"]
    vectors = ["--vectors", "300", "--dimension", "8", "--kinds", "ivf-sq8"]
    found = script("benchmarks/retrieval.py", *text, *vectors, "--runs", "1", "--json")
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert [(row["engine"], row["passages"], row["questions"]) for row in result["bm25"]] == [
        ("bm25", 200, 16),
        ("lucene", 200, 16),
    ]
    assert [(row["index"], row["vectors"]) for row in result["vectors"]] == [("ivf-sq8", 300)]
    assert all(row[f"qps_b{b}_t{t}"] > 0 for row in result["bm25"] for b, t in ((1, 1), (16, 1), (256, 2)))
    assert result["projection"] == []


@pytest.mark.slow
def test_retrieval_takes_real_passages_and_questions():
    demo = ROOT / "searchgym" / "demo"
    data = ["--corpus", str(demo / "corpus.jsonl"), "--questions", str(demo / "questions.json")]
    found = script("benchmarks/retrieval.py", *data, "--engines", "bm25", "--runs", "1", "--vectors", "0", "--json")
    assert found.returncode == 0, found.stderr
    (row,) = json.loads(found.stdout)["bm25"]
    assert (row["passages"], row["questions"]) == (25, 12)
    alone = script("benchmarks/retrieval.py", *data[:2])
    assert (alone.returncode, "belong together" in alone.stderr) == (2, True)
