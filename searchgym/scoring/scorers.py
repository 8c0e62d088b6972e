"""The six official scorers: scores of one question, and of a data set as plain means, bit-identical in any order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, Literal

from searchgym.errors import ScoringError, UnknownNameError, UsageError
from searchgym.records import Answer, Question, SupportingFact
from searchgym.scoring.answers import (
    EntityAliases,
    Overlap,
    answer_overlap,
    cover_match,
    evidence_overlap,
    exact_match,
    gold_evidences,
    joint_overlap,
    musique_f1_score,
    plain_f1_score,
    set_overlap,
)

Scores = dict[str, float | None]
"""Metric name to value; None if the agent did not predict the fields that the metric needs."""
Scorer = Callable[[Question, Answer], Scores]
"""Function that returns the scores of one answer to one question."""
UNANSWERABLE_SUFFIX = "#unanswerable"
"""Suffix for ids of unanswerable questions: MuSiQue-Full gives such a question the same id as its answerable twin."""


def _row(prefix: str, part: Overlap | None) -> Scores:
    return {prefix + name: None if part is None else getattr(part, name) for name in Overlap._fields}


def _sentences(facts: Sequence[SupportingFact] | None, lower: bool = False) -> list[tuple[str, int | None]] | None:
    """Returns (title, sentence) pairs without duplicates; None if `facts` is None or names pages without sentences."""
    if facts is None or (facts and all(fact.sentence is None for fact in facts)):
        return None
    return [(fact.title.lower() if lower else fact.title, fact.sentence) for fact in dict.fromkeys(facts)]


def _support(question: Question, answer: Answer, lower: bool) -> tuple[bool, Overlap | None]:
    """Returns whether the question has gold sentences, and their overlap with the predicted ones, if there are any."""
    gold, predicted = _sentences(question.supporting_facts, lower), _sentences(answer.supporting_facts, lower)
    return gold is not None, None if gold is None or predicted is None else set_overlap(predicted, gold)


def hotpotqa_scores(question: Question, answer: Answer) -> Scores:
    """Scores an answer as HotpotQA's hotpot_evaluate_v1.py does.

    Returns:
        ``em``, ``f1``, ``precision`` and ``recall``; with gold sentences also each with the prefixes ``sp_`` and
        ``joint_``.
    """
    part = answer_overlap(answer.text, question.answers[:1])
    scores = _row("", part)
    has_gold, support = _support(question, answer, lower=False)
    if has_gold:
        scores |= _row("sp_", support) | _row("joint_", joint_overlap(part, support))
    return scores


def two_wiki_scores(question: Question, answer: Answer, aliases: EntityAliases = MappingProxyType({})) -> Scores:
    """Scores an answer as 2wikimultihop_evaluate_v1.1.py does.

    Args:
        question: The question; `Question.aliases` and the aliases of `Question.answer_id` count as gold answers too.
        answer: The prediction.
        aliases: Further names by entity id; by default only the names in the question record count.
    """
    names = aliases.get(question.answer_id, frozenset()) if question.answer_id is not None else frozenset()
    part = answer_overlap(answer.text, (*question.answers[:1], *question.aliases, *names))
    scores = _row("", part)
    has_gold, support = _support(question, answer, lower=True)
    if has_gold:
        scores |= _row("sp_", support)
    if question.evidences is None:
        return scores
    gold = gold_evidences(question, aliases)
    evidence = None if answer.evidences is None else evidence_overlap(answer.evidences, gold)
    scores |= _row("evidence_", evidence)
    return scores | _row("joint_", joint_overlap(part, support, evidence)) if has_gold else scores


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
            gold = [index for index, paragraph in enumerate(question.paragraphs) if paragraph.supporting]
            predicted = set(answer.paragraphs or ())
            part = set_overlap(list(predicted), gold)
            support = part.em, part.f1 if gold or predicted else 1.0  # their script makes F1 1 if both sides are empty
            scores |= dict(zip(("sp_em", "sp_f1"), (None, None) if answer.paragraphs is None else support, strict=True))
    if question.answerable is not None:
        right = answer.answerable == question.answerable
        scores["sufficiency"] = None if answer.answerable is None else float(right)
    return scores


def flashrag_scores(question: Question, answer: Answer) -> Scores:
    """Scores an answer as FlashRAG's metrics do: ``em``, ``f1``, ``precision``, ``recall``, ``acc``."""
    overlap = answer_overlap(answer.text, question.answers)
    return _row("", overlap) | {"acc": cover_match(answer.text, question.answers)}


def search_r1_scores(question: Question, answer: Answer) -> Scores:
    """Scores an answer as Search-R1's qa_em.py does: ``em``, ``sub_em``."""
    text, golds = answer.text, question.answers
    return {"em": exact_match(text, golds), "sub_em": cover_match(text, golds)}


def kilt_scores(question: Question, answer: Answer) -> Scores:
    """Scores an answer as KILT's eval_downstream.py does: ``em``, ``f1``, and ``accuracy``, which does not normalise.

    A blank prediction scores 0 whatever the gold answers are.
    """
    text, golds = answer.text.strip(), [gold.strip() for gold in question.answers]
    if not text:
        return {"em": 0.0, "f1": 0.0, "accuracy": 0.0}
    return {"em": exact_match(text, golds), "f1": plain_f1_score(text, golds), "accuracy": float(text in golds)}


SCORERS: Final[Mapping[str, Scorer]] = {
    "hotpotqa": hotpotqa_scores,
    "2wiki": two_wiki_scores,
    "musique": musique_scores,
    "flashrag": flashrag_scores,
    "search_r1": search_r1_scores,
    "kilt": kilt_scores,
}
"""Scorer name to scoring function."""


def score_question(
    question: Question, answer: Answer | None, scorer: str, aliases: EntityAliases | None = None
) -> Scores:
    """Returns the scores of one answer by an official scorer.

    Args:
        question: The question with its gold answers and evidence.
        answer: The agent's answer. None for an episode without one: its answer metrics are 0, as for an id missing from
            an official prediction file. (An empty text would match a gold answer that normalises to an empty string.)
        scorer: A key of `SCORERS`.
        aliases: Names by entity id, for ``"2wiki"`` only.

    Returns:
        The scores. An unanswerable question has none, except MuSiQue's ``sufficiency``.

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


def check_ids(
    predicted_ids: Iterable[str], questions: Sequence[Question], missing: Literal["error", "zero"] = "error"
) -> None:
    """Refuses predictions that do not match the questions one to one.

    Args:
        predicted_ids: Ids in the prediction file, duplicates included.
        questions: All evaluated questions.
        missing: ``"error"`` refuses missing ids; ``"zero"`` allows them, as in HotpotQA's and 2WikiMultihopQA's.

    Raises:
        ScoringError: If an id is missing, predicted twice, unknown, or shared by two questions.
    """
    expected, predicted = Counter(question.id for question in questions), Counter(iter(predicted_ids))
    faults = {
        "question ids that stand twice": [name for name, count in expected.items() if count > 1],
        "ids predicted more than once": [name for name, count in predicted.items() if count > 1],
        "predicted ids without a question": [name for name in predicted if name not in expected],
        "questions without a prediction": [name for name in expected if name not in predicted and missing == "error"],
    }
    problems = [f"{len(ids)} {what} (first: {ids[0]!r})" for what, ids in faults.items() if ids]
    if problems:
        counts = f"{len(predicted)} predictions do not match {len(questions)} questions"
        raise ScoringError(f"{counts}: {'; '.join(problems)}")


def mean_scores(per_question: Sequence[Mapping[str, float | None]]) -> Scores:
    """Returns each metric's mean over the questions that have its key, bit-identical in any order of the questions.

    None counts as 0, as in the official scripts, but a metric that is None for every question has the mean None.

    Raises:
        ScoringError: If there is nothing to average.
    """
    if not per_question:
        raise ScoringError("there are no scores to average; score at least one question")
    means: Scores = {}
    for name in dict.fromkeys(name for row in per_question for name in row):
        column = [row[name] for row in per_question if name in row]
        produced = [value for value in column if value is not None]
        means[name] = math.fsum(produced) / len(column) if produced else None
    return means


def aggregate(rows: Mapping[str, Mapping[str, float | None]], scorer: str) -> Scores:
    """Returns the scores of a data set from the scores of its questions.

    For ``"musique"``, if there are unanswerable questions, group metrics replace ``sufficiency``. For each pair of
    twins a group metric is the answerable question's value if both answerabilities were predicted right, else 0.

    Args:
        rows: Question id to the scores that `score_question` returned.
        scorer: A key of `SCORERS`.

    Raises:
        UnknownNameError: If there is no such scorer.
        ScoringError: If there are no rows, or some of MuSiQue's questions are not in pairs.
    """
    if scorer not in SCORERS:
        raise UnknownNameError("scorer", scorer, SCORERS)
    means = mean_scores(list(rows.values()))
    if scorer == "musique":
        means.pop("sufficiency", None)
        if any(name.endswith(UNANSWERABLE_SUFFIX) for name in rows):
            means |= mean_scores(_musique_groups(rows))
    return means


def _musique_groups(rows: Mapping[str, Mapping[str, float | None]]) -> list[Scores]:
    """Returns one row of group metrics per pair of an answerable question and its unanswerable twin."""
    answerable = [name for name in rows if not name.endswith(UNANSWERABLE_SUFFIX)]
    single = sorted({name + UNANSWERABLE_SUFFIX for name in answerable} ^ (rows.keys() - set(answerable)))
    if single:
        raise ScoringError(
            f"{len(single)} of MuSiQue's questions have no twin (first pair: {single[0]!r}): it is scored by pairs "
            "of an answerable and an unanswerable question: ask both of each, or answerable ones alone"
        )
    groups: list[Scores] = []
    for name in answerable:
        row, verdicts = rows[name], (rows[name].get("sufficiency"), rows[name + UNANSWERABLE_SUFFIX]["sufficiency"])
        right = None if None in verdicts else float(verdicts == (1.0, 1.0))
        group: Scores = {"group_sufficiency": right}
        for kind, prefix in (("answer", ""), ("support", "sp_")):
            for metric in ("em", "f1"):
                value = row.get(prefix + metric)
                group[f"group_{kind}_sufficiency_{metric}"] = None if right is None or value is None else right * value
        groups.append(group)
    return groups


def score_predictions(
    predictions: Mapping[str, Answer],
    questions: Sequence[Question],
    scorer: str,
    aliases: EntityAliases | None = None,
    missing: Literal["error", "zero"] = "error",
) -> Scores:
    """Scores the predictions for a data set: `check_ids`, `score_question` for each question, then `aggregate`.

    Args:
        predictions: Question id to answer.
        questions: All evaluated questions.
        scorer: A key of `SCORERS`.
        aliases: Names by entity id, for ``"2wiki"`` only.
        missing: What to do with a question that has no prediction: refuse it, or let it count 0.

    Raises:
        ScoringError: If predictions and questions do not match, or a question's gold data is inconsistent.
        UsageError: If the scorer is unknown, or `aliases` is given with another scorer than ``"2wiki"``.
    """
    check_ids(predictions, questions, missing)
    rows = {item.id: score_question(item, predictions.get(item.id), scorer, aliases) for item in questions}
    return aggregate(rows, scorer)
