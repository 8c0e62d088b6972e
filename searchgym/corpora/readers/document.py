"""A document as a reader gives it, and its characters from bytes in any encoding."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import Final

from searchgym.errors import DataError


@dataclass(frozen=True, slots=True)
class Document:
    """What a reader finds in a document."""

    title: str
    """Title; empty if the document has none."""
    text: str
    links: tuple[tuple[int, int, str], ...] = ()
    """Links in the order of the text: start and end of the words that are linked, and the address as it is written."""


LONGEST_TITLE: Final = 1000
"""Characters that a title may have; a longer heading is text."""
BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins like UTF-16, so it is asked first
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks, and the encodings that they tell."""
_DECLARED: Final = re.compile(rb"charset\s*+=\s*+[\"']?([\w-]++)", re.IGNORECASE)
"""Matches the encoding that a page of HTML declares."""
_KNOWN: Final = re.compile(
    r"utf-?8|utf-16(?:le|be)?|windows-125\d|iso-8859-\d{1,2}|shift_jis|euc-jp|euc-kr|gb2312|gbk|gb18030|big5|koi8-[ru]",
    re.IGNORECASE,
)
"""Matches encodings that a page may declare: Python knows others that take quadratic time or are none of text."""


def decoded(content: bytes, declares: bool = False) -> tuple[str, str]:
    """Returns the text of a document and the name of its encoding.

    A byte order mark decides; else the text is UTF-8 if it can be, else what the page declares, else Windows-1252 or,
    with bytes that Windows-1252 has not, Latin-1.

    Args:
        content: The bytes.
        declares: Whether the document may declare its encoding, as HTML does.

    Raises:
        DataError: The bytes are no text.
    """
    marked = [name for mark, name in BOMS if content.startswith(mark)]
    declaration = _DECLARED.search(content[:4096]) if declares else None
    named = declaration[1].decode("ascii", "replace") if declaration else ""
    others = [named] if _KNOWN.fullmatch(named) else []
    for name in marked[:1] or ["utf-8", *others, "windows-1252", "iso-8859-1"]:
        if name in ("windows-1252", "iso-8859-1") and b"\0" in content:
            break
        try:
            return content.decode(name), name
        except (UnicodeDecodeError, LookupError):
            continue
    raise DataError("is no text in an encoding that is known: convert the file to UTF-8")
