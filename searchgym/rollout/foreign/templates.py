"""Rendering of third-party chat templates.

Templates are programs, so they run in a separate process with limits of time and memory.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from searchgym.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROGRAM: Final = Path(__file__).with_name("render_template.py")
CPU_SECONDS: Final = 5
"""Maximum seconds of CPU time for a template to render a few short messages."""
CHILD_SECONDS: Final = 120.0
"""Maximum seconds of wall-clock time for the process."""
MEMORY: Final = 2**29
"""Maximum bytes of address space of the process."""
CHARACTERS: Final = 1_000_000
"""Maximum number of characters in a rendered conversation."""
TODAY: Final = datetime.now().date().isoformat()
"""Date on which this process started, as ISO text: the default date of templates."""
TAKEN: Final = frozenset({"messages", "add_generation_prompt", "continue_final_message"})
"""Names of template variables that are not arguments, because prompts and turns depend on them."""
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
        date: Current date or time for the template, as ISO text. Default: midnight of the day on which this process
            started.

    Returns:
        One text per conversation, equal to that of `apply_chat_template` in transformers.

    Raises:
        UsageError: The template cannot be compiled or rendered, or needs too much time or memory; or an argument's name
            or value, or `date`, is not valid.
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
    """Returns the current time for templates, as ISO text, from a date or a time.

    Raises:
        UsageError: The date is not valid.
    """
    try:
        return datetime.fromisoformat(TODAY if date is None else date).isoformat()
    except ValueError as error:
        raise UsageError(f"the date of templates is {date!r}: expected one such as 2026-11-27") from error


@functools.lru_cache(maxsize=64)
def _answer(request: str) -> dict[str, Any]:
    """Returns the reply of a new process to a request."""
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
        stderr_lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return {"error": stderr_lines[-1][:300] if stderr_lines else f"its process ended with status {done.returncode}"}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _unusable(tokenizer: PreTrainedTokenizerBase, answer: Mapping[str, Any]) -> UsageError:
    """Returns the error of a template that cannot be used."""
    return UsageError(
        f"{tokenizer.name_or_path}: the chat template cannot render {answer.get('messages', 'a few')} messages: "
        f"{answer['error']}; put a template that can into its folder (chat_template.jinja), or leave it out: a base "
        "model then"
    )
