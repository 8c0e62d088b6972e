"""Reading and writing corpora.

Formats, told apart by their content:

==============  ====================================================================================================
``contents``    JSON lines ``{"id", "contents"}`` (FlashRAG, Search-R1): the title on the first line, quoted or not
``title-text``  ``[{"title", "text"}]``, or the same as JSON lines; ids are positions from 0 unless given
``hotpotqa``    one JSON object ``{title: [sentences]}``; ids are positions from 0
``beir``        a folder with ``corpus.jsonl``, or that file: ``{"_id", "title", "text"}``
``searchgym``   JSON lines ``{"id", "title", "text"}``: what `write_corpus` writes
==============  ====================================================================================================

Every format may be gzip. JSON lines are streamed, a JSON document is read whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from searchgym.corpora.files import SNIFF_LINES, BadLines, FilePath, dump_line, write_jsonl
from searchgym.corpora.rows import (
    Parser,
    Row,
    Rows,
    find_format,
    id_field,
    open_rows,
    optional_text,
    parse_rows,
    spaced,
    text_field,
)
from searchgym.errors import DataError, DataMissingError, UnknownNameError
from searchgym.records import Passage


def read_passages(path: FilePath, format: str | None = None, bad: BadLines | None = None) -> Iterator[Passage]:
    """Reads a corpus.

    Args:
        path: A file, or a BEIR folder.
        format: One of `FORMATS`; told from the content if left out.
        bad: Tolerance for bad rows; none if left out.

    Returns:
        Passages in the order of the file, ids unique; text exactly as the source has it. To find repeated ids, at
        most 43 bytes per passage are kept.

    Raises:
        DataMissingError: There is no such file (raised at the call; faults further on come during iteration).
        DataError: Empty, damaged, of no known format, a row that does not fit it, or an id that comes twice.
        UnknownNameError: No such format.
    """
    bad = BadLines() if bad is None else bad
    return parse_passages(open_rows(corpus_file(path), bad, _pages), format, bad)


def parse_passages(rows: Rows, format: str | None, bad: BadLines) -> Iterator[Passage]:
    """Reads passages from rows, wherever they come from; the rest is as in `read_passages`."""
    if format is None:
        format, rows = find_format(rows, _shape, EXPECTED)
    elif format not in FORMATS:
        raise UnknownNameError("corpus format", format, FORMATS)
    return parse_rows(rows, FORMATS[format], bad)


def detect_format(path: FilePath) -> str:
    """Returns the name of a corpus's format, by its content.

    Raises:
        DataMissingError: There is no such file.
        DataError: It is of no known format.
    """
    any_bad = BadLines(SNIFF_LINES)
    return find_format(open_rows(corpus_file(path), any_bad, _pages), _shape, EXPECTED)[0]


def passage_row(passage: Passage) -> dict[str, str]:
    """Returns the canonical row of a passage: own JSON lines form."""
    return {"id": passage.id, "title": passage.title, "text": passage.text}


def passage_line(passage: Passage) -> bytes:
    """Returns the canonical line of a passage, its end included, in UTF-8."""
    return dump_line(passage_row(passage))


def corpus_sha256(passages: Iterable[Passage]) -> str:
    """Returns the fingerprint of a corpus: the sha256 of its canonical lines, whatever format it was read from."""
    digest = hashlib.sha256()
    for passage in passages:
        digest.update(passage_line(passage))
    return digest.hexdigest()


def write_corpus(path: FilePath, passages: Iterable[Passage]) -> int:
    """Writes a corpus in its canonical form, all at once; packed if the name ends in ``.gz``.

    Returns:
        Number of passages written.
    """
    return write_jsonl(path, map(passage_row, passages))


# -- finding the format --------------------------------------------------------------------------------------------


EXPECTED = "id and contents, title and text, or one object {title: [sentences]}"


def corpus_file(path: FilePath) -> Path:
    """Returns the corpus file behind a path: itself, or the one in a BEIR folder.

    Raises:
        DataMissingError: A folder without one.
    """
    file = Path(path)
    if not file.is_dir():
        return file
    for name in ("corpus.jsonl", "corpus.jsonl.gz"):
        if (file / name).is_file():
            return file / name
    raise DataMissingError(
        "is a folder without corpus.jsonl: give a BEIR folder or a file, or make a corpus of a folder of documents "
        "with `searchgym corpus convert`",
        path,
    )


def _shape(row: Row) -> str | None:
    """Returns the name of the format that a row is in, None if in none."""
    if "contents" in row:
        return "contents"
    if "text" not in row:
        return None
    if "sentences" in row:
        return "hotpotqa"
    if "_id" in row:
        return "beir"
    return "searchgym" if {"id", "title"} <= row.keys() else "title-text"


def _pages(document: Row) -> list[Row]:
    """Turns ``{title: [sentences]}`` into rows of title and text; a wrong value is left for the parser to refuse."""
    good = {t: s for t, s in document.items() if isinstance(s, list) and all(isinstance(one, str) for one in s)}
    texts = dict(zip(good, map("".join, spaced(list(good.values()))), strict=True))
    return [{"title": t, "text": texts.get(t, s), "sentences": s} for t, s in document.items()]


# -- the formats: one row to one passage ---------------------------------------------------------------------------


def _contents(row: Row, position: int) -> Passage:
    """Reads FlashRAG's contents."""
    title, text = split_contents(text_field(row, "contents"))
    return Passage(id_field(row, "id", "_id"), title, text)


def split_contents(contents: str) -> tuple[str, str]:
    """Splits FlashRAG's contents into title, quoted or not, and text; without a line break there is no title."""
    head, line_break, rest = contents.partition("\n")
    title, text = (head, rest) if line_break else ("", head)
    if len(title) >= 2 and title.startswith('"') and title.endswith('"'):
        title = title[1:-1]
    return title, text


def _page(row: Row, position: int) -> Passage:
    """Reads a page of ``{title: [sentences]}``."""
    if not isinstance(row.get("text"), str):
        raise DataError(f"page {row.get('title')!r}: expected a list of sentences, got {row.get('text')!r:.60}")
    return _titled(row, position=position)


def _titled(row: Row, *id_keys: str, position: int | None = None) -> Passage:
    """Reads title and text; the position is the id of a row without one, where a format allows that."""
    id = id_field(row, *id_keys, position=position)
    return Passage(id, optional_text(row, "title") or "", text_field(row, "text"))


FORMATS: dict[str, Parser[Passage]] = {
    "contents": _contents,
    "title-text": lambda row, position: _titled(row, "id", "_id", position=position),
    "hotpotqa": _page,
    "beir": lambda row, position: _titled(row, "_id"),
    "searchgym": lambda row, position: _titled(row, "id"),
}
"""Corpus formats by name."""
