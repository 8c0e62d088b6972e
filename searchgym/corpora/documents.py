"""Turns a folder of documents into a corpus; cuts passages into chunks; inspects a corpus."""

from __future__ import annotations

import hashlib
import itertools
import posixpath
import re
import warnings
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote

import numpy as np

from searchgym.corpora.files import MAX_LINE, FilePath, read_bytes
from searchgym.corpora.passages import detect_format, passage_line, read_passages
from searchgym.corpora.readers.document import Document, decoded
from searchgym.corpora.readers.html import read_html
from searchgym.corpora.readers.markdown import read_markdown
from searchgym.corpora.readers.office import PACKAGES, read_office, readable
from searchgym.errors import BadLines, DataError, DataMissingError, DataWarning, UsageError
from searchgym.reading import leads_out
from searchgym.records import Passage
from searchgym.text import word_starts

MAX_TEXT: Final = 1 << 24
"""Maximum length of a document, in bytes or, for PDF and DOCX, in characters of text."""
WORD = re.compile(r"\S+")
"""Matches a run of characters other than white space: a word, or several in scripts without spaces."""
PARAGRAPH_END = re.compile(r"\n[ \t]*\n")
"""Matches a blank line, which ends a paragraph."""
SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*\s+|[。！？][”’」』）]*\s*")
"""Matches the punctuation and white space that end a sentence; in Chinese and Japanese no white space follows."""


def convert_documents(folder: FilePath, bad: BadLines | None = None) -> Iterator[Passage]:
    """Reads a folder of documents and its sub-folders, and makes one passage of each document.

    A `DataWarning` counts the files that are left out: files of other kinds, links that lead out of the folder, and
    links to folders, pipes or devices. Another one reports a file that is not UTF-8 and was read in another encoding.
    Files and folders whose names begin with a dot are skipped without a warning.

    Args:
        folder: Folder with files ``*.md``, ``*.txt`` or ``*.html``, and with the extra ``documents`` also ``*.pdf`` and
            ``*.docx``.
        bad: Tolerance for documents that cannot be read. Default: the first one is an error.

    Yields:
        Passages in the order of their ids. The id is the path inside the folder; the title is the front matter's
        ``title`` (Markdown), the ``<title>`` (HTML), the title in the file's metadata (PDF, DOCX) or the first
        heading, else the file's name without its suffix. Markdown and HTML are rendered to text, without an opening
        heading that became the title. Links from Markdown to other documents become the passage's links.

    Raises:
        DataMissingError: The folder does not exist.
        DataError: `folder` is a file or holds no documents; or a document is too long, damaged or not text.
    """
    bad = BadLines() if bad is None else bad
    root = Path(folder)
    if not root.exists():
        raise DataMissingError("no such folder: check the path", folder)
    if not root.is_dir():
        raise DataError("is a file: give a folder of documents", folder)
    files, left = _documents(root)
    if not files:
        raise DataError(f"holds no documents: put {', '.join(READERS)} files there{left and f'; {left}'}", folder)
    if left:
        warnings.warn(f"{folder}: {left}", DataWarning, stacklevel=1)
    for id, path in sorted(files.items()):
        try:
            document = _read(path)
        except DataError as error:
            bad.bad(DataError(error.reason, path))
            continue
        yield Passage(id, document.title or path.stem, document.text, _links(id, document, files))


def _documents(root: Path) -> tuple[dict[str, Path], str]:
    """Returns the documents in a folder by id, and a description of the files left out; empty if there are none."""
    files: dict[str, Path] = {}
    left: Counter[str] = Counter()
    for path in root.rglob("*"):
        id = path.relative_to(root).as_posix()
        suffix = path.suffix.lower()
        if "/." in f"/{id}" or (path.is_dir() and not path.is_symlink()):
            continue
        if leads_out(path, root):
            left["links that lead out of the folder"] += 1
        elif not path.is_file():
            left["links to folders, pipes or devices"] += 1
        elif suffix in READERS or readable(suffix):
            files[id] = path
        else:
            left[suffix or "without a suffix"] += 1
    if not left:
        return files, ""
    hint = "" if not left.keys() & PACKAGES.keys() else " (`pip install 'searchgym[documents]'` reads PDF and DOCX)"
    return files, f"left out: {', '.join(f'{count} {kind}' for kind, count in sorted(left.items()))}{hint}"


def _read(path: Path) -> Document:
    """Returns the title, text and links of a document.

    Raises:
        DataError: The document is too long, damaged or not text.
    """
    suffix = path.suffix.lower()
    if suffix in PACKAGES:
        document = read_office(read_bytes(path, MAX_LINE), suffix, MAX_TEXT)
        if not document.text:
            warnings.warn(f"{path}: has no text (scanned pages have none)", DataWarning, stacklevel=1)
        return document
    text, encoding = decoded(read_bytes(path, MAX_TEXT), declares=suffix == ".html")
    if encoding not in ("utf-8", "utf-8-sig"):
        warnings.warn(f"{path}: is not UTF-8, it was read as {encoding}", DataWarning, stacklevel=1)
    return READERS[suffix](text.replace("\r\n", "\n").replace("\r", "\n"))


def _links(id: str, document: Document, files: Mapping[str, Path]) -> tuple[tuple[int, int, str], ...]:
    """Returns the links of a document that lead to other documents of its folder."""
    links = []
    for start, end, address in document.links:
        path = unquote(address.partition("#")[0])
        target = posixpath.normpath(posixpath.join(posixpath.dirname(id), path))
        if path and target in files and target != id:
            links.append((start, end, target))
    return tuple(links)


def is_documents(source: FilePath) -> bool:
    """Returns whether a path is a folder of documents, which is any folder that is not a BEIR corpus."""
    return Path(source).is_dir() and not any(Path(source).glob("corpus.jsonl*"))


def open_corpus(source: FilePath, format: str | None = None, bad: BadLines | None = None) -> Iterator[Passage]:
    """Reads passages from any source: a corpus file, a BEIR folder, a folder of documents or a data set on the hub.

    Args:
        source: A path, or ``hf:OWNER/NAME:CONFIG/SPLIT``.
        format: One of `passages.FORMATS`. Default: detected from the content. Documents ignore it.
        bad: Tolerance for bad rows, or for documents that cannot be read.

    Raises:
        DataMissingError: The source does not exist or cannot be reached.
        DataError: The source cannot be read.
    """
    return convert_documents(source, bad) if is_documents(source) else read_passages(source, format, bad)


def chunk_passages(
    passages: Iterable[Passage],
    words: int = 100,
    overlap: int = 0,
    by: Literal["words", "paragraph", "sentence"] = "words",
) -> Iterator[Passage]:
    """Cuts passages into chunks of consecutive words.

    Args:
        passages: Passages to cut.
        words: Maximum number of words in a chunk. Words are separated by white space; in scripts without spaces between
            words, such as Chinese, each character is one (`searchgym.text.word_starts`).
        overlap: Number of words at the end of a chunk that the next chunk repeats; fewer if that many would cut a
            unit.
        by: Unit of a chunk, which may begin and end at any word, or only between paragraphs (at blank lines) or
            sentences (after a full stop, question or exclamation mark and white space). A chunk holds as many units as
            fit; a unit longer than `words` is cut at any word.

    Yields:
        Passages with the id ``"<id>#<n>"`` (n from 0), the same title, and the original text between the first and the
        last word of the chunk. No chunk is empty, so a passage without words yields none. Without overlap, the words of
        the chunks are those of the passage, in order.

    Raises:
        UsageError: `words` is less than 1, `overlap` is not in [0, words), or `by` is not one of the three.
    """
    if words < 1 or not 0 <= overlap < words:
        raise UsageError(f"expected words >= 1 and 0 <= overlap < words, got words={words}, overlap={overlap}")
    if by not in ("words", "paragraph", "sentence"):
        raise UsageError(f"expected by= words, paragraph or sentence, got {by!r}")
    return _chunks(passages, words, overlap, by)


def inspect_corpus(path: FilePath) -> dict[str, Any]:
    """Returns statistics of a corpus or of a folder of documents.

    Takes about 0.1 GB of memory per million passages, in addition to that of `read_passages`.

    Returns:
        ``format``, ``passages``, ``sha256`` (of the canonical form, see `passages.corpus_sha256`), ``words_mean``,
        ``words_p5``, ``words_p50``, ``words_p95`` and ``words_max`` (words of the text, without the title),
        ``empty_titles``, ``empty_texts`` and ``duplicate_texts`` (passages whose text an earlier passage has).

    Raises:
        DataMissingError: The source does not exist.
        DataError: The source cannot be read; see `read_passages`.
    """
    kind = "hub data set" if str(path).startswith("hf:") else "documents" if is_documents(path) else detect_format(path)
    digest, lengths, texts = hashlib.sha256(), array("q"), set()
    empty_titles = empty_texts = 0
    for passage in open_corpus(path):
        digest.update(passage_line(passage))
        lengths.append(len(passage.text.split()) if passage.text.isascii() else len(_words(passage.text)))
        empty_titles += not passage.title.strip()
        empty_texts += not passage.text.strip()
        texts.add(hashlib.blake2b(passage.text.encode("utf-8", "surrogatepass"), digest_size=16).digest())
    percentiles = {f"words_p{p}": float(np.percentile(lengths, p)) for p in (5, 50, 95)}
    return {
        "format": kind,
        "passages": len(lengths),
        "sha256": digest.hexdigest(),
        "words_mean": float(np.mean(lengths)),
        **percentiles,
        "words_max": max(lengths),
        "empty_titles": empty_titles,
        "empty_texts": empty_texts,
        "duplicate_texts": len(lengths) - len(texts),
    }


# -- chunks --------------------------------------------------------------------------------------------------------


def _chunks(passages: Iterable[Passage], words: int, overlap: int, by: str) -> Iterator[Passage]:
    """Yields the chunks of every passage."""
    for passage in passages:
        spans = _words(passage.text)
        bounds: Sequence[int] = range(len(spans) + 1)  # words at which a chunk may begin, and the number of words
        if by != "words":
            ends = (PARAGRAPH_END if by == "paragraph" else SENTENCE_END).finditer(passage.text)
            starts = [start for start, _ in spans]
            bounds = sorted({0, len(spans), *(bisect_left(starts, end.end()) for end in ends)})
        for number, (first, last) in enumerate(_windows(bounds, words, overlap)):
            text = passage.text[spans[first][0] : spans[last - 1][1]]
            yield Passage(f"{passage.id}#{number}", passage.title, text)


def _words(text: str) -> list[tuple[int, int]]:
    """Returns the start and end of each word of a text, in characters."""
    spans = list[tuple[int, int]]()
    for run in WORD.finditer(text):
        bounds = [run.start() + start for start in word_starts(run[0])]
        spans += itertools.pairwise([*bounds, run.end()])
    return spans


def _windows(bounds: Sequence[int], words: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Yields the half-open range of word indices of each chunk."""
    total, start = bounds[-1], 0
    while start < total:
        end = _reach(bounds, start, words)
        yield start, end
        back = bounds[bisect_left(bounds, end - overlap)]
        if back > end:  # the chunk ended in the middle of a unit that is longer than a chunk
            back = end - overlap
        # Overlapping makes sense only if the next chunk then still ends later than this one.
        start = back if back > start and _reach(bounds, back, words) > end else end


def _reach(bounds: Sequence[int], start: int, words: int) -> int:
    """Returns the end of the chunk that begins at `start`: the last bound within `words`, else `start + words`."""
    last = bounds[bisect_right(bounds, start + words) - 1]
    return last if last > start else start + words


# -- kinds of documents --------------------------------------------------------------------------------------------


READERS: Final[Mapping[str, Callable[[str], Document]]] = {
    ".md": read_markdown,
    ".txt": lambda content: Document("", content.strip()),
    ".html": read_html,
}
"""Functions that read a document's text, by file suffix."""
