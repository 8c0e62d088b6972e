"""Markers in pages: text that would act, think or end a turn if a model wrote it; in pages it is only counted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from searchgym.protocol.thoughts import CLOSING
from searchgym.records import Opened, Searched

MARKER: Final = re.compile(
    "|".join(map(re.escape, sorted([*CLOSING, *CLOSING.values()], key=len, reverse=True)))
    + r"|</?(?:\w{1,40}_)?(?:search|answer|question|open|more|find|cite|information|tool_call|tool_response|tools)>"
    r"|</(?:function|parameter)>|<(?:function|parameter)=|\bto=functions\.|```tool_(?:code|output)"
    r"|\{\s{0,9}\"name\"\s{0,9}:\s{0,9}\"[^\"\\\n]{1,80}\"\s{0,9},\s{0,9}\"(?:arguments|parameters)\"\s{0,9}:"
    r"|</?(?:start|end)_of_turn>|</?s>|<[|\uff5c][^<>\s]{1,80}[|\uff5c]>"
    r"|\[/?(?:INST|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|ARGS|SYSTEM_PROMPT)\]"
)
"""Matches thought markers, tags of every grammar, tool calls of every dialect, and common special tokens."""

MARKS: Final = "<[`{="
"""Characters of which every marker contains at least one; most pages contain none."""


def count_markers(text: str) -> int:
    """Returns the number of markers in a text."""
    return sum(1 for _ in MARKER.finditer(text)) if any(mark in text for mark in MARKS) else 0


def markers_in_pages(searches: Sequence[Searched], opens: Sequence[Opened]) -> int:
    """Returns the number of markers in the pages that an episode retrieved or opened, titles included."""
    passages = [hit.passage for search in searches for hit in search.hits]
    total = sum(count_markers(passage.title) + count_markers(passage.text) for passage in passages)
    return total + sum(opened.markers for opened in opens)
