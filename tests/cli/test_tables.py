"""Tables as plain text that fits 80 columns: no number and no label is cut."""

import json

import numpy as np
import pytest
from support import command_line

from searchgym.cli.doctor import PARTS
from searchgym.cli.tables import cut_to, laid_out, width_of


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Runs ``searchgym ARGS`` in an empty folder, whose output goes to a pipe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    return command_line(monkeypatch, capsys)


def fits(text, width=80):
    """Whether a text is plain, without boxes and ellipses, and as narrow as a terminal."""
    return not set(text) & set("│┃─━…\x1b") and max(map(width_of, text.splitlines())) <= width


# -- layout --------------------------------------------------------------------------------------------------------


def test_a_table_that_fits_is_aligned():
    assert laid_out(["name", "n"], [["a", "10"], ["longer", "7"]], 80) == [
        "name     n",
        "------  --",
        "a       10",
        "longer   7",
    ]


def test_words_are_wrapped_and_empty_columns_left_out():
    rows = [["a", "", "one two three four five six seven eight", "1"], ["b", "", "short", "2"]]
    assert laid_out(["name", "empty", "text", "n"], rows, 34) == [
        "name  text                       n",
        "----  -------------------------  -",
        "a     one two three four five    1",
        "      six seven eight",
        "b     short                      2",
    ]


def test_few_wide_rows_become_columns():
    head = ["run", "mean", "interval", "difference"]
    rows = [["runs/first", "0.1250", "0.1000 – 0.1500", ""], ["runs/second", "0.2500", "0.2000 – 0.3000", "+0.1250"]]
    assert laid_out(head, rows, 44) == [
        "run              runs/first      runs/second",
        "----------  ---------------  ---------------",
        "mean                 0.1250           0.2500",
        "interval    0.1000 – 0.1500  0.2000 – 0.3000",
        "difference                           +0.1250",
    ]


def test_many_wide_rows_become_blocks():
    rows = [[f"runs/number-{n}", "0.1250", "a" * 12, ""] for n in range(5)]
    lines = laid_out(["run", "mean", "label", "note"], rows, 24)
    assert lines[:3] == ["runs/number-0", "  mean   0.1250", "  label  aaaaaaaaaaaa"]
    assert len(lines) == 15


def test_wide_letters_take_two_columns_and_marks_none():
    assert (width_of("漢字"), width_of("e\u0301"), width_of("abc")) == (4, 1, 3)
    assert laid_out(["a", "b"], [["漢字", "x"], ["e\u0301", "y"]], 80)[2:] == ["漢字  x", "e\u0301     y"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one two", "one two"),
        ("one\ntwo three four", "one two ..."),
        ("one two three", "one two ..."),
        ("a" * 20, "a" * 8 + " ..."),
        ("a " + "b" * 20, "a " + "b" * 6 + " ..."),
        ("漢" * 9, "漢" * 4 + " ..."),
    ],
)
def test_a_line_is_cut_between_words_where_possible(text, line):
    assert cut_to(text, 12) == line


def test_no_cell_is_lost_at_any_width():
    rng = np.random.default_rng(0)
    for width in (20, 40, 80, 200):
        cells = [[" ".join("w" * k for k in rng.integers(1, 12, 5)) + str(n) for n in range(4)] for _ in range(6)]
        text = " ".join(" ".join(laid_out(["a", "b", "c", "d"], cells, width)).split())
        assert all(word in text.split() for row in cells for cell in row for word in cell.split())


# -- commands ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["envs", "agents", "recipes", "corpora", "models", "pipelines", "terms", "options"])
def test_lists_fit_80_columns(cli, kind):
    status, out, err = cli("list", kind)
    assert status == 0, err
    assert fits(out)


def test_scores_and_comparisons_fit_80_columns(cli):
    for agent in ("closed-book", "single-search", "oracle"):
        status, out, err = cli("eval", "Demo", "--agent", agent, "--out", f"runs/evaluation-of-{agent}")
        assert status == 0, err
        assert fits(out.partition("not measured")[0])
    for runs in (["closed-book", "oracle"], ["closed-book", "single-search", "oracle"]):
        command = ["compare", *(f"runs/evaluation-of-{agent}" for agent in runs)]
        status, out, err = cli(*command)
        assert status == 0, err
        assert fits(out)
        (part,) = json.loads(cli(*command, "--json")[1])["parts"]
        gap = part["runs"][-1]["difference"]
        assert f"{gap['low']:+.4f} – {gap['high']:+.4f}" in out and "runs/evaluation-of-oracle" in out


@pytest.mark.slow  # asks pip for conflicts
def test_the_doctor_fits_80_columns(cli, tmp_path):
    _, out, _ = cli("doctor")
    assert fits(out.replace(str(tmp_path), "~"))  # a path is as long as it is
    assert all(part in out for part in PARTS)


@pytest.mark.slow_cases
@pytest.mark.parametrize("recipe", ["tiny-jade", "qwen2.5-7b-grpo-vllm"])
def test_plans_fit_80_columns(cli, recipe):
    status, out, err = cli("train", recipe, "--plan", "--gpus", 8, "--cpu-gib", 4000)
    assert status == 0, err
    assert fits(out) and "capacity" in out


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["tiny-grpo", "tiny-jade"])
def test_explained_rewards_fit_80_columns(cli, recipe):
    status, out, err = cli("train", recipe, "--explain")
    assert status == 0, err
    assert fits(out) and "advantage" in out
