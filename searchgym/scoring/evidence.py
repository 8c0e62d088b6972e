"""Agreement of predicted with gold support and evidence, and the joint metrics."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import product

from searchgym.errors import ScoringError
from searchgym.records import Question, Triple
from searchgym.scoring.answers import Overlap, harmonic_mean, lower_without_punctuation

EntityAliases = Mapping[str, AbstractSet[str]]
"""Entity id to its other names: aliases and demonyms of 2WikiMultihopQA's ``id_aliases.json``."""


def set_overlap(predicted: Sequence[Hashable], gold: Sequence[Hashable]) -> Overlap:
    """Compares two collections by membership; an element that stands twice counts twice.

    EM is 1 but F1 0 where both are empty (HotpotQA, 2WikiMultihopQA; MuSiQue makes F1 1 there).
    """
    known, found = frozenset(gold), frozenset(predicted)
    hits = sum(element in known for element in predicted)
    misses = sum(element not in found for element in gold)
    precision = hits / len(predicted) if predicted else 0.0
    recall = hits / (hits + misses) if hits + misses else 0.0
    return Overlap(float(hits == len(predicted) and misses == 0), harmonic_mean(precision, recall), precision, recall)


TripleKey = tuple[str, str, str]
"""Subject, relation and object as they are compared."""


def _triple_key(subject: str, relation: str, obj: str) -> TripleKey:
    """Evidence is compared like answers, but articles stay."""
    subject, relation, obj = (" ".join(lower_without_punctuation(text).split()) for text in (subject, relation, obj))
    return subject, relation, obj


def gold_evidences(question: Question, aliases: EntityAliases) -> list[frozenset[TripleKey]]:
    """Returns, for each gold triple, every spelling of it that its subject's and object's aliases allow."""
    triples, ids = question.evidences or (), question.evidence_ids or ()
    if ids and [triple.relation for triple in ids] != [triple.relation for triple in triples]:
        raise ScoringError(f"question {question.id!r}: evidence_ids {ids} do not name the relations of {triples}")
    spellings = []
    for number, triple in enumerate(triples):
        subjects = {triple.subject, *(aliases.get(ids[number].subject, ()) if ids else ())}
        objects = {triple.object, *(aliases.get(ids[number].object, ()) if ids else ())}
        spellings.append(frozenset(_triple_key(s, triple.relation, o) for s, o in product(subjects, objects)))
    return spellings


def evidence_overlap(predicted: Iterable[Triple], gold: Sequence[AbstractSet[TripleKey]]) -> Overlap:
    """Compares predicted triples with the spellings of each gold triple, as 2WikiMultihopQA's script does.

    Two spellings of one gold triple are two matches, so that recall and F1 can exceed 1 (EM is then 0).
    """
    found = {_triple_key(triple.subject, triple.relation, triple.object) for triple in predicted}
    matches = sum(any(triple in spellings for spellings in gold) for triple in found)
    precision = matches / len(found) if found else 0.0
    recall = matches / len(gold) if gold else 0.0
    return Overlap(float(matches == len(found) == len(gold)), harmonic_mean(precision, recall), precision, recall)


def joint_overlap(*parts: Overlap | None) -> Overlap | None:
    """Multiplies EM, precision and recall of the parts, F1 from the products; None if the agent lacks a part."""
    present = [part for part in parts if part is not None]
    if len(present) < len(parts):
        return None
    precision, recall = math.prod(part.precision for part in present), math.prod(part.recall for part in present)
    return Overlap(math.prod(part.em for part in present), harmonic_mean(precision, recall), precision, recall)
