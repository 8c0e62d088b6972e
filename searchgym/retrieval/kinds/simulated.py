"""Retriever ``simulated``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Interval
from typing_extensions import override

from searchgym.errors import UsageError
from searchgym.named import load_function
from searchgym.retrieval.cards import Sources
from searchgym.retrieval.retriever import AnyRetriever
from searchgym.retrieval.schedule import NoiseSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCard(NoiseSchedule):
    """A language model that writes the pages, useful ones or, more often as training progresses, noisy ones.

    Source: ZeroSearch (Sun et al.), arXiv 2505.04588.
    """

    model: str
    """Model that writes the pages: a folder, a name, ``URL#NAME`` behind an OpenAI-compatible server, or
    ``module:function``, which returns your own writer."""
    pages: Annotated[int, Interval(ge=1, le=100)] = 5
    """Number of pages per query, lowered to k if that is smaller."""
    words: Annotated[int, Interval(ge=1, le=1000)] = 30
    """Number of words per page requested from the model; a page of more than twice as many is cut."""
    answers: bool = True
    """Whether the model sees the question and its gold answer, in addition to the query."""
    temperature: Annotated[float, Interval(ge=0, le=100)] = 0.8
    """Sampling temperature of the model."""
    template: dict[str, Any] = field(default_factory=dict)
    """Arguments of the model's chat template, such as ``enable_thinking: false``, and the ``date`` in it."""

    @override
    def open(self, sources: Sources) -> AnyRetriever:
        # The engine is imported by name, because its package comes after this one.
        if sources.questions is None:
            raise UsageError(
                "a simulated engine writes pages for a question: use it as the retriever of an environment, not on a "
                "server or inside another retriever"
            )
        open_engine = load_function("engine", "searchgym.rollout.simulated.engine:open_engine", "card", "questions")
        opened: AnyRetriever = open_engine(self, sources.questions)
        return opened
