"""AI-SearchPlanner: a trained planner searches, a frozen generator answers (arXiv 2508.20368)."""

from __future__ import annotations

from searchgym.agents.base import EpisodeIO
from searchgym.agents.baselines import answer_from
from searchgym.agents.mask import search_until_end
from searchgym.records import Question


class SearchPlanner:
    """Agent in which a planner searches or stops, and a generator answers from all pages found (AI-SearchPlanner).

    The planner sees its queries with their pages; it writes what M-ASK's search role writes, ``<search>query</search>``
    or ``<end>``, and anything else is treated as there (`read_search`). The generator is JADE's (`read_answer`). A
    recipe freezes the generator by a model key, and rewards only the planner by ``outcome``, ``process`` and
    ``costs``. The note ``rounds`` of an episode is the number of calls of the planner.

    Source: the abstract and summaries of the paper; no code is public. The format of the prompts is ours.

    Args:
        max_searches: Maximum number of searches; the environment may allow fewer.
        max_passages: Maximum number of pages that the generator sees; the earliest are kept.
        passage_words: Maximum number of words shown of each page.
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
