"""The folder of a pipeline: whether one may begin or go on in it. Loads little, so that a wrong one is told at once."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from searchgym.errors import RunExistsError, UsageError

DONE: Final = "stages.json"
"""File of what finished stages did."""
PIPELINE: Final = "pipeline.yaml"
"""File of the pipeline's values."""


def check_out(out: Path, resume: bool) -> None:
    """Checks that a pipeline may begin in a folder, or go on if `resume` is true.

    A folder whose pipeline has finished no stage, such as that of documents which gave too few questions, is free.

    Raises:
        RunExistsError: The folder holds a pipeline and `resume` is false, or other files.
        UsageError: It holds none to go on with.
    """
    if (out / PIPELINE).exists():
        if not resume and (out / DONE).exists():
            raise RunExistsError(f"{out} holds a pipeline: --resume goes on with it, or choose another --out")
        return
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file: the output must be a folder")
    if out.is_dir() and any(entry.name != ".lock" for entry in out.iterdir()):
        raise RunExistsError(f"{out} is not empty and holds no pipeline: choose another --out")
    if resume:
        raise UsageError(f"nothing to resume in {out}: name the folder of a pipeline, or leave out --resume")
