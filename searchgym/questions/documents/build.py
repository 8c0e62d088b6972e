"""Builds generated documents with their questions, in memory and on disk, fully determined by the specification."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from searchgym.corpora.folders import appearing, cached
from searchgym.corpora.passages import write_corpus
from searchgym.corpora.questions import write_questions
from searchgym.options import plain
from searchgym.questions.documents.draw import draw_questions
from searchgym.questions.documents.facts import Facts, draw_facts
from searchgym.questions.documents.spec import VERSION, DocumentsSpec
from searchgym.questions.documents.text import Document, write_documents
from searchgym.questions.saved import write_card
from searchgym.records import Question

CORPUS: Final = "corpus.jsonl"
QUESTIONS: Final = "questions.jsonl"


@dataclass(frozen=True, slots=True)
class LongDocuments:
    """Generated documents with their facts and questions."""

    facts: Facts
    documents: dict[str, Document]
    """Documents by title, in the order of the corpus."""
    questions: tuple[Question, ...]


def build_documents(spec: DocumentsSpec) -> LongDocuments:
    """Returns the documents of a specification; the same specification gives the same text in any process.

    Raises:
        UsageError: The documents have fewer questions than requested, or no new names are left.
    """
    rng = random.Random(f"documents {VERSION} {spec.split} {spec.documents} {spec.words} {spec.seed}")
    facts = draw_facts(spec, rng)
    documents = write_documents(spec, facts, rng)
    return LongDocuments(facts, documents, draw_questions(spec, facts, documents, rng))


def cached_documents(spec: DocumentsSpec, home: Path) -> Path:
    """Returns the folder of generated documents in a cache; builds and writes them if they are not cached."""
    name = f"{spec.split}-seed{spec.seed}-documents{spec.documents}-words{spec.words}-n{spec.n}-v{VERSION}"
    return cached(home / name, lambda out: _write(spec, out))


def _write(spec: DocumentsSpec, out: Path) -> None:
    """Writes the corpus, the questions and a card to a folder, which appears when it is complete."""
    built = build_documents(spec)
    with appearing(out) as folder:
        write_corpus(
            folder / CORPUS, (passage for document in built.documents.values() for passage in document.passages)
        )
        write_questions(folder / QUESTIONS, built.questions)
        write_card(folder, {"version": VERSION, "spec": plain(spec)}, (CORPUS, QUESTIONS))
