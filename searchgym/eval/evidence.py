"""Measures of single episodes: gold pages found, searches that were not needed, and refused outputs.

A retrieved passage counts as gold by its text if the question comes with the texts of its gold paragraphs and the
corpus consists of such paragraphs; otherwise by its title. In MuSiQue, titles repeat within a question: by title alone,
other passages of a page would count as gold, and two gold passages of one page as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from searchgym import scoring
from searchgym.agents.teams.reread import second_answer
from searchgym.envs.task import Task
from searchgym.protocol import Protocol
from searchgym.records import Call, Episode, Invalid, Passage, Question, title_key
from searchgym.retrieval.index.distractors import DistractorRetriever
from searchgym.retrieval.retriever import corpus_of

MADE_OF: Final = 0.5
"""Minimum share of equal texts, among hits with the title of a question's paragraph, from which a corpus counts as made
of such paragraphs. In a corpus that splits pages differently, only short pages have equal texts."""
MOST_REASONS: Final = 5
"""Maximum number of reasons that a run lists for refused outputs."""
EXAMPLE: Final = 100
"""Maximum number of characters of an example of a refused output."""
Golds = Mapping[str, tuple["Gold", ...]]
"""Gold pages by question id, for the questions that name some."""


@dataclass(frozen=True, slots=True)
class Gold:
    """One gold page of a question."""

    title: str
    """Normal form of the page's title."""
    text: str | None = None
    """Normal form of the gold paragraph's text; None if only the title is compared."""

    def matches(self, passage: Passage) -> bool:
        """Checks whether a retrieved passage is this gold page."""
        return title_key(passage.title) == self.title and self.text in (None, title_key(passage.text))


def find_golds(questions: Iterable[Question], episodes: Iterable[Episode]) -> Golds:
    """Returns the gold pages of questions, to be compared by text if the corpus consists of the questions' paragraphs.

    Args:
        questions: Questions; those that name no gold pages are left out.
        episodes: Episodes over one corpus; their hits show whether the corpus consists of such paragraphs.
    """
    questions = [question for question in questions if question.gold_titles is not None]
    hits = {hit.passage.id: hit.passage for e in episodes for searched in e.searches for hit in searched.hits}
    by_passage = _made_of_paragraphs(questions, hits.values())
    return {question.id: tuple(golds_of(question, by_passage)) for question in questions}


def golds_of(question: Question, by_passage: bool) -> dict[Gold, None]:
    """Returns the gold pages of one question: its gold paragraphs with their texts, and its other gold titles.

    Supporting facts name a page by its title: if several gold paragraphs have that title, only the title is compared.

    Args:
        question: Question with gold titles.
        by_passage: Whether gold paragraphs are compared by text; if false, all gold pages are compared by title.
    """
    paragraphs = [p for p in question.paragraphs or () if by_passage and p.supporting and p.text.strip()]
    if question.supporting_facts is not None:
        times = Counter(title_key(paragraph.title) for paragraph in paragraphs)
        paragraphs = [paragraph for paragraph in paragraphs if times[title_key(paragraph.title)] == 1]
    golds = [Gold(title_key(paragraph.title), title_key(paragraph.text)) for paragraph in paragraphs]
    judged = {gold.title for gold in golds}
    titles = map(title_key, question.gold_titles or ())
    return dict.fromkeys([*golds, *(Gold(title) for title in titles if title not in judged)])


def _made_of_paragraphs(questions: Sequence[Question], passages: Iterable[Passage]) -> bool:
    """Checks whether most passages with the title of a question's paragraph also have the text of one."""
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
"""Passages of a corpus by the normal form of their title."""


def titled(questions: Iterable[Question], passages: Iterable[Passage]) -> Pages:
    """Returns the passages of a corpus that have the title of a gold page, by the title's normal form."""
    gold_titles = {title_key(title) for question in questions for title in question.gold_titles or ()}
    matches: dict[str, list[Passage]] = {}
    for passage in passages:
        if (title := title_key(passage.title)) in gold_titles:
            matches.setdefault(title, []).append(passage)
    return matches


MOST_LOOKED_AT: Final = 1_000_000
"""Maximum number of passages of a corpus that an evaluation searches for gold pages."""
NAMED: Final = 20
"""Maximum number of unreachable gold pages that scores list."""


def unreachable_golds(task: Task) -> list[str]:
    """Returns the gold pages and sentences of a task that no search can find; see `unreachable_in`.

    The gold pages are not checked if the corpus is on a server or has more than `MOST_LOOKED_AT` passages.
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
    """Describes the gold pages that a corpus lacks, and the gold sentences that a question's paragraphs lack.

    Args:
        questions: Questions with gold pages or supporting facts.
        pages: Passages of the corpus, as `titled` returns them; None if they are unknown: then no page is reported.
    """
    by_title = {} if pages is None else pages
    by_passage = _made_of_paragraphs(questions, [passage for passages in by_title.values() for passage in passages])
    missing: list[str] = []
    for question in questions:
        for gold in golds_of(question, by_passage) if pages is not None else ():
            if not any(gold.matches(passage) for passage in by_title.get(gold.title, ())):
                missing.append(f"{question.id}: page {gold.title!r}")
        longest: dict[str, int] = {}
        for paragraph in question.paragraphs or ():
            key = title_key(paragraph.title)
            longest[key] = max(len(paragraph.sentences), longest.get(key, 0))
        for fact in question.supporting_facts or ():
            most, number = longest.get(title_key(fact.title)), fact.sentence
            if most is not None and number is not None and not 0 <= number < most:
                missing.append(f"{question.id}: sentence {number} of {fact.title!r}")
    return missing


def of_unreachable(first: Sequence[str], count: int) -> str:
    """Returns a warning about `count` unreachable golds, with the first three of them."""
    such = ", ".join(first[:3]) + (", ..." if count > 3 else "")
    return f"{count} gold pages or sentences cannot be found, which limits recall: {such}"


def turns_of_golds(episode: Episode, golds: Sequence[Gold]) -> list[int | None]:
    """Returns the turn in which each gold page was first retrieved or opened; None if it never was."""
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
    """Returns the share of gold pages found up to each turn, of the episodes whose question names gold pages.

    Returns:
        (episodes, turns) float64, or None if there are no such episodes.
    """
    curves = []
    for episode in episodes:
        if pages := golds.get(episode.question_id):
            at = [turns + 1 if turn is None else turn for turn in turns_of_golds(episode, pages)]
            curves.append([sum(first <= turn for first in at) / len(pages) for turn in range(1, turns + 1)])
    return np.array(curves) if curves else None


def evidence_of(turns: Sequence[int | None]) -> str:
    """Classifies an episode by the gold pages that it found, given `turns_of_golds`: ``all``, ``some`` or ``none``."""
    count = sum(turn is not None for turn in turns)
    return "all" if count == len(turns) else "some" if count else "none"


def searched_on(episode: Episode, gold_turns: Sequence[int | None]) -> int:
    """Returns the number of searches after the turn in which the last gold page was found; 0 if one was not found."""
    turns = [turn for turn in gold_turns if turn is not None]
    return sum(s.turn > max(turns) for s in episode.searches) if len(turns) == len(gold_turns) else 0


def stopped_early(episode: Episode, gold_turns: Sequence[int | None], max_turns: int) -> bool:
    """Checks whether an episode ended with an answer although a gold page was missing and turns were left."""
    return episode.stop_reason == "answer" and episode.turns < max_turns and None in gold_turns


def trial_scores(episodes: Sequence[Episode], questions: Mapping[str, Question]) -> dict[str, dict[str, float | None]]:
    """Returns the scores of trial answers that some episode has, by name: ``awareness`` and ``completeness``."""
    measures = {"awareness": awareness, "completeness": completeness}
    scores = {name: measure(episodes, questions) for name, measure in measures.items()}
    return {name: score for name, score in scores.items() if score is not None}


def awareness(episodes: Sequence[Episode], questions: Mapping[str, Question]) -> dict[str, float | None] | None:
    """Measures how well the decision not to search fits the questions that the model can answer from memory.

    The answer from memory is a trial answer (`Call.prefix`) of the first turn, which agents such as ``ikea`` and
    ``adasearch`` produce in evaluation. Episodes without one, with an unanswerable question, or whose retriever failed
    are left out.

    Source: AdaSearch, arXiv 2512.16883, its F1_aware: F1 of not searching, where the questions that the model answers
    correctly from memory are the positives.

    Returns:
        ``n`` episodes; the shares ``known`` (the trial answer is an exact match) and ``unsearched``; ``precision``,
        ``recall`` and ``f1`` of not searching, None if the divisor is 0. None without trial answers.
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
    memorised, unsearched = (sum(column) for column in zip(*pairs, strict=True))
    both = sum(right and not_searched for right, not_searched in pairs)
    return {
        "n": len(pairs),
        "known": memorised / len(pairs),
        "unsearched": unsearched / len(pairs),
        "precision": both / unsearched if unsearched else None,
        "recall": both / memorised if memorised else None,
        "f1": 2 * both / (memorised + unsearched) if memorised + unsearched else None,
    }


def completeness(episodes: Sequence[Episode], questions: Mapping[str, Question]) -> dict[str, float | None] | None:
    """Measures how often the retrieved pages alone suffice for the answer.

    The second answer, from the pages alone, is a trial answer (`Call.prefix`) of the role ``reader``, which agents such
    as ``search-r1-reread`` produce. An episode without one has no second answer that is right. Episodes with an
    unanswerable question, or whose retriever failed, are left out.

    Source: GRPO-CSV of TimeSearch-R, arXiv 2511.05489, there a reward.

    Returns:
        ``n`` episodes; the shares whose answer is an exact match (``right``), whose second answer is (``again``), and
        where both are (``both``); ``of_right``, the share of right answers that are right again, None if none is right.
        None without second answers.
    """
    pairs: list[tuple[bool, bool]] = []
    second = False
    for episode in episodes:
        question = questions[episode.question_id]
        if question.answerable is False or episode.stop_reason == "retriever_error":
            continue
        trial = second_answer(episode)
        second |= trial is not None
        golds = scoring.golds_with_words(question.golds)
        answers = ("" if episode.answer is None else episode.answer.text, (trial and trial.answer) or "")
        pairs.append((scoring.exact_match(answers[0], golds) > 0, scoring.exact_match(answers[1], golds) > 0))
    if not second:
        return None
    right, again = (sum(column) for column in zip(*pairs, strict=True))
    both = sum(first and other for first, other in pairs)
    return {
        "n": len(pairs),
        "right": right / len(pairs),
        "again": again / len(pairs),
        "both": both / len(pairs),
        "of_right": both / right if right else None,
    }


def outputs(episode: Episode) -> list[Call]:
    """Returns the calls of an episode's models without trial answers."""
    return [call for call in episode.calls if not call.prefix]


def invalid_actions(episode: Episode) -> int:
    """Returns the number of invalid outputs or actions of an episode.

    If a role's output is refused, a team may act by default, so that the environment sees no invalid action. A scripted
    agent makes no calls, so that only the environment can refuse. Of the two counts, the larger one is returned.
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
