"""The container file, checked by its steps: what it copies, runs and starts is there. No engine builds it here."""

from __future__ import annotations

import configparser
import fnmatch
import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from searchgym.cli import app

pytestmark = pytest.mark.slow  # of pages, scripts and the machinery of tests, which a change of code seldom breaks

ROOT = Path(__file__).parents[1]


def steps(text: str) -> list[tuple[str, str]]:
    """Returns the instructions of a container file and their words, in order."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


STEPS = steps((ROOT / "Containerfile").read_text(encoding="utf-8"))


def of(name: str) -> list[str]:
    return [words for step, words in STEPS if step == name]


def commands(words: str) -> list[list[str]]:
    """Returns the commands of a RUN step, which && connects."""
    return [shlex.split(command) for command in words.split("&&")]


def test_steps_of_a_small_file() -> None:
    found = steps("# why\nFROM a:1\n\nRUN b \\\n    && c d\n")
    assert found == [("FROM", "a:1"), ("RUN", "b      && c d")]
    assert commands(found[1][1]) == [["b"], ["c", "d"]]


def test_the_base_has_a_python_that_the_package_takes() -> None:
    (base,) = of("FROM")
    major, minor = map(int, re.findall(r"python:(\d+)\.(\d+)-", base)[0])
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    least = re.findall(r">=(\d+)\.(\d+)", setup["options"]["python_requires"])[0]
    assert (major, minor) >= tuple(map(int, least))
    # The lock is resolved for this Python.
    assert (
        f"for Python {major}.{minor} on Linux" in (ROOT / "requirements" / "cpu.txt").read_text(encoding="utf-8")[:600]
    )


def test_every_instruction_is_known_and_the_first_is_the_base() -> None:
    names = [name for name, _ in STEPS]
    assert names[0] == "FROM"
    assert set(names) <= {
        "FROM",
        "RUN",
        "WORKDIR",
        "COPY",
        "ARG",
        "ENV",
        "USER",
        "VOLUME",
        "EXPOSE",
        "ENTRYPOINT",
        "CMD",
    }
    assert names.index("COPY") < max(n for n, (name, words) in enumerate(STEPS) if words.startswith("make"))


def test_what_is_copied_is_there_and_the_rest_is_left_out() -> None:
    assert of("COPY") == [". ."]
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    needed = ["Makefile", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "requirements/cpu.txt", "searchgym"]
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    needed += [line.split("=")[1].strip() for line in setup["options"]["package_dir"].strip().splitlines()]
    for name in needed:
        assert (ROOT / name).exists(), name
        assert not any(fnmatch.fnmatch(part, pattern) for part in Path(name).parts for pattern in ignored), name
    # Whatever git ignores as a folder is left out, the environment above all: one of this machine would not run there.
    for line in (ROOT / ".gitignore").read_text().splitlines():
        folder = line.rstrip("/")
        if line.endswith("/") and folder not in {".ipynb_checkpoints"}:
            assert any(fnmatch.fnmatch(folder, pattern.removeprefix("**/")) for pattern in ignored), folder


def test_what_is_run_is_a_target_of_the_makefile_or_a_program_of_the_base() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    programs = []
    for words in of("RUN"):
        for command in commands(words):
            programs.append(command[0])
            if command[0] == "make":
                assert set(command[1:]) <= targets
    assert set(programs) == {"apt-get", "rm", "make", "useradd", "mkdir", "chown"}
    packages = [word for words in of("RUN") for command in commands(words) if command[:2] == ["apt-get", "install"]
                for word in command[2:] if not word.startswith("-")]  # fmt: skip
    assert {"make", "g++"} < set(packages)


def test_the_jdk_is_new_enough() -> None:
    from searchgym.retrieval.lucene.java import JDK

    (version,) = re.findall(r"openjdk-(\d+)-jdk", " ".join(of("RUN")))
    assert int(version) >= int(JDK)


def test_the_user_exists_and_owns_the_data() -> None:
    (user,) = of("USER")
    run = " && ".join(of("RUN"))
    assert f"useradd --create-home --uid 1000 {user}" in run
    (volume,) = of("VOLUME")
    assert f"mkdir {volume}" in run and f"chown {user} {volume}" in run
    (env,) = of("ENV")
    assert f"SEARCHGYM_HOME={volume}/" in env
    assert of("WORKDIR")[-1] == volume


def test_what_is_started_is_a_command_of_the_package() -> None:
    entry, default = json.loads(of("ENTRYPOINT")[0]), json.loads(of("CMD")[0])
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    scripts = [
        line.split("=")[0].strip() for line in setup["options.entry_points"]["console_scripts"].split("\n") if line
    ]
    assert entry == scripts
    assert CliRunner().invoke(app, [*default, "--help"]).exit_code == 0
    (path,) = re.findall(r"PATH=([^:]+):", of("ENV")[0])
    assert path == f"{of('WORKDIR')[0]}/.venv/bin"


@pytest.mark.parametrize("line", range(3))
def test_the_examples_give_options_that_exist(line: int) -> None:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8").replace("\\\n#", " ")
    words = shlex.split(re.findall(r"#     podman run(.*)", text)[line], comments=True)
    own = words[words.index("searchgym") + 1 :] if "searchgym" in words else []
    depth = 2 if own[:1] == ["serve"] else 1  # a command of a group has two names
    found = CliRunner().invoke(app, [*own[:depth], "--help"])
    assert found.exit_code == 0
    for option in own:
        if option.startswith("--"):
            assert option in found.output
