"""Reads the fields of a row: texts, ids, gold answers, lists of texts, tuples and objects."""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

from searchgym.errors import DataError

Row = Mapping[str, Any]
_QUOTED: Final = r"""(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")\s*+"""
_PYTHON_LIST: Final = re.compile(rf"\[\s*+{_QUOTED}(?:,\s*+{_QUOTED})*+(?:,\s*+)?+\]", re.DOTALL)
"""Matches the ``str`` of a list of texts. Texts must be separated by commas: ``['x' 'y']``, which Python would read as
one text, is the ``str`` of a NumPy array."""
_LIKE_A_LIST: Final = re.compile(
    r"""\[[\s\[]*+[bBrRuU]?+['"]|\[\s*+(?:(?:None|nan|True|False)\s*+[],]|[-+.\d]++\s*+,)|array\(\s*+\["""
    rf"|[({{]\s*+{_QUOTED},\s*+{_QUOTED}",
    re.DOTALL,
)
"""Matches the beginning of texts that were lists, tuples, sets or arrays, not that of ``[O.S. 6 January] 1835``."""


def text_field(row: Row, key: str) -> str:
    """Returns a required text field.

    Raises:
        DataError: The field is absent, null or not text.
    """
    if row.get(key) is None:
        raise DataError(f"no {key!r}: got keys {listed(row)}")
    return optional_text(row, key) or ""


def optional_text(row: Row, key: str) -> str | None:
    """Returns an optional text field, or None if it is absent, null or empty.

    Raises:
        DataError: The field is present and not text.
    """
    value = row.get(key)
    if not isinstance(value, str | None):
        raise DataError(f"{key!r}: expected text, got {value!r:.60}")
    return value or None


def id_field(row: Row, *keys: str, position: int | None = None) -> str:
    """Returns a row's id: the value of the first of `keys` that is present, else `position` if that is given.

    Raises:
        DataError: The row has no id, or its id is blank or neither text nor an integer.
    """
    for key in keys:
        value = row.get(key)
        if value is None:
            continue
        if not isinstance(value, str | int) or isinstance(value, bool) or not str(value).strip():
            raise DataError(f"{key!r}: expected an id, got {value!r:.60}")
        return str(value)
    if position is None:
        raise DataError(f"no {' or '.join(map(repr, keys))}: got keys {listed(row)}")
    return str(position)


def texts_field(row: Row, key: str) -> tuple[str, ...]:
    """Returns a field that is a list of texts; empty if the field is absent or null.

    Raises:
        DataError: The field is present and not a list of texts.
    """
    return as_texts(key, row.get(key) or ())


def as_texts(name: str, value: Any) -> tuple[str, ...]:
    """Returns a list of texts as a tuple; `name` is the field that the error message names.

    Raises:
        DataError: The value is not a list of texts.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise DataError(f"{name!r}: expected a list of texts, got {value!r:.60}")
    return tuple(value)


def tuples_field(row: Row, key: str, *columns: str) -> list[tuple[Any, ...]]:
    """Returns a field that is a list of tuples, stored as a list of lists or as one list per column (as on the hub).

    Args:
        row: The row.
        key: Name of the field, such as ``"supporting_facts"``, whose value is ``[["Page", 0], ...]`` or
            ``{"title": ["Page", ...], "sent_id": [0, ...]}``.
        columns: Names of the members of a tuple, in order.

    Returns:
        One tuple per entry; empty if the field is absent or null.

    Raises:
        DataError: The field is present and stored in neither of the two ways.
    """
    value = row.get(key)
    if value is None:
        return []
    if isinstance(value, Mapping):
        lists: list[Any] = [value.get(column) for column in columns]
        if not all(isinstance(column, list) for column in lists) or len(set(map(len, lists))) != 1:
            raise DataError(f"{key!r}: expected lists {', '.join(columns)} of one length, got {value!r:.60}")
        return list(zip(*lists, strict=True))
    if not isinstance(value, list) or not all(isinstance(item, list) and len(item) == len(columns) for item in value):
        raise DataError(f"{key!r}: expected a list of [{', '.join(columns)}], got {value!r:.60}")
    return [tuple(item) for item in value]


def spaced(paragraphs: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Returns paragraphs of sentences, with spaces added so that joining a paragraph's sentences gives its text.

    HotpotQA keeps the space between two sentences at the start of the second; 2WikiMultihopQA drops it. If most pairs
    of neighbouring sentences lack a space, one is put at the start of the second sentence; otherwise all sentences stay
    as they are (HotpotQA's splitter also cut some sentences in the middle of a word).
    """
    joints = [pair for sentences in paragraphs for pair in itertools.pairwise(sentences)]
    bare = [pair for pair in joints if not _has_space(*pair)]
    if len(bare) * 2 <= len(joints):
        return [tuple(sentences) for sentences in paragraphs]
    return [
        (*sentences[:1], *(b if _has_space(a, b) else f" {b}" for a, b in itertools.pairwise(sentences)))
        for sentences in paragraphs
    ]


def _has_space(first: str, second: str) -> bool:
    """Returns whether a space separates two sentences, or one of them is empty and needs none."""
    return not first or not second or first[-1].isspace() or second[0].isspace()


def listed(row: Row) -> str:
    """Returns the first 12 keys of a row as text for an error message."""
    keys = [str(key) for key in row]
    return ", ".join(keys[:12]) + (", ..." if len(keys) > 12 else "") if keys else "none"


def object_field(row: Row, key: str) -> Row:
    """Returns a field that is an object; empty if the field is absent."""
    value = row.get(key) or {}
    if not isinstance(value, Mapping):
        raise DataError(f"{key!r}: expected an object, got {value!r:.60}")
    return value


def objects_field(row: Row, key: str) -> list[Row]:
    """Returns a field that is a list of objects; empty if the field is absent."""
    value = row.get(key) or []
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise DataError(f"{key!r}: expected a list of objects, got {value!r:.60}")
    return value


def optional_bool(row: Row, key: str) -> bool | None:
    """Returns a field that is true or false, None if the field is absent."""
    value = row.get(key)
    if not isinstance(value, bool | None):
        raise DataError(f"{key!r}: expected true or false, got {value!r:.60}")
    return value


# -- gold answers ---------------------------------------------------------------------------------------------------


def gold_field(row: Row, key: str) -> tuple[str, ...]:
    """Returns the gold answers of a field that holds one answer or a list, at least one and none of them blank."""
    if key not in row:
        raise DataError(f"no gold answer: no {key!r}, got keys {listed(row)}")
    value = row[key]
    if not isinstance(value, str | list | None):
        raise DataError(f"{key!r}: expected text or a list of texts, got {value!r:.60}")
    texts = as_texts(key, [value] if isinstance(value, str) else value or [])
    golds = accepted(key, texts) if any(text.strip() for text in texts) else ()
    if not golds:
        raise DataError(f"no gold answer: {key!r} is {value!r:.60}; a question without one cannot be scored")
    return golds


def accepted(key: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the accepted answers in the texts of a field; a list that was written as text counts as a list.

    Raises:
        DataError: An answer is blank (every prediction would contain it), or a list written as text cannot be read.
    """
    golds = tuple(gold for text in texts for gold in _texts_in(key, text))
    if not all(gold.strip() for gold in golds):
        raise DataError(f"{key!r}: a text of {list(golds)!r:.60} is blank: leave it out")
    return golds


def _texts_in(key: str, text: str) -> list[str]:
    """Returns the texts of a list that is written as text, in JSON or in Python; of any other text, only that text.

    Raises:
        DataError: The text begins like such a list, but is truncated, holds other values, or has another syntax.
    """
    written, value = text.strip(), None
    like = _LIKE_A_LIST.match(written) is not None
    if written.startswith("[") and written.endswith("]"):
        try:
            value = json.loads(written)
        except RecursionError:
            like = True
        except ValueError:
            if _PYTHON_LIST.fullmatch(written):
                with warnings.catch_warnings(), contextlib.suppress(ValueError, SyntaxError):
                    warnings.simplefilter("error")  # an unknown escape, such as \d, which str() never writes
                    value = ast.literal_eval(written)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    if like or isinstance(value, list):
        raise DataError(
            f"{key!r}: {text!r:.60} is a list written as text that cannot be read: give a JSON list of texts"
        )
    return [text]
