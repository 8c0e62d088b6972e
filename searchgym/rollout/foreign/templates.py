"""Chat templates of others: they are programs, so they run in a process that ends them when they take too much."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from searchgym.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROGRAM: Final = Path(__file__).with_name("render_template.py")
SECONDS: Final = 5
"""Seconds of processor time in which a template must render a few short messages."""
WAIT: Final = 120.0
"""Seconds until the process is given up, however busy the machine is."""
MEMORY: Final = 2**29
"""Bytes of address space that the process may take."""
CHARACTERS: Final = 1_000_000
"""Maximum characters of a rendered conversation."""

Messages = Sequence[Mapping[str, str]]


def render(tokenizer: PreTrainedTokenizerBase, conversations: Sequence[Messages]) -> list[str]:
    """Renders conversations, each with the start of the model's next turn, in a tokenizer's chat template.

    Args:
        tokenizer: Has a chat template.
        conversations: Lists of messages with ``role`` and ``content``.

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
        "variables": dict(tokenizer.special_tokens_map),
        "seconds": SECONDS,
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
            timeout=WAIT,
            check=False,
            start_new_session=True,  # a terminal's Ctrl-C is for the parent
        )
    except subprocess.TimeoutExpired:
        return {"error": f"it does not end within {WAIT:g} s"}
    if done.returncode < 0:
        return {"error": f"it does not end within {SECONDS} s of processor time"}
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
