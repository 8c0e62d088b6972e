"""Errors of typing are answered before any heavy library is loaded."""

import json
import os
import subprocess
import sys

import pytest

from searchgym.errors import DataMissingError
from searchgym.train import load_recipe
from searchgym.train.recipe.preflight import check_names

CASES = [
    (["train", "tiny-grpo", "steps=ten"], "steps: expected an integer, got 'ten'"),
    (["train", "tiny-grpo", "stepps=3"], "did you mean 'steps'"),
    (["train", "tiny-grppo"], "unknown recipe 'tiny-grppo'; did you mean 'tiny-grpo'"),
    (["train", "tiny-grpo", "model=/nowhere"], "/nowhere: no such folder"),
    (["train", "tiny-grpo", "model=./empty"], "empty: no config.json: not a model folder"),
    (["train", "tiny-ppo", "critic.model=/nowhere"], "/nowhere: no such folder"),
    (["train", "tiny-grpo", "env=Wurld"], "did you mean 'World'"),
    (["train", "tiny-grpo", "env_options={max_turn: 3}"], "did you mean 'max_turns'"),
    (["train", "tiny-grpo", "validation.env_options={question: {}}"], "did you mean 'questions'"),
    (["train", "tiny-grpo", "env_options={reward: emm}"], "unknown reward 'emm'; did you mean 'em'"),
    (["train", "tiny-grpo", "env_options={retriever: {kind: bm26}}"], "'bm26'; did you mean 'bm25'"),
    (["train", "tiny-grpo", "validation.env_options={retriever: bm26}"], "'bm26'; did you mean 'bm25'"),
    (["train", "tiny-grpo", "env_options={corpus: nowhere.jsonl}"], "nowhere.jsonl: no such corpus file or folder"),
    (["train", "tiny-grpo", "agent=serch-r1"], "did you mean 'search-r1'"),
    (["train", "tiny-grpo", "agent=oracle"], "agent oracle uses no model"),
    (
        ["train", "tiny-jade", "models={a: {roles: [plan]}}"],
        "unknown role of agent jade 'plan'; did you mean 'planner'",
    ),
    (["train", "tiny-grpo", "--out", "full"], "full holds files of something else: choose another folder"),
    (["train", "tiny-grpo", "--out", "empty", "--resume"], "empty holds no run to resume"),
    (["train", "tiny-grpo", "--resume"], "--resume needs --out"),
    (["train", "tiny-grpo", "--explain", "model=/nowhere"], "/nowhere: no such folder"),
    (["selfcheck", "tiny-grpo", "env=Wurld"], "did you mean 'World'"),
    (["demo", "agent=serch-r1"], "did you mean 'search-r1'"),
    (["show", "empty"], "empty/episodes.jsonl: no episodes"),
]
CHILD = """
import contextlib, io, json, sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name in {"torch", "transformers", "vllm", "deepspeed", "faiss", "accelerate"}:
            raise AssertionError(f"{name} is imported")

sys.meta_path.insert(0, Refused())
from searchgym.cli import main
said = []
for arguments in json.load(sys.stdin):
    sys.argv = ["searchgym", *arguments]
    with contextlib.redirect_stderr(io.StringIO()) as error, contextlib.suppress(SystemExit):
        main()
    said.append(error.getvalue())
print(json.dumps(said))
"""


def test_typing_errors_are_answered_before_libraries_are_loaded(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "empty").mkdir()
    given = json.dumps([arguments for arguments, _ in CASES])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.run(
        [sys.executable, "-c", CHILD], input=given, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr[-2000:]
    for (arguments, wanted), said in zip(CASES, json.loads(child.stdout), strict=True):
        assert wanted in said, (arguments, said)
        assert said.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full"]


def test_a_corpus_that_is_not_searched_need_not_be_there():
    nowhere = "{corpus: nowhere.jsonl}"
    check_names(load_recipe("tiny-grpo", ["validation.every=0", f"validation.env_options={nowhere}"]))
    with pytest.raises(DataMissingError, match=r"nowhere\.jsonl"):
        check_names(load_recipe("tiny-grpo", [f"validation.env_options={nowhere}"]))
    check_names(load_recipe("tiny-grpo", ["env_options={corpus: nowhere.jsonl, distractors: true}"]))
