"""Judges: whether a proposed question can be answered, as its proposer says, from given pages."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from searchgym.errors import ModelError, ScoringError
from searchgym.graphs.text import holds
from searchgym.rollout.models import Model
from searchgym.rollout.sampler import SampleRequest, Sampling
from searchgym.scoring import exact_match

MOST_WORDS: Final = 50
"""Words of a judge's reply above which it is no answer."""
PROMPT: Final = (
    "Answer the question from the pages alone. Reply with one line that begins with 'Answer:', at most 50 words.\n\n"
    "{pages}\n\nQuestion: {question}"
)
_REPLY: Final = re.compile(r"^\s*answer:\s*(.+?)\s*$", re.IGNORECASE | re.MULTILINE)


class Judge(Protocol):
    """Decides whether pages answer a question as its proposer says."""

    def verify(self, question: str, answer: str, pages: Sequence[str]) -> bool:
        """Returns whether the pages give the question this answer.

        Raises:
            ScoringError: The judge gave no verdict: it failed, timed out, or replied with something else.
        """
        ...


class ExactJudge:
    """Judge without a model: the answer stands word for word in a page. It refutes, but proves little."""

    def verify(self, question: str, answer: str, pages: Sequence[str]) -> bool:
        """Returns whether a page holds the answer."""
        return any(holds(page, answer) for page in pages)


class ModelJudge:
    """Judge that lets a model answer the question from the pages and compares by exact match.

    Args:
        model: A model key of the run, or a model behind a server (`searchgym.rollout.models.load_models` with
            ``URL#NAME``).
        max_tokens: Most tokens of its reply.
        temperature: Temperature of its reply.
    """

    def __init__(self, model: Model, max_tokens: int = 70, temperature: float = 0.1) -> None:
        self._model, self._sampling = model, Sampling(temperature=temperature, max_tokens=max_tokens)

    def verify(self, question: str, answer: str, pages: Sequence[str]) -> bool:
        """Returns whether the model's answer from the pages is the proposer's; see `Judge.verify`."""
        parts = [(PROMPT.split("{pages}")[0], True), ("\n\n".join(pages), False), ("\n\nQuestion: ", True)]
        ids = self._model.format.prompt_ids([*parts, (question, False)])
        seed = random.Random(question).randrange(2**31)
        try:
            (reply,) = self._model.sampler.sample([SampleRequest(np.asarray(ids), self._sampling, seed)])
        except (ModelError, TimeoutError) as error:
            raise ScoringError(f"the judge failed: {error}") from error
        text = self._model.format.response_text(reply.ids)
        found = _REPLY.search(text)
        if found is None or len(found[1].split()) > MOST_WORDS:
            raise ScoringError(f"the judge gave no line with 'Answer:' of at most {MOST_WORDS} words: {text!r:.80}")
        return exact_match(found[1], (answer,)) == 1
