"""The split that runs, reports and leaderboards name is that of the questions that are asked."""

import json

import pytest
from support import command_line, json_of

from searchgym.agents.base import load_agent
from searchgym.corpora.questions import write_questions
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.eval.report.evaluations import evaluation_blocks
from searchgym.eval.report.runs import read
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.eval.suites.cards import load_suite
from searchgym.eval.suites.tasks import load_suite_tasks
from searchgym.records import Question
from searchgym.retrieval.retriever import NullRetriever

MINE = [Question("q", "Who?", ("Ada",))]


@pytest.fixture
def file(tmp_path):
    write_questions(tmp_path / "mine.jsonl", MINE)
    return tmp_path / "mine.jsonl"


def split(env, **options):
    return load_task(find_env(env), retriever=NullRetriever(), **options).split


def test_the_split_of_a_card_is_that_of_its_own_questions_alone(tmp_path, file):
    own = tmp_path / "hotpot_dev_distractor_v1.json"  # the name of the card's file
    file.rename(tmp_path / "other.jsonl")
    write_questions(own, MINE)
    assert split("HotpotQA", questions=own) == "dev (distractor file)"
    assert split("HotpotQA", questions=tmp_path / "other.jsonl") == "given (other.jsonl)"
    assert split("HotpotQA", questions=[own, tmp_path / "other.jsonl"]) == (
        "given (hotpot_dev_distractor_v1.json, other.jsonl)"
    )
    assert split("HotpotQA", questions=MINE) == "given"
    assert split("Demo") == find_env("Demo").questions.split


def test_a_world_of_another_split_says_so():
    assert split("World", questions={"split": "train", "size": 10}) == "train"
    assert split("World", questions={"size": 10}) == "validation"


def test_a_run_and_its_report_name_the_questions_that_were_asked(tmp_path, file):
    task = load_task(find_env("HotpotQA"), questions=file, retriever=NullRetriever())
    evaluate(task, load_agent("closed-book"), tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["split"] == "given (mine.jsonl)"
    shown = repr(evaluation_blocks([[read(tmp_path / "run", "run", 0)]]))
    assert "HotpotQA, given (mine.jsonl), hotpotqa" in shown and "dev" not in shown


def test_a_run_with_another_label_goes_on(tmp_path, file):
    """The label is none of what makes a run another one: the questions' hash is."""
    task, agent = load_task(find_env("HotpotQA"), questions=file, retriever=NullRetriever()), load_agent("closed-book")
    first = evaluate(task, agent, tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(record | {"split": "dev (distractor file)"}))
    assert evaluate(task, agent, tmp_path / "run", options=EvalOptions(resume=True)) == first


def test_the_command_says_that_other_questions_stand_in_for_the_cards(tmp_path, file, monkeypatch, capsys):
    folder = tmp_path / "data" / "hotpotqa"
    folder.mkdir(parents=True)
    write_questions(folder / "questions.json", MINE)
    monkeypatch.setenv("SEARCHGYM_DATA", str(folder.parent))
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    status, out, err = command_line(monkeypatch, capsys)(
        "eval", "HotpotQA", "--retriever", "http://127.0.0.1:1", "--agent", "closed-book", "--out", tmp_path / "run",
        "--json",
    )  # fmt: skip
    assert status == 0, err
    assert json.loads(out)["n"] == 1
    assert "(SEARCHGYM_DATA), not its dev (distractor file)" in err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["split"] == "given (questions.json)"


def test_the_real_suite_names_the_splits_of_its_parts(real_data, monkeypatch, capsys):
    tasks = load_suite_tasks(load_suite("wiki-real"))
    assert {name: task.split for name, task in tasks.items()} == {
        "HotpotQA": "train (100 of its questions)",
        "2WikiMultihopQA": "dev (88 of its questions, annotated anew)",
    }
    dev = {row["question"] for row in json.loads((real_data / "hotpotqa" / "dev_simplified.json").read_text())}
    asked = tasks["HotpotQA"].questions
    assert not dev & {question.text for question in asked}
    assert {question.level for question in asked} == {"easy", "medium", "hard"}  # those of dev are all hard
    rows = json_of(command_line(monkeypatch, capsys)("list", "suites", "--json"))["suites"]
    (summary,) = [row["summary"] for row in rows if row["name"] == "wiki-real"]
    assert "HotpotQA's training set" in summary
