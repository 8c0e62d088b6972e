"""The script of one published Search-R1 row: its plan, its small size with the tiny model, and its verdict by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from search_r1_row import RULES, result, steps
from typer.testing import CliRunner

from searchgym.cli import app
from searchgym.envs.cards import EnvCard
from searchgym.options.cards import find_card, load_card
from searchgym.train.recipe.load import load_recipe

pytestmark = pytest.mark.study
ROOT = Path(__file__).parents[2]


def test_the_plan_has_options_that_exist_and_search_r1s_budgets() -> None:
    plan = steps(Path("out"), small=False, limit=None)
    assert [step.name for step in plan] == ["corpus", "index", "evaluation"]
    for step in plan:
        words = step.command[:1] if step.command[0] == "eval" else step.command[:2]
        text = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"}).output
        for option in step.command:
            assert not option.startswith("--") or option in text, option
    recipe = load_recipe("qwen2.5-7b-ppo")  # whose values are compared with the source's
    budgets = dict(zip(RULES[::2], map(int, RULES[1::2]), strict=True))
    assert budgets == {
        "--max-turns": recipe.env_options["max_turns"],
        "--top-k": recipe.env_options["top_k"],
        "--max-observation-words": recipe.env_options["max_observation_words"],
    }
    asked = plan[-1].command[plan[-1].command.index("--questions") + 1]
    assert asked == load_card(EnvCard, find_card("envs", "hotpotqa")).questions.hub


def test_the_verdict_by_hand() -> None:
    scores = {"n": 100, "em": 0.4, "em_ci95": [0.3, 0.5]}
    assert [result(scores, value)["within"] for value in (0.3, 0.51, None)] == [True, False, None]


def test_the_small_size_is_run_once_and_its_steps_are_not_repeated(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "studies" / "search_r1_row" / "search_r1_row.py"),
        "--small",
        "--limit",
        "4",
        "--json",
    ]
    command += ["--out", str(tmp_path / "row"), "--published", "0.5"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    plans, results = [], []
    for _ in range(2):
        for more, found in ((["--plan"], plans), ([], results)):
            said = subprocess.run([*command, *more], capture_output=True, text=True, env=environment)
            assert said.returncode == 0, said.stderr
            found.append(json.loads(said.stdout))
    assert [[row["done"] for row in plan["results"]] for plan in plans] == [[False, False], [True, True]]
    assert results[0] == results[1] and results[0]["n"] == 4
    assert results[0]["within"] == (results[0]["interval"][0] <= 0.5 <= results[0]["interval"][1])
    (tmp_path / "row" / "run" / "scores.json").unlink()
    failed = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert failed.returncode == 1 and "the step 'evaluation' failed" in failed.stderr
