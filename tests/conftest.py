"""Fixtures that several test files share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

LONG = ("test_vllm_training.py", "test_selfcheck.py", "test_teams.py", "test_vllm.py", "test_tiny.py")
"""Files of minutes; they come first, so that two processes end at about the same time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first."""
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real questions and passages that SEARCHGYM_DATA names; a wrong name is a failure, not a skip."""
    name = os.environ.get("SEARCHGYM_DATA")
    if not name:
        pytest.skip("SEARCHGYM_DATA is not set: no real data to test on")
    folder = Path(name)
    if not folder.is_dir():
        pytest.fail(f"SEARCHGYM_DATA names {folder}, which is no folder")
    return folder
