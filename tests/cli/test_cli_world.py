import json
import sys

import pytest

from searchgym.cli import main
from searchgym.questions.worlds import WorldSpec, build_world, read_world


def cli(monkeypatch, capsys, *args):
    """Runs ``searchgym world build ARGS``; returns (exit status, standard output, standard error)."""
    monkeypatch.setattr(sys, "argv", ["searchgym", "world", "build", *map(str, args)])
    with pytest.raises(SystemExit) as ended:
        main()
        raise SystemExit(0)
    return ended.value.code or 0, *capsys.readouterr()


def test_the_command_builds_a_world_once(monkeypatch, capsys, tmp_path):
    out = tmp_path / "world"
    args = ("--seed", 3, "--level", "full", "--size", 30, "--split", "validation", "--hops", "1,2", "--out", out)
    status, text, _ = cli(monkeypatch, capsys, *args, "--json")
    report = json.loads(text)
    assert (status, report["questions"], report["out"]) == (0, 30, str(out))
    assert set(report["floors"]["multi_hop_unnamed"]) == {"closed_book", "majority_of_type", "single_search"}
    assert read_world(out) == build_world(WorldSpec("full", 30, 3, "validation", (1, 2)))
    assert "| recall@5 |" in (out / "report.md").read_text()
    status, _, err = cli(monkeypatch, capsys, *args)
    assert (status, "exists already" in err) == (2, True)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--hops", "one"), "numbers such as 1,2"),
        (("--level", "hard"), "unknown level 'hard'"),
        (("--size", 2), "too small"),
        (("--level", "full", "--strata", "7"), "unknown stratum '7'"),
    ],
)
def test_wrong_arguments_of_the_command(monkeypatch, capsys, tmp_path, args, message):
    status, _, err = cli(monkeypatch, capsys, *args, "--out", tmp_path / "world")
    assert (status, message in err) == (2, True)
    assert not (tmp_path / "world").exists()
