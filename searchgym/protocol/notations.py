"""Notations of tool calls: how the object after an opening marker is read, and where it ends.

The boundaries of the object decide where a call ends, not the first closing marker: a query may quote any marker.

* ``json``: an object or a list of objects, several after one another, with or without a fence of backticks. A name may
  stand outside it, ``NAME[ARGS]{...}``, where the dialect has a separator. Strings may hold raw line ends; of a key
  that stands twice the last counts.
* ``xml``: ``<function=NAME><parameter=KEY>value</parameter></function>``. A value ends at the first ``</parameter>``
  that another parameter, the end of the function or of the call follows.
* ``python``: ``NAME(key="value")``, also printed, assigned or in a list; values are strings or lists of strings.

Each reader passes over the text once, and nothing is evaluated.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any, Final, NamedTuple

from searchgym.protocol.dialect import Dialect

NOT_JSON: Final = "the tool call is not JSON"
"""Beginning of the reasons why a call in JSON cannot be read."""
SHOWN: Final = 20
"""Number of characters that a reason quotes of the text before a mistake."""

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
    """What was read after an opening marker."""

    calls: list[Any]
    """Calls in order, each as its JSON says it or as ``{"name": ..., "arguments": ...}``."""
    end: int
    """Position after the last call, or that of the mistake."""
    fault: str = ""
    """Why no further call could be read."""
    unfinished: bool = False
    """Whether the text ends within an object."""


# -- JSON ----------------------------------------------------------------------------------------------------------


def _extent(text: str, at: int) -> tuple[int, str, bool]:
    """Returns where the JSON object or list at a position ends, in one pass.

    Returns:
        (end, missing, ended): the position after its last bracket, or of what cannot be JSON; the brackets that are
        missing there; whether the text ends before them.
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
    """Returns the value of a JSON text, in which strings may hold raw line ends.

    Raises:
        ValueError: It is not JSON, too deep, or has a number of too many digits.
    """
    try:
        return json.loads(text, strict=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _object(text: str, at: int, dialect: Dialect) -> tuple[Any, int, str, bool]:
    """Reads the JSON object or list at a position.

    Returns:
        (value, end, fault, unfinished): the value, or None with the reason why there is none; see `Body`.
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
    """Returns the position after what a pattern, which may be empty, skips."""
    match = pattern.match(text, at)
    return match.end() if match else at


def _quoted(text: str, start: int, end: int) -> str:
    """Returns the last characters of a part of a text, for a reason."""
    return repr(text[max(start, end - SHOWN) : end])


@functools.cache
def _named(dialect: Dialect) -> re.Pattern[str]:
    """Returns the pattern of a tool's name outside its arguments; what stands between, such as an id, is bounded."""
    between = rf"(?:(?!</)[^{{}}\n]){{0,80}}?{re.escape(dialect.separator)}"
    optional = f"(?:{between})?" if dialect.optional_separator else between
    return re.compile(rf"\s*+([\w.\-]{{1,64}}+){optional}\s*+(?:```\w*+\s*+)?+(?=\{{)")


def read_json(text: str, at: int, dialect: Dialect, most: int | None) -> Body:
    """Reads calls in JSON, see `Body`."""
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
    """Reads calls in XML, see `Body`."""
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
    """Returns the value of a parameter: a list of texts in JSON, or the text without the line ends around it."""
    text = text.removeprefix("\n").removesuffix("\n")
    try:
        value = decoded(text) if text.lstrip().startswith("[") else None
    except ValueError:
        value = None
    return value if isinstance(value, list) and value and all(isinstance(item, str) for item in value) else text


# -- Python --------------------------------------------------------------------------------------------------------


def _python(text: str, at: int, dialect: Dialect, most: int | None) -> Body:
    """Reads calls in Python, or in JSON where an object stands in their place; see `Body`."""
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
    """Reads arguments up to the closing parenthesis.

    Returns:
        (arguments, end, fault): the first one without a name is the query; the position after them or of the mistake,
        the text's length if it ends before they do.
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
    """Reads the strings of a list; returns them and the position after its bracket, or where it cannot be read."""
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
    """Returns the text of a string in Python; an escape that does not exist stays as it is."""
    text = next(group for group in string.groups() if group is not None)
    text = text[1:-1] if string[3] or string[4] else text

    def one(match: re.Match[str]) -> str:
        escape = match[1]
        if len(escape) > 1:
            return chr(int(escape[1:], 16))
        return _ESCAPED.get(escape, escape if escape in "\\'\"/" else match[0])

    return _ESCAPE.sub(one, text)


NOTATIONS: Final = {"json": read_json, "xml": _xml, "python": _python}
