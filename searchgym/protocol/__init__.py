"""What models write: actions in the tags or calls of a grammar, thoughts, and the observations between them."""

from searchgym.protocol.grammar import MAX_ACTION_CHARS, MAX_RESULT_CHARS, NOTICE, Protocol, get_protocol
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
    "get_protocol",
    "joined",
    "opened_by",
    "split_thoughts",
]
