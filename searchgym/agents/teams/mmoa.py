"""MMOA-RAG: a rewriter, a selector and a generator around one retrieval, trained together (arXiv 2501.15228)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Final

from searchgym.agents.base import EpisodeIO, ask
from searchgym.agents.baselines import answer_from
from searchgym.agents.jade import read_parts, select_pages
from searchgym.agents.parsing import Parsed
from searchgym.records import Hit, Question, Search

MOST_QUERIES: Final = 4
"""Maximum number of sub-questions, as in the paper."""
MOST_CHARACTERS: Final = 300
"""Maximum number of characters of all sub-questions together."""
MOST_WORDS: Final = 30
"""Maximum number of words of an answer."""


def read_queries(text: str, question: str) -> Parsed[list[str]]:
    """Parses sub-questions to search for, ``<q1>..</q1><q2>..</q2>``, at most four and 300 characters together.

    Legal: only these tags, numbered from 1 in order, none empty, none twice; the question itself is allowed. Fallback:
    the first four that can be parsed; the question if there is none.
    """
    parsed = read_parts(text, "")
    parts = [part for part in parsed.value if part]
    short = len(parts) <= MOST_QUERIES and sum(map(len, parts)) <= MOST_CHARACTERS
    return Parsed(parts[:MOST_QUERIES] or [question], parsed.legal and short)


class MmoaRag:
    """Agent in which a rewriter splits the question, a selector picks pages, and a generator answers (MMOA-RAG).

    Each sub-question is searched for in a separate turn, until the turns are spent; the hits of all searches are
    interleaved. All roles get the answer's score (``outcome``) and their own penalty (``format``): the rewriter -0.5
    for more than four sub-questions or 300 characters, the selector -1 for a repeated or nonexistent page, the
    generator -1 for an answer of more than 30 words, and each for any other text.

    Source: the paper and its released code (chenyiqun/MMOA-RAG at aa1106d, ``trainer_qr_s_g.py``), which define these
    penalties. In that code, unlike here, each line is a sub-question and the whole text an answer, so only a selector's
    text can be malformed; five to eight sub-questions are cut to four before the penalty counts them, and
    more than eight are replaced by the question, so their number is never penalised; an empty selection is not
    penalised; and the ten pages are 5 and 5, 4, 3 and 3, or 3, 3, 2 and 2 of the sub-questions in order.

    Args:
        max_passages: Maximum number of pages that the selector sees.
        passage_words: Maximum number of words shown of each page.
    """

    def __init__(self, max_passages: int = 10, passage_words: int = 100) -> None:
        self.max_passages, self.passage_words = max_passages, passage_words

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        queries = await ask(io, "rewriter", lambda text: read_queries(text, question.text), question=question.text)
        results = await search_each(queries, io)
        if results is None:
            return
        hits: Sequence[Hit] = in_turns(results)[: self.max_passages]
        if hits:
            hits = await select_pages(question.text, hits, self.passage_words, io)
        await answer_from(question, tuple(hits), self.passage_words, io, MOST_WORDS)


async def search_each(queries: Iterable[str], io: EpisodeIO) -> list[Sequence[Hit]] | None:
    """Searches for queries, each in a turn of its own, until only the answer's turn is left.

    Returns:
        The hits of each search; None if the episode ended.
    """
    results: list[Sequence[Hit]] = []
    for query in queries:
        if io.turns_left <= 1:
            break
        seen = await io.step(Search((query,)))
        if seen.done:
            return None
        results.append(seen.hits)
    return results


def in_turns(lists: Sequence[Sequence[Hit]]) -> list[Hit]:
    """Interleaves lists of hits, first the best of each, then the second of each, without repeated passages."""
    merged: dict[str, Hit] = {}
    for rank in zip_longest(*lists):
        for hit in rank:
            if hit is not None:
                merged.setdefault(hit.passage.id, hit)
    return list(merged.values())
