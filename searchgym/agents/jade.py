"""JADE: a planner chooses the workflow for each question, and executors run it (arXiv 2601.21916)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from searchgym.agents.base import EpisodeIO, Reply, accept, ask, documents, search_once
from searchgym.agents.parsing import NONE, Parsed, numbered, only_tag, same, without_thoughts, words
from searchgym.records import Answer, Hit, Question

# The paper's abbreviations: question decomposition (serial, parallel), question rewriting, retrieval, document
# selection, answer generation.
SERIAL, PARALLEL, REWRITE, RETRIEVE, SELECT, GENERATE = "QDS", "QDP", "QR", "R", "DS", "AG"
CHAIN: Final = (REWRITE, RETRIEVE, SELECT, GENERATE)
"""Modules of a chain, in the only order in which a plan may list them."""
PLAN, SUBPLAN = (SERIAL,), (RETRIEVE, GENERATE)
"""Fallback plans of the planner and the sub-planner, used when their output is not legal."""
MOST_PARTS: Final = 7
"""Maximum number of sub-questions."""
MOST_QUERY: Final = 100
"""Maximum number of words of a query."""
MOST_ANSWER: Final = 40
"""Maximum number of words of an answer."""


def read_workflow(
    text: str, modules: Sequence[str], whole: Sequence[str], otherwise: Sequence[str]
) -> Parsed[list[str]]:
    """Parses a plan, ``<workflow>QR,R,DS,AG</workflow>``.

    Legal: one item of `whole` alone, or some of `modules` without repeats, in the order QR, R, DS, AG, with AG last,
    and DS only with R.

    Args:
        text: Output of a planner.
        modules: Modules allowed in a chain.
        whole: Modules that form a complete plan by themselves.
        otherwise: Fallback plan for output that is not legal.
    """
    body = only_tag(without_thoughts(text), "workflow")
    names = [name.strip() for name in (body or "").split(",")]
    ordered = [name for name in CHAIN if name in names and name in modules]
    chain = names == ordered and names[-1] == GENERATE and (SELECT not in names or RETRIEVE in names)
    if chain or (len(names) == 1 and names[0] in whole):
        return Parsed(names, True)
    return Parsed(list(otherwise), False)


def read_parts(text: str, question: str) -> Parsed[list[str]]:
    """Parses sub-questions, ``<q1>..</q1><q2>..</q2>``, at most seven.

    Legal: only these tags, numbered from 1 in order, none empty, none twice, none equal to the question. Fallback: the
    sub-questions that can be parsed, without duplicates; the question if there is none.
    """
    tags, rest = numbered(without_thoughts(text), ("q",), 9)
    first: dict[str, str] = {}
    for _, _, body in tags:
        if body:
            first.setdefault(same(body), body)
    parts = list(first.values())[:MOST_PARTS]
    numbers = [number for _, number, _ in tags]
    legal = bool(parts) and not rest and numbers == list(range(1, len(tags) + 1)) and len(parts) == len(tags)
    legal = legal and same(question) not in map(same, parts)
    return Parsed(parts or [question], legal)


def read_query(text: str, question: str, main: str) -> Parsed[str]:
    """Parses a rewritten query, ``<query>..</query>``.

    Legal: at most 100 words, and not the user's whole question. Fallback: the question to rewrite.

    Args:
        text: Output of the rewriter.
        question: Question to rewrite: the user's question or a part of it.
        main: The user's question.
    """
    query = only_tag(without_thoughts(text), "query")
    legal = bool(query) and same(query or "") != same(main) and words(query or "") <= MOST_QUERY
    return Parsed(query if query and legal else question, legal)


def read_selection(text: str, count: int) -> Parsed[list[int]]:
    """Parses a selection of `count` pages, ``<id>Document0,Document2</id>``.

    Legal: numbers below `count`, none twice. Fallback: all pages.
    """
    names = [name.strip() for name in (only_tag(without_thoughts(text), "id") or "").split(",")]
    numbers = [int(name[8:]) for name in names if re.fullmatch(r"Document[0-9]{1,3}", name)]
    legal = len(numbers) == len(names) == len(set(numbers)) and all(number < count for number in numbers)
    return Parsed(numbers if legal else list(range(count)), legal)


def read_answer(text: str, most: int = MOST_ANSWER) -> Parsed[str]:
    """Parses ``<answer>..</answer>``.

    Legal: this tag with at most `most` words, 40 in JADE, and nothing else. Fallback: the whole text.
    """
    text = without_thoughts(text)
    answer = only_tag(text, "answer")
    if answer is None or words(answer) > most:
        return Parsed(text, False)
    return Parsed(answer, True)


class Jade:
    """Agent whose planner either decomposes the question or lets a chain of modules answer it (JADE).

    Each sub-question gets its own plan. The note ``rounds`` of an episode is 1 for a chain, 2 for a parallel
    decomposition, and 1 plus the number of sub-questions for a serial one.

    Deviations from the released code, in which an ablation was left enabled: the sub-planner's plan is executed
    (there it is always R, DS, AG), and the planner may choose parallel decomposition. Independent sub-questions are
    answered one after the other, but do not see each other's answers. A selection may not repeat a number. ``<think>``
    blocks are ignored.

    Args:
        passage_words: Maximum number of words shown of each page.
    """

    def __init__(self, passage_words: int = 100) -> None:
        self.passage_words = passage_words

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        modules = (CHAIN, (SERIAL, PARALLEL), PLAN)
        plan = await ask(io, "planner", lambda text: read_workflow(text, *modules), question=question.text)
        if plan in ([SERIAL], [PARALLEL]):
            reply = await self._decomposed(question.text, plan == [SERIAL], io)
        else:
            io.note("rounds", 1)
            reply = await self._chain(plan, question.text, io)
        reply.call.answer = read_answer(reply.text).value
        await io.step(Answer(reply.call.answer))

    async def _decomposed(self, question: str, serial: bool, io: EpisodeIO) -> Reply:
        """Decomposes a question and answers its sub-questions; returns the summariser's reply."""
        role = "serial" if serial else "parallel"
        parts = await ask(io, role, lambda text: read_parts(text, question), question=question)
        io.note("rounds", 1 + len(parts) if serial else 2)
        history = ""
        for part in parts:
            if serial:
                part = await self._rewritten(part, question, history, io)
            plan = await ask(io, "subplanner", lambda text: read_workflow(text, CHAIN[1:], (), SUBPLAN), question=part)
            reply = await self._chain(plan, part, io)
            history += f"Q: {part} | A: {read_answer(reply.text).value}\n"
        reply = await io.generate("summariser", question=question, history=history.strip())
        accept(reply, read_answer(reply.text))
        return reply

    async def _chain(self, plan: Sequence[str], question: str, io: EpisodeIO) -> Reply:
        """Answers a question with a chain of modules; returns the generator's reply."""
        hits: tuple[Hit, ...] = ()
        if REWRITE in plan:
            question = await self._rewritten(question, question, "", io)
        if RETRIEVE in plan:
            hits = await search_once(question, io)
        if SELECT in plan and hits:
            hits = await select_pages(question, hits, self.passage_words, io)
        pages = documents(hits, self.passage_words) or NONE
        reply = await io.generate("generator", question=question, documents=pages)
        accept(reply, read_answer(reply.text))
        return reply

    async def _rewritten(self, question: str, main: str, history: str, io: EpisodeIO) -> str:
        """Returns the rewriter's query for a part of the user's question, given the answers to earlier parts."""
        fields = {"question": question, "history": history.strip() or NONE}
        return await ask(io, "rewriter", lambda text: read_query(text, question, main), **fields)


async def select_pages(question: str, hits: Sequence[Hit], passage_words: int, io: EpisodeIO) -> tuple[Hit, ...]:
    """Returns the pages that the selector chooses for a question; see `read_selection`."""
    pages = documents(hits, passage_words, "Document", first=0)
    chosen = await ask(io, "selector", lambda text: read_selection(text, len(hits)), question=question, documents=pages)
    return tuple(hits[number] for number in chosen)
