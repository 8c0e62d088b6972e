"""Quiet libraries: what they print while a model is loaded or saved says nothing to a user."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Keeps transformers from showing progress bars while the block runs, and DeepSpeed from telling its guess.

    DeepSpeed is imported by other libraries wherever it is installed, used or not, and warns on a machine without a
    GPU that it takes the CPU.
    """
    import transformers

    if not (log := logging.getLogger("DeepSpeed")).filters:
        log.addFilter(lambda record: not record.getMessage().startswith("Setting accelerator to CPU"))
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            transformers.utils.logging.enable_progress_bar()  # type: ignore[no-untyped-call]
