"""Thoughts: the parts of a model's text that are reasoning and never count as actions.

A thought lies between two markers, which are recognised only in exactly this form: ``<think>`` and ``</think>``,
Mistral's ``[THINK]`` and ``[/THINK]``, or gpt-oss's channel ``analysis``. Other spellings (``<THINK>``, ``<think >``,
``<thinking>``, full-width brackets) are ordinary text, since no chat template writes them.

One rule, applied in one pass, serves parsers, judges, writers and rewards alike:

* An opening marker begins a thought; inside it only the matching closing marker counts, so thoughts do not nest.
* A thought without its closing marker lasts to the end of the text.
* If the first marker of a text closes a thought, the thought began before the text, in the prompt (Qwen3-Thinking, R1).
  The rollout engine prepends the prompt's open marker to the text of the response; see `opened_by`.
"""

from __future__ import annotations

import re
from typing import Final

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CLOSING: Final = {THINK_OPEN: THINK_CLOSE, "[THINK]": "[/THINK]", "<|channel|>analysis<|message|>": "<|end|>"}
"""Opening marker to closing marker."""
_MARKER: Final = re.compile("|".join(map(re.escape, [*CLOSING, *CLOSING.values()])))
_BEGUN: Final = frozenset({THINK_CLOSE, "[/THINK]"})
"""Closing markers of thoughts that chat templates may open. ``<|end|>`` is not among them: it closes messages of all
channels."""


def _scan(text: str) -> tuple[list[tuple[int, int]], int, str]:
    """Finds all thoughts of a text, of which the last may be open.

    Returns:
        (spans, start, marker): (start, end) in characters of each closed thought, markers included; the position of
        the open thought and its opening marker, or the text's length and an empty string.
    """
    spans: list[tuple[int, int]] = []
    start, opening, first = 0, "", True
    for match in _MARKER.finditer(text):
        marker = match[0]
        if opening:
            if marker == CLOSING[opening]:
                spans.append((start, match.end()))
                opening = ""
        elif marker in CLOSING:
            start, opening = match.start(), marker
        elif first and marker in _BEGUN:
            spans.append((0, match.end()))
        first = False
    return spans, start if opening else len(text), opening


def thought_spans(text: str) -> list[tuple[int, int]]:
    """Returns (start, end) in characters of each thought, markers included; the last one may be open."""
    spans, start, opening = _scan(text)
    return [*spans, (start, len(text))] if opening else spans


def split_thoughts(text: str) -> tuple[str, str]:
    """Splits a model's text into its thoughts and the rest.

    Returns:
        (thoughts, rest): the insides of the thoughts joined by newlines; the text without the thoughts.
    """
    spans = thought_spans(text)
    thoughts = [_MARKER.sub("", text[start:end]) for start, end in spans]
    starts, ends = [0, *(end for _, end in spans)], [*(start for start, _ in spans), len(text)]
    return "\n".join(thoughts), "".join(text[start:end] for start, end in zip(starts, ends, strict=True))


def awaited(text: str) -> str:
    """Returns the closing marker that an open thought at the end of a text lacks; empty if no thought is open."""
    opening = _scan(text)[2]
    return CLOSING[opening] if opening else ""


def opened_by(prompt: str) -> str:
    """Returns the part of a prompt from its unclosed opening marker to the end; empty if no thought is open.

    Args:
        prompt: Text that a chat template writes between a user's text and the model's.
    """
    return prompt[_scan(prompt)[1] :]
