"""M-ASK: five roles that share a knowledge table (arXiv 2601.04703; rules as in the released code and UnityMAS-O).

Search behaviour (planning, search, answer) and knowledge management (summary, update) share one state: sub-questions
and short evidence for them. Pages never enter the state, so contexts stay short even after many searches.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from searchgym.agents.base import EpisodeIO, accept, ask, documents
from searchgym.agents.parsing import (
    NONE,
    Parsed,
    bare_query,
    first_line,
    numbered,
    only_tag,
    same,
    without_thoughts,
    words,
)
from searchgym.records import Answer, Hit, Question, Search

UNKNOWN: Final = "unkown"
"""Placeholder for an unknown answer; M-ASK's prompts and models use this misspelling."""
NOTHING: Final = "No useful information"
"""Output of the summary role if no page helps."""
MOST_PAIRS: Final = 5
"""Maximum number of sub-questions in a plan."""
MOST_EVIDENCE: Final = 75
"""Maximum number of words of a piece of evidence."""
END: Final = re.compile(r"<end\s*/?>")
"""Matches the output with which the search role ends the search."""


@dataclass(slots=True)
class Knowledge:
    """Knowledge of the team about one question: the only state shared by its roles."""

    question: str
    slots: list[tuple[str, str]]
    """Slots (sub-question, sub-answer), shown in prompts as t1, t2, ..."""
    answer: str
    """Latest predicted answer to the question."""
    queries: list[str] = field(default_factory=list)
    """Queries searched so far."""

    @property
    def trajectory(self) -> str:
        """Text of all slots for prompts, one line each."""
        lines = (
            f"t{number}: Q: {question} | A: {answer}" for number, (question, answer) in enumerate(self.slots, start=1)
        )
        return "\n".join(lines) or NONE

    def take(self, target: int, query: str, evidence: str) -> None:
        """Writes a query and its evidence into a slot, counted from 1; the number after the last slot adds one."""
        self.slots[target - 1 : target] = [(query, evidence)]


def read_plan(text: str, question: str) -> Parsed[Knowledge]:
    """Parses a plan as initial knowledge, ``<q1>..</q1><a1>..</a1>...<final_answer>..</final_answer>``.

    Legal: only these tags and whitespace, at least one q or a, in the order q1 a1 q2 a2 up to five pairs, no empty or
    repeated sub-question, one final answer. Fallback: the pairs that can be parsed, else one slot (question,
    ``unkown``); the last sub-answer if there is no final answer.
    """
    text = without_thoughts(text)
    pairs, rest = numbered(text, ("q", "a"), 9)
    before, opening, inside = rest.partition("<final_answer>")
    final, closing, after = inside.partition("</final_answer>")
    has_final = bool(opening and closing)
    left = before + after if has_final else rest
    questions = {number: body for name, number, body in pairs if name == "q" and body}
    answers = {number: body for name, number, body in pairs if name == "a" and body}
    slots = [(body, answers.get(number, UNKNOWN)) for number, body in sorted(questions.items())][:MOST_PAIRS]
    order = [(name, number) for name, number, _ in pairs]
    expected = [("qa"[i % 2], i // 2 + 1) for i in range(len(order))]
    legal = bool(slots) and has_final and not left.strip() and order == expected
    legal = legal and len(order) <= 2 * MOST_PAIRS and len(questions) == (len(order) + 1) // 2
    legal = legal and len({same(body) for body in questions.values()}) == len(questions)
    if not slots:
        slots = [(question, UNKNOWN)]
    answered = [body for name, _, body in pairs if name == "a" and body]
    answer = final.strip() if has_final else (answered or [UNKNOWN])[-1]
    return Parsed(Knowledge(question, slots, answer), legal)


def read_search(text: str) -> Parsed[str | None]:
    """Parses ``<search>query</search>`` or ``<end>``; the value is the query, or None to end the search.

    Legal: exactly one of these forms. Fallback: the first line, stripped of punctuation, as the query; None if empty.
    """
    text = without_thoughts(text)
    if END.fullmatch(text):
        return Parsed(None, True)
    if query := only_tag(text, "search"):
        return Parsed(query, True)
    return Parsed(bare_query(text) or None, False)


def read_summary(text: str) -> Parsed[str]:
    """Parses ``<evidence>..</evidence>`` or ``No useful information``.

    Legal: exactly one of these forms, with at most 75 words of evidence. Fallback: the first line.
    """
    text = without_thoughts(text)
    if text.rstrip(".") == NOTHING:
        return Parsed(NOTHING, True)
    evidence = only_tag(text, "evidence")
    if evidence and words(evidence) <= MOST_EVIDENCE:
        return Parsed(evidence, True)
    return Parsed(first_line(text) or NOTHING, False)


def read_update(text: str, slots: int) -> Parsed[int]:
    """Parses ``<update>t2</update>`` or ``<add>t4</add>``; the value is the number of the slot to write to, from 1.

    Legal: the number of an existing slot to update, or the number after the last slot to add. Fallback: a new slot.
    """
    text = without_thoughts(text)
    for tag, targets in (("update", range(1, slots + 1)), ("add", range(slots + 1, slots + 2))):
        body = only_tag(text, tag)
        if body is not None and re.fullmatch(r"t[1-9][0-9]{0,2}", body) and int(body[1:]) in targets:
            return Parsed(int(body[1:]), True)
    return Parsed(slots + 1, False)


def read_answer(text: str) -> Parsed[str]:
    """Parses ``<final_answer>..</final_answer>``.

    Legal: this tag and nothing else. Fallback: the first line.
    """
    text = without_thoughts(text)
    answer = only_tag(text, "final_answer")
    return Parsed(first_line(text), False) if answer is None else Parsed(answer, True)


class MAsk:
    """Agent that plans once, then searches, summarises, updates its knowledge and answers, turn by turn (M-ASK).

    It stops when the search role ends the search or the turns are spent. Deviations from the released code: planning
    sees the question (UnityMAS-O's template lacks it); a retriever that fails ends the episode, whereas theirs
    continues without pages; empty sub-questions are not legal; tags are removed from a line used as a fallback;
    ``<think>`` blocks are ignored.

    Args:
        max_turns: Maximum number of searches; the environment may allow fewer.
        knowledge: False for the paper's ablation without knowledge management, which adds pages themselves as slots.
        first_answer: Whether the answer role also answers before the first search (UnityMAS-O).
        passage_words: Maximum number of words shown of each page.
    """

    def __init__(
        self, max_turns: int = 5, knowledge: bool = True, first_answer: bool = False, passage_words: int = 100
    ) -> None:
        self.max_turns, self.knowledge = max_turns, knowledge
        self.first_answer, self.passage_words = first_answer, passage_words

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        reply = await io.generate("planning", question=question.text)
        knowledge = accept(reply, read_plan(reply.text, question.text))
        reply.call.answer = knowledge.answer
        if self.first_answer:
            await self._answer(knowledge, io)
        for _ in range(self.max_turns):
            if io.turns_left <= 1 or (query := await next_query("search", knowledge, io)) is None:
                break
            seen = await io.step(Search((query,)))
            if seen.done:
                return
            pages = documents(seen.hits, self.passage_words) or NONE
            knowledge.queries.append(query)
            target, evidence = len(knowledge.slots) + 1, pages
            if self.knowledge:
                evidence = await ask(io, "summary", read_summary, query=query, documents=pages)
                state = {"question": knowledge.question, "answer": knowledge.answer, "trajectory": knowledge.trajectory}
                update = await io.generate("update", query=query, evidence=evidence, **state)
                target = accept(update, read_update(update.text, len(knowledge.slots)))
            knowledge.take(target, query, evidence)
            await self._answer(knowledge, io)
        await io.step(Answer(knowledge.answer))

    async def _answer(self, knowledge: Knowledge, io: EpisodeIO) -> None:
        """Lets the answer role predict the answer from the knowledge."""
        reply = await io.generate("answer", question=knowledge.question, trajectory=knowledge.trajectory)
        reply.call.answer = knowledge.answer = accept(reply, read_answer(reply.text))


async def next_query(role: str, knowledge: Knowledge, io: EpisodeIO) -> str | None:
    """Asks a searching role for its next query; None ends the search. See `read_search`."""
    fields = {
        "question": knowledge.question,
        "trajectory": knowledge.trajectory,
        "queries": "\n".join(knowledge.queries) or NONE,
    }
    return await ask(io, role, read_search, **fields)


async def search_until_end(
    role: str, question: str, most: int, passage_words: int, io: EpisodeIO, source: str = ""
) -> tuple[tuple[Hit, ...], int] | None:
    """Lets a role search for a question until it stops, or its searches or the turns are spent.

    Args:
        role: Role of the agent, which sees its queries with their pages.
        question: Question to search for.
        most: Maximum number of searches.
        passage_words: Maximum number of words shown of each page.
        io: The episode.
        source: Name of the additional retriever to search; empty for the environment's main retriever.

    Returns:
        The distinct pages and the number of calls of the role; None if the episode has ended.
    """
    knowledge, pages, calls = Knowledge(question, [], UNKNOWN), dict[str, Hit](), 0
    while calls < most and io.turns_left > 1:
        calls += 1
        query = await next_query(role, knowledge, io)
        if query is None:
            break
        seen = await io.step(Search((query,), source))
        if seen.done:
            return None
        knowledge.queries.append(query)
        knowledge.take(len(knowledge.slots) + 1, query, documents(seen.hits, passage_words) or NONE)
        for hit in seen.hits:
            pages.setdefault(hit.passage.id, hit)
    return tuple(pages.values()), calls
