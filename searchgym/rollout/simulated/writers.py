"""Writers of pages: the interface, and a writer that prompts a language model."""

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
"""Maximum number of tokens per word of a page."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Request for the pages of one query."""

    query: str
    question: Question | None
    """Question of the episode, with its gold answer; None if the writer must not see it."""
    useful: bool
    """True if the pages should help to answer the query, False if they should be noise."""
    pages: int
    """Maximum number of pages."""
    words: int
    """Requested number of words per page."""
    seed: int
    """Seed of the writer's random numbers."""


class PageWriter(Protocol):
    """Interface of an object that writes pages."""

    def write(self, requests: Sequence[Wanted]) -> list[list[str]]:
        """Returns the texts of the pages for each query, best first; a list may be empty."""
        ...


class ModelWriter:
    """Writer that prompts a language model and extracts the documents from its reply.

    Source: ZeroSearch, arXiv 2505.04588, and its released code: useful or noisy pages of about 30 words, five at a
    time, from a prompt with the query, the question and its gold answer. The wording of the prompt is ours.

    Args:
        model: The model.
        temperature: Sampling temperature.
        close: Function that closes the model.
    """

    def __init__(self, model: Model, temperature: float, close: Callable[[], None] = lambda: None) -> None:
        self._model, self._temperature, self.close = model, temperature, close

    def write(self, requests: Sequence[Wanted]) -> list[list[str]]:
        """Returns the pages written by the model for each query."""
        sample_requests = []
        for one in requests:
            most = one.pages * (_TOKENS_PER_WORD * one.words + 8)
            sampling = Sampling(max_tokens=most, temperature=self._temperature)
            sample_requests.append(
                SampleRequest(np.asarray(self._model.format.prompt_ids(prompt(one))), sampling, one.seed)
            )
        replies = self._model.sampler.sample(sample_requests)
        opened = self._model.format.thought_after(None)
        texts = [split_thoughts(opened + self._model.format.response_text(reply.ids))[1] for reply in replies]
        return [pages_in(text, one.pages, one.words) for text, one in zip(texts, requests, strict=True)]


def prompt(request: Wanted) -> Parts:
    """Returns the prompt for the pages of a query."""
    parts = [(ASK.format(pages=request.pages, words=request.words) + KINDS[request.useful], True)]
    if request.question is not None:
        parts += [("\nQuestion: ", True), (request.question.text, False)]
        parts += [("\nIts answer: ", True), (request.question.answers[0], False)]
    return [*parts, ("\n\nQuery: ", True), (request.query, False)]


def pages_in(text: str, most: int, words: int) -> list[str]:
    """Returns the documents in a reply, cut to length: the text after each ``Doc N:``, or else each line."""
    parts = _DOC.split(text)[1:] or text.splitlines()
    pages = [" ".join(cut_words(part.strip(), 2 * words).split()) for part in parts]
    return [page for page in pages if page][:most]
