"""Chat templates of others, and the turn markers that they show.

Templates are programs, so they run in a process that ends them when they take too much.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from searchgym.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROGRAM: Final = Path(__file__).with_name("render_template.py")
CPU_SECONDS: Final = 5
"""Seconds of processor time in which a template must render a few short messages."""
CHILD_SECONDS: Final = 120.0
"""Seconds until the process is given up, however busy the machine is."""
MEMORY: Final = 2**29
"""Bytes of address space that the process may take."""
CHARACTERS: Final = 1_000_000
"""Maximum characters of a rendered conversation."""
USER, ASSISTANT, NEXT = "sentinelofauser", "sentinelofanassistant", "sentinelofthenextuser"
"""Sentinels that stand for message texts while a chat template is rendered; no template contains or changes them."""
BLANKS: Final = " \n"
"""Blanks around a text that show whether a template strips it."""
WAYS: Final = ((False, False), (False, True), (True, False), (True, True))
"""Ways to strip a text: at its start, at its end."""
MARK: Final = re.compile(r"\s*(<\|[^|<>\s]+\|>|</?\w+>)")
"""Pattern of a text that begins with something written like a special token."""

Messages = Sequence[Mapping[str, str]]


def render(
    tokenizer: PreTrainedTokenizerBase,
    conversations: Sequence[Messages],
    variables: Mapping[str, Any] = {},
    date: str | None = None,
) -> list[str]:
    """Renders conversations, each with the start of the model's next turn, in a tokenizer's chat template.

    Args:
        tokenizer: Has a chat template.
        conversations: Lists of messages with ``role`` and ``content``.
        variables: Arguments of the template, such as ``enable_thinking``.
        date: Day that the template shows, ``YYYY-MM-DD``. Default: today.

    Returns:
        One text per conversation, the one that `apply_chat_template` of transformers makes.

    Raises:
        UsageError: The template cannot be compiled or rendered, or takes too much time or memory.
    """
    try:
        template = tokenizer.get_chat_template()
    except ValueError as error:  # several templates, none of which is the default
        raise _unusable(tokenizer, {"error": str(error)}) from error
    request = {
        "template": template,
        "conversations": conversations,
        "variables": {**tokenizer.special_tokens_map, **variables},
        "now": date or datetime.date.today().isoformat(),
        "seconds": CPU_SECONDS,
        "memory": MEMORY,
        "characters": CHARACTERS,
    }
    answer = _answer(json.dumps(request))
    if "error" in answer:
        raise _unusable(tokenizer, answer)
    return [str(text) for text in answer["texts"]]


@functools.lru_cache(maxsize=64)
def _answer(request: str) -> dict[str, Any]:
    """Returns the answer of a new process to a request."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(PROGRAM)],
            input=request.encode(),
            capture_output=True,
            timeout=CHILD_SECONDS,
            check=False,
            start_new_session=True,  # a terminal's Ctrl-C is for the parent
        )
    except subprocess.TimeoutExpired:
        return {"error": f"it does not end within {CHILD_SECONDS:g} s"}
    if done.returncode < 0:
        return {"error": f"it does not end within {CPU_SECONDS} s of processor time"}
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return {"error": said[-1][:300] if said else f"its process ended with status {done.returncode}"}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _unusable(tokenizer: PreTrainedTokenizerBase, answer: Mapping[str, Any]) -> UsageError:
    """Returns the error of a template that cannot be used."""
    return UsageError(
        f"{tokenizer.name_or_path}: the chat template cannot render {answer.get('messages', 'a few')} messages: "
        f"{answer['error']}; put a template that can into its folder (chat_template.jinja), or leave it out: a base "
        "model then"
    )


# -- turn markers ---------------------------------------------------------------------------------------------------


class Encode(Protocol):
    """Interface of a tokenizer as `take_apart` needs it."""

    def marked(self, text: str) -> tuple[int, ...]:
        """Returns the ids of a template's text, with its special tokens."""
        ...

    def plain(self, text: str) -> tuple[int, ...]:
        """Returns the ids of a text in the middle of another, without special tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Around:
    """What a chat template writes around a user's text.

    The text is encoded together with the template's plain text beside it, up to the next special tokens: a tokenizer
    may join them, as ``[INST] `` and a word.
    """

    before: tuple[int, ...]
    """Ids up to the last special token before the text; before a first text with any default system prompt."""
    lead: str
    """Plain text from there to the text."""
    tail: str
    """Plain text behind the text, up to the next special token."""
    after: tuple[int, ...]
    """Ids from there to the start of the model's text."""
    begin: str
    """Text of `before` and `lead`."""
    end: str
    """Text of `tail` and `after`."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Turn markers of a chat template."""

    first: Around
    """Around the first user text."""
    closing: tuple[int, ...]
    """Ids from the end of a model's text to its end-of-turn, which a model samples itself; empty if there is none."""
    next: Around
    """Around a later user text, from the model's end-of-turn."""
    strip: tuple[bool, bool]
    """Whether the template strips blanks at the start and at the end of a first user text."""


def take_apart(
    tokenizer: PreTrainedTokenizerBase, encode: Encode, variables: Mapping[str, Any] = {}, date: str | None = None
) -> Turns:
    """Finds a chat template's turn markers by rendering it with sentinels.

    Args:
        tokenizer: Has a chat template.
        encode: The same tokenizer.
        variables: Arguments of the template.
        date: Day that the template shows.

    Raises:
        UsageError: The template cannot be rendered, does not show each sentinel once, in order, or ends turns with a
            marker that the tokenizer does not know.
    """
    user, padded = {"role": "user", "content": USER}, {"role": "user", "content": f"{BLANKS}{USER}{BLANKS}"}
    conversation = [user, {"role": "assistant", "content": ASSISTANT}, {"role": "user", "content": NEXT}]
    first, spaced, whole = render(tokenizer, [[user], [padded], conversation], variables, date)
    before, after = _split(first, USER)
    _, joiner, again = _split(whole, ASSISTANT, NEXT)
    if (mark := MARK.match(joiner)) and len(encode.marked(mark[1])) != 1:
        raise UsageError(
            f"{tokenizer.name_or_path}: the chat template ends turns with {mark[1]!r}, which the tokenizer does not "
            "know as one token, so no model can end a turn: use the tokenizer that belongs to the model"
        )
    kept = {way: before + USER.join("" if stripped else BLANKS for stripped in way) + after for way in WAYS}
    strip = next((way for way, text in kept.items() if text == spaced), None)
    if strip is None:
        raise UsageError(
            f"{tokenizer.name_or_path}: the chat template changes a user's text, {padded['content']!r} became "
            f"{spaced!r:.300}: put a template that keeps texts into its folder (chat_template.jinja)"
        )
    special = _special_pattern(tokenizer)
    closed = match.end() if (match := special.search(joiner)) else 0
    closing = (*encode.plain(joiner[: match.start()]), *encode.marked(match[0])) if match else ()
    return Turns(
        _around(before, after, encode, special), closing, _around(joiner[closed:], again, encode, special), strip
    )


def _around(before: str, after: str, encode: Encode, special: re.Pattern[str]) -> Around:
    """Returns what stands around a text, apart at its special tokens."""
    start = max((match.end() for match in special.finditer(before)), default=0)
    end = match.start() if (match := special.search(after)) else len(after)
    return Around(
        encode.marked(before[:start]) if start else (),
        before[start:],
        after[:end],
        encode.marked(after[end:]) if end < len(after) else (),
        before,
        after,
    )


def _special_pattern(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """Returns the pattern of a tokenizer's special tokens, with the blanks beside them that belong to the token."""
    tokens = tokenizer.added_tokens_decoder
    ids = sorted(special_ids(tokenizer), key=lambda i: -len(str(tokenizer.convert_ids_to_tokens(i))))
    texts = []
    for i in ids:
        token = tokens.get(i)
        left, right = (False, False) if token is None else (token.lstrip, token.rstrip)
        text = re.escape(str(tokenizer.convert_ids_to_tokens(i)))
        texts.append(r"\s*" * left + text + r"\s*" * right)
    return re.compile("|".join(texts) or r"(?!)")


def _split(text: str, *sentinels: str) -> list[str]:
    """Splits a rendered conversation at sentinels.

    Raises:
        UsageError: A sentinel does not occur exactly once, in order.
    """
    parts = re.split("|".join(sentinels), text)
    if re.findall("|".join(sentinels), text) != list(sentinels):
        raise UsageError(f"the chat template does not show each message once, in order: it made {text!r:.500}")
    return parts


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Returns the ids of all special tokens: those the tokenizer names, and added tokens marked as special."""
    marked = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(marked | set(tokenizer.all_special_ids))
