"""What commands print while they work."""

import contextlib
import json
import os
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from searchgym.cli import main, output
from searchgym.cli.output import MOST_SHOWN, announce, emit_rows, printable, say, stages
from searchgym.corpora.folders import bundled_file
from searchgym.corpora.passages import read_passages
from searchgym.errors import DataWarning
from searchgym.retrieval import encoders
from searchgym.retrieval.index.build import build_index
from searchgym.train.methods.policy import PolicyGradient


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_a_stage_has_a_line_every_thirty_seconds(clock, capsys):
    with stages() as report:
        for second in range(95):
            clock.now = 1000.0 + second
            report("encoding passages", 100 * second, 10_000)
    assert capsys.readouterr().err.splitlines() == [
        "encoding passages: 3000 of 10000, 100/s, 70 s left",
        "encoding passages: 6000 of 10000, 100/s, 40 s left",
        "encoding passages: 9000 of 10000, 100/s, 10 s left",
    ]


def test_a_short_stage_has_no_line_and_the_next_begins_anew(clock, capsys):
    with stages() as report:
        for seconds, stage, done in [
            (0, "reading", 0),
            (29, "reading", 2900),
            (31, "merging", 0),
            (60, "merging", 29),
            (61, "merging", 30),
        ]:
            clock.now = 1000.0 + seconds
            report(stage, done, 60)
    assert capsys.readouterr().err == "merging: 30 of 60, 1/s, 30 s left\n"


def test_a_stage_that_goes_on_has_the_rate_of_now(clock, capsys):
    """Shard by shard two stages take turns, and an interrupted build begins with what it has."""
    with stages() as report:
        for shard in range(2):
            report("reading", 1000 * (shard + 1), 2000)
            for step in range(4):
                report("encoding", 1000 * shard + 250 * step, 2000)
                clock.now += 10
    assert capsys.readouterr().err.splitlines() == [
        "encoding: 750 of 2000, 25/s, 50 s left",
        "encoding: 1750 of 2000, 25/s, 10 s left",
    ]


def test_a_whole_that_is_not_known_is_what_was_expected(clock, capsys):
    for expected, whole in ((500, 500), (0, 60)):
        with stages(expected) as report:
            report("reading", 0, 0)
            clock.now += 30
            report("reading", 60, 0)
        assert f"reading: 60 of {whole}, 2/s, {(whole - 60) // 2} s left" in capsys.readouterr().err


def test_what_goes_nowhere_has_a_line_too(clock, capsys):
    with stages() as report:
        report("waiting", 0, 10)
        clock.now += 30
        report("waiting", 0, 10)
    assert capsys.readouterr().err.startswith("waiting: 0 of 10, 0/s")


def test_control_characters_of_pages_do_not_reach_the_terminal():
    assert printable("a\x1b[31m\rb\x00\n\tc\x9b") == "a\ufffd[31m\ufffdb\ufffd\n\tc\ufffd"


@pytest.mark.parametrize("mark", "\u202e\u2066\u200b\u200d\u2060\ufeff\u00ad\u061c\u2028\u2029\x85\x9b\udcff\U000e0041")
def test_marks_that_turn_or_hide_text_do_not_reach_the_terminal(mark):
    assert printable(f"a{mark}b") == "a\ufffdb"


@pytest.mark.parametrize("text", ["Ångström é e\u0301", "漢字 ポッター", "שלום عربي", "नमस्ते", "👍 £ €", "a\tb\nc"])
def test_words_are_printed_as_they_are(text):
    assert printable(text) == text


BAD = "\x1b]0;PWN\x07\x1b[31m\u202e\u2066\u200b\rx\nerror: forged\udcff"


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "command",
    [
        ["corpus", "inspect", "{}/gone.jsonl"],
        ["corpus", "convert", "{}", "--out", "c.jsonl"],
        ["corpus", "inspect", "{}/bad.jsonl"],
        ["compare", "{}", "{}"],
        ["report", "{}"],
        ["index", "search", "{}/bad.jsonl", "x"],
        ["leaderboard", "check", "{}"],
        ["leaderboard", "build", "board"],
        ["questions", "generate", "{}/bad.jsonl", "--pack", "{}/pack.yaml", "--out", "o"],
        ["eval", "--questions", "{}/bad.jsonl", "--corpus", "{}/bad.jsonl", "--agent", "single-search"],
    ],
)
def test_names_of_files_do_not_steer_the_terminal(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = Path("board/worlds/World") / BAD
    folder.mkdir(parents=True)
    (folder / "bad.jsonl").write_text('{"broken\n')
    (folder / "pack.yaml").write_text("a: [")
    (folder / "run.json").write_text("[")
    (folder / "manifest.json").write_text("[")
    (folder / "a\x1b[31m.md").write_bytes(b"\xff\0")
    monkeypatch.setattr(sys, "argv", ["searchgym", *(part.format(folder) for part in command)])
    with warnings.catch_warnings(), pytest.raises(SystemExit):
        warnings.simplefilter("default")
        main()
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert "PWN" in text
    assert not [mark for mark in "\x1b\x07\u202e\u2066\u200b\r\udcff" if mark in text]
    assert not [line for line in text.splitlines() if line.startswith("error: forged")]


def test_a_title_of_a_table_does_not_steer_the_terminal(capsys):
    output.emit({"a": 1}, False, f"[red]{BAD}")
    text = capsys.readouterr().out
    assert "[red]" in text
    assert not [mark for mark in "\x1b\x07\u202e\r\udcff" if mark in text]


def test_names_that_are_no_unicode_are_escaped_in_json(capsys):
    output.emit({"a": "caf\udce9 é"}, True)
    assert json.loads(capsys.readouterr().out) == {"a": "caf\udce9 é"}


def test_what_is_left_out_of_documents_is_a_note(tmp_path, monkeypatch, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("text")
    (tmp_path / "docs/b.csv").write_text("text")
    monkeypatch.setattr(
        sys, "argv", ["searchgym", "corpus", "convert", str(tmp_path / "docs"), "--out", str(tmp_path / "c")]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        main_without_exit()
    assert f"note: {tmp_path / 'docs'}: left out: 1 .csv\n" in capsys.readouterr().err


def test_a_note_is_said_once_however_often_the_folder_is_read(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        output.show_warnings()
        for text in ("docs: left out: 1 .csv", "docs: left out: 1 .csv", "notes: left out: 1 .csv"):
            warnings.warn(text, DataWarning, stacklevel=1)
    assert capsys.readouterr().err == "note: docs: left out: 1 .csv\nnote: notes: left out: 1 .csv\n"


@pytest.mark.slow
@pytest.mark.parametrize("command", [["list", "agents"], ["doctor"], ["list", "agents", "--json"], ["--help"]])
def test_a_reader_of_the_output_that_ends_early_is_no_fault(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["searchgym", *command])
    read, write = os.pipe()
    os.close(read)
    broken = os.fdopen(write, "w", encoding="utf-8")
    try:
        with monkeypatch.context() as change, pytest.raises(SystemExit) as ended:
            change.setattr(sys, "stdout", broken)
            main()
    finally:
        with contextlib.suppress(BrokenPipeError):
            broken.close()
    assert (ended.value.code, capsys.readouterr().err) == (1, "")


def main_without_exit():
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0


def test_a_stage_is_announced_once_as_it_begins(capsys):
    report = announce()
    for stage in ("loading the encoder", "loading the encoder", "reading passages", "loading the encoder"):
        report(stage, 0, 1)
    assert capsys.readouterr().err == "loading the encoder ...\nreading passages ...\n"


class Lengths:
    """An encoder whose vectors depend on the length of the text alone."""

    def __init__(self, card):
        self.card = card

    def encode_queries(self, texts):
        return np.eye(self.card.dimension, dtype=np.float32)[[len(text) % self.card.dimension for text in texts]]

    def encode_passages(self, passages):
        return self.encode_queries([passage.text for passage in passages])


def test_index_search_says_that_it_loads_the_encoder_before_it_does(tmp_path, monkeypatch, capsys):
    said = []

    def load(card):
        said.append(capsys.readouterr().err)
        return Lengths(card)

    monkeypatch.setattr(encoders, "load_encoder", load)
    build_index(read_passages(bundled_file("demo/corpus.jsonl")), tmp_path / "index", "minilm-flat")
    said.clear()
    monkeypatch.setattr(sys, "argv", ["searchgym", "index", "search", str(tmp_path / "index"), "islands", "--json"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert said == ["loading the encoder ...\n"]


def test_a_page_of_50_megabytes_is_cut_in_tables_and_whole_in_json(capsys):
    page = "x\x1b " * (50 << 20 >> 1)
    begun = time.process_time()
    emit_rows([{"rank": 1, "text": page}], False, "hits")
    say(page)
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert len(text) < 10 * MOST_SHOWN
        assert f" ... ({len(page) - MOST_SHOWN:,} more characters)" in " ".join(text.split())
        assert "\x1b" not in text
    assert time.process_time() - begun < 2
    emit_rows([{"rank": 1, "text": "y" * 2 * MOST_SHOWN}], True, "hits")
    assert json.loads(capsys.readouterr().out)["hits"][0]["text"] == "y" * 2 * MOST_SHOWN


def test_a_text_of_the_longest_size_is_shown_whole(capsys):
    say("x" * MOST_SHOWN)
    assert capsys.readouterr().err == "x" * MOST_SHOWN + "\n"


def test_numbers_are_aligned_to_the_right_whatever_their_sign(capsys):
    output.table(("name", "advantage"), [("a", "-0.500"), ("b", "+1.000"), ("c", "n/a")])
    assert capsys.readouterr().out.splitlines() == [
        "name  advantage",
        "----  ---------",
        "a        -0.500",
        "b        +1.000",
        "c           n/a",
    ]


@pytest.mark.parametrize(
    ("rewards", "best", "said"),
    [
        (
            [0.0, 0.0],
            0,
            ["no episode earned a reward", "role/searcher/legal (20 %)", "no step scored higher"],
        ),
        ([0.0, 0.5], 2, ["eval World --agent search-r1 --model best --questions {seed: 1} --top-k 2 --browse"]),
    ],
)
def test_the_end_of_a_training_tells_what_is_next(rewards, best, said, tmp_path, capsys):
    from searchgym.cli.training.outcome import next_words, say_outcome

    recipe = SimpleNamespace(method=PolicyGradient(), models={}, env="World", agent="search-r1", template={})
    recipe.env_options, recipe.rollout = {"questions": "a.json", "top_k": 2, "browse": True}, SimpleNamespace()
    recipe.validation, recipe.rollout.max_tokens = SimpleNamespace(env_options={"questions": {"seed": 1}}), None
    rows = [{"step": 0.0}] + [
        {"step": n + 1.0, "rollout/reward": reward, "role/searcher/legal": 0.2} for n, reward in enumerate(rewards)
    ]
    progress = SimpleNamespace(best_step=best, step=len(rewards))
    result = SimpleNamespace(rows=rows, progress=progress, best="best", checkpoint="last")
    say_outcome(recipe, result, tmp_path)
    told = capsys.readouterr().err + " ".join(next_words(recipe, result, tmp_path))
    assert all(part in told for part in said)
    assert ("no episode earned" in told) == (not any(rewards))
