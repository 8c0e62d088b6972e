"""Draws masked spans: selects windows and the spans to hide, and words the tasks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from searchgym.questions.masked.spans import SPAN_SEPARATOR, HiddenSpan, Window
from searchgym.records import Passage
from searchgym.text import base_title, holds, sentence_at, sentences, tidy, unlinked

_OPEN, _CLOSE = "\ue000", "\ue001"
"""Private-use characters that replace the brackets of a mask until the spacing of the text is normalised."""


@dataclass(frozen=True, slots=True)
class MaskedDraft:
    """A window with some of its spans hidden."""

    window: Window
    spans: tuple[HiddenSpan, ...]
    """The hidden spans, in the order of their masks."""
    text: str
    """Text of the task, as the model sees it."""
    answers: tuple[str, ...]
    """Texts of the hidden spans, in the order of their masks."""
    queries: tuple[str, ...]
    """Queries that an oracle sends: first the page's name, if it has one, then each sentence with a mask."""


def draw(
    passages: Sequence[Passage], windows: Sequence[Window], masks: int, rng: random.Random
) -> Iterator[MaskedDraft]:
    """Yields one draft of each window that has enough spans, in random order.

    Args:
        passages: The corpus.
        windows: Windows, with the spans that may be hidden.
        masks: Number of spans to hide.
        rng: Random generator that draws the order and the spans.
    """
    enough = [window for window in windows if len(window.spans) >= masks]
    for window in rng.sample(enough, len(enough)):
        spans = tuple(sorted(rng.sample(window.spans, masks)))
        draft = drafted(passages[window.page], window, spans)
        if draft is not None:
            yield draft


def drafted(passage: Passage, window: Window, spans: tuple[HiddenSpan, ...]) -> MaskedDraft | None:
    """Returns the draft that hides some spans of a window; None if the rest of its text reveals one of them."""
    text, name = passage.text, base_title(passage.title)
    answers = tuple(tidy(text[slice(*span.occurrences[0])]).strip("`*_ ") for span in spans)
    visible = masked(text, (window.start, window.end), spans)
    if name and not holds(visible, name):
        visible = f"{name}: {visible}"
    if any(holds(visible, answer) or not answer or SPAN_SEPARATOR in answer for answer in answers):
        return None
    spans_of_sentences = sentences(text[window.start : window.end])
    queries = [name] if name else []
    for span in spans:
        start, end = sentence_at(spans_of_sentences, span.occurrences[0][0] - window.start)
        queries.append(masked(text, (window.start + start, window.start + end), spans))
    return MaskedDraft(window, spans, worded(visible, len(spans)), answers, tuple(dict.fromkeys(queries)))


def masked(text: str, span_of_text: tuple[int, int], spans: Sequence[HiddenSpan]) -> str:
    """Returns a part of a text with spans replaced by ``[mask1]``, ``[mask2]``, ..., and its spacing normalised."""
    cuts = sorted((start, end, n) for n, span in enumerate(spans, start=1) for start, end in span.occurrences)
    out, at = [], span_of_text[0]
    for start, end, number in cuts:
        if span_of_text[0] <= start and end <= span_of_text[1]:
            out += [text[at:start], f"{_OPEN}mask{number}{_CLOSE}"]
            at = end
    visible = tidy(unlinked("".join([*out, text[at : span_of_text[1]]])))
    return visible.replace(_OPEN, "[").replace(_CLOSE, "]")


def worded(text: str, masks: int) -> str:
    """Returns the task for a masked text: the instruction, the answer format and the text."""
    if masks == 1:
        return f"Fill in what is hidden behind [mask1]: {text}"
    names = ", ".join(f"[mask{number}]" for number in range(1, masks)) + f" and [mask{masks}]"
    return f"Fill in what is hidden behind {names}, in this order and separated by semicolons: {text}"


def answer_of(answers: Sequence[str]) -> str:
    """Returns the answer that lists the text of each hidden span."""
    return f"{SPAN_SEPARATOR} ".join(answers)
