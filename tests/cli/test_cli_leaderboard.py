"""The commands ``eval SUITE``, ``compare`` and ``leaderboard``, as a newcomer uses them."""

import json
import shutil
from pathlib import Path

import pytest
from support import command_line, json_of

from searchgym.corpora.folders import bundled_file
from searchgym.eval.decomposition import FACTORS

CARD = "name: small\nsummary: the bundled questions\nparts:\n  - env: Demo\n    n: 12\n"
TWO = CARD + "  - env: Demo\n    n: 12\n    name: Few\n    ids: [demo-01, demo-02, demo-03]\n"


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Runs ``searchgym ARGS`` in a folder with suites of its own; returns (status, standard output, its error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEARCHGYM_DATA", raising=False)
    Path("small.yaml").write_text(CARD)
    Path("two.yaml").write_text(TWO.replace("small", "two"))
    return command_line(monkeypatch, capsys)


def test_a_suite_by_its_card(cli):
    scores = json_of(cli("eval", "two.yaml", "--agent", "single-search", "--out", "run", "--json"))
    assert (scores["suite"], scores["n"], list(scores["parts"])) == ("two", 15, ["Demo", "Few"])
    assert Path("run/Demo/scores.json").exists()
    status, out, _ = cli("eval", "two.yaml", "--agent", "single-search", "--out", "other")
    assert (status, "mean over parts" in out, "suite two · single-search" in out) == (0, True, True)
    status, _, err = cli("eval", "two.yaml", "--agent", "single-search", "--out", "run")
    assert (status, "holds a run of suite two: --resume continues it, --overwrite replaces it" in err) == (2, True)
    assert json_of(cli("eval", "two.yaml", "--agent", "single-search", "--out", "run", "--resume", "--json"))["n"] == 15


def test_a_suite_takes_budgets_and_no_other_questions(cli):
    scores = json_of(cli("eval", "small.yaml", "--agent", "oracle", "--max-turns", "2", "--limit", "5", "--json"))
    assert (scores["n"], scores["parts"]["Demo"]["turns"]) == (5, 2.0)
    status, _, err = cli("eval", "small.yaml", "--agent", "oracle", "--questions", "x.json")
    assert (status, "suite small has questions of its own: leave out --questions" in err) == (2, True)


def test_samples_need_a_temperature_where_a_model_is_asked(cli):
    status, _, err = cli("eval", "Demo", "--agent", "search-r1", "--model", "tiny", "--samples", "4")
    assert (status, "4 samples of greedy decoding are the same answer: give --temperature" in err) == (2, True)

    scores = json_of(cli("eval", "Demo", "--agent", "random", "--samples", "3", "--json"))
    assert (scores["n"], "pass@3" in scores) == (12, True)


def test_an_endless_temperature_leaves_no_run_behind(cli):
    status, _, err = cli(
        "eval", "Demo", "--agent", "search-r1", "--model", "tiny", "--temperature", "inf", "--out", "a"
    )
    assert (status, Path("a").exists()) == (2, False)
    assert "--temperature must be a number from 0 up, got inf" in err


def test_ceilings_and_training_questions(cli):
    given = ["--ceilings", "--trained-on", bundled_file("demo/questions.json"), "--out", "run"]
    scores = json_of(cli("eval", "Demo", "--agent", "single-search", *given, "--json"))
    assert scores["ceilings"]["evidence_oracle"]["em"] == 1.0
    assert (scores["contamination"]["exact"], scores["contamination"]["em_others"]) == (12, None)
    assert json.loads(Path("run/scores.json").read_text())["contamination"]["exact"] == 12
    status, out, err = cli("eval", "Demo", "--agent", "single-search", *given, "--overwrite")
    assert status == 0, err
    assert "ceilings: EM" in out
    assert "contamination: of 12 questions 12 are training questions" in out


@pytest.mark.slow
def test_compare(cli):
    for agent in ("oracle", "closed-book"):
        json_of(cli("eval", "two.yaml", "--agent", agent, "--out", agent, "--json"))
    found = json_of(cli("compare", "oracle/Demo", "closed-book/Demo", "--json"))
    (part,) = found["parts"]
    gap = part["runs"][1]["difference"]
    assert (part["runs"][0]["difference"], gap["wins"], gap["verdict"]) == (None, 0, "worse")
    assert gap["mean"] == pytest.approx(part["runs"][1]["mean"] - part["runs"][0]["mean"])
    assert len(part["questions"]) == 5
    assert [p["part"] for p in json_of(cli("compare", "oracle", "closed-book", "--json"))["parts"]] == ["Demo", "Few"]
    status, out, _ = cli("compare", "oracle/Demo", "closed-book/Demo")
    assert (status, "questions in which the runs differ" in out, "worse" in out) == (0, True, True)
    for args, message in (
        (["oracle/Demo"], "compare at least two runs"),
        (["oracle", "closed-book/Demo"], "some of these are runs of a suite and some are not"),
        (["oracle/Demo", "closed-book/Few"], "asked different questions: questions_sha256"),
        (["oracle/Demo", "closed-book/Demo", "--metric", "f9"], "no question has the score 'f9' in both runs"),
    ):
        status, _, err = cli("compare", *args)
        assert (status, message in err) == (2, True), err


def test_compare_decomposes_a_difference_in_em(cli):
    for agent in ("closed-book", "single-search", "oracle"):
        json_of(cli("eval", "Demo", "--agent", agent, "--out", agent, "--json"))
    (part,) = json_of(cli("compare", "closed-book", "single-search", "oracle", "--json"))["parts"]
    first, *others = part["runs"]
    assert first["decomposition"] is None
    status, out, err = cli("compare", "closed-book", "single-search", "oracle")
    assert (status, "decomposed" in err) == (0, False)
    for run in others:
        found = run["decomposition"]
        assert (found["questions"], found["without_golds"]) == (12, 0)
        means = {name: term["mean"] for name, term in found["terms"].items()}
        assert sum(means[name] for name in FACTORS) == pytest.approx(run["difference"]["mean"])
        start = out.index(f"EM of {run['run']} less the first by cause\n(12 questions)\n")
        lines = {line.split()[0]: line for line in out[start:].split("\n\n")[0].splitlines()}
        assert all(f"{mean:+.4f}" in lines[name] for name, mean in means.items() if abs(mean) > 5e-5)
        assert max(map(len, lines.values())) <= 80 and {*means, "residual"} < lines.keys()
    (part,) = json_of(cli("compare", "closed-book", "oracle", "--metric", "f1", "--json"))["parts"]
    assert part["runs"][1]["decomposition"] is None
    path = Path("oracle/questions.jsonl")
    path.write_text(path.read_text().replace('"evidence"', '"other"'))
    status, out, err = cli("compare", "closed-book", "oracle")
    assert (status, "by cause" in out) == (0, False)
    assert "note: the difference in EM is not decomposed: oracle: question 'demo-01': 'evidence' is missing;" in err


@pytest.mark.slow
def test_a_submission_is_made_checked_replayed_and_ranked(cli):
    mine = ["--suite-card", "small.yaml"]
    for agent in ("single-search", "closed-book", "evidence-oracle"):
        json_of(cli("eval", "small.yaml", "--agent", agent, "--out", f"runs/{agent}", "--json"))
        json_of(
            cli("leaderboard", "add", f"runs/{agent}", "--name", agent, "--by", "me", "--out", "board", *mine, "--json")
        )
    folder = Path("board/small/Demo/single-search")
    assert sorted(path.name for path in folder.iterdir()) == ["episodes.jsonl.gz", "manifest.json", "predictions.jsonl"]
    checked = json_of(cli("leaderboard", "check", folder, "--replay", "--rerun", *mine, "--json"))
    assert (checked["tier"], checked["episodes_replayed"], checked["answers_equal"]) == ("run again", 12, 12)
    board = json_of(cli("leaderboard", "build", "board", *mine, "--json"))
    (track,) = board["tracks"]
    assert [row["name"] for row in track["rows"]][-1] == "evidence-oracle"
    assert [row["tier"] for row in track["rows"] if row["name"] == "single-search"] == ["run again"]
    assert Path("board/README.md").read_text().startswith("# Leaderboard")
    json_of(cli("leaderboard", "build", "board", *mine, "--out", "page.html", "--json"))
    page = Path("page.html").read_text()
    assert "<td>single-search</td>" in page and page.count("data:image/svg+xml") == 2
    assert cli("leaderboard", "build", "board", *mine, "--out", "page.txt")[0] == 2
    status, out, err = cli("leaderboard", "build", "board", *mine)
    assert (status, "3 rows, every one recomputed from its episodes; page: board/README.md" in err) == (0, True)
    assert "track: 25 passages" in out
    again = cli(
        "leaderboard", "add", "runs/closed-book", "--name", "closed-book", "--by", "me", "--out", "board", *mine
    )
    assert (again[0], "two submissions of one name" in again[2]) == (2, True)


@pytest.mark.slow
def test_an_add_that_was_ended_between_two_parts_goes_on(cli, monkeypatch):
    json_of(cli("eval", "two.yaml", "--agent", "single-search", "--out", "run", "--json"))
    given = ["--name", "a", "--by", "me", "--suite-card", "two.yaml"]
    json_of(cli("leaderboard", "add", "run", *given, "--out", "whole", "--json"))

    def files(folder):
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    shutil.copytree("whole", "board")
    shutil.rmtree("board/two/Few/a")
    first = files(Path("board"))
    json_of(cli("leaderboard", "add", "run", *given, "--out", "board", "--json"))
    assert files(Path("board")) == files(Path("whole"))
    assert first.items() < files(Path("board")).items()
    status, _, err = cli("leaderboard", "add", "run", *given, "--out", "board")
    assert (status, "two submissions of one name and training seed, and it is this run's" in err) == (2, True)
    shutil.copytree("board/two/Few/a", "board/two/Few/.a.12345678.part")  # killed before it got its name
    assert len(json_of(cli("leaderboard", "build", "board", "--suite-card", "two.yaml", "--json"))["tracks"]) == 2
    shutil.rmtree("board/two/Few/.a.12345678.part")
    Path("board/README.md").unlink()
    shutil.rmtree("board/two/Few/a")
    json_of(cli("eval", "two.yaml", "--agent", "closed-book", "--out", "other", "--json"))
    for run, by in (("other", "me"), ("run", "you")):  # another run, or another's, under the name of what is there
        changed = ["--name", "a", "--by", by, "--suite-card", "two.yaml"]
        status, _, err = cli("leaderboard", "add", run, *changed, "--out", "board")
        assert (status, "board/two/Demo/a exists: two submissions of one name" in err) == (2, True)
        assert files(Path("board")) == first


def test_a_refused_submission_fails_the_build_and_leaves_the_page(cli):
    mine = ["--suite-card", "small.yaml"]
    json_of(cli("eval", "small.yaml", "--agent", "closed-book", "--out", "run", "--json"))
    json_of(cli("leaderboard", "add", "run", "--name", "a", "--by", "me", "--out", "board", *mine, "--json"))
    json_of(cli("leaderboard", "build", "board", *mine, "--json"))
    page = Path("board/README.md").read_bytes()
    manifest = Path("board/small/Demo/a/manifest.json")
    manifest.write_text(manifest.read_text().replace('"by": "me"', '"by": "you"'))
    status, _, err = cli("leaderboard", "build", "board", *mine)
    assert status == 1
    assert "refused: board/small/Demo/a/manifest.json: by: was edited after the submission was written" in err
    assert Path("board/README.md").read_bytes() == page
    status, _, err = cli("leaderboard", "check", "board/small/Demo/a", *mine)
    assert (status, "by: was edited" in err) == (1, True)


def test_a_run_with_a_limit_is_no_submission(cli):
    json_of(cli("eval", "small.yaml", "--agent", "oracle", "--limit", "5", "--out", "run", "--json"))
    given = ["--name", "a", "--by", "me", "--out", "board", "--suite-card", "small.yaml"]
    status, _, err = cli("leaderboard", "add", "run", *given)
    assert (status, "the run asked 5 questions of searchgym/Demo-v0, suite small asks 12" in err) == (1, True)
    assert not list(Path("board").rglob("*.json"))


def test_mistakes_are_told_at_once(cli):
    for args, message in (
        (["leaderboard", "build", "nowhere"], "nowhere is no folder of submissions"),
        (["leaderboard", "check", "nowhere"], "no such folder of a submission"),
        (["leaderboard", "add", "nowhere", "--name", "a", "--by", "b"], "nowhere is no run of a suite"),
        (["leaderboard", "add", ".", "--name", "a", "--by", "b", "--suite", "x", "--part", "y"], "no finished run"),
        (["compare", "nowhere", "here"], "no such run"),
        (["eval", "multihop", "--agent", "oracle"], "suite multihop, part HotpotQA"),
    ):
        status, _, err = cli(*args)
        assert status in (1, 2)
        assert message in err, err
