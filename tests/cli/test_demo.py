"""The demonstration, cut short: a few questions, two steps of training."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from searchgym.cli import main
from searchgym.cli.demo import em_by_group, print_summary, reading_ceiling, run_demo
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import RunExistsError, UsageError
from searchgym.eval.scores import bootstrap_ci
from searchgym.records import Question
from searchgym.rollout.storage import read_episodes
from searchgym.train.recipe.load import load_recipe


def size(name):
    """Steps, and questions of a step, of a recipe."""
    recipe = load_recipe(name, [])
    return recipe.steps, recipe.rollout.questions


QUESTIONS = 2
QUICK = [
    "steps=1",
    "log.tensorboard=false",
    "rollout.questions=2",
    "rollout.attempts=2",
    "optimizer.warmup_steps=1",
    "validation.questions=1",
    "validation.every=1",
    "advantage.drop_zero_variance=false",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    run_demo(load_recipe("tiny-grpo", QUICK), out, questions=QUESTIONS)
    return out


@pytest.mark.slow
def test_the_summary_is_what_the_episodes_say(folder):
    summary = json.loads((folder / "summary.json").read_text())
    em = {
        name: {e.question_id: e.scores["em"] for e in read_episodes(folder / name / "episodes.jsonl")}
        for name in ("before", "after", "closed-book", "single-search", "evidence-oracle")
    }
    assert summary["n"] == len(em["before"]) == QUESTIONS
    assert summary["em_before"] == pytest.approx(sum(em["before"].values()) / QUESTIONS)
    assert summary["em_after"] == pytest.approx(sum(em["after"].values()) / QUESTIONS)
    assert summary["gain"] == pytest.approx(summary["em_after"] - summary["em_before"])
    assert summary["gain_ci95"] == bootstrap_ci([em["after"][i] - em["before"][i] for i in sorted(em["before"])])
    for name, own in em.items():
        assert summary["em"]["all"][name] == pytest.approx(sum(own.values()) / QUESTIONS, abs=1e-4)
    assert summary["em"]["all"]["questions"] == QUESTIONS and summary["em"]["all"]["evidence-oracle"] == 1.0
    assert summary["seconds_in_all"] > summary["seconds"] > 0
    assert summary["retokenisation_mismatch"] == 0
    assert summary["steps"] == 1


@pytest.mark.slow
def test_it_says_where_curve_episodes_and_checkpoint_are(folder):
    summary = json.loads((folder / "summary.json").read_text())
    for name in ("curve", "episodes", "checkpoint"):
        assert str(folder) in summary[name]
    assert (folder / "train" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert summary["episodes"].endswith("episodes.jsonl")


@pytest.mark.slow
def test_its_report_has_every_part(folder):
    page = Path(json.loads((folder / "summary.json").read_text())["report"]).read_text()
    for name in ("before", "after", "closed-book", "single-search", "evidence-oracle", "train"):
        assert f">{name}<" in page
    assert page.count("<details") > QUESTIONS


def test_the_shipped_model_reads_facts_that_it_never_saw():
    task = load_task(find_env("World"))
    singles = tuple(question for question in task.questions if question.kind == "single")[:40]
    read = reading_ceiling(dataclasses.replace(task, questions=singles), "tiny")
    assert len(read) == 40 and sum(read.values()) / 40 > 0.7


def test_scores_by_hops_split_where_some_questions_compare():
    kinds = [(1, "single"), (2, "comparison"), (2, "compositional"), (4, "bridge-comparison"), (4, "compositional")]
    asked = [Question(f"{n}", "?", ("a",), kind=kind, metadata={"hops": h}) for n, (h, kind) in enumerate(kinds)]
    asked.append(Question("5", "?", ("a",), kind="bridge-comparison", metadata={"hops": 4}))
    guessed = {"0": 0.0, "1": 1.0, "2": 0.0, "3": 1.0, "4": 0.0, "5": 0.0}
    found = em_by_group(asked, {"guess": guessed, "some": {"0": 1.0}})
    names = ["1", "2", "2 comparisons", "2 others", "4", "4 comparisons", "4 others", "all"]
    assert list(found) == names
    assert [found[name]["questions"] for name in names] == [1, 2, 1, 1, 3, 2, 1, 6]
    assert [found[name]["guess"] for name in names] == [0.0, 0.5, 1.0, 0.0, 0.3333, 0.5, 0.0, 0.3333]
    assert found["all"]["some"] == 1.0 and found["4"]["some"] is None


@pytest.mark.slow
def test_the_end_shows_scores_ceilings_time_and_commands(folder, capsys, monkeypatch):
    summary = json.loads((folder / "summary.json").read_text())
    scores = dict.fromkeys(("single-search", "before", "gold pages", "evidence-oracle"), 1.0)
    summary["em"] |= {
        "4": {"questions": 90, "closed-book": 0.278, "after": 0.244} | scores,
        "4 comparisons": {"questions": 50, "closed-book": 0.5, "after": 0.44} | scores,
        "4 others": {"questions": 40, "closed-book": 0.0, "after": 0.0} | scores,
    }
    monkeypatch.setattr(sys, "argv", [".venv/bin/searchgym", "demo"])
    print_summary(summary | {"seconds_in_all": 405.4, "seconds": 284.5}, folder)
    out = capsys.readouterr().out
    for column in ("closed-book", "before", "after", "gold pages given", "all pages found", "4 hops", "comparisons"):
        assert column in out
    assert "at 4 hops closed-book (0.278) beats the trained model (0.244)" in out
    assert "50 of 90 questions compare" in out and "is right in 0.500 of them (trained: 0.440)" in out
    assert "time: 6 min 45 s, 284 s of them training" in out
    assert f"curve: {folder}/train/curve.png" in out
    assert out.splitlines()[-1].startswith(f"report: {folder}/report.html ")
    commands = [line.split() for line in out.splitlines() if line.startswith("  .venv/bin/searchgym ")]
    assert [command[1] for command in commands] == ["show", "eval", "train"]
    monkeypatch.chdir(folder)
    for command in commands[:2]:
        command = [*command[1:], "--limit", "2"] if command[1] == "eval" else command[1:]
        monkeypatch.setattr(sys, "argv", ["searchgym", *command])
        with pytest.raises(SystemExit) as ended:
            main()
            raise SystemExit(0)
        assert not ended.value.code, capsys.readouterr().err


def test_another_folder_is_left_alone(tmp_path):
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(RunExistsError, match="holds files that no demonstration wrote"):
        run_demo(load_recipe("tiny-grpo", QUICK), tmp_path, questions=2)
    assert (tmp_path / "precious.txt").read_text() == "x"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], ("tiny-grpo", 10, 8, 300)),
        (["steps=3"], ("tiny-grpo", 3, 8, 300)),
        (["--recipe", "tiny-grpo", "--questions", "500"], ("tiny-grpo", 20, 16, 500)),
        (["--recipe", "tiny-ppo"], ("tiny-ppo", *size("tiny-ppo"), 300)),
    ],
)
def test_a_demonstration_is_short_unless_a_recipe_is_named(words, wanted, tmp_path, monkeypatch):
    asked = []

    def run(recipe, out, say, report, questions):
        asked.append((recipe.name, recipe.steps, recipe.rollout.questions, questions))
        raise UsageError("enough")

    monkeypatch.setattr("searchgym.cli.demo.run_demo", run)
    monkeypatch.setattr(sys, "argv", ["searchgym", "demo", *words, "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert asked == [wanted]
