"""Audit of questions against a corpus: gold pages that the corpus lacks, and questions it cannot answer."""

from searchgym.eval.audit.answerable import answerable_questions, on_answerable
from searchgym.eval.audit.audit import Audit, AuditedQuestion, audit_corpus
from searchgym.eval.audit.fill import fill_corpus
from searchgym.eval.audit.golds import GoldPage, gold_pages_of
from searchgym.eval.audit.holes import Finding, Kind

__all__ = [
    "Audit",
    "AuditedQuestion",
    "Finding",
    "GoldPage",
    "Kind",
    "answerable_questions",
    "audit_corpus",
    "fill_corpus",
    "gold_pages_of",
    "on_answerable",
]
