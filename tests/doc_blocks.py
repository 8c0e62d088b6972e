"""Runs the code blocks of a Markdown page from top to bottom in one folder, as a reader would."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from searchgym import cli
from searchgym.cli.training.train_pipeline import is_pipeline
from searchgym.train.recipe.load import load_recipe, with_code

ROOT = Path(__file__).parents[1]
FENCE = re.compile(
    r"(?:`(?P<file>[\w./-]+\.\w+)`:\n+)?"
    r"(?P<parse><!-- blocks: parse -->\n+)?"
    r"^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```",
    re.DOTALL | re.MULTILINE,
)
ELSEWHERE = re.compile(r"^<!-- blocks: in (?P<test>\S+) -->$", re.MULTILINE)
SHELL = re.compile(r"[|<>&;$*]|^\w+=")
NOT_RUN = frozenset(
    "cd docker export git jupyter nvidia-smi pip podman ray rsync sbatch scp source srun ssh".split()  # noqa: SIM905
)
"""Commands that prepare a machine, which no test of a page may do."""


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        language: Word after the fence, or nothing.
        text: Lines of the block.
        line: Line of the opening fence in the page, from 1.
        file: Name of the file that the paragraph before the block announces, if any.
        parse: Whether commands are only parsed: they need a GPU, a hub or hours.
    """

    language: str
    text: str
    line: int
    file: str | None = None
    parse: bool = False

    def commands(self) -> list[str]:
        """Returns the commands of a block of shell, each on one line, without comments."""
        text = self.text.replace("\\\n", " ")
        lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines())
        return [line for line in lines if line]


@dataclass
class PageRun:
    """The state of a page between its blocks.

    Attributes:
        page: Path of the page, relative to the repository.
        names: Names that the Python blocks have defined.
        ran: Commands and blocks that were executed or parsed.
    """

    page: str
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "page"})
    ran: int = 0

    def run(self) -> None:
        """Runs every block in the working folder; an error names the page and the line."""
        for block in blocks((ROOT / self.page).read_text(encoding="utf-8")):
            try:
                self.block(block)
            except (Exception, SystemExit) as error:
                raise AssertionError(f"{self.page}:{block.line}: {type(error).__name__}: {error}") from error

    def block(self, block: Block) -> None:
        """Writes, runs or parses one block."""
        if block.file:
            Path(block.file).parent.mkdir(parents=True, exist_ok=True)
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            exec(compile("\n" * block.line + block.text, self.page, "exec"), self.names)
            self.ran += 1
        elif block.language == "bash":
            for command in block.commands():
                parse(command) if block.parse else run(command)
                self.ran += 1


def blocks(text: str) -> list[Block]:
    """Returns the fenced blocks of a page in order."""
    return [
        Block(
            match["language"],
            match["text"],
            text[: match.start("text")].count("\n"),
            match["file"],
            match["parse"] is not None,
        )
        for match in FENCE.finditer(text)
    ]


def run(command: str) -> None:
    """Runs a command of a page, or checks one that no test may run."""
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        subprocess.run([*words, "-n"], cwd=ROOT, check=True, capture_output=True)
    elif words[0] in NOT_RUN:
        check_extras(words)
    elif SHELL.search(re.sub(r"'[^']*'|\"[^\"]*\"", "", command)) or words[0] != "searchgym":
        done = subprocess.run(["bash", "-ec", on_path(command)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
    else:
        call(words[1:], command)


def on_path(command: str) -> str:
    """Returns a command that finds ``searchgym`` and ``python`` of this environment first."""
    return f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH; {command}"


def call(arguments: list[str], command: str) -> None:
    """Runs ``searchgym`` in this process."""
    out = io.StringIO()
    before = sys.argv
    sys.argv = ["searchgym", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            cli.main()
    except SystemExit as end:
        assert end.code in (0, None), f"{command}: status {end.code}\n{out.getvalue()[-2000:]}"
    finally:
        sys.argv = before


def parse(command: str) -> None:
    """Checks that a command exists, takes these options and arguments and, if it trains, has a sound recipe."""
    words = shlex.split(command, comments=True)
    if words[0] != "searchgym":
        run(command) if words[0] in NOT_RUN | {"make"} else check_program(words[0])
        return
    entry: Any = typer.main.get_command(cli.app)
    context = entry.context_class(entry, info_name="searchgym")
    rest = words[1:]
    while isinstance(entry, TyperGroup):
        name, *rest = rest
        entry = entry.get_command(context, name)
        assert entry is not None, f"{command}: no command {name!r}"
    options = entry.make_context(words[1], rest, parent=context).params
    if words[1] == "train" and not is_pipeline(options["recipe"]):
        with_code(load_recipe(str(options["recipe"]), list(options["overrides"] or ())))


def check_program(name: str) -> None:
    """Checks that a word which is not ours is a program's: one is on this machine."""
    assert shutil.which(name, path=f"{Path(sys.executable).parent}:/usr/bin:/bin"), f"no program {name!r}"


def check_extras(words: list[str]) -> None:
    """Checks that ``pip install '.[a,b]'`` names extras that exist."""
    extras = re.findall(
        r"^([\w-]+) =$", (ROOT / "setup.cfg").read_text().split("[options.extras_require]")[1], re.MULTILINE
    )
    for word in words:
        for name in re.findall(r"[\w-]+", (re.search(r"^\.+\[([\w,-]+)\]$", word) or [word, ""])[1]):
            assert name in extras, f"{' '.join(words)}: no extra {name!r}"
