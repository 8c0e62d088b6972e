"""Agents without a model: two ceilings, two floors and a hostile one, for every environment."""

from __future__ import annotations

import json

from searchgym.agents.base import EpisodeIO, Observation
from searchgym.errors import UsageError
from searchgym.records import Answer, Question, Search, title_key


class Oracle:
    """Searches each gold title in order, then gives the gold answer with all its gold evidence.

    A check of the whole pipeline: anything below 1.0 is a fault of the data or of the scoring.
    """

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        await search_titles(question, io)
        await io.step(gold_answer(question))


class EvidenceOracle:
    """Searches each gold title; answers the gold only if every gold page was among its hits, else nothing.

    What a perfect reader with perfect queries could reach: below 1.0, retrieval loses pages even by their titles.
    """

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode.

        Raises:
            UsageError: The question names no gold pages.
        """
        if question.gold_titles is None:
            raise UsageError(f"evidence-oracle needs gold titles, question {question.id!r} names none")
        seen = {title_key(hit.passage.title) for o in await search_titles(question, io) for hit in o.hits}
        complete = all(title_key(title) in seen for title in question.gold_titles)
        await io.step(gold_answer(question) if complete else Answer(""))


class ClosedBook:
    """Never searches: "yes" to yes/no questions, the first choice of "A or B", else nothing."""

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        await io.step(Answer(guess(question.text) or ""))


class SingleSearch:
    """Searches the question itself once; guesses like `ClosedBook`, else the best title the question does not name."""

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        found = await io.step(Search((question.text,)))
        if found.done:
            return
        asked = question.text.lower()
        titles = [hit.passage.title for hit in found.hits if hit.passage.title.lower() not in asked]
        await io.step(Answer(guess(question.text) or (titles[0] if titles else "")))


class Random:
    """Hostile: writes random text full of broken, nested and repeated tags until the episode ends."""

    PIECES = (
        "<search>", "</search>", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "<information>",
        "</information>", "<think>", "</think>", "<|im_end|>", "\x00", "\u202e", "é漢字", "yes", "the", " ", "\n",
        '{"name": "search", "arguments": {"query": "', '"}}', json.dumps({"name": "search"}), "[" * 50, "1e999",
    )  # fmt: skip

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        words = question.text.split() or ["?"]
        while io.turns_left > 0:
            picks = io.rng.integers(len(self.PIECES) + len(words), size=int(io.rng.integers(0, 24)))
            text = "".join((*self.PIECES, *words)[i] for i in picks)
            if (await io.step(io.protocol.parse(text))).done:
                return


async def search_titles(question: Question, io: EpisodeIO) -> list[Observation]:
    """Searches the gold titles one by one, as far as the turn budget leaves room for the answer."""
    found: list[Observation] = []
    for title in question.gold_titles or ():
        if io.turns_left <= 1:
            break
        found.append(await io.step(Search((title,))))
    return found


def gold_answer(question: Question) -> Answer:
    """Returns the gold answer with all that the data says of its evidence."""
    facts = question.supporting_facts
    sentences = facts if facts is not None and all(fact.sentence is not None for fact in facts) else None
    marked = [i for i, p in enumerate(question.paragraphs or ()) if p.supporting]
    return Answer(
        question.answers[0],
        supporting_facts=sentences,
        evidences=question.evidences,
        paragraphs=tuple(marked) if marked else None,
        answerable=question.answerable,
    )


def guess(text: str) -> str | None:
    """Returns an answer from the question's wording alone, or None where it is neither yes/no nor a choice."""
    words = text.rstrip(" ?").split()
    if words and words[0].lower() in _AUXILIARIES:
        return "yes"
    if " or " in text:
        before = text.split(" or ", 1)[0]
        return before.rsplit(",", 1)[-1].strip() or None
    return None


_AUXILIARIES = frozenset(
    ["is", "are", "was", "were", "do", "does", "did", "has", "have", "had", "can", "could", "will", "would", "should"]
)
