"""JADE: a planner that chooses the workflow of each question, and executors that carry it out (arXiv 2601.21916)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from searchgym.agents.base import EpisodeIO, Reply, documents
from searchgym.agents.parsing import Parsed, Value, numbered, only_tag, said, same, words
from searchgym.records import Answer, Hit, Question, Search

SERIAL, PARALLEL, REWRITE, RETRIEVE, SELECT, GENERATE = "QDS", "QDP", "QR", "R", "DS", "AG"
CHAIN: Final = (REWRITE, RETRIEVE, SELECT, GENERATE)
"""Modules of a chain, in the one order in which they may stand."""
PLAN, SUBPLAN = (SERIAL,), (RETRIEVE, GENERATE)
"""Fall-backs of planner and sub-planner."""
MOST_PARTS: Final = 7
MOST_QUERY: Final = 100
MOST_ANSWER: Final = 40
"""Words of a query and of an answer."""
NONE: Final = "none"
"""What a prompt shows where there is nothing."""


def read_workflow(
    text: str, modules: Sequence[str], whole: Sequence[str], otherwise: Sequence[str]
) -> Parsed[list[str]]:
    """Reads ``<workflow>QR,R,DS,AG</workflow>``.

    Legal: one of `whole` alone, or some of `modules`: none twice, in the order QR, R, DS, AG, AG last, DS only with R.

    Args:
        text: A planner's.
        modules: That may stand in a chain.
        whole: That stand alone.
        otherwise: The fall-back.
    """
    body = only_tag(said(text), "workflow")
    names = [name.strip() for name in (body or "").split(",")]
    ordered = [name for name in CHAIN if name in names and name in modules]
    chain = names == ordered and names[-1] == GENERATE and (SELECT not in names or RETRIEVE in names)
    if chain or (len(names) == 1 and names[0] in whole):
        return Parsed(names, True)
    return Parsed(list(otherwise), False)


def read_parts(text: str, question: str) -> Parsed[list[str]]:
    """Reads ``<q1>..</q1><q2>..</q2>``, up to seven.

    Legal: only these tags, numbered from 1 in order, none empty, none twice, none the question itself. Fall-back: those
    that can be read, each once; the question if there is none.
    """
    found, rest = numbered(said(text), ("q",), 9)
    first: dict[str, str] = {}
    for _, _, body in found:
        if body:
            first.setdefault(same(body), body)
    parts = list(first.values())[:MOST_PARTS]
    numbers = [number for _, number, _ in found]
    legal = bool(parts) and not rest and numbers == list(range(1, len(found) + 1)) and len(parts) == len(found)
    legal = legal and same(question) not in map(same, parts)
    return Parsed(parts or [question], legal)


def read_query(text: str, question: str) -> Parsed[str]:
    """Reads ``<query>..</query>``: another text than the question, at most 100 words; fall-back: the question."""
    query = only_tag(said(text), "query")
    legal = bool(query) and same(query or "") != same(question) and words(query or "") <= MOST_QUERY
    return Parsed(query if query and legal else question, legal)


def read_selection(text: str, count: int) -> Parsed[list[int]]:
    """Reads ``<id>Document0,Document2</id>``: numbers of `count` pages, none twice; fall-back: all of them."""
    names = [name.strip() for name in (only_tag(said(text), "id") or "").split(",")]
    numbers = [int(name[8:]) for name in names if re.fullmatch(r"Document[0-9]{1,3}", name)]
    legal = len(numbers) == len(names) == len(set(numbers)) and all(number < count for number in numbers)
    return Parsed(numbers if legal else list(range(count)), legal)


def read_answer(text: str) -> Parsed[str]:
    """Reads ``<answer>..</answer>`` of at most 40 words and nothing else; fall-back: the whole text."""
    text = said(text)
    answer = only_tag(text, "answer")
    if answer is None or words(answer) > MOST_ANSWER:
        return Parsed(text, False)
    return Parsed(answer, True)


class Jade:
    """The planner decomposes the question, or has a chain answer it; sub-questions have plans of their own.

    Notes ``rounds`` with the episode: 1 of a chain, 2 of a parallel decomposition, else 1 and one per sub-question.
    Deviations from the released code, of which an ablation is left switched on: the sub-planner's plan is carried out
    (there it is always R, DS, AG); parallel decomposition is open to the planner. Independent sub-questions are asked
    one after the other; none sees another's answer. Selected numbers may not stand twice. Thoughts are passed over.

    Args:
        passage_words: Words shown of each page.
    """

    def __init__(self, passage_words: int = 100) -> None:
        self.passage_words = passage_words

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        reply = await io.generate("planner", question=question.text)
        plan = _taken(reply, read_workflow(reply.text, CHAIN, (SERIAL, PARALLEL), PLAN))
        if plan in ([SERIAL], [PARALLEL]):
            reply = await self._parts(question.text, plan == [SERIAL], io)
        else:
            io.note("rounds", 1)
            reply = await self._chain(plan, question.text, io)
        reply.call.answer = read_answer(reply.text).value
        await io.step(Answer(reply.call.answer))

    async def _parts(self, question: str, serial: bool, io: EpisodeIO) -> Reply:
        """Decomposes a question, has the parts answered, and sums up."""
        reply = await io.generate("serial" if serial else "parallel", question=question)
        parts = _taken(reply, read_parts(reply.text, question))
        io.note("rounds", 1 + len(parts) if serial else 2)
        history = ""
        for part in parts:
            if serial:
                part = await self._rewritten(part, history, io)
            reply = await io.generate("subplanner", question=part)
            plan = _taken(reply, read_workflow(reply.text, CHAIN[1:], (), SUBPLAN))
            reply = await self._chain(plan, part, io)
            history += f"Q: {part} | A: {read_answer(reply.text).value}\n"
        reply = await io.generate("summariser", question=question, history=history.strip())
        _taken(reply, read_answer(reply.text))
        return reply

    async def _chain(self, plan: Sequence[str], question: str, io: EpisodeIO) -> Reply:
        """Has a chain answer a question; returns the generator's reply."""
        hits: tuple[Hit, ...] = ()
        if REWRITE in plan:
            question = await self._rewritten(question, "", io)
        if RETRIEVE in plan and io.turns_left > 1:  # the last action is the answer
            hits = (await io.step(Search((question,)))).hits
        if SELECT in plan and hits:
            pages = documents(hits, self.passage_words, "Document", first=0)
            reply = await io.generate("selector", question=question, documents=pages)
            hits = tuple(hits[number] for number in _taken(reply, read_selection(reply.text, len(hits))))
        pages = documents(hits, self.passage_words) or NONE
        reply = await io.generate("generator", question=question, documents=pages)
        _taken(reply, read_answer(reply.text))
        return reply

    async def _rewritten(self, question: str, history: str, io: EpisodeIO) -> str:
        """Returns what to search for instead of a question, given the answers to earlier ones."""
        reply = await io.generate("rewriter", question=question, history=history.strip() or NONE)
        return _taken(reply, read_query(reply.text, question))


def _taken(reply: Reply, parsed: Parsed[Value]) -> Value:
    """Records whether a reply was legal; returns what it came to."""
    reply.call.legal = parsed.legal
    return parsed.value
