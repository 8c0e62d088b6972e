"""What single episodes show: the gold pages that they found, whether they had to search, and outputs that were refused.

A page is gold by its passage where the question comes with the texts of its gold paragraphs and the corpus is made of
such paragraphs; otherwise by its title, as where nothing tells two paragraphs of one title apart. In MuSiQue titles
repeat within a question, so that a title alone would take other passages of the page for gold ones, and count two gold
passages of one page as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from searchgym import scoring
from searchgym.envs.task import Task
from searchgym.protocol import Protocol
from searchgym.records import Call, Episode, Invalid, Passage, Question, title_key
from searchgym.retrieval.index.distractors import DistractorRetriever
from searchgym.retrieval.retriever import corpus_of

MADE_OF: Final = 0.5
"""Least share of hits with the title of a paragraph that have the text of one, in a corpus that is made of paragraphs:
in one that cuts pages otherwise only a short page is the same here and there."""
MOST_REASONS: Final = 5
"""Maximum number of reasons that a run lists for refused outputs."""
EXAMPLE: Final = 100
"""Maximum number of characters of an example of a refused output."""
Golds = Mapping[str, tuple["Gold", ...]]
"""Question id to the gold pages of the question; questions that name none are left out."""


@dataclass(frozen=True, slots=True)
class Gold:
    """One gold page of a question."""

    title: str
    """Normal form of its title."""
    text: str | None = None
    """Normal form of the gold paragraph's text; None if the title decides."""

    def matches(self, passage: Passage) -> bool:
        """Returns whether a retrieved passage is this gold page."""
        return title_key(passage.title) == self.title and self.text in (None, title_key(passage.text))


def find_golds(questions: Iterable[Question], episodes: Iterable[Episode]) -> Golds:
    """Returns the gold pages of questions, by passage where the hits of episodes show a corpus made of paragraphs.

    Args:
        questions: Questions, of which those that name no gold pages are left out.
        episodes: Episodes over one corpus; what they found tells how it cuts pages, whoever holds it.
    """
    questions = [question for question in questions if question.gold_titles is not None]
    hits = {hit.passage.id: hit.passage for e in episodes for searched in e.searches for hit in searched.hits}
    by_passage = _made_of_paragraphs(questions, hits.values())
    return {question.id: tuple(golds_of(question, by_passage)) for question in questions}


def golds_of(question: Question, by_passage: bool) -> dict[Gold, None]:
    """Returns the gold pages of one question: its gold paragraphs with a text if asked, and its other gold titles.

    Supporting facts name one page for each title: if several paragraphs may be it, the title decides.
    """
    own = [p for p in question.paragraphs or () if by_passage and p.supporting and p.text.strip()]
    if question.supporting_facts is not None:
        times = Counter(title_key(paragraph.title) for paragraph in own)
        own = [paragraph for paragraph in own if times[title_key(paragraph.title)] == 1]
    golds = [Gold(title_key(paragraph.title), title_key(paragraph.text)) for paragraph in own]
    judged = {gold.title for gold in golds}
    titles = map(title_key, question.gold_titles or ())
    return dict.fromkeys([*golds, *(Gold(title) for title in titles if title not in judged)])


def _made_of_paragraphs(questions: Sequence[Question], passages: Iterable[Passage]) -> bool:
    """Returns whether the passages that have the title of a question's paragraph mostly have the text of one, too."""
    texts: dict[str, set[str]] = {}
    for question in questions:
        for paragraph in question.paragraphs or ():
            if paragraph.text.strip():
                texts.setdefault(title_key(paragraph.title), set()).add(title_key(paragraph.text))
    if not texts:
        return False
    alike = [passage for passage in passages if title_key(passage.title) in texts]
    same = sum(title_key(passage.text) in texts[title_key(passage.title)] for passage in alike)
    return bool(alike) and same >= MADE_OF * len(alike)


Pages = Mapping[str, Sequence[Passage]]
"""Normal form of a title to the passages of a corpus that have it."""


def titled(questions: Iterable[Question], passages: Iterable[Passage]) -> Pages:
    """Returns the passages of a corpus that have the title of a gold page."""
    wanted = {title_key(title) for question in questions for title in question.gold_titles or ()}
    found: dict[str, list[Passage]] = {}
    for passage in passages:
        if (title := title_key(passage.title)) in wanted:
            found.setdefault(title, []).append(passage)
    return found


MOST_LOOKED_AT: Final = 1_000_000
"""Number of passages above which an evaluation does not look through its corpus for gold pages."""
NAMED: Final = 20
"""Number of golds that scores name."""


def unreachable_golds(task: Task) -> list[str]:
    """Returns the gold pages and sentences of a task that no search can find; see `unreachable_in`.

    Pages of a server, or of a corpus of more than `MOST_LOOKED_AT` passages, are not looked at.
    """
    if isinstance(task.retriever, DistractorRetriever):
        lacking: list[str] = []
        for question in task.questions:
            pages = [Passage("", p.title, p.text) for p in question.paragraphs or ()]
            lacking += unreachable_in([question], titled([question], pages))
        return lacking
    corpus = corpus_of(task.retriever)
    small = corpus is not None and len(corpus) <= MOST_LOOKED_AT
    return unreachable_in(task.questions, titled(task.questions, corpus.passages()) if corpus and small else None)


def unreachable_in(questions: Sequence[Question], pages: Pages | None) -> list[str]:
    """Returns, in words, the gold pages that a corpus lacks, and gold sentences that their question's paragraphs lack.

    Args:
        questions: The questions.
        pages: Passages of the corpus, as `titled` gives them; None if they are not known.
    """
    held = {} if pages is None else pages
    by_passage = _made_of_paragraphs(questions, [passage for own in held.values() for passage in own])
    found: list[str] = []
    for question in questions:
        for gold in golds_of(question, by_passage) if pages is not None else ():
            if not any(gold.matches(passage) for passage in held.get(gold.title, ())):
                found.append(f"{question.id}: page {gold.title!r}")
        longest: dict[str, int] = {}
        for paragraph in question.paragraphs or ():
            key = title_key(paragraph.title)
            longest[key] = max(len(paragraph.sentences), longest.get(key, 0))
        for fact in question.supporting_facts or ():
            most, number = longest.get(title_key(fact.title)), fact.sentence
            if most is not None and number is not None and not 0 <= number < most:
                found.append(f"{question.id}: sentence {number} of {fact.title!r}")
    return found


def of_unreachable(first: Sequence[str], count: int) -> str:
    """Returns a sentence about a number of golds that `unreachable_in` found, given the first ones."""
    such = ", ".join(first[:3]) + (", ..." if count > 3 else "")
    return f"{count} gold pages or sentences cannot be found, which bounds what recall can be: {such}"


def found_at(episode: Episode, golds: Sequence[Gold]) -> list[int | None]:
    """Returns the turn in which each gold page was first among the hits or opened; None for a page that never was."""
    first: list[int | None] = [None] * len(golds)
    for searched in episode.searches:
        for hit in searched.hits:
            for number, gold in enumerate(golds):
                if first[number] is None and gold.matches(hit.passage):
                    first[number] = searched.turn
    for opened in episode.opens:
        for number, gold in enumerate(golds):
            if opened.place is not None and title_key(opened.title) == gold.title:
                first[number] = min(opened.turn, first[number] or opened.turn)
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


def evidence_of(found: Sequence[int | None]) -> str:
    """Returns how many of the gold pages an episode found, given `found_at`: ``all``, ``some`` or ``none``."""
    count = sum(turn is not None for turn in found)
    return "all" if count == len(found) else "some" if count else "none"


def searched_on(episode: Episode, found: Sequence[int | None]) -> int:
    """Returns the number of queries that an episode sent after the turn in which its last gold page was found."""
    turns = [turn for turn in found if turn is not None]
    return sum(s.turn > max(turns) for s in episode.searches) if len(turns) == len(found) else 0


def stopped_early(episode: Episode, found: Sequence[int | None], max_turns: int) -> bool:
    """Returns whether an episode answered although a gold page was missing and it could have searched once more."""
    return episode.stop_reason == "answer" and episode.turns < max_turns and None in found


def awareness(episodes: Sequence[Episode], questions: Mapping[str, Question]) -> dict[str, float | None] | None:
    """Compares the decision not to search with whether an answer without pages is right.

    The answer without pages is a trial answer (`Call.prefix`) of the first turn, which agents such as ``ikea`` and
    ``adasearch`` give in evaluation; episodes without one are left out, and so are those whose retriever failed.

    Source: AdaSearch, arXiv 2512.16883, its F1_aware: F1 of not searching, where the questions that the model answers
    right from memory are the positives.

    Returns:
        ``n`` episodes; the shares ``known`` (the trial answer is an exact match) and ``unsearched``; ``precision``,
        ``recall`` and ``f1`` of not searching, None where nothing is there to divide by. None without trial answers.
    """
    pairs: list[tuple[bool, bool]] = []
    for episode in episodes:
        question = questions[episode.question_id]
        trial = next((call for call in episode.calls if call.prefix and call.turn == 1), None)
        if trial is not None and question.answerable is not False and episode.stop_reason != "retriever_error":
            right = scoring.exact_match(trial.answer or "", scoring.golds_with_words(question.golds)) > 0
            pairs.append((right, not episode.searches))
    if not pairs:
        return None
    known, unsearched = (sum(column) for column in zip(*pairs, strict=True))
    both = sum(right and not_searched for right, not_searched in pairs)
    return {
        "n": len(pairs),
        "known": known / len(pairs),
        "unsearched": unsearched / len(pairs),
        "precision": both / unsearched if unsearched else None,
        "recall": both / known if known else None,
        "f1": 2 * both / (known + unsearched) if known + unsearched else None,
    }


def outputs(episode: Episode) -> list[Call]:
    """Returns the outputs of models that acted in an episode, trial answers for training left out."""
    return [call for call in episode.calls if not call.prefix]


def invalid_actions(episode: Episode) -> int:
    """Returns how many outputs or actions of an episode were not understood.

    A role of a team falls back to a default if its output is refused, so the environment sees no invalid action; a
    scripted agent makes no calls, so only the environment can refuse. What both refuse is counted once.
    """
    return max(episode.invalid, sum(not call.legal for call in outputs(episode)))


def refused(episodes: Iterable[Episode], protocol: Protocol) -> list[dict[str, Any]]:
    """Returns the most frequent reasons for refused outputs by role, each with its first example."""
    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for episode in episodes:
        for call in outputs(episode):
            if call.legal:
                continue
            reason = "not in the form that the role's prompt asks for"
            if call.cut:
                reason = "cut off by the role's max_tokens"
            elif not call.text.strip():
                reason = "nothing was written"
            elif episode.invalid and isinstance(action := protocol.parse(call.text), Invalid):
                reason = action.reason  # the role writes actions of the environment's grammar
            counts[call.role, reason] += 1
            examples.setdefault((call.role, reason), " ".join(call.text.split())[:EXAMPLE])
    return [
        {"role": role, "reason": reason, "calls": count, "example": examples[role, reason]}
        for (role, reason), count in counts.most_common(MOST_REASONS)
    ]
