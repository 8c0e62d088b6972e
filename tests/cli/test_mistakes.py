"""Mistakes on the command line are answered at once: before torch and its like, which take seconds to import."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import searchgym

ROOT = Path(searchgym.__file__).parent.parent
CHILD = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout

class Heavy:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "transformers", "vllm", "faiss", "sentence_transformers"):
            raise RuntimeError(f"{name} was imported")

sys.meta_path.insert(0, Heavy())
from searchgym.cli import main

answers = []
for command in json.loads(sys.stdin.read()):
    sys.argv, said = ["searchgym", *command], io.StringIO()
    with redirect_stderr(said), redirect_stdout(said):
        try:
            main()
            status = 0
        except SystemExit as ended:
            status = ended.code
        except RuntimeError as error:
            status, answer = None, said.write(str(error))
    answers.append((status, said.getvalue()))
print(json.dumps(answers))
"""
EVAL = ["eval", "Demo", "--agent", "oracle"]
MODEL = ["eval", "Demo", "--agent", "search-r1"]
MISTAKES = [
    (["eval", "Hotpot", "--agent", "oracle"], 2, "did you mean 'HotpotQA'"),
    (["eval", "Demo", "--agent", "orakle"], 2, "did you mean 'oracle'"),
    (["eval", "Demo", "--agent", "nosuch:Agent"], 2, "cannot load 'nosuch:Agent'"),
    ([*EVAL, "--agnt", "x"], 2, "No such option: --agnt"),
    ([*EVAL, "--questions", "none.json"], 2, "none.json: no such file"),
    ([*EVAL, "--corpus", "none.jsonl"], 2, "none.jsonl: no such corpus file"),
    ([*EVAL, "--corpus", "none/"], 2, "none: no such corpus file or folder"),
    ([*EVAL, "--corpus", "none"], 2, "unknown corpus file, folder or card 'none'"),
    ([*EVAL, "--retriever", "bm52"], 2, "did you mean 'bm25'"),
    ([*EVAL, "--retriever", "bad.yaml"], 2, "bad.yaml:2: k2: unknown key. Known: b, k1"),
    ([*EVAL, "--reward", "best"], 2, "unknown reward 'best'"),
    ([*EVAL, "--concurrency", "0"], 2, "--concurrency"),
    ([*EVAL, "--seed", "-1"], 2, "--seed"),
    ([*EVAL, "--out", "full"], 2, "holds files but not a run"),
    ([*EVAL, "--model", "tiny"], 2, "no roles that ask a model"),
    (MODEL, 2, "no model for role searcher"),
    ([*MODEL, "--model", "nosuchfolder"], 2, "nosuchfolder: no such folder"),
    ([*MODEL, "--model", "./full"], 2, "full: no config.json"),
    ([*MODEL, "--model", "http://127.0.0.1:9/v1"], 2, "which model of this server?"),
    ([*MODEL, "--model", "tiny", "--dtype", "float16"], 2, "unknown dtype 'float16'"),
    ([*MODEL, "--model", "tiny", "--sampler", "transformer"], 2, "did you mean 'transformers'"),
    (["retrieval", "--questions", "none.json", "--corpus", "demo"], 2, "none.json: no such file"),
    (["retrieval", "--questions", "bad.yaml", "--corpus", "demo", "--retriever", "bm52"], 2, "did you mean 'bm25'"),
    (["index", "build", "none.jsonl", "--out", "index"], 2, "none.jsonl: no such file"),
    (["index", "build", "bad.yaml", "--out", "index", "--retriever", "bm52"], 2, "did you mean 'bm25'"),
    (["index", "search", "none.jsonl", "query"], 2, "none.jsonl: no such corpus file"),
    (["index", "inspect", "none"], 2, "none: no such index folder"),
    (["corpus", "get", "wiki"], 2, "unknown corpus card 'wiki'"),
    (["corpus", "convert", "none.jsonl", "--out", "out.jsonl"], 2, "none.jsonl: no such file"),
    (["serve", "retriever", "none.jsonl"], 2, "none.jsonl: no such corpus file"),
    (["serve", "retriever", "demo", "--retriever", "bm52"], 2, "did you mean 'bm25'"),
    (["report", "none"], 2, "none: no such run"),
    (["report", "full"], 2, "full: no run: neither it nor a folder in it has run.json, recipe.yaml or episodes.jsonl"),
    (["report", "full", "--out", "page.pdf"], 2, "page.pdf: a report is an .html file"),
    (["play", "Dmo"], 2, "did you mean 'Demo'"),
    (["play", "Demo", "--questions", "none.json"], 2, "none.json: no such file"),
    (["list", "agent"], 2, "did you mean 'agents'"),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Status and output of each of the mistakes, all made in one process that cannot import torch and its like."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "bad.yaml").write_text("kind: bm25\nk2: 3\n")
    (folder / "full").mkdir()
    (folder / "full" / "notes.txt").write_text("mine")
    env = os.environ | {"PYTHONPATH": str(ROOT), "SEARCHGYM_HOME": str(folder / "home")}
    typed = json.dumps([command for command, *_ in MISTAKES])
    child = subprocess.run(
        [sys.executable, "-c", CHILD], cwd=folder, env=env, input=typed, capture_output=True, text=True, check=True
    )
    return json.loads(child.stdout)


@pytest.mark.slow  # all commands in one process: seconds of processor time
@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=lambda number: " ".join(MISTAKES[number][0]))
def test_a_mistake_is_answered_before_torch_is_imported(answers, number):
    _, status, message = MISTAKES[number]
    got, said = answers[number]
    assert message in said
    assert got == status
