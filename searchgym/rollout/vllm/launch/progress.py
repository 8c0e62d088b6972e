"""Messages about the stages of an engine's start, from the logs of vLLM's processes."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

STAGES: Final = (
    "Starting to load model",
    "Model loading took",
    "Directly load the",
    "torch.compile took",
    "Applying persisted startup plan",
    "Available KV cache memory",
    "Graph capturing finished",
    "init engine",
)
"""Beginnings of vLLM's messages about a stage that begins, or has ended with its seconds (vLLM 0.26 to 0.32)."""


class StageHandler(logging.Handler):
    """Handler of vLLM's log: writes errors and the messages of `STAGES` to standard error, each in one line."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except Exception:
            self.handleError(record)
            return
        if record.levelno >= logging.ERROR:
            sys.stderr.write(f"vLLM, {record.levelname}: {self.format(record)}\n")
        elif text.startswith(STAGES):
            sys.stderr.write(f"vLLM: {' '.join(text.split())}\n")


@contextlib.contextmanager
def log_settings() -> Iterator[dict[str, str]]:
    """Yields environment variables with which vLLM's processes log by `StageHandler` if they start in the block."""
    name = f"{StageHandler.__module__}.{StageHandler.__qualname__}"
    settings: dict[str, Any] = {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"stages": {"class": name, "level": "INFO"}},
        "loggers": {"vllm": {"handlers": ["stages"], "level": "INFO", "propagate": False}},
    }
    with tempfile.TemporaryDirectory(prefix="searchgym-vllm-log-") as folder:
        file = Path(folder) / "logging.json"
        file.write_text(json.dumps(settings))
        yield {"VLLM_LOGGING_CONFIG_PATH": str(file)}


@contextlib.contextmanager
def timed(stage: str) -> Iterator[None]:
    """Reports on standard error that a stage begins, and how many seconds it took if it succeeds."""
    sys.stderr.write(f"vLLM: {stage} ...\n")
    begun = time.monotonic()
    yield
    sys.stderr.write(f"vLLM: {stage}: {time.monotonic() - begun:.1f} s\n")
