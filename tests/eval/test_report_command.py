"""The command ``report``, as a newcomer uses it."""

from pathlib import Path

import pytest
from made_runs import Parsed, evaluation, training
from support import command_line, json_of


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Runs ``searchgym ARGS`` in an empty folder; returns (status, standard output, its error)."""
    monkeypatch.chdir(tmp_path)
    return command_line(monkeypatch, capsys)


@pytest.mark.slow
def test_a_report_of_what_eval_wrote(cli):
    json_of(cli("eval", "Demo", "--agent", "single-search", "--out", "runs/one", "--json"))
    status, out, err = cli("report", "runs/one")
    assert (status, out) == (0, "")
    assert "report: runs/one/report.html (0." in err
    assert Parsed(Path("runs/one/report.html").read_text()).tables[0][1][1] == "one"
    again = json_of(cli("eval", "Demo", "--agent", "single-search", "--out", "runs/one", "--resume", "--json"))
    assert again["n"] == 12  # the page is in nobody's way


@pytest.mark.slow
def test_out_and_number_of_episodes(cli):
    evaluation(Path("a"), [1.0, 0.0, 1.0, 0.0])
    training(Path("b"), 0, [0.1, 0.2])
    made = json_of(cli("report", "a", "b", "--out", "pages/r.html", "--episodes", "1", "--json"))
    page = Path("pages/r.html")
    assert made == {"report": "pages/r.html", "bytes": page.stat().st_size}
    assert page.read_text().count("<details") == 1
    assert not Path("a/report.html").exists()


def test_a_damaged_run_leaves_an_earlier_report(cli):
    evaluation(Path("a"), [1.0, 0.0, 1.0, 0.0])
    Path("a/report.html").write_text("earlier")
    Path("a/scores.json").write_text("{")
    status, _, err = cli("report", "a")
    assert (status, "error: a/scores.json:1: not JSON" in err) == (1, True)
    assert Path("a/report.html").read_text() == "earlier"
