"""Passport of a question set: shares of questions that are unsound, or that need no search.

The ways round searching are those of `searchgym.questions.shortcuts` (FORT-Searcher, arXiv 2606.12087, names four); the
questions that a corpus cannot answer are those of `searchgym.eval.audit`; copies are those of
`searchgym.eval.contamination`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from searchgym.eval.audit import audit_corpus
from searchgym.eval.contamination import find_copies
from searchgym.eval.scores import wilson_ci
from searchgym.questions.shortcuts import measure, names_answer
from searchgym.records import Question
from searchgym.retrieval.retriever import CorpusRetriever
from searchgym.scoring import normalise_answer

MEASURES: Final[Mapping[str, str]] = {
    "one search": "of those with several gold pages: one search for the question finds all of them",
    "one page": "of those with several gold pages: one page has all names and the answer",
    "answer named": "the question itself contains its answer (choices, yes and no left out)",
    "guessable": "the wording, or the commonest answer to its relation, is right without any page",
    "first hit": "the first hit's title that the question does not name is the answer",
    "closed book": "the model answers without searching",
    "unanswerable": "a gold page, sentence or answer is not in the corpus",
    "faulty": "the gold data contradict themselves: empty pages, missing sentences, answers in no gold page",
    "duplicated": "another question of the set is the same, or nearly and accepts the same answer",
    "conflicting": "another question of the set has the same text and another answer",
    "contaminated": "a training question is the same, or nearly",
}
"""Measures, and what their share counts."""
Flags = Mapping[str, Mapping[str, bool]]
"""For each measure, whether it holds, by id of the questions that it applies to."""


@dataclass(frozen=True, slots=True)
class Passport:
    """Measures of a question set."""

    questions: int
    flags: Flags
    unmeasured: Mapping[str, str]
    """Measures without a value, and why."""

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each measure: share with its 95 % interval over questions (Wilson's), and an example."""
        rows = []
        for name, flags in self.flags.items():
            ids = [id for id, flag in flags.items() if flag]
            if flags:
                low, high = wilson_ci(len(ids), len(flags))
                row = {"measure": name, "n": len(flags), "count": len(ids), "share": round(len(ids) / len(flags), 4)}
                rows.append(row | {"95 %": f"{low:.3f} – {high:.3f}", "example": ids[0] if ids else None})
        return rows


def passport_of(
    questions: Sequence[Question],
    corpus: CorpusRetriever,
    top_k: int = 3,
    trained_on: Iterable[str] | None = None,
    closed_book: Mapping[str, float] | None = None,
) -> Passport:
    """Measures a question set over a corpus.

    Args:
        questions: Questions; those without gold pages are left out of the measures that compare pages.
        corpus: Retriever over the corpus, whose passages are read twice.
        top_k: Number of hits of the one search.
        trained_on: Texts of the training questions that copies are looked for in. Default: not measured.
        closed_book: EM of a model that does not search, by question id. Default: not measured.
    """
    with_golds = [question for question in questions if question.gold_titles]
    several = {question.id for question in with_golds if len(question.gold_titles or ()) > 1}
    shortcuts = measure(questions, corpus.passages(), corpus, top_k).scores
    audited = list(audit_corpus(questions, corpus.passages))
    named = {q.id: names_answer(q) for q in questions if not _is_choice(q)}
    copies = _duplicates(questions)
    flags: dict[str, Mapping[str, bool]] = {
        "one search": {id: bool(shortcuts["one_search"][id]) for id in several},
        "one page": {id: bool(shortcuts["co_covered"][id]) for id in several},
        "answer named": named,
        "guessable": {id: value > 0 for id, value in shortcuts["majority"].items()},
        "first hit": {
            id: value > 0 and not shortcuts["majority"][id] for id, value in shortcuts["first_title"].items()
        },
        "unanswerable": {row.id: row.answerable is False for row in audited if row.findings},
        "faulty": {row.id: bool(row.faults) for row in audited if row.findings},
        "duplicated": {question.id: question.id in copies for question in questions},
        "conflicting": _conflicting(questions),
    }
    unmeasured = {}
    if closed_book is None:
        unmeasured["closed book"] = "give a model"
    else:
        flags["closed book"] = {id: em > 0 for id, em in closed_book.items()}
    if trained_on is None:
        unmeasured["contaminated"] = "give training questions"
    else:
        trained = {copy.id for copy in find_copies(trained_on, questions)}
        flags["contaminated"] = {question.id: question.id in trained for question in questions}
    unmeasured |= dict.fromkeys((n for n in MEASURES if n in flags and not flags[n]), "no question names gold pages")
    return Passport(len(questions), {name: flags[name] for name in MEASURES if name in flags}, unmeasured)


def _is_choice(question: Question) -> bool:
    """Checks whether a question offers its answers: yes or no, or one of several names."""
    return " or " in question.text or normalise_answer(question.answers[0]) in ("yes", "no")


def _duplicates(questions: Sequence[Question]) -> set[str]:
    """Returns the ids of questions of which the set has an exact copy, or a near one that accepts one of the answers.

    A near copy with another answer asks something else: "the writer of the film" for "the director of the film".
    """
    golds: defaultdict[str, set[str]] = defaultdict(set)
    for question in questions:
        golds[question.text] |= set(map(normalise_answer, question.golds))
    copies = find_copies(None, questions, alike=lambda question, text: bool(golds[question.text] & golds[text]))
    return {copy.id for copy in copies}


def _conflicting(questions: Sequence[Question]) -> dict[str, bool]:
    """Returns for each question whether another one with the same text accepts none of its answers."""
    groups: defaultdict[str, list[Question]] = defaultdict(list)
    for question in questions:
        groups[normalise_answer(question.text)].append(question)
    golds = {question.id: {normalise_answer(gold) for gold in question.golds} for question in questions}
    return {
        question.id: any(golds[question.id].isdisjoint(golds[other.id]) for other in group)
        for group in groups.values()
        for question in group
    }
