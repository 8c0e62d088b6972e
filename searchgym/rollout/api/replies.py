"""Replies of servers that speak in messages: the response in one, and where it ends.

Servers leave out the stop string that ended a response. vLLM and SGLang say which one it was (``stop_reason``,
``matched_stop``); where a server does not say, a closing tag is put back only behind an opening one with which a model
would act (`_guessed`). Stop strings end responses inside thoughts too, and a server cannot go on there: `settle` tells
that such a request has to be repeated without stop strings.
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
from searchgym.records import More, Open, Search
from searchgym.rollout.sampler import Finish

REASONING: Final = ("reasoning_content", "reasoning")
"""Fields of a message in which servers put thoughts apart."""
ENDED_BY: Final = ("stop_reason", "matched_stop")
"""Fields in which vLLM and SGLang name the stop string that ended a response: a number or null if none did."""

_ENDS: Final = frozenset(".!?:…。！？：>")
"""Last characters of a sentence or a tag, behind which an action may begin."""
_SKIPPED: Final = " \t\r\"'”’)]*_-"
"""Characters that may stand between the end of a sentence, or the start of a line, and an action."""
_GOES_ON: Final = re.compile(
    r"\s*(?:[,;)]|\.(?!\w))"
    r"|\s+(?:tags?|is|are|was|were|would|will|can|could|should|may|might|must|has|does|and|or)\b.*[.!]\s*\Z",
    re.DOTALL,
)
"""Pattern of a text in which a sentence about the tag before it goes on."""


@dataclass(frozen=True, slots=True)
class ServerReply:
    """A response as a server or a host of models gave it."""

    text: str
    """The response, without the stop string that ended it."""
    finish: Finish = "eos"
    """Why it ended, where ``eos`` may also be a stop string."""
    ended_by: str | None = None
    """Stop string that ended it; empty if none did, None if the server does not say."""
    unread: tuple[str, ...] = ()
    """What the reply held and the text lacks, by name: ``refusal``, ``tool NAME``; ``nothing`` if it was empty."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The part of a reply that is the response."""

    text: str
    """The response, with the stop string that ended it."""
    stopped: bool
    """Whether a stop string ended it."""
    cut: bool = False
    """Whether a stop string ended it too early, inside a thought or a call: ask once more without stop strings."""


def read_choice(choice: Mapping[str, Any], stop: Sequence[str], protocol: Protocol) -> ServerReply:
    """Reads one of a chat completion's choices.

    Thoughts that stand apart come before the content, in ``<think>``; they stay open if nothing follows them. Calls of
    the tools search, open and more come after it, as the grammar writes them.

    Args:
        choice: Item of ``choices``.
        stop: Stop strings that the server was given.
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
    """Returns the response in a reply: cut behind its first complete action, or with the stop string that was cut off.

    Args:
        reply: ServerReply of a server.
        stop: Strings that end a response.
        protocol: Action grammar.
        thinks: Whether the server's chat template opens a thought, with which the response then begins.
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
    """Returns the end in characters of the first stop string that ends a response, 0 if none does.

    Stop strings in thoughts do not. The grammar says which of its own do (`Protocol.ended`); any other one does.
    """
    if not stop:
        return 0
    pattern = re.compile("|".join(map(re.escape, sorted(stop, key=len, reverse=True))))
    spans = thought_spans(text)
    outside = zip([0, *(end for _, end in spans)], [*(start for start, _ in spans), len(text)], strict=True)
    matches = [match for start, end in outside for match in pattern.finditer(text, start, end)]
    actions = protocol.stop_strings
    own = [match.end() for match in matches if match[0] in actions]
    # A response that is over stays over, so that a few of many ends are asked about.
    over = bool(own) and protocol.ended(text[: own[-1]])
    first = bisect.bisect_left(own, True, key=lambda end: protocol.ended(text[:end])) if over else len(own)
    return min([*own[first : first + 1], *(m.end() for m in matches if m[0] not in actions)], default=0)


def _ended_by(choice: Mapping[str, Any], stop: Sequence[str]) -> str | None:
    """Returns the stop string that a server names, an empty string if it says that there was none, None if nothing."""
    given = [choice[name] for name in ENDED_BY if name in choice]
    for value in given:
        if isinstance(value, str) and value in stop:
            return value
    return "" if given and all(value is None or isinstance(value, int) for value in given) else None


def _guessed(text: str, stop: Sequence[str], protocol: Protocol) -> str:
    """Returns the closing tag that a server probably cut off, an empty string if the text seems to end by itself.

    The last tag must be an opening one outside thoughts. It stands at the start of a line, or behind a sentence, a tag
    or a thought; a list mark, quotes and emphasis may be between. What follows must be something to act on: no rest of
    a sentence about the tag; one line for a query or a title, an object for a call, nothing for ``<more>``.
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
    """Returns a message's tool calls as the grammar writes them, and ``tool NAME`` for each that is no action."""
    reader = get_protocol("tool_calls", browse=protocol.browse, sources=protocol.sources)
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
        if isinstance(action, Search | Open | More):
            written.append(protocol.write(action))
        else:
            unread.append(f"tool {name}")
    return "\n".join(written), unread
