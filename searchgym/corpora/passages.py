"""Reads and writes corpora of passages.

The format is detected from the content:

==============  ====================================================================================================
``contents``    JSON lines ``{"id", "contents"}`` (FlashRAG, Search-R1): the title on the first line, quoted or not; a
                separate ``title`` or ``text`` that differs is an error
``title-text``  ``[{"title", "text"}]``, or the same as JSON lines; ids are positions from 0 unless given
``hotpotqa``    one JSON object ``{title: [sentences]}``; ids are positions from 0
``beir``        a folder with ``corpus.jsonl``, or that file: ``{"_id", "title", "text"}``
``browsecomp``  BrowseComp-Plus: rows ``{"docid", "text", "url"}``; the title is that of the front matter, else the
                first line, else the address
``searchgym``   JSON lines ``{"id", "title", "text"}``, optionally with ``links``; written by `write_corpus`
==============  ====================================================================================================

Every format may be gzip-compressed. JSON lines are streamed; a JSON document is read whole.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any

from searchgym.corpora.fields import Row, id_field, optional_text, spaced, text_field
from searchgym.corpora.files import FilePath, dump_line, write_jsonl
from searchgym.corpora.readers.browsecomp import is_document, passage_of
from searchgym.corpora.rows import SNIFF_LINES, Parser, find_format, open_rows, parse_rows
from searchgym.errors import BadLines, DataError, DataMissingError, UnknownNameError
from searchgym.records import Passage


def read_passages(path: FilePath, format: str | None = None, bad: BadLines | None = None) -> Iterator[Passage]:
    """Reads the passages of a corpus file.

    Args:
        path: A file, a BEIR folder, or ``hf:OWNER/NAME:CONFIG/SPLIT`` on the hub.
        format: One of `FORMATS`. Default: detected from the content.
        bad: Tolerance for bad rows. Default: the first bad row is an error.

    Returns:
        Passages in file order, with unique ids and the text exactly as in the source. Checking that ids are unique
        takes at most 43 bytes of memory per passage.

    Raises:
        DataMissingError: The file does not exist (raised at the call; all other faults are raised during iteration).
        DataError: The file is empty or damaged, its format is unknown, a row does not fit the format, or an id occurs
            twice.
        UnknownNameError: `format` is not one of `FORMATS`.
    """
    bad = BadLines() if bad is None else bad
    rows = open_rows(corpus_file(path), bad, _pages, streaming=True)
    if format is None:
        format, rows = find_format(rows, _shape, EXPECTED)
    elif format not in FORMATS:
        raise UnknownNameError("corpus format", format, FORMATS)
    return parse_rows(rows, FORMATS[format], bad)


def detect_format(path: FilePath) -> str:
    """Returns the name of the format of a corpus file, detected from its content.

    Raises:
        DataMissingError: The file does not exist.
        DataError: The format is unknown.
    """
    any_bad = BadLines(SNIFF_LINES)
    return find_format(open_rows(corpus_file(path), any_bad, _pages), _shape, EXPECTED)[0]


def passage_row(passage: Passage) -> dict[str, Any]:
    """Returns a passage as a row of the canonical format, ``searchgym``; with its links, if it has any."""
    row: dict[str, Any] = {"id": passage.id, "title": passage.title, "text": passage.text}
    return row | {"links": [list(link) for link in passage.links]} if passage.links else row


def passage_line(passage: Passage) -> bytes:
    """Returns a passage as a line of the canonical format: UTF-8, with the line break."""
    if not passage.links:
        id, title, text = map(encode_basestring, (passage.id, passage.title, passage.text))
        try:  # what `dump_line` gives, in a third of the time
            return f'{{"id": {id}, "title": {title}, "text": {text}}}\n'.encode()
        except UnicodeEncodeError:
            pass
    return dump_line(passage_row(passage))


def corpus_sha256(passages: Iterable[Passage]) -> str:
    """Returns the sha256 of a corpus's canonical lines, which does not depend on the format it was read from."""
    digest = hashlib.sha256()
    for passage in passages:
        digest.update(passage_line(passage))
    return digest.hexdigest()


def write_corpus(path: FilePath, passages: Iterable[Passage]) -> int:
    """Writes a corpus atomically in the canonical format, compressed if the name ends in ``.gz``.

    Returns:
        Number of passages written.
    """
    return write_jsonl(path, map(passage_row, passages))


# -- detecting the format ------------------------------------------------------------------------------------------


EXPECTED = "id and contents, title and text, or one object {title: [sentences]}"
"""Description of the known formats for error messages."""


def corpus_file(path: FilePath) -> Path:
    """Returns the corpus file that a path names: the path itself, or ``corpus.jsonl`` in a BEIR folder.

    Raises:
        DataMissingError: The path is a folder without a corpus file.
    """
    file = Path(path)
    if not file.is_dir():
        return file
    for name in ("corpus.jsonl", "corpus.jsonl.gz"):
        if (file / name).is_file():
            return file / name
    raise DataMissingError(
        "is a folder without corpus.jsonl: give a BEIR folder or a file, or make a corpus from a folder of documents "
        "with `searchgym corpus convert`",
        path,
    )


def _shape(row: Row) -> str | None:
    """Returns the name of a row's format, None if no known format fits."""
    if "contents" in row:
        return "contents"
    if "text" not in row:
        return None
    if is_document(row):
        return "browsecomp"
    if "sentences" in row:
        return "hotpotqa"
    if "_id" in row:
        return "beir"
    return "searchgym" if {"id", "title"} <= row.keys() else "title-text"


def _pages(document: Row) -> list[Row]:
    """Turns ``{title: [sentences]}`` into rows of title and text; the parser refuses values of another type later."""
    good = {t: s for t, s in document.items() if isinstance(s, list) and all(isinstance(item, str) for item in s)}
    texts = dict(zip(good, map("".join, spaced(list(good.values()))), strict=True))
    return [{"title": t, "text": texts.get(t, s), "sentences": s} for t, s in document.items()]


# -- the formats: one row to one passage ---------------------------------------------------------------------------


def _contents(row: Row, position: int) -> Passage:
    """Makes a passage from a FlashRAG row ``{"id", "contents"}``; a separate title or text must match."""
    title, text = split_contents(text_field(row, "contents"))
    for key, value in (("title", title), ("text", text)):
        other = optional_text(row, key)
        if other is not None and _plain(other) != _plain(value):
            raise DataError(f"'contents' and {key!r} differ, {value!r:.40} and {other!r:.40}: leave one of them out")
    return Passage(id_field(row, "id", "_id"), title, text)


def _plain(text: str) -> str:
    """Returns a text without surrounding quotes and with single spaces, for comparison."""
    return " ".join(text.split()).strip('"')


def split_contents(contents: str) -> tuple[str, str]:
    """Splits FlashRAG's ``contents`` into (title without quotes, text); without a line break the title is empty."""
    head, line_break, rest = contents.partition("\n")
    title, text = (head, rest) if line_break else ("", head)
    if len(title) >= 2 and title.startswith('"') and title.endswith('"'):
        title = title[1:-1]
    return title, text


def _page(row: Row, position: int) -> Passage:
    """Makes a passage from a page of ``{title: [sentences]}``."""
    if not isinstance(row.get("text"), str):
        raise DataError(f"page {row.get('title')!r}: expected a list of sentences, got {row.get('text')!r:.60}")
    return _titled(row, position=position)


def _titled(row: Row, *id_keys: str, position: int | None = None) -> Passage:
    """Makes a passage from a row of title and text; `position`, if given, is the id of a row without one."""
    id = id_field(row, *id_keys, position=position)
    return Passage(id, optional_text(row, "title") or "", text_field(row, "text"))


def links_of(row: Row) -> tuple[tuple[int, int, str], ...]:
    """Returns the links of a row of the canonical format; empty if ``links`` has any other form."""
    links = row.get("links")
    if not isinstance(links, list):
        return ()
    length = len(row["text"]) if isinstance(row.get("text"), str) else 0
    for link in links:
        if not isinstance(link, list) or [type(item) for item in link] != [int, int, str]:
            return ()
        if not 0 <= link[0] < link[1] <= length:
            return ()
    return tuple((start, end, target) for start, end, target in links)


FORMATS: dict[str, Parser[Passage]] = {
    "contents": _contents,
    "title-text": lambda row, position: _titled(row, "id", "_id", position=position),
    "hotpotqa": _page,
    "beir": lambda row, position: _titled(row, "_id"),
    "browsecomp": passage_of,
    "searchgym": lambda row, position: dataclasses.replace(_titled(row, "id"), links=links_of(row)),
}
"""Parsers of corpus rows, by the name of the format."""
