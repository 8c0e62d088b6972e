"""Scripted agents without a model, for every environment: two upper bounds, two lower bounds and a stress test."""

from __future__ import annotations

import json

from searchgym.agents.base import EpisodeIO, Observation
from searchgym.errors import UsageError
from searchgym.questions.masked.spans import SPAN_SEPARATOR
from searchgym.records import Action, Answer, More, Open, Question, Search, title_key
from searchgym.text import holds


class Oracle:
    """Agent that searches for each gold title in order, then submits the gold answer with all gold evidence.

    It checks the whole pipeline: a score below 1.0 means a fault in the data or the scoring. If pages can be opened, it
    opens the gold pages and reads until an answer appears.
    """

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        await search_titles(question, io)
        await io.step(gold_answer(question))


class EvidenceOracle:
    """Agent that searches for each gold title and submits the gold answer only if every gold page is among the hits.

    Its score is the upper bound for a perfect reader: below 1.0, retrieval misses pages even by their titles. If pages
    can be opened, it must also have read an answer, or every part of the gold pages.

    Args:
        opens: Whether the agent opens pages if it can; otherwise it sees only snippets.
    """

    def __init__(self, opens: bool = True) -> None:
        self.opens = opens

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode.

        Raises:
            UsageError: The question names no gold pages.
        """
        if question.gold_titles is None:
            raise UsageError(f"evidence-oracle needs gold titles, question {question.id!r} names none")
        observations = await search_titles(question, io, self.opens)
        seen = {title_key(hit.passage.title) for o in observations for hit in o.hits}
        complete = all(title_key(title) in seen for title in question.gold_titles)
        if io.protocol.browse:
            text = " ".join(o.text for o in observations)
            looks = [o.opened for o in observations if o.opened is not None and o.opened.part == o.opened.parts > 0]
            whole = {title_key(look.title) for look in looks} >= {title_key(title) for title in question.gold_titles}
            complete = complete and (whole or any(holds(text, answer) for answer in question.golds))
        await io.step(gold_answer(question) if complete else Answer(""))


class SpanOracle:
    """Agent for masked texts: it sends the recorded queries and fills in each span that their hits show.

    Its reward is the upper bound for a perfect reader: below 1.0, the searches miss a page. For other questions it
    searches for the gold titles and answers if the hits contain the answer.
    """

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        masked = isinstance(question.metadata.get("masks"), int)
        queries = question.metadata.get("queries") if masked else question.gold_titles
        pages = ""
        for query in queries or ():
            if io.turns_left > 1:
                pages += (await io.step(Search((str(query),)))).text
        spans = question.answers[0].split(SPAN_SEPARATOR) if masked else [question.answers[0]]
        answers = [span.strip() if holds(pages, span) else "unknown" for span in spans]
        await io.step(Answer(f"{SPAN_SEPARATOR} ".join(answers)))


class ClosedBook:
    """Agent that never searches: it answers "yes" to yes/no questions and "A" to "A or B", otherwise nothing."""

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        await io.step(Answer(guess(question.text) or ""))


class SingleSearch:
    """Agent that searches once for the question and answers like `ClosedBook`, otherwise with a title.

    This is the title of the best hit that the question does not mention.
    """

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        observation = await io.step(Search((question.text,)))
        if observation.done:
            return
        text = question.text.lower()
        titles = [hit.passage.title for hit in observation.hits if hit.passage.title.lower() not in text]
        await io.step(Answer(guess(question.text) or (titles[0] if titles else "")))


class Random:
    """Agent that stress-tests parsing: it writes random text full of broken, nested and repeated tags."""

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


async def search_titles(question: Question, io: EpisodeIO, opens: bool = True) -> list[Observation]:
    """Searches for the gold titles one by one, reserving one turn for the answer; returns the observations.

    Args:
        question: Question whose gold pages are searched for.
        io: The episode.
        opens: Whether to read the pages too, if they can be opened.
    """
    observations: list[Observation] = []
    for title in question.gold_titles or ():
        if io.turns_left <= 1:
            break
        results = await io.step(Search((title,)))
        observations.append(results)
        if opens and io.protocol.browse:
            observations += await read_page(title, results, question, io)
    return observations


async def read_page(title: str, results: Observation, question: Question, io: EpisodeIO) -> list[Observation]:
    """Opens a retrieved page and reads it until an answer appears; returns the observations.

    Args:
        title: Title of the page.
        results: Observation of the search.
        question: Question whose answer is searched for.
        io: The episode; one of its turns is reserved for the answer.
    """
    key = title_key(title)
    hit = next((hit for hit in results.hits if title_key(hit.passage.title) == key), None)
    observations: list[Observation] = []
    action: Action | None = None if hit is None else Open(title)
    while action is not None and io.turns_left > 1:
        seen = await io.step(action)
        observations.append(seen)
        action = More()
        if seen.opened is None or not seen.opened.part:  # the title is ambiguous; the id is not
            action = Open(hit.passage.id) if hit is not None and len(observations) == 1 else None
        elif seen.opened.part == seen.opened.parts or any(holds(seen.text, gold) for gold in question.golds):
            action = None
    return observations


def gold_answer(question: Question) -> Answer:
    """Returns the gold answer with all gold evidence in the data."""
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
    """Returns an answer guessed from a question's wording; None if it is neither a yes/no question nor a choice."""
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
