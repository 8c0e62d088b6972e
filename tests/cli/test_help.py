"""What ``--help`` shows: groups, short summaries, plain text of 80 columns; and what a shell completes."""

import os
import subprocess
import sys

import pytest
import typer.main
from support import command_line

from searchgym.cli import SUMMARY, app

GROUPS = {
    "Start": "demo list doctor play",
    "Evaluate": "eval judge compare report view show retrieval leaderboard predictions",
    "Train": "train selfplay demonstrate selfcheck check-dump",
    "Documents and questions": "corpus index questions world",
    "Models and servers": "model serve",
}


def commands(group, path=()):
    """Yields the words of each command and group below a group, and itself."""
    for name, command in group.commands.items():
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


ALL = dict(commands(typer.main.get_command(app)))


def test_the_commands_stand_in_their_groups(monkeypatch, capsys):
    status, out, _ = command_line(monkeypatch, capsys)("--help")
    parts = [part.split("\n") for part in out.split("\n\n")]
    groups = {lines[0].rstrip(":"): " ".join(line.split()[0] for line in lines[1:] if line) for lines in parts[3:]}
    assert status == 0 and groups == GROUPS


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_a_summary_is_a_short_sentence(words):
    text = ALL[words].get_short_help_str(200)
    assert 0 < len(text) <= SUMMARY and text.endswith(".")


@pytest.mark.parametrize("words", [(), *ALL], ids=" ".join)
def test_help_is_plain_text_of_80_columns(words, monkeypatch, capsys):
    status, out, _ = command_line(monkeypatch, capsys)(*words, "--help")
    assert status == 0 and out.startswith("Usage: searchgym")
    assert max(map(len, out.splitlines())) <= 80
    assert "..." not in out.partition("Commands:")[2] and "\x1b" not in out


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("eval Hotpot", ["HotpotQA"]),
        ("eval HotpotQA --agent search-r1-", ["search-r1-few-shot", "search-r1-reread"]),
        ("train tiny-gr", ["tiny-grpo"]),
        ("train smol-o", ["smol-own"]),
        ("list pipe", ["pipelines"]),
        ("doct", ["doctor"]),
    ],
)
def test_a_shell_completes_names(typed, completed):
    words = f"searchgym {typed}"
    env = os.environ | {"_SEARCHGYM_COMPLETE": "complete_bash", "COMP_WORDS": words}
    env["COMP_CWORD"] = str(len(words.split()) - 1)
    command = [sys.executable, "-c", "from searchgym.cli import app; app(prog_name='searchgym')"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == completed, done.stderr
