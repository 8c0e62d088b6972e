"""Gold evidence among what an episode retrieved: which pages count as gold, when they were found, what that explains.

A page is gold by its passage where the question comes with the texts of its gold paragraphs and the corpus holds them;
otherwise by its title. In MuSiQue titles repeat within a question, so that a title alone would take other passages of
the page for gold ones, and count two gold passages of one page as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from searchgym.corpora.retrieval.index.distractors import DistractorRetriever
from searchgym.corpora.retrieval.retriever import AnyRetriever, CorpusRetriever
from searchgym.records import Episode, Passage, Question, title_key

MOST_SCANNED: Final = 1_000_000
"""Maximum number of passages of a corpus that is read through for gold paragraphs; of larger ones titles decide."""

Golds = Mapping[str, tuple["Gold", ...]]
"""Question id to the gold pages of the question; questions that name none are left out."""


@dataclass(frozen=True, slots=True)
class Gold:
    """One gold page of a question."""

    title: str
    """Normal form of its title."""
    ids: frozenset[str] | None = None
    """Ids of the passages that hold its text; None if the title decides."""

    def matches(self, passage: Passage) -> bool:
        """Returns whether a retrieved passage is this gold page."""
        return title_key(passage.title) == self.title if self.ids is None else passage.id in self.ids


def find_golds(questions: Iterable[Question], retriever: AnyRetriever | None) -> Golds:
    """Returns the gold pages of questions, by passage where a retriever's corpus holds the gold paragraphs.

    Args:
        questions: Questions, of which those that name no gold pages are left out.
        retriever: Retriever whose corpus is looked into; None, and one without a readable corpus: titles decide.
    """
    questions = [question for question in questions if question.gold_titles is not None]
    paragraphs = [p for question in questions for p in question.paragraphs or () if p.supporting and p.text.strip()]
    places = _places({_key(p.title, p.text) for p in paragraphs}, _corpus(retriever) if paragraphs else None)
    return {question.id: _golds(question, places) for question in questions}


def gold_passages(questions: Iterable[Question], passages: Iterable[Passage]) -> Golds:
    """Returns the gold pages of questions as sets of the ids of passages: by text where it is there, else by title."""
    questions = [question for question in questions if question.gold_titles is not None]
    passages = list(passages)
    wanted = {_key(p.title, p.text) for q in questions for p in q.paragraphs or () if p.supporting}
    places = _places(wanted, passages)
    titles: dict[str, set[str]] = {}
    for passage in passages:
        titles.setdefault(title_key(passage.title), set()).add(passage.id)
    return {
        question.id: tuple(
            gold if gold.ids is not None else Gold(gold.title, frozenset(titles.get(gold.title, ())))
            for gold in _golds(question, places)
        )
        for question in questions
    }


def _golds(question: Question, places: Mapping[tuple[str, str], set[str]]) -> tuple[Gold, ...]:
    """Returns the gold pages of one question: its supporting paragraphs that were found, and its other gold titles."""
    own: dict[tuple[str, str], Gold] = {}
    for paragraph in question.paragraphs or ():
        key = _key(paragraph.title, paragraph.text)
        if paragraph.supporting and key in places:
            own[key] = Gold(key[0], frozenset(places[key]))
    judged = {title for title, _ in own}
    titles = dict.fromkeys(title_key(title) for title in question.gold_titles or ())
    return (*own.values(), *(Gold(title) for title in titles if title not in judged))


def _corpus(retriever: AnyRetriever | None) -> Iterable[Passage] | None:
    """Returns the passages behind a retriever, None if they cannot be read or are too many."""
    index = retriever.index if isinstance(retriever, DistractorRetriever) else retriever
    if not callable(getattr(index, "passages", None)):  # isinstance would read `corpus_sha256`, of a client's server
        return None
    assert isinstance(index, CorpusRetriever)
    return index.passages() if len(index) <= MOST_SCANNED else None


def _places(wanted: set[tuple[str, str]], passages: Iterable[Passage] | None) -> dict[tuple[str, str], set[str]]:
    """Returns the ids of the passages that have a title and a text that are wanted."""
    titles, places = {title for title, _ in wanted}, dict[tuple[str, str], set[str]]()
    for passage in passages or ():
        if title_key(passage.title) in titles and (key := _key(passage.title, passage.text)) in wanted:
            places.setdefault(key, set()).add(passage.id)
    return places


def _key(title: str, text: str) -> tuple[str, str]:
    """Returns the normal forms of a title and a text, by which paragraphs and passages are compared."""
    return title_key(title), title_key(text)


# -- what an episode found -----------------------------------------------------------------------------------------


def found_at(episode: Episode, golds: Sequence[Gold]) -> list[int | None]:
    """Returns the turn in which each gold page was first among the hits; None for a page that never was."""
    first: list[int | None] = [None] * len(golds)
    for searched in episode.searches:
        for hit in searched.hits:
            for number, gold in enumerate(golds):
                if first[number] is None and gold.matches(hit.passage):
                    first[number] = searched.turn
    return first


def recall_by_turn(episodes: Sequence[Episode], golds: Golds, turns: int) -> npt.NDArray[np.float64] | None:
    """Returns the share of gold pages found up to each turn.

    Returns:
        (episodes whose question names gold pages, turns) float64, or None if there are none.
    """
    curves = []
    for episode in episodes:
        if own := golds.get(episode.question_id):
            at = [turns + 1 if turn is None else turn for turn in found_at(episode, own)]
            curves.append([sum(first <= turn for first in at) / len(own) for turn in range(1, turns + 1)])
    return np.array(curves) if curves else None


def by_title(golds: Golds) -> Golds:
    """Returns gold pages that are all judged by their titles, each title once."""
    return {id: tuple(Gold(title) for title in dict.fromkeys(g.title for g in own)) for id, own in golds.items()}


def found_of(episode: Episode, golds: Sequence[Gold]) -> str:
    """Returns how many of the gold pages an episode found: ``all``, ``some`` or ``none``."""
    count = sum(turn is not None for turn in found_at(episode, golds))
    return "all" if count == len(golds) else "some" if count else "none"


def searched_on(episode: Episode, golds: Sequence[Gold]) -> int:
    """Returns the number of queries that an episode sent after the turn in which its last gold page was found."""
    at = [turn for turn in found_at(episode, golds) if turn is not None]
    return sum(s.turn > max(at) for s in episode.searches) if len(at) == len(golds) else 0


def stopped_early(episode: Episode, golds: Sequence[Gold], max_turns: int) -> bool:
    """Returns whether an episode answered although a gold page was missing and it could have searched once more."""
    return (
        episode.stop_reason == "answer"
        and episode.turns < max_turns
        and any(turn is None for turn in found_at(episode, golds))
    )
