"""The study of several samples at a small size: rows by hand, the picture, and runs that are not finished."""

import dataclasses
import json

import pytest
import several_samples

from searchgym.errors import UsageError
from searchgym.records import Answer, Call, Episode
from searchgym.rollout.storage import EpisodeWriter


def attempt(question, number, answer, right, tokens, value, replayed=0):
    """An attempt of two calls of these tokens, after prompts of 10 and 20 tokens."""
    calls = [Call(0, start, start + tokens, "r", "m", turn) for turn, start in enumerate((10, 20), 1)]
    return Episode(
        f"{question}#{number}", question, "a", "e", attempt=number, calls=calls, answer=Answer(answer),
        scores={"em": float(right)}, notes={"value": value}, replayed=replayed, replays="earlier" if replayed else None,
    )  # fmt: skip


GROUPS = [
    [
        attempt("one", 0, "x", 0, 3, 0.2),
        attempt("one", 1, "y", 1, 4, 0.9, replayed=1),
        attempt("one", 2, "x", 0, 3, 0.1),
    ],
    [attempt("two", 0, "z", 1, 5, 0.6), attempt("two", 1, "w", 0, 2, 0.7), attempt("two", 2, "z", 1, 2, 0.1)],
]


def test_rows_by_hand():
    """Of two samples: a tied vote takes the first, the value the second; the repeated call costs nothing."""
    rows = {(row["selection"], row["samples"]): row for row in several_samples.rows_of("run", GROUPS, [1, 2, 3, 8])}
    assert {row[1] for row in rows} == {1, 2, 3}
    assert [rows["vote", n]["em"] for n in (1, 2, 3)] == [0.5, 0.5, 0.5]
    assert [rows["value", n]["em"] for n in (1, 2, 3)] == [0.5, 0.5, 0.5]
    assert [rows["shortest", n]["em"] for n in (1, 2, 3)] == [0.5, 0.5, 0.5]
    assert [rows["vote", n]["generated"] for n in (1, 2)] == [(6 + 10) / 2, (6 + 4 + 10 + 4) / 2]
    assert [rows["vote", n]["read"] for n in (1, 2)] == [30, (30 + 20 + 30 + 30) / 2]
    alone = {row["selection"]: row["em"] for row in several_samples.rows_of("run", GROUPS[:1], [2])}
    assert alone == {"vote": 0.0, "shortest": 1.0, "value": 1.0}


def test_runs_are_read_and_drawn(tmp_path, monkeypatch, capsys):
    """The two questions in runs of their own, with the same name, give the rows of both together."""
    runs = {"one": GROUPS[:1], "two": GROUPS[1:], "part": [GROUPS[0], GROUPS[1][:2]]}
    for run, groups in runs.items():
        (tmp_path / run).mkdir()
        with EpisodeWriter(tmp_path / run / "episodes.jsonl") as writer:
            for group in groups:
                for episode in reversed(group):
                    writer.write(dataclasses.replace(episode))
    picture = tmp_path / "picture.png"
    named = [f"all={tmp_path / run}" for run in ("one", "two")]
    monkeypatch.setattr("sys.argv", ["", *named, "--figure", str(picture), "--json"])
    several_samples.main()
    assert json.loads(capsys.readouterr().out)["results"] == several_samples.rows_of("all", GROUPS, [1, 2])
    assert picture.stat().st_size
    with pytest.raises(UsageError, match="its questions have different samples"):
        several_samples.attempts_of(tmp_path / "part")
