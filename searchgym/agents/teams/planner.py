"""AI-SearchPlanner: a trained planner decides the searches, and a frozen generator answers (arXiv 2508.20368)."""

from __future__ import annotations

from searchgym.agents.base import EpisodeIO
from searchgym.agents.baselines import answer_from
from searchgym.agents.mask import search_until_end
from searchgym.records import Question


class SearchPlanner:
    """Agent whose planner searches or stops, and whose generator answers from all pages found (AI-SearchPlanner).

    The planner sees its earlier queries with their pages. Its outputs have the format of M-ASK's search role,
    ``<search>query</search>`` or ``<end>``, with the same fallback (`read_search`). The generator is JADE's
    (`read_answer`). A recipe freezes the generator with a model key, and rewards only the planner with ``outcome``,
    ``process`` and ``costs``. The note ``rounds`` of an episode is the number of planner calls.

    Source: the abstract and summaries of the paper; no code is public. The format of the prompts is ours.

    Args:
        max_searches: Maximum number of searches; the environment may allow fewer.
        max_passages: Maximum number of pages in the generator's prompt; the earliest are kept.
        passage_words: Maximum number of words of each page in the prompt.
    """

    def __init__(self, max_searches: int = 5, max_passages: int = 15, passage_words: int = 100) -> None:
        self.max_searches, self.max_passages, self.passage_words = max_searches, max_passages, passage_words

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        searched = await search_until_end("planner", question.text, self.max_searches, self.passage_words, io)
        if searched is None:
            return
        pages, rounds = searched
        io.note("rounds", rounds)
        await answer_from(question, pages[: self.max_passages], self.passage_words, io)
