"""Mistakes of usage: status 2 and one line that names the mistake and the remedy; what began and failed: status 1."""

from pathlib import Path

import pytest
from support import command_line

MISTAKES = {
    "trian": "Error: No such command 'trian'. Did you mean 'train'?",
    "serve retriver x": "Error: No such command 'retriver'. Did you mean 'retriever'?",
    "eval Demo --agnt oracle": "Error: No such option: --agnt (Possible options: --agent, --chat, --wait)",
    "eval Demo": "Error: Missing option '--agent'.",
    "eval HotpotQ --agent search-r1": "error: unknown environment 'HotpotQ'; did you mean 'HotpotQA'?",
    "eval wiki-rel --agent oracle": "error: unknown environment 'wiki-rel'; did you mean 'wiki-real'?",
    "eval Demo --agent orakle": "error: unknown agent 'orakle'; did you mean 'oracle'?",
    "eval Demo --agent search-r1": "error: no model for role searcher (--model [ROLE=]PATH)",
    "eval Demo --agent search-r1 --model none": "error: none: no such folder; name one with a model in Hugging Face",
    "eval Demo --agent oracle --questions none.json": "error: none.json: no such file: check the path",
    "eval Demo --agent oracle --out full": "error: full holds files but not a run: choose another --out",
    "eval Demo --agent oracle --top-k 0": "error: searchgym/Demo-v0: top_k: expected above 0, got 0",
    "compare one two": "error: one: no such run: give the folder that `searchgym eval --out` wrote",
    "report none": "error: none: no such run",
    "list agent": "error: unknown kind 'agent'; did you mean 'agents'?",
    "list xyz": "error: unknown kind 'xyz'. Known: agents, corpora, ",
    "train none.yaml": "error: none.yaml: no such file",
    "train tiny-grop": "error: unknown recipe 'tiny-grop'; did you mean 'tiny-grpo'?",
    "train smol-owm": "error: unknown recipe 'smol-owm'; did you mean 'smol-own'?",
    "train tiny-grpo steps=x": "error: override steps=x: steps: expected an integer, got 'x'",
    "train tiny-grpo stps=3": "error: unknown recipe key 'stps'; did you mean 'steps'?",
    "train tiny-grpo optimizer.learning_rate=1": "error: unknown recipe key 'optimizer.learning_rate'. Known: op",
    "train tiny-grpo --resume": "error: --resume needs --out, the folder of the run",
    "index search none.jsonl query": "error: none.jsonl: no such corpus file or folder: check its name",
    "questions inspect none": "error: none: has no card.yaml: give a folder that `searchgym questions generate` wrote",
    "leaderboard check none": "error: none: no such folder of a submission",
    "world build --out world --hops many": "error: --hops must be numbers such as 1,2, got 'many'",
}


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Runs ``searchgym ARGS`` in a folder with ``full/notes.txt`` and ``broken.jsonl``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    Path("full").mkdir()
    Path("full/notes.txt").write_text("mine")
    Path("broken.jsonl").write_text('{"id": ')
    return command_line(monkeypatch, capsys)


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_of_usage_ends_with_status_2(cli, command):
    status, out, err = cli(*command.split())
    lines = [line for line in err.splitlines() if line.lower().startswith("error:")]
    assert (status, out) == (2, "")
    assert len(lines) == 1 and lines[0].startswith(MISTAKES[command])
    assert ("did you mean" in err and "Known:" in err) is False
    assert not {path.name for path in Path().iterdir()} - {"full", "broken.jsonl", "home"}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("corpus convert broken.jsonl --out out.jsonl", "error: broken.jsonl:1: "),
        ("predictions score broken.jsonl Demo", "error: broken.jsonl:1: "),
    ],
)
def test_work_that_began_and_failed_ends_with_status_1(cli, command, message):
    status, out, err = cli(*command.split())
    assert (status, out) == (1, "")
    assert err.startswith(message)
