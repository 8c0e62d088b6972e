"""The folder of a pipeline: whether one may begin or go on in it. Loads little, so that a wrong one is told at once."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from searchgym.corpora.folders import check_claim

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
    if not (out / PIPELINE).exists() or (out / DONE).exists():
        check_claim(out, PIPELINE, "a pipeline", resume=resume)
