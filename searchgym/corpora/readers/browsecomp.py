"""Reads the released form of BrowseComp-Plus (arXiv 2508.06600): encrypted questions, and the corpus of web documents.

Field names and the encryption are those of https://github.com/texttron/BrowseComp-Plus at 97c637c (README.md and
scripts_build_index/decrypt_dataset.py) and of the card of the data set Tevatron/browsecomp-plus. In a row of questions
every text except ``query_id`` is encrypted: XOR with the SHA-256 of a key, repeated to the length of the text in UTF-8,
then base64. The key is the canary string that the repository passes to its script; it is not part of this package.
Rows that the script has decrypted have the same fields and need no key. The corpus is not encrypted.

This module is an independent implementation: no code was copied.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from searchgym.errors import DataError
from searchgym.records import Passage, Question, SupportingFact

KEY: Final = "SEARCHGYM_BROWSECOMP_KEY"
"""Environment variable with the key."""
BEGINNING: Final = 2000
"""Number of characters of a document in which its title is looked for; the rest of a gold document is not decrypted."""
LONGEST_TITLE: Final = 200
"""Maximum length of a title, in characters; a longer first line is text."""
_ENCRYPTED: Final = re.compile(r"(?:[A-Za-z0-9+/]{4}){4,}+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
"""Matches 16 letters of base64 and more, without blanks: no question in words has that form."""
_FRONT_MATTER: Final = re.compile(r"---[ \t]*\r?\n")
_TITLE_LINE: Final = re.compile(r"title:[ \t]*(.*)", re.IGNORECASE)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
"""Matches a control character, which no question has: a wrong key gives them."""


class Document(NamedTuple):
    """A document that a question names, without its text."""

    docid: str
    title: str
    url: str


# -- questions -----------------------------------------------------------------------------------------------------


def is_question(row: Mapping[str, Any]) -> bool:
    """Returns whether a row has the fields of a question."""
    return {"query_id", "query"} <= row.keys() and bool({"answer", "gold_docs"} & row.keys())


def question_of(row: Mapping[str, Any], position: int = 0) -> Question:
    """Makes a question from a row; texts of documents and the negative documents are dropped.

    `Question.metadata` has ``gold_docs`` and ``evidence_docs``, each a list of ``{"docid", "title", "url"}``.

    Args:
        row: Row of the released form, encrypted or decrypted.
        position: Position of the row, which the format does not use.

    Raises:
        DataError: A field is missing or of another type, the row is encrypted and the environment variable `KEY` is not
            set, or its value is not the key.
    """
    id = row.get("query_id")
    if not isinstance(id, str | int) or isinstance(id, bool) or not str(id).strip():
        raise DataError(f"'query_id': expected an id, got {id!r:.60}")
    cipher = _Cipher.of(_required(row, "query"))
    text, answer = cipher.text("query", row["query"]), cipher.text("answer", _required(row, "answer"))
    if cipher.digest is not None and _CONTROL.search(text):  # bytes of a wrong key may be UTF-8 by chance
        raise _misfit("query")
    if not answer.strip():
        raise DataError("no gold answer: 'answer' is blank; a question without one cannot be scored")
    golds, evidence = (_documents(row, key, cipher) for key in ("gold_docs", "evidence_docs"))
    documents = {"gold_docs": golds, "evidence_docs": evidence}
    return Question(
        id=str(id),
        text=text,
        answers=(answer,),
        supporting_facts=tuple(SupportingFact(title) for title in dict.fromkeys(doc.title for doc in golds)) or None,
        metadata={key: [document._asdict() for document in listed] for key, listed in documents.items() if listed},
    )


def _required(row: Mapping[str, Any], key: str) -> str:
    """Returns a text field that must be there."""
    value = row.get(key)
    if not isinstance(value, str):
        got = "nothing" if value is None else f"{value!r:.60}"
        raise DataError(f"{key!r}: expected text, got {got}: download the released file again")
    return value


def _documents(row: Mapping[str, Any], key: str, cipher: _Cipher) -> list[Document]:
    """Returns the documents of a list field; only the beginnings of their texts are decrypted."""
    listed = row.get(key)
    if not isinstance(listed, list) or not all(isinstance(item, Mapping) for item in listed):
        got = "nothing" if listed is None else f"{listed!r:.60}"
        raise DataError(f"{key!r}: expected a list of documents, got {got}: download the released file again")
    documents = []
    for item in listed:
        try:
            docid = cipher.text("docid", _required(item, "docid"))
            url = cipher.text("url", item["url"]) if isinstance(item.get("url"), str) else ""
            beginning = cipher.beginning("text", _required(item, "text"))
            documents.append(Document(docid, title_of(docid, beginning, url), url))
        except DataError as error:
            raise DataError(f"{key!r}: document {len(documents) + 1}: {error.reason}") from None
    return documents


class _Cipher(NamedTuple):
    """Decryption of the texts of one row."""

    digest: bytes | None
    """SHA-256 of the key; None if the row is not encrypted."""

    @classmethod
    def of(cls, query: str) -> _Cipher:
        """Returns the decryption for a row, given its ``query``.

        Raises:
            DataError: The row is encrypted and no key is set.
        """
        if not _ENCRYPTED.fullmatch(query):
            return cls(None)
        key = os.environ.get(KEY)
        if not key:
            raise DataError(
                f"is encrypted: set {KEY} to the canary string in scripts_build_index/decrypt_dataset.py of "
                "https://github.com/texttron/BrowseComp-Plus"
            )
        return cls(hashlib.sha256(key.encode()).digest())

    def text(self, name: str, value: str) -> str:
        """Returns a whole text."""
        return self._decrypted(name, value, final=True)

    def beginning(self, name: str, value: str) -> str:
        """Returns the first `BEGINNING` characters of a text."""
        if self.digest is None:
            return value[:BEGINNING]
        most = 4 * -(-4 * BEGINNING // 3)  # a character has four bytes at most; four letters of base64 are three bytes
        return self._decrypted(name, value[:most], final=len(value) <= most)[:BEGINNING]

    def _decrypted(self, name: str, value: str, final: bool) -> str:
        """Returns a decrypted text; without `final` it may end within a character, whose bytes are dropped."""
        if self.digest is None:
            return value
        try:
            data = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise DataError(f"{name!r}: is not base64: the file was cut or altered, download it again") from None
        pad = (self.digest * (len(data) // len(self.digest) + 1))[: len(data)]
        plain = (int.from_bytes(data) ^ int.from_bytes(pad)).to_bytes(len(data))
        try:
            return codecs.getincrementaldecoder("utf-8")().decode(plain, final)
        except UnicodeDecodeError:
            raise _misfit(name) from None


def _misfit(name: str) -> DataError:
    """Returns the error for a field that the key does not decrypt."""
    return DataError(f"{name!r}: the key does not fit: set {KEY} to the canary string of this release")


# -- the corpus ----------------------------------------------------------------------------------------------------


def is_document(row: Mapping[str, Any]) -> bool:
    """Returns whether a row has the fields of a document of the corpus."""
    return {"docid", "text"} <= row.keys() and "_id" not in row and "title" not in row


def passage_of(row: Mapping[str, Any], position: int = 0) -> Passage:
    """Makes a passage from a document ``{"docid", "text", "url"}``, with the title that gold documents have.

    Raises:
        DataError: The document has no id or no text.
    """
    docid, text, url = row.get("docid"), row.get("text"), row.get("url")
    if not isinstance(docid, str | int) or isinstance(docid, bool) or not str(docid).strip():
        raise DataError(f"'docid': expected an id, got {docid!r:.60}")
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"document {docid} has no text, got {text!r:.60}: download the corpus again, or leave it out")
    return Passage(str(docid), title_of(str(docid), text[:BEGINNING], url if isinstance(url, str) else ""), text)


def title_of(docid: str, beginning: str, url: str) -> str:
    """Returns the title of a document: of its front matter, else its first line, else its address or id.

    Args:
        docid: Id of the document.
        beginning: First `BEGINNING` characters of its text.
        url: Address of the document; may be empty.

    Raises:
        DataError: The document has no text.
    """
    lines = beginning.lstrip("\ufeff").lstrip().splitlines()
    if not lines:
        raise DataError(f"document {docid} has no text: download the file again")
    title = lines[0].lstrip("#").strip()
    if _FRONT_MATTER.match(f"{lines[0]}\n"):
        title = ""
        for line in lines[1:]:
            if line.startswith("---"):
                break
            if match := _TITLE_LINE.match(line):
                title = match[1].strip()
                break
    if len(title) > 1 and title[0] == title[-1] and title[0] in "\"'":
        title = title[1:-1].strip()
    return title if 0 < len(title) <= LONGEST_TITLE else url.strip() or docid
