"""Evidence in an episode: gold pages found by its turns, and facts of the question supported by its searches."""

from __future__ import annotations

from collections.abc import Sequence

from searchgym.agents.teams.cosearch import fetched_for
from searchgym.records import Call, Episode, Passage, Question, Triple, is_simulated, title_key
from searchgym.scoring import golds_with_words
from searchgym.text import holds, norm


def new_pages(episode: Episode, question: Question) -> dict[int, int]:
    """Returns the number of new gold pages found in each turn that searched or opened a page.

    A page is found if it is among a search's hits, or opened, and new if no earlier turn found it. All numbers are 0
    for a question without gold pages.
    """
    turns = {search.turn for search in episode.searches} | {opened.turn for opened in episode.opens}
    new = dict.fromkeys(sorted(turns), 0)
    for turn in gold_turns(episode, question).values():
        if turn is not None:
            new[turn] += 1
    return new


def gold_turns(episode: Episode, question: Question) -> dict[str, int | None]:
    """Returns the turn in which each gold page was first retrieved or opened, by title; None if it never was."""
    others = _other_texts(question)
    turns: dict[str, int | None] = {title_key(title): None for title in question.gold_titles or ()}
    seen = [
        (search.turn, title_key(hit.passage.title))
        for search in episode.searches
        for hit in search.hits
        if title_key(hit.passage.text) not in others
    ]
    seen += [(opened.turn, title_key(opened.title)) for opened in episode.opens]
    for turn, title in sorted(seen):
        if title in turns and turns[title] is None:
            turns[title] = turn
    return turns


def useful_searches(episode: Episode, question: Question) -> list[bool]:
    """Returns for each search whether its hits contain a gold page that was neither retrieved nor opened before.

    All are False for a question without gold pages. Pages that a model wrote instead of a search engine do not count.
    """
    others, seen = _other_texts(question), set[str]()
    gold, useful = {title_key(title) for title in question.gold_titles or ()}, list[bool]()
    for search in episode.searches:
        seen |= {title_key(opened.title) for opened in episode.opens if opened.turn < search.turn}
        pages = (hit.passage for hit in search.hits if not is_simulated(hit.passage))
        new = {title_key(page.title) for page in pages if title_key(page.text) not in others} & gold - seen
        useful.append(bool(new))
        seen |= new
    return useful


def _other_texts(question: Question) -> set[str]:
    """Returns the texts of a question's paragraphs that are not gold; in MuSiQue some have a gold page's title."""
    gold = {title_key(paragraph.text) for paragraph in question.paragraphs or () if paragraph.supporting}
    return {title_key(paragraph.text) for paragraph in question.paragraphs or ()} - gold - {""}


def fetched_gains(question: Question, episode: Episode, call: Call) -> list[int]:
    """Returns the relevance, 1 or 0, of each hit that a ranker's call ordered, in the retriever's order."""
    return gains_of(question, [hit.passage for hit in fetched_for(call, episode.searches)])


def gains_of(question: Question, passages: Sequence[Passage]) -> list[int]:
    """Returns the relevance of each passage, 1 or 0.

    A passage is relevant if its page is a gold page of the question, or, for a question without gold pages, if it
    contains a gold answer. Pages that a model wrote instead of a search engine are not relevant.
    """
    gold = {title_key(title) for title in question.gold_titles or ()}
    if gold:
        others = _other_texts(question)
        return [int(title_key(p.title) in gold and title_key(p.text) not in others) for p in passages]
    golds = golds_with_words(question.golds)
    return [
        int(not is_simulated(p) and any(holds(f"{p.title} {p.text}", answer) for answer in golds)) for p in passages
    ]


def gold_ranks(question: Question, passages: Sequence[Passage]) -> list[int]:
    """Returns the 1-based ranks, ascending, at which the gold pages first occur in an ordered list.

    For a question without gold pages, this is the rank of the first passage with a gold answer; see `gains_of`.
    """
    first: dict[str, int] = {}
    for rank, (passage, gain) in enumerate(zip(passages, gains_of(question, passages), strict=True), start=1):
        if gain:
            first.setdefault(title_key(passage.title) if question.gold_titles else "", rank)
    return list(first.values())


def acting_calls(episode: Episode) -> dict[int, int]:
    """Returns, by turn, the index of the call that made the action: the turn's last call that is not a trial answer."""
    return {call.turn: index for index, call in enumerate(episode.calls) if not call.prefix}


def supported_facts(question: Question, episode: Episode) -> list[Triple]:
    """Returns the facts of a question whose subject and object are both in one retrieved passage.

    Passages that a model wrote instead of a search engine do not count: otherwise an agent could write its own
    evidence.
    """
    passages_by_id = {hit.passage.id: hit.passage for search in episode.searches for hit in search.hits}
    texts = [f"{passage.title} {passage.text}" for passage in passages_by_id.values() if not is_simulated(passage)]
    return [
        fact
        for fact in question.evidences or ()
        if any(holds(text, fact.subject) and holds(text, fact.object) for text in texts)
    ]


def supported(question: Question, episode: Episode) -> float:
    """Returns the share of a question's facts that the episode's searches support; 0 if it has none."""
    return len(supported_facts(question, episode)) / max(len(question.evidences or ()), 1)


def connected(question: Question, episode: Episode) -> float:
    """Returns the share of a question's facts that are connected with the answer through supported facts.

    Two facts are connected if they share an entity, and a fact is connected with the answer if it contains it. If some
    facts of the question are not connected with its answer, as in a comparison, this equals `supported`.
    """
    facts = list(question.evidences or ())
    if len(_linked(facts, question.golds)) < len(facts):
        return supported(question, episode)
    return len(_linked(supported_facts(question, episode), question.golds)) / max(len(facts), 1)


def _linked(facts: Sequence[Triple], golds: Sequence[str]) -> list[Triple]:
    """Returns the facts that are connected with the gold answers, by breadth-first search over shared entities."""
    reached, linked, left = {norm(gold) for gold in golds}, list[Triple](), list(facts)
    while near := [fact for fact in left if {norm(fact.subject), norm(fact.object)} & reached]:
        linked += near
        left = [fact for fact in left if fact not in near]
        reached |= {norm(name) for fact in near for name in (fact.subject, fact.object)}
    return linked


def named_entities(question: Question, episode: Episode) -> float:
    """Returns the share of the entities in a question's facts that the model's text names; 0 without facts."""
    names = dict.fromkeys(norm(name) for fact in question.evidences or () for name in (fact.subject, fact.object))
    written = " ".join(call.text for call in episode.calls if not call.prefix)
    return sum(holds(written, name) for name in names) / max(len(names), 1)


MEASURES = {"connected": connected, "supported": supported, "entities": named_entities}
"""Functions that measure an episode's evidence as a share, by name."""
