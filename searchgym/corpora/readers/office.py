"""Reads PDF and DOCX documents, each in a separate process with limits on time, memory and length."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from searchgym.corpora.readers.document import Document
from searchgym.errors import DataError

PACKAGES: Final = {".pdf": "pypdf", ".docx": "docx"}
"""Package that reads each kind of document, by suffix; the extra ``documents`` installs them."""
CHILD_SECONDS: Final = 120
"""Maximum time to read a document, in seconds."""
MEMORY: Final = 1 << 30
"""Maximum memory to read a document, in bytes."""
_CHILD: Final = Path(__file__).with_name("office_child.py")


def readable(suffix: str) -> bool:
    """Returns whether the package for a kind of document is installed."""
    return suffix in PACKAGES and importlib.util.find_spec(PACKAGES[suffix]) is not None


def read_office(content: bytes, suffix: str, longest: int) -> Document:
    """Returns the title and the text of a PDF or DOCX document: pages, or paragraphs and rows of tables.

    Args:
        content: The bytes of the file.
        suffix: ``.pdf`` or ``.docx``.
        longest: Maximum length of the text, in characters.

    Raises:
        DataError: The document is damaged, encrypted or too long, or takes too much time or memory.
    """
    command = [sys.executable, "-P", str(_CHILD), suffix[1:], *map(str, (CHILD_SECONDS, MEMORY, longest))]
    try:
        done = subprocess.run(command, input=content, capture_output=True, timeout=CHILD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise DataError(f"took more than {CHILD_SECONDS} seconds to read") from None
    if done.returncode != 0:
        last_line = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise DataError(f"cannot be read: the reader ended with status {done.returncode} {''.join(last_line)[:300]}")
    output = json.loads(done.stdout)
    if "error" in output:
        raise DataError(f"cannot be read: {output['error']}")
    return Document(output["title"], output["text"])
