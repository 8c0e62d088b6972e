"""Audits questions against a corpus: which gold pages it lacks, and which questions it can answer.

Source: What Matters in Training Search Agents (arXiv 2605.27881) counts, for one corpus, the documents that questions
need and the corpus lacks. Here each gold page is compared by its words; see `match` and `holes`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from searchgym.errors import UsageError
from searchgym.eval.audit.golds import GoldPage, gold_pages_of, plain_words
from searchgym.eval.audit.holes import Finding, holds_answer, judge, named_in_title
from searchgym.eval.audit.match import Match, Matcher
from searchgym.eval.audit.reach import Reach, reach_of
from searchgym.questions.shortcuts import names_answer
from searchgym.records import Passage, Question
from searchgym.retrieval.retriever import Retriever

BLOCK: Final = 100_000
"""Number of questions that are held at once; the corpus is read once for each such block."""
EVERY: Final = 20_000
"""Number of passages between two reports of progress."""
Progress = Callable[[str, int, int], None]
"""Called with a stage, and how much of how much is done; 0 if the whole is unknown."""


@dataclass(frozen=True, slots=True)
class AuditedQuestion:
    """One question with what the corpus has of its gold pages."""

    id: str
    text: str
    pages: tuple[GoldPage, ...]
    """Gold pages, with the texts that the question brings."""
    findings: tuple[Finding, ...]
    """State of each gold page in the corpus."""
    faults: tuple[str, ...] = ()
    """Faults of the question's own gold data, in words."""
    answer: str = "not needed"
    """Where the answer's text is: ``in corpus`` (in what the corpus has of a gold page), ``lost`` (in a gold page, but
    not in what the corpus has of it), ``in no gold page``, or ``not needed`` (yes, no, or named in the question)."""
    reach: Reach = field(default_factory=dict)
    """Number of hits by which all gold pages are retrieved, by kind of query; None if they are not."""

    @property
    def answerable(self) -> bool | None:
        """Whether the corpus has all that the question needs; None if the question names no gold page."""
        if not self.findings:
            return None
        return all(finding.needed for finding in self.findings) and self.answer != "lost"

    @property
    def holes(self) -> list[tuple[GoldPage, Finding]]:
        """Gold pages that are not in the corpus as they should be."""
        return [pair for pair in zip(self.pages, self.findings, strict=True) if pair[1].kind != "present"]

    def row(self) -> dict[str, Any]:
        """Returns the question as a row of JSON lines."""
        return {
            "id": self.id,
            "question": self.text,
            "answerable": self.answerable,
            "answer": self.answer,
            "pages": [dataclasses.asdict(finding) for finding in self.findings],
            "faults": list(self.faults),
            "reach": dict(self.reach),
        }


def audit_corpus(
    questions: Iterable[Question],
    passages: Callable[[], Iterable[Passage]],
    retriever: Retriever | None = None,
    most: int = 20,
    progress: Progress | None = None,
    block: int = BLOCK,
) -> Iterator[AuditedQuestion]:
    """Compares the gold pages of questions with a corpus.

    Memory grows with the texts of one block of questions and their gold pages, not with the corpus.

    Args:
        questions: Questions, read once.
        passages: Function that returns the corpus from its start; it is called once for each block of questions.
        retriever: Retriever over the corpus, to find out whether searches reach the gold pages. Default: not searched.
        most: Number of hits of each search.
        progress: Receives the stages ``passages`` (one for each block) and ``searches``.
        block: Number of questions that are held at once.

    Yields:
        The questions in their order.

    Raises:
        UsageError: `block` or `most` is less than 1.
    """
    if block < 1 or most < 1:
        raise UsageError(f"block and most must be at least 1, got {block} and {most}")
    rest, part = iter(questions), 0
    while batch := list(itertools.islice(rest, block)):
        part += 1
        stage = "passages" if part == 1 else f"passages, part {part} of the questions"
        yield from _audit_block(batch, counted(passages(), stage, progress), retriever, most, progress)


def _audit_block(
    batch: Sequence[Question],
    passages: Iterable[Passage],
    retriever: Retriever | None,
    most: int,
    progress: Progress | None,
) -> Iterator[AuditedQuestion]:
    golds = [gold_pages_of(question) for question in batch]
    pages = list(dict.fromkeys(page for of_question, _ in golds for page in of_question))
    matcher = Matcher(pages, (answer for question in batch for answer in question.golds))
    matcher.add(passages)
    matches = dict(zip(pages, matcher.matches, strict=True))
    findings = {page: judge(match) for page, match in matches.items()}
    of_questions = [tuple(findings[page] for page in of_question) for of_question, _ in golds]
    reaches = reach_of(batch, of_questions, retriever, most, progress) if retriever is not None else [{}] * len(batch)
    for question, (of_question, faults), states, reach in zip(batch, golds, of_questions, reaches, strict=True):
        answer = _answer_in(question, [matches[page] for page in of_question], matcher)
        more = [f"answer {question.answers[0]!r} is in no gold page"] if answer == "in no gold page" else []
        yield AuditedQuestion(question.id, question.text, tuple(of_question), states, (*faults, *more), answer, reach)


def counted(passages: Iterable[Passage], stage: str, progress: Progress | None) -> Iterator[Passage]:
    """Yields passages, and reports their number as the progress of a stage."""
    for number, passage in enumerate(passages, start=1):
        yield passage
        if progress is not None and number % EVERY == 0:
            progress(stage, number, 0)


def _answer_in(question: Question, matches: Sequence[Match], matcher: Matcher) -> str:
    """Returns where the answer's text is; see `AuditedQuestion.answer`."""
    if not matches or names_answer(question):
        return "not needed"
    words = [plain_words(answer) for answer in question.golds]
    numbers = [matcher.number(answer) for answer in words]
    in_gold = in_corpus = False
    for match in matches:
        here = holds_answer(match, numbers)
        in_gold, in_corpus = in_gold or here[0], in_corpus or here[1]
        if named_in_title(match, words):  # the answer is the page itself
            in_gold, in_corpus = True, in_corpus or bool(match.covers)
    return "in corpus" if in_corpus else "lost" if in_gold else "in no gold page"


@dataclass(slots=True)
class Audit:
    """Counts over audited questions, with examples of each kind of hole."""

    questions: int = 0
    with_golds: int = 0
    answerable: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    """Number of gold pages by kind, a page that two questions need counted twice."""
    lost_answers: int = 0
    faulty: int = 0
    """Number of questions with faults in their own gold data."""
    copies: int = 0
    """Number of gold pages whose text several passages have."""
    conflicts: int = 0
    """Number of gold pages that are there together with a near-duplicate under the same title."""
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The first holes of each kind, and the first faults."""
    reached: dict[str, list[int | None]] = field(default_factory=dict)
    """Number of hits that each question needs, by kind of query."""

    def add(self, question: AuditedQuestion, examples: int = 3) -> None:
        """Counts a question."""
        self.questions += 1
        self.with_golds += bool(question.findings)
        self.answerable += question.answerable is True
        self.lost_answers += question.answer == "lost"
        self.faulty += bool(question.faults)
        for finding in question.findings:
            self.kinds[finding.kind] = self.kinds.get(finding.kind, 0) + 1
            self.copies += finding.copies > 0
            self.conflicts += bool(finding.conflicts)
            if finding.kind != "present":
                row = {"question": question.id, "page": finding.title, "nearest": finding.nearest}
                self._example(finding.kind, row | {"distance": finding.distance}, examples)
        for fault in question.faults:
            self._example("faults", {"question": question.id, "fault": fault}, examples)
        for name, needed in question.reach.items():
            self.reached.setdefault(name, []).append(needed)

    def _example(self, name: str, row: dict[str, Any], most: int) -> None:
        listed = self.examples.setdefault(name, [])
        if len(listed) < most:
            listed.append(row)

    def shares(self, cutoffs: Sequence[int]) -> list[dict[str, Any]]:
        """Returns a row for each kind of query: the share of questions all of whose gold pages k hits contain."""
        return [
            {"query": name, "n": len(needed)}
            | {f"@{k}": float(np.mean([n is not None and n <= k for n in needed])) for k in cutoffs}
            for name, needed in self.reached.items()
        ]

    def summary(self) -> dict[str, Any]:
        """Returns the counts as plain data; ``answerable_share`` is of the questions that name gold pages."""
        return {
            "questions": self.questions,
            "with_golds": self.with_golds,
            "answerable": self.answerable,
            "answerable_share": self.answerable / self.with_golds if self.with_golds else None,
            "lost_answers": self.lost_answers,
            "pages": dict(self.kinds),
            "copies": self.copies,
            "conflicts": self.conflicts,
            "faulty_questions": self.faulty,
            "examples": self.examples,
        }
