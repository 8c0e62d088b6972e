"""The demonstration, cut short: a few questions, two steps of training."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from searchgym.cli import main
from searchgym.cli.demo import progress as progress_module
from searchgym.cli.demo.progress import DemoPart, DemoProgress, demo_parts, demo_progress
from searchgym.cli.demo.run import reading_ceiling, run_demo
from searchgym.cli.demo.story import print_summary, story_lines
from searchgym.cli.demo.summary import em_by_group, example_of
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import RunExistsError, UsageError
from searchgym.eval.scores import bootstrap_ci
from searchgym.records import Answer, Episode, Hit, Passage, Question, Searched, SupportingFact
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
    recipe = load_recipe("tiny-grpo", QUICK)
    with demo_progress(recipe, QUESTIONS, out) as progress:
        run_demo(recipe, out, progress, questions=QUESTIONS)
    assert progress.current == len(progress.parts) - 1  # every part was begun
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
    for name, scores in em.items():
        assert summary["em"]["all"][name] == pytest.approx(sum(scores.values()) / QUESTIONS, abs=1e-4)
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
    assert [found[name]["guess"] for name in names] == [0.0, 0.5, 1.0, 0.0, 0.333333, 0.5, 0.0, 0.333333]
    assert found["all"]["some"] == 1.0 and found["4"]["some"] is None


# -- the story at the end ------------------------------------------------------------------------------------------


def played(id, right, answer, *searches):
    """An episode with searches of (query, titles)."""
    return Episode(
        id=f"{id}#0",
        question_id=id,
        agent="a",
        env="e",
        searches=[
            Searched(turn, query, tuple(Hit(Passage(title, title, "text"), 1.0) for title in titles))
            for turn, (query, titles) in enumerate(searches, start=1)
        ],
        answer=None if answer is None else Answer(answer),
        scores={"em": float(right)},
    )


FACTS = (SupportingFact("Kuzan", 0), SupportingFact("Jalab", 0))
ASKED = [
    Question(f"q{n}", f"When did the firm of person {n} open?", ("1939", "in 1939"), supporting_facts=FACTS)
    for n in range(5)
]
BEFORE = [
    played("q0", True, "1939"),
    played("q1", True, "1939"),
    played("q3", False, "none"),
    played("q2", False, "Jalab", ("Kuzan", ["Kuzan", "Wahorn"])),
    played("q4", False, None),
]
AFTER = [
    played("q0", True, "1939"),
    played("q1", False, "1940"),
    played("q2", True, "1939", ("Kuzan", ["Kuzan", "Wahorn"]), ("jalab", ["Jalab", "Labatome"])),
    played("q3", True, "1939"),
    played("q4", False, None),
]
SCORES = {"closed-book": 0.1, "single-search": 0.1033, "before": 0.0, "gold pages": None, "evidence-oracle": 1.0}
SUMMARY = {
    "n": 300, "em_before": 0.19, "em_after": 0.518, "gain": 0.328, "gain_ci95": [0.277, 0.387],
    "searches_before": 1.0333, "searches_after": 2.3967, "seconds": 284.5, "seconds_in_all": 405.4,
    "recipe": "tiny-grpo", "model": "tiny", "agent": "search-r1",
    "checkpoint": "runs/demo/train/checkpoints/step-000010",
    "report": "runs/demo/report.html", "curve": "runs/demo/train/curve.png",
    "em": {
        "1": {"questions": 69, **SCORES, "after": 0.8696},
        "4": {"questions": 90, **SCORES, "closed-book": 0.278, "after": 0.244},
        "4 comparisons": {"questions": 50, **SCORES, "closed-book": 0.5, "after": 0.44},
        "4 others": {"questions": 40, **SCORES, "closed-book": 0.0, "after": 0.0},
        "all": {"questions": 300, **SCORES, "after": 0.518},
    },
}  # fmt: skip


def test_the_example_is_the_first_question_that_turned_right():
    example = example_of(ASKED, BEFORE, AFTER)
    assert (example["id"], example["turned_right"], example["turned_wrong"]) == ("q2", 2, 1)
    assert example["before"] == {
        "searches": [{"query": "Kuzan", "hits": [("Kuzan", True), ("Wahorn", False)]}],
        "answer": "Jalab",
        "right": False,
    }
    assert example["after"]["searches"][1] == {"query": "jalab", "hits": [("Jalab", True), ("Labatome", False)]}
    assert (example["after"]["answer"], example["after"]["right"]) == ("1939", True)
    assert example_of(ASKED, BEFORE, BEFORE) is None


def test_one_question_is_told_side_by_side():
    lines = list(story_lines(SUMMARY | {"example": example_of(ASKED, BEFORE, AFTER)}, Path("runs/demo")))
    start = lines.index("BEFORE TRAINING                         | AFTER TRAINING")
    assert lines[start + 1 : start + 8] == [
        "search 1: Kuzan                         | search 1: Kuzan",
        "  pages: Kuzan*, Wahorn                 |   pages: Kuzan*, Wahorn",
        "answer: Jalab                           | search 2: jalab",
        "WRONG                                   |   pages: Jalab*, Labatome",
        "                                        | answer: 1939",
        "                                        | RIGHT",
        "* page that the answer needs",
    ]
    text = " ".join(lines)
    assert "training turned 2 from wrong to right and 1 from right to wrong" in text
    assert "the first, in order of ids, that turned right" in text
    assert "Gold answer: 1939 or in 1939" in lines


def test_the_end_has_the_numbers_in_one_sentence_and_a_table(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["searchgym", "demo"])
    lines = list(story_lines(SUMMARY | {"example": None}, Path("runs/demo")))
    text = " ".join(lines)
    assert (
        "EM 0.190 before, 0.518 after on 300 held-out questions: +0.328 (95 % interval 0.277 to 0.387 over these"
        in text
    )
    assert "Searches per question: 1.03 before, 2.40 after." in text
    table = [line.split() for line in lines if line.split()[:1] in (["1"], ["4"], ["all"])]
    assert table == [
        ["1", "hop", "69", "0.000", "0.870", "0.100", "0.103", "n/a", "1.000"],
        ["4", "hops", "90", "0.000", "0.244", "0.278", "0.103", "n/a", "1.000"],
        ["all", "300", "0.000", "0.518", "0.100", "0.103", "n/a", "1.000"],
    ]
    assert "At 4 hops guessing (0.278) beats the trained model (0.244): 50 of 90 questions compare" in text
    assert "is right in 0.500 of them (trained model: 0.440)" in text
    assert "Time: 6 min 45 s, 284 s of them training." in lines
    assert "Report: runs/demo/report.html (open it in a browser)" in lines


def test_no_line_of_the_story_is_longer_than_80_characters(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["searchgym", "demo"])
    long = "a rather long query about a name-with-hyphens " * 8
    after = [played("q2", True, long, *[(long, [long, "w" * 500])] * 4), *AFTER]
    example = example_of(ASKED, BEFORE, [*AFTER, after[0]])
    lines = list(story_lines(SUMMARY | {"example": example}, Path("runs/demo")))
    lines += story_lines(SUMMARY | {"example": None}, Path("runs/demo"))
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if "\u2026" in line or "\x1b" in line]


@pytest.mark.slow
def test_the_commands_at_the_end_run(folder, capsys, monkeypatch):
    summary = json.loads((folder / "summary.json").read_text())
    monkeypatch.setattr(sys, "argv", [".venv/bin/searchgym", "demo"])
    print_summary(summary, folder)
    out = capsys.readouterr().out.replace(" \\\n", "")
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


# -- progress ------------------------------------------------------------------------------------------------------


def test_the_time_left_follows_the_speed_of_the_machine(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress_module, "PRIOR", 1e-9)
    progress = DemoProgress(
        [DemoPart("first", 10.0), DemoPart("second", 40.0), DemoPart("third", 50.0)], 4, changed=100.0, began=100.0
    )
    progress.begin()
    now[0] += 20.0  # twice as long as expected
    progress.begin()
    assert progress.seconds_left() == pytest.approx(180.0)
    now[0] += 20.0
    assert progress.seconds_left() == pytest.approx(160.0)  # time goes by
    now[0] += 20.0
    progress.step({"step": 2, "rollout/reward": 0.25, "rollout/searches": 1.5})
    assert progress.seconds_left() == pytest.approx(60.0 / 30.0 * 70.0)
    now[0] += 500.0
    assert progress.seconds_left() == pytest.approx(100.0)  # what comes after the part that runs
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("1 of 3  first ... (about ")
    assert lines[1] == "2 of 3  second ... (about 3 min left)"
    assert lines[2] == "        step 2 of 4: 1.50 searches a question (about 3 min left)"


def test_it_says_first_what_it_will_do_and_for_how_long(capsys):
    recipe = load_recipe("tiny-grpo", ["steps=10", "rollout.questions=8"])
    with demo_progress(recipe, 300, Path("runs/demo")) as progress:
        for _ in progress.parts:
            progress.begin()
    text = capsys.readouterr().err
    assert "trains the model tiny to search, and tests it on 300 held-out" in text
    assert "takes about 4 min on two idle CPU cores" in text and "Results go to runs/demo." in text
    assert "1 of 6  scripted agents answer 300 held-out questions ... (about 4 min left)" in text
    assert max(map(len, text.splitlines())) < 80 and "\x1b" not in text


def test_another_folder_is_left_alone(tmp_path):
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(RunExistsError, match="holds files that no demonstration wrote"):
        recipe = load_recipe("tiny-grpo", QUICK)
        run_demo(recipe, tmp_path, DemoProgress(demo_parts(recipe, 2), 1), questions=2)
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

    def run(recipe, out, progress, questions):
        asked.append((recipe.name, recipe.steps, recipe.rollout.questions, questions))
        raise UsageError("enough")

    monkeypatch.setattr("searchgym.cli.demo.run.run_demo", run)
    monkeypatch.setattr(sys, "argv", ["searchgym", "demo", *words, "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert asked == [wanted]
