"""Result of a document reader, and decoding of bytes in an unknown encoding."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import Final

from searchgym.errors import DataError


@dataclass(frozen=True, slots=True)
class Document:
    """Title, text and links of a document, as returned by a reader."""

    title: str
    """Title; empty if the document has none."""
    text: str
    links: tuple[tuple[int, int, str], ...] = ()
    """Links in text order: start and end of the linked words in the text, in characters, and the address as written."""


LONGEST_TITLE: Final = 1000
"""Maximum length of a title, in characters; a longer heading counts as text."""
BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins like UTF-16, so it is checked first
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks, and the encodings that they indicate."""
_DECLARED: Final = re.compile(rb"charset\s*+=\s*+[\"']?([\w-]++)", re.IGNORECASE)
"""Matches the encoding that a page of HTML declares."""
_KNOWN: Final = re.compile(
    r"utf-?8|utf-16(?:le|be)?|windows-125\d|iso-8859-\d{1,2}|shift_jis|euc-jp|euc-kr|gb2312|gbk|gb18030|big5|koi8-[ru]",
    re.IGNORECASE,
)
"""Matches encodings that a page may declare: Python has others that take quadratic time or do not encode text."""


def decoded(content: bytes, declares: bool = False) -> tuple[str, str]:
    """Returns the text of a document and the name of its encoding.

    The encoding is that of the byte order mark, if there is one; else UTF-8 if the bytes are valid UTF-8; else the
    declared one; else Windows-1252, or Latin-1 if there are bytes that Windows-1252 does not define.

    Args:
        content: The bytes.
        declares: Whether the document may declare its encoding, as HTML does.

    Raises:
        DataError: The bytes are not text.
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
    raise DataError("is not text in a known encoding: convert the file to UTF-8")
