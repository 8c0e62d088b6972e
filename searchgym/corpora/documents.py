"""Turns a folder of Markdown, text and HTML files into a corpus; cuts passages into chunks; inspects a corpus."""

from __future__ import annotations

import hashlib
import itertools
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal

import numpy as np

from searchgym.corpora.files import BadLines, FilePath
from searchgym.corpora.passages import detect_format, passage_line, read_passages
from searchgym.errors import CardError, DataError, DataMissingError, UsageError
from searchgym.protocol import word_starts
from searchgym.records import Passage
from searchgym.yaml_reader import parse_yaml

FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
"""Matches a block of YAML between lines of dashes at the start of a Markdown file."""
FENCE_OR_HEADING = re.compile(
    r"^(?P<fence>```|~~~).*?(?:^(?P=fence)|\Z)|^#{1,6}[ \t]+(?P<title>[^\n]+?)(?:[ \t]+#+)?[ \t]*$",
    re.DOTALL | re.MULTILINE,
)
"""Matches a Markdown heading (group ``title``) or a code block, which is matched so that its ``#`` is no heading."""
WORD = re.compile(r"\S+")
"""Matches a run of characters other than white space: a word, or several in scripts without spaces."""
PARAGRAPH_END = re.compile(r"\n[ \t]*\n")
"""Matches a blank line, which ends a paragraph."""
SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*\s+|[。！？][”’」』）]*\s*")
"""Matches the punctuation and white space that end a sentence; in Chinese and Japanese no white space follows."""


def convert_documents(folder: FilePath) -> Iterator[Passage]:
    """Reads a folder of documents and its sub-folders, and makes one passage of each document.

    Args:
        folder: Folder with files ``*.md``, ``*.txt`` or ``*.html``, in UTF-8. Other files are skipped, as are files
            and folders whose names begin with a dot.

    Yields:
        Passages in the order of their ids. The id is the path inside the folder; the title is the front matter's
        ``title`` (Markdown), the ``<title>`` (HTML) or the first heading, else the file's name without its suffix.
        The text keeps Markdown's marks, but loses an opening heading that became the title.

    Raises:
        DataMissingError: The folder does not exist.
        DataError: `folder` is a file or holds no documents, or a document is not UTF-8.
    """
    root = Path(folder)
    if not root.exists():
        raise DataMissingError("no such folder: check the path", folder)
    if not root.is_dir():
        raise DataError("is a file: give a folder of documents", folder)
    documents = [path for path in root.rglob("*") if path.suffix.lower() in READERS and path.is_file()]
    ids = {path: path.relative_to(root).as_posix() for path in documents}
    files = {id: path for path, id in ids.items() if "/." not in f"/{id}"}
    if not files:
        raise DataError(f"holds no documents: put {', '.join(READERS)} files there", folder)
    for id, path in sorted(files.items()):
        try:
            content = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(f"not UTF-8 ({error.reason}): convert the file to UTF-8", path) from error
        title, text = READERS[path.suffix.lower()](content)
        yield Passage(id, title or path.stem, text)


def is_documents(source: FilePath) -> bool:
    """Returns whether a path is a folder of documents, which is any folder that is not a BEIR corpus."""
    return Path(source).is_dir() and not any(Path(source).glob("corpus.jsonl*"))


def open_corpus(source: FilePath, format: str | None = None, bad: BadLines | None = None) -> Iterator[Passage]:
    """Reads passages from any source: a corpus file, a BEIR folder, a folder of documents or a data set on the hub.

    Args:
        source: A path, or ``hf:OWNER/NAME:CONFIG/SPLIT``.
        format: One of `passages.FORMATS`. Default: detected from the content. Documents ignore it.
        bad: Tolerance for bad rows. Documents ignore it.

    Raises:
        DataMissingError: The source does not exist or cannot be reached.
        DataError: The source cannot be read.
    """
    if str(source).startswith("hf:"):
        from searchgym.corpora.hub import read_hub_passages

        return read_hub_passages(str(source), format, bad)
    return convert_documents(source) if is_documents(source) else read_passages(source, format, bad)


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
            words, such as Chinese, each character is one (`searchgym.protocol.word_starts`).
        overlap: Number of words at the end of a chunk that the next chunk repeats; fewer where that many would cut a
            unit.
        by: Unit of a chunk, which may begin and end at any word, or only between paragraphs (at blank lines) or
            sentences (after a full stop, question or exclamation mark and white space). A chunk takes as many units as
            fit; a unit longer than `words` is cut at any word.

    Yields:
        Passages with the id ``"<id>#<n>"`` (n from 0), the same title, and the original text between the first and the
        last word of the chunk. No chunk is empty, so a passage without words gives none. Without overlap, the words of
        the chunks are those of the passage, in order.

    Raises:
        UsageError: `words` is less than 1, `overlap` is not in [0, words), or `by` is none of the three.
    """
    if words < 1 or not 0 <= overlap < words:
        raise UsageError(f"expected words >= 1 and 0 <= overlap < words, got words={words}, overlap={overlap}")
    if by not in ("words", "paragraph", "sentence"):
        raise UsageError(f"expected by= words, paragraph or sentence, got {by!r}")
    return _chunks(passages, words, overlap, by)


def inspect_corpus(path: FilePath) -> dict[str, Any]:
    """Returns statistics of a corpus or of a folder of documents.

    Takes about 0.1 GB of memory per million passages, besides that of `read_passages`.

    Returns:
        ``format``, ``passages``, ``sha256`` (of the canonical form, see `passages.corpus_sha256`), ``words_mean``,
        ``words_p5``, ``words_p50``, ``words_p95`` and ``words_max`` (words of the text, without the title),
        ``empty_titles``, ``empty_texts`` and ``duplicate_texts`` (passages whose text an earlier passage has).

    Raises:
        DataMissingError: The source does not exist.
        DataError: The source cannot be read; see `read_passages`.
    """
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
        "format": _format(path),
        "passages": len(lengths),
        "sha256": digest.hexdigest(),
        "words_mean": float(np.mean(lengths)),
        **percentiles,
        "words_max": max(lengths),
        "empty_titles": empty_titles,
        "empty_texts": empty_texts,
        "duplicate_texts": len(lengths) - len(texts),
    }


def _format(source: FilePath) -> str:
    """Returns the type of a source as a readable name."""
    if str(source).startswith("hf:"):
        return "hub data set"
    return "documents" if is_documents(source) else detect_format(source)


# -- chunks --------------------------------------------------------------------------------------------------------


def _chunks(passages: Iterable[Passage], words: int, overlap: int, by: str) -> Iterator[Passage]:
    """Yields the chunks of every passage."""
    for passage in passages:
        spans = _words(passage.text)
        bounds = _bounds(passage.text, spans, by)
        for number, (first, last) in enumerate(_windows(bounds, words, overlap)):
            text = passage.text[spans[first][0] : spans[last - 1][1]]
            yield Passage(f"{passage.id}#{number}", passage.title, text)


def _words(text: str) -> list[tuple[int, int]]:
    """Returns where the words of a text begin and end."""
    found = list[tuple[int, int]]()
    for run in WORD.finditer(text):
        bounds = [run.start() + start for start in word_starts(run[0])]
        found += itertools.pairwise([*bounds, run.end()])
    return found


def _bounds(text: str, spans: Sequence[tuple[int, int]], by: str) -> Sequence[int]:
    """Returns the indices of the words at which a chunk may begin; the last entry is the number of words."""
    if by == "words":
        return range(len(spans) + 1)
    ends = (PARAGRAPH_END if by == "paragraph" else SENTENCE_END).finditer(text)
    starts = [start for start, _ in spans]
    return sorted({0, len(spans), *(bisect_left(starts, end.end()) for end in ends)})


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


def _markdown(content: str) -> tuple[str, str]:
    """Returns (title, text) of a Markdown document; the title is empty if the document has none."""
    matter = FRONT_MATTER.match(content)
    fields = _yaml_object(matter.group(1)) if matter else None
    if matter is None or fields is None:  # three dashes may also be a horizontal rule
        fields, text = {}, content.strip()
    else:
        text = content[matter.end() :].strip()
    headings = (match for match in FENCE_OR_HEADING.finditer(text) if match.group("title"))
    heading = next(headings, None)
    title = str(fields.get("title") or "").strip()
    if heading is None:
        return title, text
    if heading.start() == 0 and title in ("", heading.group("title")):
        text = text[heading.end() :].strip()
    return title or heading.group("title"), text


def _yaml_object(source: str) -> dict[Any, Any] | None:
    """Returns the mapping that a YAML text holds, None if the text is anything else."""
    try:
        value = parse_yaml(source, "front matter")
    except CardError:
        return None
    return value if isinstance(value, dict) else None


class _Html(HTMLParser):
    """Parser that splits an HTML page into its title and its blocks of visible text."""

    # fmt: off
    INLINE = frozenset((
        "a", "abbr", "b", "bdi", "bdo", "cite", "code", "del", "dfn", "em", "font", "i", "ins", "kbd", "mark", "q", "s",
        "samp", "small", "span", "strong", "sub", "sup", "time", "u", "var",
    ))
    # fmt: on
    HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
    HIDDEN = frozenset(("script", "style"))

    def __init__(self) -> None:
        super().__init__()
        self.title = ""
        self.blocks: list[tuple[str, bool]] = []
        """Blocks in page order: (text with white space collapsed, whether the block is a heading)."""
        self._inside = ""  # open tag that decides what text is: title, heading or hidden
        self._pieces: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        """Ends the current block at an opening tag that is not inline."""
        if tag not in self.INLINE:
            self.end_block()
        if tag == "title" or tag in self.HEADINGS or tag in self.HIDDEN:
            self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        """Ends the current block at a closing tag that is not inline."""
        if tag not in self.INLINE:
            self.end_block()
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        """Adds text to the current block."""
        self._pieces.append(data)

    def end_block(self) -> None:
        """Stores the text collected so far as the title or as a block; drops hidden text."""
        text = " ".join("".join(self._pieces).split())
        self._pieces.clear()
        if not text or self._inside in self.HIDDEN:
            return
        if self._inside == "title":
            self.title = self.title or text
        else:
            self.blocks.append((text, self._inside in self.HEADINGS))


def _html(content: str) -> tuple[str, str]:
    """Returns (title, text) of an HTML page, its blocks as paragraphs; the title is empty if the page has none."""
    page = _Html()
    page.feed(content)
    page.close()
    page.end_block()
    heading = next((text for text, is_heading in page.blocks if is_heading), "")
    title = page.title or heading
    texts = [text for text, _ in page.blocks]
    if texts and page.blocks[0] == (title, True):
        texts = texts[1:]
    return title, "\n\n".join(texts)


def _plain(content: str) -> tuple[str, str]:
    """Returns (title, text) of a plain text file, whose title is always empty."""
    return "", content.strip()


READERS: dict[str, Callable[[str], tuple[str, str]]] = {".md": _markdown, ".txt": _plain, ".html": _html}
"""Functions from a document's content to (title, text), by file suffix."""
