"""Reads a PDF or DOCX document from standard input and writes its title and text to standard output, as JSON.

This is a separate program, started by `searchgym.corpora.readers.office`: on a hostile document the libraries may take
any amount of time and memory, and a process can be killed. It imports nothing from this project.
"""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

UNPACKED = 1 << 28
"""Maximum size of an unpacked DOCX document, in bytes."""
FILES = 10_000
"""Maximum number of files in a DOCX document."""


def main(kind: str, seconds: int, memory: int, longest: int) -> None:
    """Reads a document of a kind within limits: seconds of CPU, bytes of memory and characters of text."""
    limit(seconds, memory)
    pieces: list[str] = []
    left = longest
    try:
        title, blocks = READERS[kind](io.BytesIO(sys.stdin.buffer.read()))
        for block in blocks:
            left -= len(block)
            if left < 0:
                raise ValueError(f"more than {longest:,} characters of text")
            pieces.append(block)
        output = {"title": " ".join(str(title or "").split()), "text": "\n\n".join(filter(None, pieces))}
    except MemoryError:
        output = {"error": f"needs more than {memory >> 20} MiB of memory"}
    except Exception as error:  # the libraries raise exceptions of many types
        output = {"error": f"{type(error).__name__}: {error!s:.300}"}
    sys.stdout.buffer.write(json.dumps(output).encode())


def limit(seconds: int, memory: int) -> None:
    """Limits the CPU time and memory of this process, if the system supports it."""
    try:
        import resource
    except ImportError:  # Windows
        return
    # the parent process stops this one earlier, if it is still alive
    resource.setrlimit(resource.RLIMIT_CPU, (seconds + 1, seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def pdf(content: io.BytesIO) -> tuple[Any, Iterator[str]]:
    """Returns the title of a PDF document and the text of its pages."""
    import pypdf

    reader = pypdf.PdfReader(content)
    if reader.is_encrypted and not reader.decrypt(""):
        raise ValueError("it is encrypted")
    title = reader.metadata.title if reader.metadata is not None else None
    return title, (page.extract_text().strip() for page in reader.pages)


def docx(content: io.BytesIO) -> tuple[Any, Iterator[str]]:
    """Returns the title of a DOCX document and its paragraphs and rows."""
    import docx

    with zipfile.ZipFile(content) as archive:
        sizes = [file.file_size for file in archive.infolist()]
    if sum(sizes) > UNPACKED or len(sizes) > FILES:
        raise ValueError(f"unpacks to {len(sizes):,} files of {sum(sizes):,} bytes")
    document = docx.Document(content)
    return document.core_properties.title, _blocks(document)


def _blocks(document: Any) -> Iterator[str]:
    """Yields the paragraphs of a DOCX document and the rows of its tables."""
    for block in document.iter_inner_content():
        for row in getattr(block, "rows", ()):
            cells = {id(cell._tc): cell.text.strip() for cell in row.cells}  # a merged cell occurs several times
            yield "; ".join(filter(None, cells.values()))
        if hasattr(block, "text"):
            yield block.text.strip()


READERS: dict[str, Callable[[io.BytesIO], tuple[Any, Iterator[str]]]] = {"pdf": pdf, "docx": docx}

if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
