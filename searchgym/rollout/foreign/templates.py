"""Chat templates of others, and the turn markers that they show.

Templates are programs, so they run in a process that ends them when they take too much.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from searchgym.errors import UsageError
from searchgym.protocol import opened_by

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
MARK: Final = re.compile(r"\s*(<\|[^|<>\s]+\|>|</?\w+>)")
"""Pattern of a text that begins with something written like a special token."""

TODAY: Final = datetime.now().date().isoformat()
"""Date at which this process started, ISO text: the date that templates are told unless another one is given."""
TAKEN: Final = frozenset({"messages", "add_generation_prompt", "continue_final_message"})
"""Names of variables of templates that are no arguments, since prompts and turns are made of them."""
NO_ARGS: Final[Mapping[str, Any]] = MappingProxyType({})
"""No template arguments."""

Messages = Sequence[Mapping[str, str]]


def render(
    tokenizer: PreTrainedTokenizerBase,
    conversations: Sequence[Messages],
    variables: Mapping[str, Any] = NO_ARGS,
    *,
    date: str | None = None,
) -> list[str]:
    """Renders conversations, each with the start of the model's next turn, in a tokenizer's chat template.

    Args:
        tokenizer: Has a chat template.
        conversations: Lists of messages with ``role`` and ``content``.
        variables: Template arguments, such as ``enable_thinking``, by name; values are those of JSON.
        date: What the template is told is the time now, ISO text. Default: midnight of the day on which this process
            started.

    Returns:
        One text per conversation, the one that `apply_chat_template` of transformers makes.

    Raises:
        UsageError: The template cannot be compiled or rendered, or takes too much time or memory; or an argument has a
            name or a value that none can have, or `date` is none.
    """
    try:
        template = tokenizer.get_chat_template()
    except ValueError as error:  # several templates, none of which is the default
        raise _unusable(tokenizer, {"error": str(error)}) from error
    request = {
        "template": template,
        "conversations": conversations,
        "variables": {**tokenizer.special_tokens_map, **variables},
        "now": _moment(date),
        "seconds": CPU_SECONDS,
        "memory": MEMORY,
        "characters": CHARACTERS,
    }
    if names := sorted(TAKEN.intersection(variables)):
        raise UsageError(f"template arguments: {', '.join(names)} cannot be set: prompts are made of it; leave it out")
    try:
        text = json.dumps(request)
    except (TypeError, ValueError) as error:
        reason = f"template arguments: {dict(variables)!r:.200}: expected values of JSON ({error})"
        raise UsageError(reason) from error
    answer = _answer(text)
    if "error" in answer:
        raise _unusable(tokenizer, answer)
    return [str(text) for text in answer["texts"]]


def _moment(date: str | None) -> str:
    """Returns the time that templates are told, ISO text, for a date or a time.

    Raises:
        UsageError: It is no date.
    """
    try:
        return datetime.fromisoformat(TODAY if date is None else date).isoformat()
    except ValueError as error:
        raise UsageError(f"the date of templates is {date!r}: expected one such as 2026-11-27") from error


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


@dataclass(frozen=True, slots=True)
class Turns:
    """Turn markers of a chat template, as token ids."""

    before: tuple[int, ...]
    """Ids before the first user text, including any default system prompt."""
    after: tuple[int, ...]
    """Ids from the end of the first user text to the start of the model's text."""
    closing: tuple[int, ...]
    """Ids from the end of a model's text to its end-of-turn, which a model samples itself; empty if there is none."""
    opening: tuple[int, ...]
    """Ids from the model's end-of-turn to the next user text."""
    again: tuple[int, ...]
    """Ids from the end of the next user text to the start of the model's text."""
    thought: str
    """End of the first prompt from the marker of the thought that it leaves open, or nothing."""
    thought_again: str
    """The same after a later user text."""


def take_apart(
    tokenizer: PreTrainedTokenizerBase,
    encode: Callable[[str], tuple[int, ...]],
    variables: Mapping[str, Any] = NO_ARGS,
    *,
    date: str | None = None,
) -> Turns:
    """Finds a chat template's turn markers, which `encode` turns into ids, by rendering it with sentinels.

    `variables` and `date` as for `render`.

    Raises:
        UsageError: The template cannot be rendered, does not show each sentinel once, in order, or ends turns with a
            marker that the tokenizer does not know.
    """
    user = {"role": "user", "content": USER}
    conversation = [user, {"role": "assistant", "content": ASSISTANT}, {"role": "user", "content": NEXT}]
    first, whole = render(tokenizer, [[user], conversation], variables, date=date)
    before, after = _split(first, USER)
    _, joiner, again = _split(whole, ASSISTANT, NEXT)
    if (mark := MARK.match(joiner)) and len(encode(mark[1])) != 1:
        raise UsageError(
            f"{tokenizer.name_or_path}: the chat template ends turns with {mark[1]!r}, which the tokenizer does not "
            "know as one token, so no model can end a turn: use the tokenizer that belongs to the model"
        )
    special, ids = special_ids(tokenizer), encode(joiner)
    closed = next((at + 1 for at, i in enumerate(ids) if i in special), 0)
    return Turns(
        encode(before), encode(after), ids[:closed], ids[closed:], encode(again), opened_by(after), opened_by(again)
    )


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
