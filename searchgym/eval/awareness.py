"""Awareness: whether an agent searched just where its own knowledge did not reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from searchgym import scoring
from searchgym.records import Call, Episode, Question


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
    pairs = [
        (_is_right(trial, questions[episode.question_id]), not episode.searches)
        for episode in episodes
        if questions[episode.question_id].answerable is not False
        and episode.stop_reason != "retriever_error"
        and (trial := _trial(episode)) is not None
    ]
    if not pairs:
        return None
    known, unsearched = (sum(column) for column in zip(*pairs, strict=True))
    both = sum(own and not_asked for own, not_asked in pairs)
    return {
        "n": len(pairs),
        "known": known / len(pairs),
        "unsearched": unsearched / len(pairs),
        "precision": both / unsearched if unsearched else None,
        "recall": both / known if known else None,
        "f1": 2 * both / (known + unsearched) if known + unsearched else None,
    }


def _is_right(trial: Call, question: Question) -> bool:
    """Returns whether a trial answer equals a gold answer that has words."""
    return scoring.exact_match(trial.answer or "", scoring.golds_with_words(question.golds)) > 0


def _trial(episode: Episode) -> Call | None:
    """Returns an episode's first trial answer if it was given before any page was seen."""
    return next((call for call in episode.calls if call.prefix and call.turn == 1), None)
