"""What models write: actions in the tags or calls of a grammar, thoughts, and the observations between them."""

from searchgym.protocol.grammar import MAX_ACTION_CHARS, MAX_RESULT_CHARS, NOTICE, Protocol, close_tag, get_protocol
from searchgym.protocol.markers import count_markers, markers_in_pages
from searchgym.protocol.parts import Parts, Shown, joined
from searchgym.protocol.thoughts import THINK_CLOSE, THINK_OPEN, awaited, opened_by, split_thoughts

__all__ = [
    "MAX_ACTION_CHARS",
    "MAX_RESULT_CHARS",
    "NOTICE",
    "THINK_CLOSE",
    "THINK_OPEN",
    "Parts",
    "Protocol",
    "Shown",
    "awaited",
    "close_tag",
    "count_markers",
    "get_protocol",
    "joined",
    "markers_in_pages",
    "opened_by",
    "split_thoughts",
]
