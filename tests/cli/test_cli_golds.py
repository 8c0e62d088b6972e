"""What the command line says of golds: those that cannot be paid, and those that cannot be read."""

import json

import pytest
from support import command_line


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Runs ``searchgym ARGS`` in an empty folder; returns (exit status, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SEARCHGYM_DATA", raising=False)
    (tmp_path / "pages.jsonl").write_text('{"id": "0", "title": "Rome", "text": "Rome is a city."}\n')
    return command_line(monkeypatch, capsys)


def put(tmp_path, *golds):
    rows = [{"id": f"q{n}", "question": "Where?", "golden_answers": own} for n, own in enumerate(golds)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["eval", "--questions", "q.jsonl", "--corpus", "pages.jsonl", "--agent", "single-search", "--json"]


def test_an_evaluation_says_which_golds_no_reward_pays(cli, tmp_path):
    status, out, err = cli(*put(tmp_path, ["The The"], ["Rome"]))
    assert (status, json.loads(out)["golds_without_words"]) == (0, 1)
    assert "1 of 2 questions have a gold answer of only articles and punctuation" in err
    assert "'The The' (q0)" in err
    status, out, err = cli(*put(tmp_path, ["Rome"]))
    assert "articles" not in err and "golds_without_words" not in json.loads(out)


def test_a_blank_gold_is_refused_with_its_place(cli, tmp_path):
    status, _, err = cli(*put(tmp_path, ["Rome"], ["Paris", ""]))
    assert status == 1 and "q.jsonl:2: 'golden_answers': a text of ['Paris', ''] is blank" in err


def test_inspecting_a_set_says_which_golds_no_reward_pays(cli, tmp_path):
    folder = tmp_path / "set"
    (folder / "questions").mkdir(parents=True)
    counts = "{train: 1, validation: 1, test: 1}"
    (folder / "card.yaml").write_text(f"format: searchgym questions\nsha256: {{}}\nquestions: {counts}\n")
    (folder / "report.json").write_text('{"shortcuts": [{"shape": "chain", "hops": 1, "n": 1}]}')
    for split, gold in (("train", "A"), ("validation", "Rome"), ("test", "Rome")):
        row = {"id": split, "text": "Which?", "answers": [gold]}
        (folder / "questions" / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    status, _, err = cli("questions", "inspect", folder, "--json")
    assert status == 0, err
    assert "1 of 3 questions have a gold answer of only articles and punctuation" in err and "'A' (train)" in err
