"""The six official scorers, applied to one question at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from searchgym.errors import ScoringError, UnknownNameError, UsageError
from searchgym.records import Answer, Question, SupportingFact
from searchgym.scoring.answers import (
    Overlap,
    answer_overlap,
    cover_match,
    exact_match,
    musique_f1_score,
    plain_f1_score,
)
from searchgym.scoring.evidence import EntityAliases, evidence_overlap, gold_evidences, joint_overlap, set_overlap

Scores = dict[str, float | None]
"""Metric name to value; None if the agent did not produce what the metric needs."""

Scorer = Callable[[Question, Answer], Scores]
"""Function that returns the scores of one answer to one question."""

UNANSWERABLE_SUFFIX = "#unanswerable"
"""Suffix for ids of unanswerable questions: MuSiQue-Full gives such a question the same id as its answerable twin."""


def _row(prefix: str, part: Overlap | None) -> Scores:
    return {prefix + name: None if part is None else getattr(part, name) for name in Overlap._fields}


def _sentences(facts: Sequence[SupportingFact] | None, lower: bool = False) -> list[tuple[str, int | None]] | None:
    """Returns (title, sentence) pairs without duplicates; None for None and for facts that name pages only."""
    if facts is None or (facts and all(fact.sentence is None for fact in facts)):
        return None
    return [(fact.title.lower() if lower else fact.title, fact.sentence) for fact in dict.fromkeys(facts)]


def _support(question: Question, answer: Answer, lower: bool) -> tuple[bool, Overlap | None]:
    """Returns whether the data has gold sentences, and their overlap with the agent's if it predicted any."""
    gold, predicted = _sentences(question.supporting_facts, lower), _sentences(answer.supporting_facts, lower)
    return gold is not None, None if gold is None or predicted is None else set_overlap(predicted, gold)


def hotpotqa_scores(question: Question, answer: Answer) -> Scores:
    """Scores an answer as HotpotQA's hotpot_evaluate_v1.py does.

    Returns:
        ``em``, ``f1``, ``precision`` and ``recall``; with gold sentences also prefixed with ``sp_`` and ``joint_``.
    """
    part = answer_overlap(answer.text, question.answers[:1])
    scores = _row("", part)
    known, support = _support(question, answer, lower=False)
    if known:
        scores |= _row("sp_", support) | _row("joint_", joint_overlap(part, support))
    return scores


def two_wiki_scores(question: Question, answer: Answer, aliases: EntityAliases = MappingProxyType({})) -> Scores:
    """Scores an answer as 2wikimultihop_evaluate_v1.1.py does: HotpotQA's keys, and the same prefixed ``evidence_``.

    Args:
        question: The question; `Question.aliases` and the aliases of `Question.answer_id` count as gold answers too.
        answer: The prediction.
        aliases: Names by entity id; without them only the names in the question record count.
    """
    names = aliases.get(question.answer_id, frozenset()) if question.answer_id is not None else frozenset()
    part = answer_overlap(answer.text, (*question.answers[:1], *question.aliases, *names))
    scores = _row("", part)
    known, support = _support(question, answer, lower=True)
    if known:
        scores |= _row("sp_", support)
    if question.evidences is None:
        return scores
    gold = gold_evidences(question, aliases)
    evidence = None if answer.evidences is None else evidence_overlap(answer.evidences, gold)
    scores |= _row("evidence_", evidence)
    return scores | _row("joint_", joint_overlap(part, support, evidence)) if known else scores


def musique_scores(question: Question, answer: Answer) -> Scores:
    """Scores an answer as MuSiQue's script does: ``em``, ``f1``, ``sp_em``, ``sp_f1`` of answerable questions only.

    ``sufficiency`` is 1.0 if `Answer.answerable` is right; `aggregate` computes the group metrics from it.

    Raises:
        ScoringError: If an unanswerable question's id lacks `UNANSWERABLE_SUFFIX`, or another's has it.
    """
    unanswerable = question.answerable is False
    if unanswerable != question.id.endswith(UNANSWERABLE_SUFFIX):
        raise ScoringError(
            f"question {question.id!r} has answerable={question.answerable}; the reader must end the ids of "
            f"unanswerable questions, and of no others, with {UNANSWERABLE_SUFFIX!r}"
        )
    scores: Scores = {}
    if not unanswerable:
        golds = (*question.answers[:1], *question.aliases)
        scores = {"em": exact_match(answer.text, golds), "f1": musique_f1_score(answer.text, golds)}
        if question.paragraphs is not None:
            scores |= _musique_support(question, answer)
    if question.answerable is not None:
        right = None if answer.answerable is None else float(answer.answerable == question.answerable)
        scores["sufficiency"] = right
    return scores


def _musique_support(question: Question, answer: Answer) -> Scores:
    """Scores the predicted paragraph indices; if there are neither gold nor predicted ones, F1 is 1."""
    if answer.paragraphs is None:
        return {"sp_em": None, "sp_f1": None}
    gold = [index for index, paragraph in enumerate(question.paragraphs or ()) if paragraph.supporting]
    part = set_overlap(list(set(answer.paragraphs)), gold)
    return {"sp_em": part.em, "sp_f1": part.f1 if gold or answer.paragraphs else 1.0}


def flashrag_scores(question: Question, answer: Answer) -> Scores:
    """Scores an answer as FlashRAG's metrics do: ``em``, ``f1``, ``precision``, ``recall``, ``acc``."""
    golds = question.answers
    return _row("", answer_overlap(answer.text, golds)) | {"acc": cover_match(answer.text, golds)}


def search_r1_scores(question: Question, answer: Answer) -> Scores:
    """Scores an answer as Search-R1's qa_em.py does: ``em``, ``sub_em``."""
    golds = question.answers
    return {"em": exact_match(answer.text, golds), "sub_em": cover_match(answer.text, golds)}


def kilt_scores(question: Question, answer: Answer) -> Scores:
    """Scores an answer as KILT's eval_downstream.py does: ``em``, ``f1``, and ``accuracy`` for the text itself.

    A blank prediction scores 0 whatever the gold answers are.
    """
    text, golds = answer.text.strip(), [gold.strip() for gold in question.answers]
    if not text:
        return {"em": 0.0, "f1": 0.0, "accuracy": 0.0}
    return {"em": exact_match(text, golds), "f1": plain_f1_score(text, golds), "accuracy": float(text in golds)}


SCORERS: Mapping[str, Scorer] = MappingProxyType(
    {
        "hotpotqa": hotpotqa_scores,
        "2wiki": two_wiki_scores,
        "musique": musique_scores,
        "flashrag": flashrag_scores,
        "search_r1": search_r1_scores,
        "kilt": kilt_scores,
    }
)
"""Scorer name to scoring function."""


def score_question(
    question: Question, answer: Answer | None, scorer: str, aliases: EntityAliases | None = None
) -> Scores:
    """Returns the scores of one answer by an official scorer.

    Args:
        question: The question with its gold answers and evidence.
        answer: The agent's answer. None for an episode without one: its answer metrics are 0, as for an id missing from
            an official prediction file (an empty text would equal a gold answer that normalises to an empty string).
        scorer: A key of `SCORERS`.
        aliases: Names by entity id, for ``"2wiki"`` only.

    Returns:
        The scores; of a question without an answer none, but for MuSiQue's ``sufficiency``.

    Raises:
        UnknownNameError: If there is no such scorer.
        UsageError: If `aliases` is given with another scorer than ``"2wiki"``.
        ScoringError: If the question's gold data is inconsistent.
    """
    if scorer not in SCORERS:
        raise UnknownNameError("scorer", scorer, SCORERS)
    if question.answerable is False and scorer != "musique":
        return {}
    score = SCORERS[scorer]
    if aliases is not None:
        if scorer != "2wiki":
            raise UsageError(f"scorer {scorer!r} takes no entity aliases; only '2wiki' does")
        score = partial(two_wiki_scores, aliases=aliases)
    if answer is not None:
        return score(question, answer)
    return {name: None if value is None else 0.0 for name, value in score(question, Answer("")).items()}
