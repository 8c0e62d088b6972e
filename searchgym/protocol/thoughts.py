"""Thoughts: which part of a model's text is reasoning, that never acts.

A thought stands between two markers, which count only in exactly this form: ``<think>`` and ``</think>``, Mistral's
``[THINK]`` and ``[/THINK]``, or gpt-oss's channel ``analysis``. Other spellings (``<THINK>``, ``<think >``,
``<thinking>``, full-width brackets) are ordinary text, since no chat template writes them.

One pass over a text decides, the same for parsers, judges, writers and rewards:

* A marker that opens a thought begins one; inside it only its own closing marker counts, so thoughts do not nest.
* A thought without its closing marker lasts to the end of the text: nothing in it acts.
* If the first marker of a text closes a thought, the thought began before the text, in the prompt (Qwen3-Thinking, R1).
  The rollout engine writes the marker that a prompt ends with before the text of the response, see `opened_by`.
"""

from __future__ import annotations

import re
from typing import Final

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CLOSING: Final = {THINK_OPEN: THINK_CLOSE, "[THINK]": "[/THINK]", "<|channel|>analysis<|message|>": "<|end|>"}
"""Marker that opens a thought, to the one that closes it."""
_MARKER: Final = re.compile("|".join(map(re.escape, [*CLOSING, *CLOSING.values()])))
_BEGUN: Final = frozenset({THINK_CLOSE, "[/THINK]"})
"""Closing markers of thoughts that templates open; ``<|end|>`` closes messages of all channels."""


def _scan(text: str) -> tuple[list[tuple[int, int]], int, str]:
    """Returns the closed thoughts, and the start and the opening marker of a thought that is open at the end, if any.

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
    """Returns the marker that closes the thought in which a text ends; an empty string if it ends outside thoughts."""
    opening = _scan(text)[2]
    return CLOSING[opening] if opening else ""


def opened_by(prompt: str) -> str:
    """Returns the end of a prompt from the marker of the thought that it leaves open; empty if it leaves none open.

    Args:
        prompt: What a chat template writes between a user's text and the model's.
    """
    return prompt[_scan(prompt)[1] :]
