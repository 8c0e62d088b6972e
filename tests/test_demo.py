"""The demonstration, cut short: a few questions, two steps of training."""

import dataclasses
import json

import pytest

from searchgym.cli.demo import reading_ceiling, run_demo
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import RunExistsError
from searchgym.eval.intervals import bootstrap_ci
from searchgym.rollout.storage import read_episodes
from searchgym.train.recipe.load import load_recipe

QUESTIONS = 4
QUICK = [
    "steps=2",
    "log.tensorboard=false",
    "rollout.questions=2",
    "rollout.attempts=2",
    "optimizer.warmup_steps=1",
    "validation.questions=2",
    "validation.every=2",
    "advantage.drop_zero_variance=false",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    run_demo(load_recipe("tiny-grpo", QUICK), out, questions=QUESTIONS)
    return out


def test_the_summary_is_what_the_episodes_say(folder):
    summary = json.loads((folder / "summary.json").read_text())
    em = {
        name: {e.question_id: e.scores["em"] for e in read_episodes(folder / name / "episodes.jsonl")}
        for name in ("before", "after", "closed-book", "single-search")
    }
    assert summary["n"] == len(em["before"]) == QUESTIONS
    assert summary["em_before"] == pytest.approx(sum(em["before"].values()) / QUESTIONS)
    assert summary["em_after"] == pytest.approx(sum(em["after"].values()) / QUESTIONS)
    assert summary["gain"] == pytest.approx(summary["em_after"] - summary["em_before"])
    assert summary["gain_ci95"] == bootstrap_ci([em["after"][i] - em["before"][i] for i in sorted(em["before"])])
    for name, own in em.items():
        assert summary["em_by_hops"][name]["all"] == pytest.approx(sum(own.values()) / QUESTIONS, abs=1e-4)
    assert summary["seconds"] > 0
    assert summary["retokenisation_mismatch"] == 0
    assert summary["steps"] == 2


def test_it_says_where_curve_episodes_and_checkpoint_are(folder):
    summary = json.loads((folder / "summary.json").read_text())
    for name in ("curve", "episodes", "checkpoint"):
        assert str(folder) in summary[name]
    assert (folder / "train" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert summary["episodes"].endswith("episodes.jsonl")


def test_the_shipped_model_reads_facts_that_it_never_saw():
    task = load_task(find_env("World"))
    singles = tuple(question for question in task.questions if question.kind == "single")[:40]
    assert reading_ceiling(dataclasses.replace(task, questions=singles), "tiny")["1"] > 0.7


def test_another_folder_is_left_alone(tmp_path):
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(RunExistsError, match="holds files that no demonstration wrote"):
        run_demo(load_recipe("tiny-grpo", QUICK), tmp_path, questions=2)
    assert (tmp_path / "precious.txt").read_text() == "x"
