"""Replies of chat servers: the response in a reply, and where it ends.

Servers omit the stop string that ended a response. vLLM and SGLang report it (``stop_reason``, ``matched_stop``); for
other servers, a closing tag is restored only after an opening tag that begins an action (`_guessed`). Stop strings also
end responses inside thoughts, where a server cannot continue: `settle` marks such requests to be repeated without stop
strings.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from searchgym.protocol import THINK_CLOSE, THINK_OPEN, Protocol, awaited, get_protocol
from searchgym.protocol.thoughts import thought_spans
from searchgym.records import Cite, Find, More, Open, Search
from searchgym.rollout.sampler import Finish

REASONING: Final = ("reasoning_content", "reasoning")
"""Fields of a message in which servers return thoughts separately."""
ENDED_BY: Final = ("stop_reason", "matched_stop")
"""Fields in which vLLM and SGLang report the stop string that ended a response; a number or null if none did."""

_ENDS: Final = frozenset(".!?:…。！？：>")
"""Last characters of a sentence or a tag, after which an action may begin."""
_SKIPPED: Final = " \t\r\"'”’)]*_-"
"""Characters allowed between the end of a sentence, or the start of a line, and an action."""
_GOES_ON: Final = re.compile(
    r"\s*(?:[,;)]|\.(?!\w))"
    r"|\s+(?:tags?|is|are|was|were|would|will|can|could|should|may|might|must|has|does|and|or)\b.*[.!]\s*\Z",
    re.DOTALL,
)
"""Pattern of a text that continues a sentence about the preceding tag."""


@dataclass(frozen=True, slots=True)
class ServerReply:
    """A response as returned by a server or a host."""

    text: str
    """The response, without the stop string that ended it."""
    finish: Finish = "eos"
    """Reason why the response ended; ``eos`` includes stop strings."""
    ended_by: str | None = None
    """Stop string that ended the response; empty if none did, None if the server does not report it."""
    unread: tuple[str, ...] = ()
    """Names of contents of the reply that are not in the text: ``refusal``, ``tool NAME``; ``nothing`` for an empty
    reply."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The response extracted from a reply."""

    text: str
    """The response, with the stop string that ended it."""
    stopped: bool
    """True if a stop string ended the response."""
    cut: bool = False
    """True if a stop string ended the response too early, inside a thought or a call: repeat the request without stop
    strings."""


def read_choice(choice: Mapping[str, Any], stop: Sequence[str], protocol: Protocol) -> ServerReply:
    """Reads one of a chat completion's choices.

    Separate thoughts are put before the content, in ``<think>``; they stay open if nothing follows. Calls of the tools
    search, open and more are put after it, as the grammar writes them.

    Args:
        choice: Item of ``choices``.
        stop: Stop strings that were sent to the server.
        protocol: Action grammar.

    Raises:
        LookupError: A field is missing; also raises TypeError or AttributeError if one is of another type.
    """
    message, reason = choice["message"], choice["finish_reason"]
    content = message.get("content") or ""
    if not isinstance(content, str):
        raise TypeError(f"content is {type(content).__name__}")
    calls, unread = _read_calls(message.get("tool_calls"), protocol)
    thought = next((text for name in REASONING if isinstance(text := message.get(name), str) and text.strip()), "")
    if thought:
        closed = content.strip() or calls
        thought = f"{THINK_OPEN}{thought.replace(THINK_CLOSE, '</ think>')}{THINK_CLOSE if closed else ''}"
    text = f"{thought}{content}{calls}"
    if not text and not unread:
        unread = [name for name, value in message.items() if value and name not in ("role", "content")] or ["nothing"]
    ended_by = "" if reason in ("length", "content_filter") else _ended_by(choice, stop)
    return ServerReply(text, "length" if reason == "length" else "eos", ended_by, tuple(unread))


def settle(reply: ServerReply, stop: Sequence[str], protocol: Protocol, thinks: bool = False) -> Settled:
    """Extracts the response from a reply: ends it after its first complete action, or restores a removed stop string.

    Args:
        reply: Reply of a server.
        stop: Strings that end a response.
        protocol: Action grammar.
        thinks: True if the server's chat template opens a thought, with which responses then begin.
    """
    text, ended_by = reply.text, reply.ended_by
    if thinks and not text.lstrip().startswith(THINK_OPEN):
        text = THINK_OPEN + text
    if end := first_end(text, stop, protocol):
        return Settled(text[:end], True)
    if ended_by is None and stop and reply.finish == "eos":
        if awaited(text):
            return Settled(text, False, cut=True)
        ended_by = _guessed(text, stop, protocol)
    if not ended_by:
        return Settled(text, False)
    whole = text if text.endswith(ended_by) else text + ended_by
    return Settled(whole, True, cut=not first_end(whole, stop, protocol))


def first_end(text: str, stop: Sequence[str], protocol: Protocol) -> int:
    """Returns the end, in characters, of the first stop string that ends a response; 0 if none does.

    Stop strings in thoughts do not end a response. The grammar's stop strings do if `Protocol.ended` is true; others
    always do.
    """
    if not stop:
        return 0
    pattern = re.compile("|".join(map(re.escape, sorted(stop, key=len, reverse=True))))
    spans = thought_spans(text)
    outside = zip([0, *(end for _, end in spans)], [*(start for start, _ in spans), len(text)], strict=True)
    matches = [match for start, end in outside for match in pattern.finditer(text, start, end)]
    actions = protocol.stop_strings
    action_ends = [match.end() for match in matches if match[0] in actions]
    # A response that has ended stays ended, so bisection checks only a few of many ends.
    over = bool(action_ends) and protocol.ended(text[: action_ends[-1]])
    first = (
        bisect.bisect_left(action_ends, True, key=lambda end: protocol.ended(text[:end])) if over else len(action_ends)
    )
    return min([*action_ends[first : first + 1], *(m.end() for m in matches if m[0] not in actions)], default=0)


def _ended_by(choice: Mapping[str, Any], stop: Sequence[str]) -> str | None:
    """Returns the stop string reported by a server, an empty string if it reports none, None if it reports nothing."""
    reported = [choice[name] for name in ENDED_BY if name in choice]
    for value in reported:
        if isinstance(value, str) and value in stop:
            return value
    return "" if reported and all(value is None or isinstance(value, int) for value in reported) else None


def _guessed(text: str, stop: Sequence[str], protocol: Protocol) -> str:
    """Returns the closing tag that a server probably removed; an empty string if the text seems to be complete.

    The last tag must be an opening tag outside thoughts, at the start of a line or after a sentence, a tag or a
    thought; list marks, quotes and emphasis may be in between. The text after it must be usable as an action: not the
    rest of a sentence about the tag; one line for a query or a title, an object for a call, nothing for ``<more>``.
    """
    start = max((end for _, end in thought_spans(text)), default=0)
    closing = [tag for tag in stop if tag.startswith("</") and tag.endswith(">")]
    at, tag = max(((text.rfind(f"<{tag[2:]}", start), tag) for tag in closing), default=(-1, ""))
    if at < 0 or any(text.find(other, at) >= 0 for other in closing):
        return ""
    line, content = text[start:at].rpartition("\n")[2].rstrip(_SKIPPED), text[at + len(tag) - 1 :]
    if (line and line[-1] not in _ENDS) or _GOES_ON.match(content):
        return ""
    body = content.strip()
    if tag == "</more>":
        return "" if body else tag
    if tag == "</tool_call>":
        return tag if body.startswith(("{", "[", "<")) else ""
    one_line = tag in protocol.stop_strings and tag != f"</{protocol.answer_tag}>"
    return "" if not body or (one_line and "\n" in body) else tag


def _read_calls(calls: object, protocol: Protocol) -> tuple[str, list[str]]:
    """Returns a message's tool calls as the grammar writes them, and ``tool NAME`` for each call of another tool."""
    reader = get_protocol(
        "tool_calls", browse=protocol.browse, sources=protocol.sources, find=protocol.find, cite=protocol.cite
    )
    written, unread = list[str](), list[str]()
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        name, arguments = (function.get("name"), function.get("arguments")) if isinstance(function, dict) else ("", {})
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                arguments = {}
        # Escaped, so that no query is taken for a tag.
        body = json.dumps({"name": name, "arguments": arguments or {}}).replace("<", "\\u003c")
        action = reader.parse(f"<tool_call>{body}</tool_call>")
        if isinstance(action, Search | Open | More | Find | Cite):
            written.append(protocol.write(action))
        else:
            unread.append(f"tool {name}")
    return "\n".join(written), unread
