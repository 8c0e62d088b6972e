"""What continuous integration runs: a step that fails makes it fail, whichever step it is."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # of pages, scripts and the machinery of tests, which a change of code seldom breaks

RUN = Path(__file__).parents[1] / ".ci" / "run"
STEPS = ("setup", "test", "check", "dist", "site", "workflows", "test-adapters", "test-slow", "test-engine")
STEP = '#!/bin/sh\nprintf "ran %s\\n" "$1"\n[ "$1" != "$FAILS" ]\n'
"""Stands in for make: fails if it is the step that is to fail."""


@pytest.mark.parametrize("fails", ["", *STEPS])
def test_a_step_that_fails_makes_it_fail(fails, tmp_path):
    (tmp_path / ".ci").mkdir()
    shutil.copy(RUN, tmp_path / ".ci" / "run")
    (tmp_path / "make").write_text(STEP)
    (tmp_path / "make").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", str(tmp_path / ".ci" / "run")]
    found = subprocess.run(command, env={"PATH": path, "FAILS": fails}, capture_output=True, text=True, timeout=60)
    ran = {line.removeprefix("ran ") for line in found.stdout.splitlines() if line.startswith("ran ")}
    assert (found.returncode != 0) == bool(fails), found.stderr
    assert fails in ran if fails else ran == set(STEPS)
