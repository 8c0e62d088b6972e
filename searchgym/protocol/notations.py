"""Notations of tool calls: readers of the object after an opening marker, which also determine its end.

A call ends where its object ends, not at the first closing marker, since a query may quote any marker.

* ``json``: one or more objects or lists of objects, with or without a fence of backticks. The name may precede the
object, as in ``NAME[ARGS]{...}``, if the dialect has a separator. Strings may contain raw line ends; the last of
repeated keys counts.
* ``xml``: ``<function=NAME><parameter=KEY>value</parameter></function>``. A value ends at the first ``</parameter>``
that is followed by another parameter, by the end of the function or by the end of the call.
* ``python``: ``NAME(key="value")``, also inside ``print``, an assignment or a list; values are strings or lists of
strings.

Each reader passes over the text once. No code is evaluated.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any, Final, NamedTuple

from searchgym.protocol.dialect import Dialect

NOT_JSON: Final = "the tool call is not JSON"
"""Beginning of the error messages about JSON calls."""
SHOWN: Final = 20
"""Number of characters before a mistake that an error message quotes."""

_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_SPACE: Final = re.compile(r"\s*+")
_GAP: Final = re.compile(r"[\s,:]*+")
_FENCE: Final = re.compile(r"[\s,;]*+(?:```\w*+)?+[\s,;]*+")
_TOKEN: Final = re.compile(rf"[\s,:]*+(?:([\[{{])|([\]}}])|{_STRING}|[-+.\w]++)", re.DOTALL)
_FUNCTION: Final = re.compile(r"\s*+<function=([^<>\n]{0,100}+)>")
_PARAMETER: Final = re.compile(r"\s*+<parameter=([^<>\n]{0,100}+)>")
_VALUE_END: Final = re.compile(r"</parameter>(?=\s*+(?:<parameter=|</function>|</?tool_call>|\Z))")
_PYTHON_CALL: Final = re.compile(
    r"(?:[\s\[,;]++|#[^\n]*+\n)*+(?:\w++\s*+=\s*+)?+(?:print\s*+\(\s*+)?+(?:\w++\s*+\.\s*+(?=\w))*+(\w++)\s*+\("
)
_PYTHON_KEY: Final = re.compile(r"[\s,]*+(?:(\w++)\s*+=\s*+)?+")
_WORD: Final = re.compile(r"[-+.\w]++")
_PYTHON_STRING: Final = re.compile(
    rf'"""((?:[^"\\]|\\.|"(?!""))*+)"""|\'\'\'((?:[^\'\\]|\\.|\'(?!\'\'))*+)\'\'\'|((?!"""){_STRING})|((?!\'\'\')\'[^\'\\]*+(?:\\.[^\'\\]*+)*+\')',
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_CLOSERS: Final = {"{": "}", "[": "]"}


class Body(NamedTuple):
    """Result of reading the text after an opening marker."""

    calls: list[Any]
    """Calls in order, each as parsed from JSON or as ``{"name": ..., "arguments": ...}``."""
    end: int
    """Position after the last call, or of the mistake."""
    fault: str = ""
    """Reason why no further call could be read."""
    unfinished: bool = False
    """Whether the text ends inside an object."""


# -- JSON ----------------------------------------------------------------------------------------------------------


def _extent(text: str, at: int) -> tuple[int, str, bool]:
    """Finds the end of the JSON object or list at a position, in one pass.

    Returns:
        (end, missing, ended): the position after its last bracket, or of the first text that cannot be JSON; the
        closing brackets missing at that position, at most 3; whether the text ends there.
    """
    stack: list[str] = []
    while match := _TOKEN.match(text, at):
        at = match.end()
        if match[1]:
            stack.append(match[1])
        elif match[2]:
            stack.pop()
            if not stack:
                return at, "", False
    at = _past(_GAP, text, at)
    return at, "".join(_CLOSERS[bracket] for bracket in reversed(stack[:3])), text[at : at + 1] in ("", '"')


def decoded(text: str) -> Any:
    """Decodes JSON text; strings may contain raw line ends.

    Raises:
        ValueError: The text is not JSON, is nested too deeply, or has a number with too many digits.
    """
    try:
        return json.loads(text, strict=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _object(text: str, at: int, dialect: Dialect) -> tuple[Any, int, str, bool]:
    """Reads the JSON object or list at a position.

    Returns:
        (value, end, fault, unfinished): the value, or None with the reason in ``fault``; see `Body` for the others.
    """
    end, missing, ended = _extent(text, at)
    if not missing:
        try:
            return decoded(text[at:end]), end, "", False
        except json.JSONDecodeError as error:
            if text[at + error.pos] == "'":
                return None, at + error.pos, f"{NOT_JSON}: strings stand in double quotes", False
            return None, at + error.pos, f"{NOT_JSON} after {_quoted(text, at, at + error.pos)}", False
        except ValueError:
            return None, end, f"{NOT_JSON}: it is nested too deeply, or a number is too long", False
    if ended and end < len(text):
        return None, end, f'{NOT_JSON}: its last string never closes: write " after it', True
    if ended or (dialect.closing and text.startswith(dialect.closing, end)):
        return None, end, f"{NOT_JSON}: its last {missing} is missing", ended
    if text[end] == "'":
        return None, end, f"{NOT_JSON}: strings stand in double quotes", False
    return None, end, f"{NOT_JSON} after {_quoted(text, at, end)}", False


def _past(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Returns the position after a pattern's match, or the same position if it does not match."""
    match = pattern.match(text, at)
    return match.end() if match else at


def _quoted(text: str, start: int, end: int) -> str:
    """Returns the end of ``text[start:end]``, quoted for an error message."""
    return repr(text[max(start, end - SHOWN) : end])


@functools.cache
def _named(dialect: Dialect) -> re.Pattern[str]:
    """Returns a pattern for a tool's name before its arguments; a short text, such as an id, may lie between."""
    between = rf"(?:(?!</)[^{{}}\n]){{0,80}}?{re.escape(dialect.separator)}"
    optional = f"(?:{between})?" if dialect.optional_separator else between
    return re.compile(rf"\s*+([\w.\-]{{1,64}}+){optional}\s*+(?:```\w*+\s*+)?+(?=\{{)")


def read_json(text: str, at: int, dialect: Dialect, most: int | None) -> Body:
    """Reads calls in JSON; see `Body`."""
    calls: list[Any] = []
    while most is None or len(calls) < most:
        name = None
        start = _past(_FENCE, text, at)
        if not calls and dialect.separator and (match := _named(dialect).match(text, at)):
            name, start = match[1], match.end()
        if text[start : start + 1] not in ("{", "["):
            break
        value, end, fault, unfinished = _object(text, start, dialect)
        if fault:
            return Body(calls, end, fault, unfinished)
        at = end
        if name is not None:
            calls.append({"name": name, "arguments": value})
            break
        calls += value if isinstance(value, list) and value else [value]
    return Body(calls, at, "" if calls else NOT_JSON)


# -- XML -----------------------------------------------------------------------------------------------------------


def _xml(text: str, at: int, dialect: Dialect, most: int | None) -> Body:
    """Reads calls in XML; see `Body`."""
    calls: list[Any] = []
    while (most is None or len(calls) < most) and (match := _FUNCTION.match(text, at)):
        arguments, at = dict[str, Any](), match.end()
        while parameter := _PARAMETER.match(text, at):
            end = _VALUE_END.search(text, parameter.end())
            if end is None:
                return Body(calls, at, f"the parameter {parameter[1]} never closes: write </parameter> after it", True)
            arguments[parameter[1].strip()] = value_of(text[parameter.end() : end.start()])
            at = end.end()
        after = _past(_SPACE, text, at)
        if not text.startswith("</function>", after):
            ended = after == len(text)
            return Body(calls, at, "the function of the tool call never closes: write </function> after it", ended)
        at = after + len("</function>")
        calls.append({"name": match[1].strip(), "arguments": arguments})
    return Body(calls, at, "" if calls else "the tool call holds no <function=NAME>")


def value_of(text: str) -> Any:
    """Returns a parameter's value: a list if it is a JSON list of strings, else the text without outer line ends."""
    text = text.removeprefix("\n").removesuffix("\n")
    try:
        value = decoded(text) if text.lstrip().startswith("[") else None
    except ValueError:
        value = None
    return value if isinstance(value, list) and value and all(isinstance(item, str) for item in value) else text


# -- Python --------------------------------------------------------------------------------------------------------


def _python(text: str, at: int, dialect: Dialect, most: int | None) -> Body:
    """Reads calls in Python, or in JSON if the text begins with an object; see `Body`."""
    start = _past(_FENCE, text, at)
    if text[start : start + 1] == "{":
        return read_json(text, at, dialect, most)
    calls: list[Any] = []
    while (most is None or len(calls) < most) and (match := _PYTHON_CALL.match(text, at)):
        arguments, end, fault = _python_arguments(text, match.end())
        if fault:
            return Body(calls, end, fault, end == len(text))
        calls.append({"name": match[1], "arguments": arguments})
        at = end
        while text[at : at + 1] and text[at] in ")] \t":
            at += 1
    return Body(calls, at, "" if calls else "the tool call is no call of a function")


def _python_arguments(text: str, at: int) -> tuple[dict[str, Any], int, str]:
    """Reads the arguments of a Python call up to its closing parenthesis.

    Returns:
        (arguments, end, fault): values by name, an argument without a name being the query; the position after them or
        of the mistake, the text's length if the text ends first; the error message, if any.
    """
    arguments, start = dict[str, Any](), at
    while True:
        match = _PYTHON_KEY.match(text, at)
        key, at = (match[1] or "query", match.end()) if match else ("query", at)
        if text.startswith(")", at):
            return arguments, at + 1, ""
        if text.startswith("[", at):
            arguments[key], at = _python_list(text, at + 1)
        elif string := _PYTHON_STRING.match(text, at):
            arguments[key], at = _unescaped(string), string.end()
        elif word := _WORD.match(text, at):
            arguments[key], at = None, word.end()
        at = _past(_SPACE, text, at)
        if at >= len(text) or (text[at] in "\"'" and not _PYTHON_STRING.match(text, at)):
            return {}, len(text), "the tool call ends before its closing parenthesis, or a string in it never closes"
        if text[at] not in ",)":
            return {}, at, f"the tool call is not Python after {_quoted(text, start, at)}"


def _python_list(text: str, at: int) -> tuple[list[Any], int]:
    """Reads a list of strings; returns them and the position after its bracket, or of a mistake."""
    items: list[Any] = []
    while True:
        at = _past(_GAP, text, at)
        if text.startswith("]", at):
            return items, at + 1
        string = _PYTHON_STRING.match(text, at)
        if string is None:
            return items, at
        items.append(_unescaped(string))
        at = string.end()


def _unescaped(string: re.Match[str]) -> str:
    """Returns the value of a Python string literal; unknown escapes are kept literally."""
    text = next(group for group in string.groups() if group is not None)
    text = text[1:-1] if string[3] or string[4] else text

    def one(match: re.Match[str]) -> str:
        escape = match[1]
        if len(escape) > 1:
            return chr(int(escape[1:], 16))
        return _ESCAPED.get(escape, escape if escape in "\\'\"/" else match[0])

    return _ESCAPE.sub(one, text)


NOTATIONS: Final = {"json": read_json, "xml": _xml, "python": _python}
