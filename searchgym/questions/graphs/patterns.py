"""Patterns of packs: regular expressions with named pieces, of limited size and time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import regex

from searchgym.errors import CardError

SECONDS: Final = 0.2
"""Time limit in seconds for one pattern on one passage, which stops endless backtracking."""
LONGEST: Final = 50_000
"""Maximum characters of a pattern with its pieces filled in and its counted repetitions expanded."""
TOTAL: Final = 10 * LONGEST
"""Maximum total characters of all patterns of a pack with their pieces filled in; the same limit holds for all pieces
together."""
GROUPS: Final = 2000
"""Maximum number of opening brackets of a pattern: compile time grows with their square."""
_ATOM: Final = re.compile(r"\\.|\[\]?(?:\\.|[^\]\\])*+(?:\]|\Z)|\{(?P<count>\d+)(?:,\d*)?\}|[()]", re.DOTALL)
"""Pattern of an escape, a set, a counted repetition or a bracket in a pattern."""
_MANY: Final = 10**12
"""Upper bound to which computed sizes are clipped."""
_PIECE: Final = re.compile(r"\{([^{}]+)\}")
"""Pattern of the name of a piece in braces; it also matches counted repetitions."""


def fill(pattern: str, pieces: Mapping[str, str], where: str) -> str:
    """Returns a pattern in which ``{NAME}`` is replaced for every piece.

    Raises:
        CardError: The pattern would be too long; this is checked before anything is filled in.
    """
    size = len(pattern) + sum(len(pieces.get(name, "")) for name in _PIECE.findall(pattern))
    if size > LONGEST:
        raise _too_long(pattern, size, where)
    return _PIECE.sub(lambda match: f"(?:{pieces[match[1]]})" if match[1] in pieces else match[0], pattern)


def compile_pattern(pattern: str, where: str) -> regex.Pattern[str]:
    """Returns a compiled pattern.

    Raises:
        CardError: The pattern is invalid or too long; the message begins with `where`.
    """
    if (size := max(len(pattern), _expanded(pattern[:LONGEST]))) > LONGEST:
        raise _too_long(pattern, size, where)
    if pattern.count("(") > GROUPS:
        raise CardError(f"{where}: the pattern {pattern!r:.120} opens more than {GROUPS:,} brackets")
    try:
        return regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError) as error:
        raise CardError(f"{where}: the pattern {pattern!r:.120} is broken: {error}") from None


def _too_long(pattern: str, size: int, where: str) -> CardError:
    return CardError(f"{where}: the pattern {pattern!r:.120} stands for {size:,} characters, at most {LONGEST:,} may")


def within_total(total: int, pattern: str, where: str) -> int:
    """Returns a running total of characters plus those of one more pattern.

    Raises:
        CardError: The total exceeds the limit of a pack.
    """
    total += len(pattern)
    if total > TOTAL:
        raise CardError(
            f"{where}: with their pieces filled in, the patterns so far have more than {TOTAL:,} characters"
        )
    return total


def _expanded(pattern: str) -> int:
    """Returns the length of a pattern with its counted repetitions expanded, as the compiler does.

    A few characters, ``((a{1000}){1000}){1000}``, would otherwise use up all memory.
    """
    sizes, last, end = [0], 0, 0
    for match in _ATOM.finditer(pattern):
        if match.start() > end:
            last = 1
            sizes[-1] += match.start() - end
        end = match.end()
        if match[0] == "(":
            sizes.append(0)
        elif match[0] == ")" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] += last
        elif match["count"]:
            times = max(int(match["count"][:12]), 1)
            sizes[-1] = min(sizes[-1] + last * (times - 1), _MANY)
            last = min(last * times, _MANY)
        else:
            last = 1
            sizes[-1] += 1
    return sum(sizes) + len(pattern) - end
