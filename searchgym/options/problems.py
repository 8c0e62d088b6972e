"""Converts pydantic's errors into sentences with file, line, key, problem and allowed values."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from searchgym.errors import LOGIN, CardError, did_you_mean
from searchgym.options.yaml import Source

WORDS: Final = {
    "Input should be": "expected",
    "Tuple should have": "expected",
    "List should have": "expected",
    "a valid integer": "an integer",
    "a valid tuple": "a list",
    " valid ": " ",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
    " after validation": "",
}
"""Pydantic's phrases to SearchGym's, replaced in this order."""
MAX_PROBLEMS: Final = 20
"""Maximum number of problems reported for one section."""


def text_of(error: Any, accepted: Iterable[str]) -> str:
    """Returns the description of one pydantic error in SearchGym's words."""
    value, sort, ctx = error["input"], error["type"], error.get("ctx", {})
    if "text" in ctx:
        return str(ctx["text"])
    if sort in ("unexpected_keyword_argument", "invalid_key"):
        return f"unknown key{did_you_mean(str(error['loc'][-1]), accepted)}"
    if sort == "missing":
        return "missing key"
    if sort == "literal_error":
        names = [name.strip("'") for name in re.split(", | or ", ctx["expected"])]
        return f"got {value!r:.80}{did_you_mean(str(value), names)}"
    text = re.sub("a (valid dictionary|dictionary or an .*)", "keys and values", str(error["msg"]))
    return functools.reduce(lambda text, word: text.replace(*word), WORDS.items(), text)


def sentences(errors: Iterable[Any], data: Any, source: Source) -> Iterator[str]:
    """Yields one sentence per faulty value; of failed union members, only those that match the data best count."""
    problems: dict[tuple[Any, ...], tuple[Any, dict[str, str]]] = {}  # path to value, and texts with their sorts
    for e in errors:
        path: list[Any] = []
        here = data
        for part in e["loc"]:  # skips the labels of union members, which are not keys
            if (isinstance(here, dict) and part in here) or (
                isinstance(here, (list, tuple)) and part in range(len(here))
            ):
                path, here = [*path, part], here[part]
        path += [e["loc"][-1]] if e["type"] == "missing" else []
        problems.setdefault(tuple(path), (here, {}))[1][text_of(e, ())] = e["type"]
    for path_, (value, texts) in problems.items():
        nearer = any(len(other) > len(path_) and other[: len(path_)] == path_ for other in problems)
        text = " or ".join(text for text, sort in texts.items() if not (nearer and re.search("_type|too_short", sort)))
        got = f", got {value!r:.80}" if text.startswith("expected") else ""
        if text:
            yield ": ".join(filter(None, (source.at(path_), key_of(path_), text.replace(" or expected", " or") + got)))


def refuse_logins(value: Any, source: Source, path: tuple[Any, ...] = ()) -> None:
    """Raises a CardError if a value is a URL with a login, since cards and recipes are copied into run records."""
    if isinstance(value, (list, dict)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            refuse_logins(inner, source, (*path, key))
    elif isinstance(value, str) and re.match(rf"https?://{LOGIN.pattern}", value):
        raise CardError(
            f"{source.at(path)}: {key_of(path)}: the URL contains a user name or password, which would be stored "
            "in run records: leave it out (the token of a retrieval server comes from SEARCHGYM_TOKEN)"
        )


def key_of(path: Iterable[Any]) -> str:
    """Joins a path of keys into a dotted name, such as ``a.b[0]``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def reworded(error: Any, cls: Any) -> Any:
    """Returns a copy of a pydantic error whose texts suggest field names of the class that was read."""
    from pydantic_core import InitErrorDetails

    names, lines, errors = [field.name for field in dataclasses.fields(cls)], [], error.errors()
    for e in errors[:MAX_PROBLEMS]:
        lines.append(InitErrorDetails(type=problem(e["type"], text_of(e, names)), loc=e["loc"], input=e["input"]))
    if len(errors) > MAX_PROBLEMS:
        lines.append(InitErrorDetails(type=problem("more", f"{len(errors) - MAX_PROBLEMS} more problems"), input=None))
    return type(error).from_exception_data(cls.__name__, lines)


def problem(sort: Any, text: str) -> Any:
    """Returns an exception that reports a problem to pydantic."""
    from pydantic_core import PydanticCustomError

    return PydanticCustomError(sort, "{text}", {"text": text})
