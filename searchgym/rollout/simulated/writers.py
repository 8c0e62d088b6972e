"""Writers of pages: the interface, and the writer that asks a language model."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from searchgym.protocol import Parts, split_thoughts
from searchgym.records import Question
from searchgym.rollout.models import Model
from searchgym.rollout.sampler import SampleRequest, Sampling
from searchgym.text import cut_words

ASK: Final = (
    "You stand in for a search engine. Write {pages} short documents of about {words} words for the query, each on one "
    "line that begins with 'Doc N:'. Write only the documents.\n"
)
KINDS: Final = {
    True: "Each document must be useful: it helps to answer the query.\n",
    False: "Each document must be noise: it looks as if it were about the query, and does not help to answer it.\n",
}
_DOC: Final = re.compile(r"^\W*doc(?:ument)?\s*\d*\s*[:.)-]\s*", re.IGNORECASE | re.MULTILINE)
_TOKENS_PER_WORD: Final = 2
"""Tokens that a word of a page may take, and its mark."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Pages that are wanted for one query."""

    query: str
    question: Question | None
    """Question of the episode, with its gold answer; None if the writer must not know it."""
    useful: bool
    """Whether the pages should help, or be noise."""
    pages: int
    """Most pages."""
    words: int
    """Words asked for in each page."""
    seed: int
    """Seed of the writer's random numbers."""


class PageWriter(Protocol):
    """The interface of an object that writes pages."""

    def write(self, wanted: Sequence[Wanted]) -> list[list[str]]:
        """Returns the texts of the pages for each query, best first; none if it has nothing to say."""
        ...


class ModelWriter:
    """Writer that asks a language model; what is no document in its reply is left out.

    Source: ZeroSearch, arXiv 2505.04588, and its released code: useful or noisy pages of about 30 words, five at a
    time, written with the query, the question and its gold answer in view. Wording of the prompt is ours.

    Args:
        model: The model.
        temperature: Sampling temperature.
        close: Closes the model.
    """

    def __init__(self, model: Model, temperature: float, close: Callable[[], None] = lambda: None) -> None:
        self._model, self._temperature, self.close = model, temperature, close

    def write(self, wanted: Sequence[Wanted]) -> list[list[str]]:
        """Returns the pages of the model for each query."""
        requests = []
        for one in wanted:
            most = one.pages * (_TOKENS_PER_WORD * one.words + 8)
            sampling = Sampling(max_tokens=most, temperature=self._temperature)
            requests.append(SampleRequest(np.asarray(self._model.format.prompt_ids(prompt(one))), sampling, one.seed))
        replies = self._model.sampler.sample(requests)
        opened = self._model.format.thought_after(None)
        texts = [split_thoughts(opened + self._model.format.response_text(reply.ids))[1] for reply in replies]
        return [pages_in(text, one.pages, one.words) for text, one in zip(texts, wanted, strict=True)]


def prompt(wanted: Wanted) -> Parts:
    """Returns the prompt for the pages of a query."""
    parts = [(ASK.format(pages=wanted.pages, words=wanted.words) + KINDS[wanted.useful], True)]
    if wanted.question is not None:
        parts += [("\nQuestion: ", True), (wanted.question.text, False)]
        parts += [("\nIts answer: ", True), (wanted.question.answers[0], False)]
    return [*parts, ("\n\nQuery: ", True), (wanted.query, False)]


def pages_in(text: str, most: int, words: int) -> list[str]:
    """Returns the documents in a reply: what stands behind each ``Doc N:``, or else each line; cut to length."""
    parts = _DOC.split(text)[1:] or text.splitlines()
    pages = [" ".join(cut_words(part.strip(), 2 * words).split()) for part in parts]
    return [page for page in pages if page][:most]
