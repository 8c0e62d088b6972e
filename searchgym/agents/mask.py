"""M-ASK: five roles around a table of knowledge (arXiv 2601.04703; rules as in its released code and UnityMAS-O).

Search behaviour (planning, search, answer) and knowledge management (summary, update) share the state: what was asked
and found out so far, in few words. Pages never enter it, so contexts stay short however often the team searches.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from searchgym.agents.base import EpisodeIO, Observation, documents
from searchgym.agents.parsing import Parsed, bare_query, first_line, numbered, only_tag, said, same, words
from searchgym.records import Answer, Question, Search

UNKNOWN: Final = "unkown"
"""As the protocol spells it: prompts and models were made with that."""
NOTHING: Final = "No useful information"
MOST_PAIRS: Final = 5
MOST_EVIDENCE: Final = 75
"""Words of an evidence."""
END: Final = re.compile(r"<end\s*/?>")
NONE: Final = "none"
"""What a prompt shows where there is nothing."""


@dataclass(slots=True)
class Knowledge:
    """What the team knows: the one thing that its roles share."""

    question: str
    slots: list[tuple[str, str]]
    """(sub-question, sub-answer), shown as t1, t2, ..."""
    answer: str
    """Predicted so far."""
    queries: list[str] = field(default_factory=list)
    """Asked so far."""

    @property
    def trajectory(self) -> str:
        """The slots as the roles see them."""
        lines = (f"t{number}: Q: {asked} | A: {answer}" for number, (asked, answer) in enumerate(self.slots, start=1))
        return "\n".join(lines) or NONE

    def take(self, target: int, query: str, evidence: str) -> None:
        """Writes what was found into slot `target`, counted from 1; the one after the last is new."""
        self.slots[target - 1 : target] = [(query, evidence)]


@dataclass(frozen=True, slots=True)
class Plan:
    """What planning begins with."""

    slots: list[tuple[str, str]]
    answer: str


def read_plan(text: str, question: str) -> Parsed[Plan]:
    """Reads ``<q1>..</q1><a1>..</a1>...<final_answer>..</final_answer>``.

    Legal: these tags and blanks only, at least one q or a, in the order q1 a1 q2 a2 up to five pairs, no sub-question
    empty or twice, one final answer. Fall-back: the pairs that can be read, else one slot (question, ``unkown``); the
    last sub-answer where there is no final one.
    """
    text = said(text)
    pairs, rest = numbered(text, ("q", "a"), 9)
    before, opening, inside = rest.partition("<final_answer>")
    final, closing, after = inside.partition("</final_answer>")
    there = bool(opening and closing)
    left = before + after if there else rest
    asked = {number: body for name, number, body in pairs if name == "q" and body}
    found = {number: body for name, number, body in pairs if name == "a" and body}
    slots = [(body, found.get(number, UNKNOWN)) for number, body in sorted(asked.items())][:MOST_PAIRS]
    order = [(name, number) for name, number, _ in pairs]
    wanted = [("qa"[i % 2], i // 2 + 1) for i in range(len(order))]
    legal = bool(slots) and there and not left.strip() and order == wanted
    legal = legal and len(order) <= 2 * MOST_PAIRS and len(asked) == (len(order) + 1) // 2
    legal = legal and len({same(body) for body in asked.values()}) == len(asked)
    if not slots:
        slots = [(question, UNKNOWN)]
    answered = [body for name, _, body in pairs if name == "a" and body]
    answer = final.strip() if there else (answered or [UNKNOWN])[-1]
    return Parsed(Plan(slots, answer), legal)


def read_search(text: str) -> Parsed[str | None]:
    """Reads ``<search>query</search>`` or ``<end>``: the query, or None to end.

    Legal: exactly that. Fall-back: the first line without punctuation around it is the query; without one, the end.
    """
    text = said(text)
    if END.fullmatch(text):
        return Parsed(None, True)
    if query := only_tag(text, "search"):
        return Parsed(query, True)
    return Parsed(bare_query(text) or None, False)


def read_summary(text: str) -> Parsed[str]:
    """Reads ``<evidence>..</evidence>``, at most 75 words, or ``No useful information``; fall-back: the first line."""
    text = said(text)
    if text.rstrip(".") == NOTHING:
        return Parsed(NOTHING, True)
    evidence = only_tag(text, "evidence")
    if evidence and words(evidence) <= MOST_EVIDENCE:
        return Parsed(evidence, True)
    return Parsed(first_line(text) or NOTHING, False)


def read_update(text: str, slots: int) -> Parsed[int]:
    """Reads ``<update>ti</update>`` or ``<add>tn</add>`` with n one more than there are slots: the slot to write to.

    Fall-back: a new slot.
    """
    text = said(text)
    for tag, targets in (("update", range(1, slots + 1)), ("add", range(slots + 1, slots + 2))):
        body = only_tag(text, tag)
        if body is not None and re.fullmatch(r"t[1-9][0-9]{0,2}", body) and int(body[1:]) in targets:
            return Parsed(int(body[1:]), True)
    return Parsed(slots + 1, False)


def read_answer(text: str) -> Parsed[str]:
    """Reads ``<final_answer>..</final_answer>`` and nothing else; fall-back: the first line."""
    text = said(text)
    answer = only_tag(text, "final_answer")
    return Parsed(first_line(text), False) if answer is None else Parsed(answer, True)


class MAsk:
    """Plans once; then searches, sums up, updates and answers, turn by turn, until it ends or turns are spent.

    Deviations from the released code: planning sees the question (UnityMAS-O's template lacks it); a retriever that
    fails ends the episode, where theirs goes on without pages; empty sub-questions are not legal; tags are taken off a
    line that a fall-back takes; thoughts in ``<think>`` are passed over.

    Args:
        max_turns: Searches at most; those that the environment allows if that is fewer.
        knowledge: False is the paper's ablation without knowledge management: pages themselves are added as a slot.
        first_answer: Have the answer role answer before the first search too (UnityMAS-O).
        passage_words: Words shown of each page.
    """

    def __init__(
        self, max_turns: int = 5, knowledge: bool = True, first_answer: bool = False, passage_words: int = 100
    ) -> None:
        self.max_turns, self.knowledge = max_turns, knowledge
        self.first_answer, self.passage_words = first_answer, passage_words

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        reply = await io.generate("planning", question=question.text)
        plan = read_plan(reply.text, question.text)
        reply.call.legal, reply.call.answer = plan.legal, plan.value.answer
        known = Knowledge(question.text, plan.value.slots, plan.value.answer)
        if self.first_answer:
            await self._answer(known, io)
        for _ in range(self.max_turns):
            if io.turns_left <= 1:
                break
            query = await self._query(known, io)
            if query is None:
                break
            observation = await io.step(Search((query,)))
            if observation.done:
                return
            await self._learn(known, query, observation, io)
            await self._answer(known, io)
        await io.step(Answer(known.answer))

    async def _query(self, known: Knowledge, io: EpisodeIO) -> str | None:
        """Asks for the next query; None to end."""
        queries = "\n".join(known.queries) or NONE
        reply = await io.generate("search", question=known.question, trajectory=known.trajectory, queries=queries)
        parsed = read_search(reply.text)
        reply.call.legal = parsed.legal
        return parsed.value

    async def _learn(self, known: Knowledge, query: str, observation: Observation, io: EpisodeIO) -> None:
        """Writes what a search found into the knowledge."""
        pages = documents(observation.hits, self.passage_words) or NONE
        known.queries.append(query)
        if not self.knowledge:
            known.take(len(known.slots) + 1, query, pages)
            return
        reply = await io.generate("summary", query=query, documents=pages)
        summary = read_summary(reply.text)
        reply.call.legal = summary.legal
        state = {"question": known.question, "answer": known.answer, "trajectory": known.trajectory}
        reply = await io.generate("update", query=query, evidence=summary.value, **state)
        update = read_update(reply.text, len(known.slots))
        reply.call.legal = update.legal
        known.take(update.value, query, summary.value)

    async def _answer(self, known: Knowledge, io: EpisodeIO) -> None:
        """Predicts the answer from what is known."""
        reply = await io.generate("answer", question=known.question, trajectory=known.trajectory)
        parsed = read_answer(reply.text)
        reply.call.legal, reply.call.answer = parsed.legal, parsed.value
        known.answer = parsed.value
