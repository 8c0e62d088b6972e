"""The commands ``predictions export`` and ``predictions score``, as a newcomer uses them."""

import json
from pathlib import Path

import pytest
from support import command_line, json_of

from searchgym.corpora.folders import bundled_file

QUESTIONS = bundled_file("demo/questions.json")


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Runs ``searchgym ARGS`` in a folder with the run of an oracle; returns (status, standard output, its error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEARCHGYM_DATA", raising=False)
    run = command_line(monkeypatch, capsys)
    json_of(run("eval", "Demo", "--agent", "evidence-oracle", "--out", "run", "--json"))
    return run


@pytest.mark.slow
def test_export_score_and_compare(cli):
    found = json_of(cli("predictions", "export", "run", "--format", "hotpotqa", "--out", "p.json", "--json"))
    assert found == {"run": "run", "format": "hotpotqa", "n": 12, "unanswered": 0, "out": "p.json"}
    scores = json_of(cli("predictions", "score", "p.json", "Demo", "--out", "theirs", "--json"))
    run = json.loads(Path("run/scores.json").read_text())
    assert (scores["format"], scores["scorer"], scores["answered"]) == ("hotpotqa", "hotpotqa", 1.0)
    assert {name: scores[name] for name in ("em", "em_ci95", "sp_f1", "joint_f1")} == {
        name: run[name] for name in ("em", "em_ci95", "sp_f1", "joint_f1")
    }
    (part,) = json_of(cli("compare", "run", "theirs", "--json"))["parts"]
    assert (part["runs"][1]["agent"], part["runs"][1]["difference"]["mean"], part["questions"]) == ("p.json", 0.0, [])
    status, _, err = cli("predictions", "export", "theirs", "--format", "kilt", "--out", "q.jsonl")
    assert (status, "theirs holds no episodes" in err) == (2, True)
    status, _, err = cli("predictions", "score", "p.json", "Demo", "--out", "theirs")
    assert (status, "theirs already exists: choose another --out" in err) == (2, True)


@pytest.mark.slow
def test_export_says_what_the_file_cannot(cli):
    json_of(cli("eval", "Demo", "--agent", "single-search", "--out", "plain", "--json"))
    status, out, err = cli("predictions", "export", "plain", "--format", "hotpotqa", "--out", "p.json")
    assert (status, "unanswered" in out) == (0, True)
    assert "note: no answer states supporting facts: the official script counts them as 0" in err
    assert json.loads(Path("p.json").read_text())["sp"] == {}
    status, _, err = cli("predictions", "export", "plain", "--format", "hotpotqa", "--out", "p.json")
    assert (status, "p.json already exists: choose another --out or pass --overwrite" in err) == (2, True)
    given = ("--format", "hotpotqa", "--out", "p.json", "--overwrite", "--pages-as-support")
    status, _, err = cli("predictions", "export", "plain", *given)
    assert (status, "note: some supporting facts name a page only: their sentence is null" in err) == (0, True)
    facts = json.loads(Path("p.json").read_text())["sp"]
    assert len(facts) == 12
    assert all(isinstance(title, str) and sentence is None for own in facts.values() for title, sentence in own)
    status, _, err = cli("predictions", "export", "plain", "--format", "kilt", "--out", "k.jsonl")
    assert (status, "note: pages have no wikipedia_id" in err) == (0, True)
    status, _, err = cli("predictions", "export", "run", "--format", "kilt", "--out", "l.jsonl", "--wikipedia-ids")
    assert (status, "note: 12 answers state more than the format has a place for" in err) == (0, True)
    assert "wikipedia_id" not in err
    assert "wikipedia_id" in Path("l.jsonl").read_text()


@pytest.mark.slow
def test_a_run_of_own_questions(cli):
    Path("mine.json").write_bytes(QUESTIONS.read_bytes())
    own = ("--questions", "mine.json", "--corpus", "demo")
    json_of(cli("eval", *own, "--agent", "single-search", "--limit", "5", "--out", "mine", "--json"))
    status, _, err = cli("predictions", "export", "mine", "--format", "flashrag", "--out", "f.jsonl")
    assert (status, "mine asked questions of your own: give the file as --questions" in err) == (2, True)
    given = ("--format", "flashrag", "--out", "f.jsonl", "--questions", "mine.json")
    assert json_of(cli("predictions", "export", "mine", *given, "--json"))["n"] == 5
    status, _, err = cli("predictions", "score", "f.jsonl", "--questions", "mine.json")
    assert (status, "f.jsonl: 7 of 12 questions have no prediction (first:" in err) == (1, True)
    scores = json_of(cli("predictions", "score", "f.jsonl", "--questions", "mine.json", "--missing", "zero", "--json"))
    assert (scores["n"], scores["scorer"], scores["answered"]) == (12, "flashrag", 5 / 12)


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (
            ("export", "run", "--format", "hotpot", "--out", "p"),
            2,
            "unknown format of predictions 'hotpot'; did you mean",
        ),
        (("export", "none", "--format", "kilt", "--out", "p"), 2, "none: no such run: give the folder"),
        (("export", "run", "--format", "2wiki", "--out", "p", "--wikipedia-ids"), 2, "only KILT's format has ids"),
        (("export", "run", "--format", "kilt", "--out", "p", "--attempt", "1"), 2, "attempt 1: run holds 1"),
        (("export", "run", "--format", "kilt", "--out", "run"), 2, "run already exists"),
        (("score", "p.json"), 2, "which questions? Give the ID of an environment"),
        (("score", "none.json", "Demo"), 2, "none.json: no such file"),
        (("score", "p.json", "Demo", "--missing", "maybe"), 2, "--missing is error or zero, got 'maybe'"),
        (("score", "p.json", "Demo", "--format", "kilt"), 1, "this is a file of format 'hotpotqa' (keys answer, sp)"),
        (("score", "p.json", "Demo", "--scorer", "squad"), 2, "unknown scorer 'squad'"),
        (
            ("score", "run/episodes.jsonl", "Demo"),
            1,
            "run/episodes.jsonl:1: predictions of no known format: got keys id,",
        ),
    ],
)
def test_mistakes(cli, args, status, message):
    json_of(cli("predictions", "export", "run", "--format", "hotpotqa", "--out", "p.json", "--json"))
    found, _, err = cli("predictions", *args)
    assert (found, message in err) == (status, True), err
    assert not Path("p").exists()
    assert err.count("\n") == 1
