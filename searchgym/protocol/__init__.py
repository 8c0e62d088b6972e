"""Text format of episodes: actions as tags or tool calls, thoughts, and the observations between them."""

from searchgym.protocol.dialect import AUTO, DEFAULT, Dialect, check, detect, list_dialects, load_dialect
from searchgym.protocol.grammar import MAX_ACTION_CHARS, MAX_RESULT_CHARS, NOTICE, Protocol, get_protocol
from searchgym.protocol.markers import count_markers, markers_in_pages
from searchgym.protocol.parts import Parts, Shown, joined
from searchgym.protocol.thoughts import THINK_CLOSE, THINK_OPEN, awaited, opened_by, split_thoughts

__all__ = [
    "AUTO",
    "DEFAULT",
    "MAX_ACTION_CHARS",
    "MAX_RESULT_CHARS",
    "NOTICE",
    "THINK_CLOSE",
    "THINK_OPEN",
    "Dialect",
    "Parts",
    "Protocol",
    "Shown",
    "awaited",
    "check",
    "count_markers",
    "detect",
    "get_protocol",
    "joined",
    "list_dialects",
    "load_dialect",
    "markers_in_pages",
    "opened_by",
    "split_thoughts",
]
