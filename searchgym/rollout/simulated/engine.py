"""A retriever with pages written by a language model, useful or noisy by a schedule over training steps."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from searchgym.errors import RetrieverError, UsageError
from searchgym.named import load_function, names_code
from searchgym.protocol import get_protocol
from searchgym.records import SIMULATED, Hit, Passage, Question
from searchgym.retrieval.kinds.simulated import SimulatedCard
from searchgym.retrieval.retriever import check_request
from searchgym.retrieval.schedule import draw_noise, random_numbers
from searchgym.rollout.models import Loading, load_models
from searchgym.rollout.simulated.writers import ModelWriter, PageWriter, Wanted

AT_ONCE: Final = 16
"""Maximum number of queries per call."""


class SimulatedRetriever:
    """Retriever whose pages are invented by a writer; their ids begin with ``simulated:`` and ``useful`` or ``noisy``.

    At step i of m, the pages of a query are noisy with the probability p_i of `NoiseRetriever`; outside of training all
    pages are useful. The random choice for a query depends on (seed, step, query) alone. A query may get no pages.

    Source: ZeroSearch, arXiv 2505.04588: ``p_i = p_s + (b^(i/m) - 1) / (b - 1) (p_e - p_s)`` with b = 4, p_s = 0 and
    p_e = 0.5 in its released code. Deviation: for a question that is not in the environment (for example from a
    proposer), pages are written without its answer.

    Args:
        card: Card with the schedule, and the number and length of pages.
        writer: Writes the pages.
        questions: Questions of the environment.
    """

    queries_at_once = AT_ONCE
    changes_by_step = True

    def __init__(self, card: SimulatedCard, writer: PageWriter, questions: Sequence[Question] = ()) -> None:
        self.card, self.writer = card, writer
        self._by_id: Mapping[str, Question] = {question.id: question for question in questions}
        self._step: int | None = None
        self.probability = 0.0
        """Current probability that the pages of a query are noisy."""
        self._lock = threading.Lock()

    def at_step(self, step: int | None, steps: int) -> None:
        """Sets the probability for a 0-based step of training, or to 0 for validation (None)."""
        self._step, self.probability = step, self.card.probability(step, steps)

    def search_for(self, question_ids: Sequence[str], queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k written pages per query.

        Raises:
            RetrieverError: The writer returned something other than a list of texts for each query.
        """
        check_request(queries, k)
        requests = []
        for id, query in zip(question_ids, queries, strict=True):
            numbers = random_numbers(self.card.seed, self._step, query)
            useful = not draw_noise(self.probability, numbers)
            question, seed = self._by_id.get(id) if self.card.answers else None, next(numbers) % 2**31
            requests.append(Wanted(query, question, useful, min(k, self.card.pages), self.card.words, seed))
        with self._lock:  # one call at a time: an abandoned one may still be running
            written = self.writer.write(requests)
        if not isinstance(written, list) or len(written) != len(requests):
            raise RetrieverError(f"the writer must write pages for {len(requests)} queries, got {written!r:.80}")
        return [self._hits(one, pages, k) for one, pages in zip(requests, written, strict=True)]

    def identity(self) -> dict[str, Any]:
        """Returns the settings that the pages depend on, in addition to the step."""
        names = ("model", "pages", "words", "answers", "temperature", "start", "end", "base", "steps", "seed")
        return {"kind": "simulated"} | {name: getattr(self.card, name) for name in names}

    def _hits(self, request: Wanted, pages: object, k: int) -> list[Hit]:
        """Returns written pages as hits with simulated ids, in the same order."""
        if not isinstance(pages, list) or not all(isinstance(page, str) for page in pages):
            raise RetrieverError(f"the writer must write a list of texts per query, got {pages!r:.80}")
        kind = "useful" if request.useful else "noisy"
        key = (
            f"{request.question and request.question.id}/{request.seed}/{request.query}"  # the seed depends on the step
        )
        name = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        return [
            Hit(Passage(f"{SIMULATED}{kind}/{name}-{number}", "", page), 1 / number)
            for number, page in enumerate(pages[:k], start=1)
        ]


def open_engine(card: SimulatedCard, questions: Sequence[Question]) -> SimulatedRetriever:
    """Returns the retriever of a card, with its model loaded.

    Raises:
        UsageError: The function in the card does not return a writer.
        DataMissingError: The model does not exist.
    """
    if names_code(card.model):
        writer: PageWriter = load_function("writer", card.model)()
        if not callable(getattr(writer, "write", None)):
            raise UsageError(f"writer {card.model} returned {type(writer).__name__}, which has no write()")
        return SimulatedRetriever(card, writer, questions)
    model = load_models({"engine": card.model}, get_protocol("tags"), Loading(template=card.template))["engine"]
    return SimulatedRetriever(card, ModelWriter(model, card.temperature, model.sampler.close), questions)
