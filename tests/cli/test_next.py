"""The last line of a command that makes something is a command that works."""

import shlex
from pathlib import Path

import pytest
from support import command_line

from searchgym.corpora.folders import bundled_file

CORPUS = bundled_file("demo/corpus.jsonl")


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Runs ``searchgym ARGS`` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    return command_line(monkeypatch, capsys)


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("command", "second"),
    [
        (f"index build {CORPUS} --out 'my index'", "index search 'my index' 'your question'"),
        (f"corpus convert {CORPUS} --out c.jsonl", "index build c.jsonl --out c-index"),
        ("eval Demo --agent oracle --out run", "report run"),
        ("world build --out w --size 20", "eval --questions w/questions.jsonl --corpus w/corpus.jsonl"),
        (f"questions generate {CORPUS} --out q --n 20", "eval --questions q/questions/"),
        (
            "train tiny-grpo steps=1 rollout.questions=2 validation.questions=2 "
            "'validation.env_options={questions: {split: validation, size: 8, seed: 1}}' --out t",
            "eval searchgym/World-v0",
        ),
    ],
    ids=lambda words: words.split()[0],
)
def test_the_next_command_works(cli, command, second):
    status, _, err = cli(*shlex.split(command))
    last = err.splitlines()[-1]
    assert status == 0 and last.startswith(f"next: searchgym {second}")
    status, _, err = cli(*shlex.split(last)[2:])
    assert status == 0, err


def test_programs_get_no_next_command(cli):
    status, out, err = cli("corpus", "convert", CORPUS, "--out", "c.jsonl", "--json")
    assert status == 0 and out.startswith("{") and "next:" not in err
    assert Path("c.jsonl").exists()
