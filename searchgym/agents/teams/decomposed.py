"""UnityMAS-O's first workflow: a decomposer asks sub-questions, each is searched for once, a generator answers."""

from __future__ import annotations

import json
from typing import Final

from searchgym.agents.base import EpisodeIO, ask
from searchgym.agents.baselines import answer_from
from searchgym.agents.parsing import Parsed, without_thoughts
from searchgym.agents.teams.mmoa import in_turns, search_each
from searchgym.records import Question
from searchgym.retrieval.kinds.hybrid import fuse

MOST_QUERIES: Final = 3
"""Maximum number of sub-questions, as in the released workflow."""


def read_list(text: str, question: str) -> Parsed[list[str]]:
    """Parses sub-questions to search for: a JSON list of at most three different texts, which may be empty.

    Legal: this list alone. Fallback: the question.
    """
    try:
        queries = json.loads(without_thoughts(text))
    except (ValueError, RecursionError):
        return Parsed([question], False)
    if not isinstance(queries, list) or not all(isinstance(query, str) and query.strip() for query in queries):
        return Parsed([question], False)
    if len(queries) > MOST_QUERIES or len({query.casefold().strip() for query in queries}) < len(queries):
        return Parsed([question], False)
    return Parsed([query.strip() for query in queries], True)


class QdAnswer:
    """Agent in which a decomposer asks up to three sub-questions, and a generator answers from their pages.

    Each sub-question is searched for in a turn of its own, until the turns are spent; the hits are interleaved. With an
    empty list nothing is searched. All roles get the answer's score (``outcome``) and a penalty of 1 for an illegal
    output (``format``).

    Source: UnityMAS-O, arXiv 2605.26646, its graph of question decomposition, retrieval and answer in the repository
    (chenyiqun/UnityMAS-O at 7f1616a), by notes. Deviations: the prompts are worded anew, the answer is a tag, not JSON,
    and the environment's `top_k` decides on the number of pages (theirs: 4).

    With `fused`, the hits are merged by rank-score fusion instead, and only the best pages are shown: this is ACQO,
    arXiv 2601.21208, by notes, whose system ends at this list. Its roles' rewards are ``ranks`` and ``outcome``; the
    answer from the list is ours.

    Args:
        passage_words: Maximum number of words shown of each page.
        fused: Number of pages shown of the fused list; 0: all pages, interleaved.
    """

    def __init__(self, passage_words: int = 100, fused: int = 0) -> None:
        self.passage_words, self.fused = passage_words, fused

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        queries = await ask(io, "decomposer", lambda text: read_list(text, question.text), question=question.text)
        results = await search_each(queries, io)
        if results is not None:
            hits = fuse(results, self.fused, constant=0, ties="score") if self.fused else in_turns(results)
            await answer_from(question, tuple(hits), self.passage_words, io)
