"""Agreement of predicted supporting facts and evidence triples with the gold ones, and the joint metrics."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import product

from searchgym.errors import ScoringError
from searchgym.records import Question, Triple
from searchgym.scoring.answers import Overlap, harmonic_mean, lower_without_punctuation

EntityAliases = Mapping[str, AbstractSet[str]]
"""Entity id to the entity's other names: aliases and demonyms from 2WikiMultihopQA's ``id_aliases.json``."""


def set_overlap(predicted: Sequence[Hashable], gold: Sequence[Hashable]) -> Overlap:
    """Compares two collections by membership; a repeated element counts each time.

    If both are empty, EM is 1 but F1 is 0 (HotpotQA, 2WikiMultihopQA; MuSiQue's script makes F1 1 in that case).
    """
    gold_set, predicted_set = frozenset(gold), frozenset(predicted)
    hits = sum(element in gold_set for element in predicted)
    misses = sum(element not in predicted_set for element in gold)
    precision = hits / len(predicted) if predicted else 0.0
    recall = hits / (hits + misses) if hits + misses else 0.0
    return Overlap(float(hits == len(predicted) and misses == 0), harmonic_mean(precision, recall), precision, recall)


TripleKey = tuple[str, str, str]
"""Subject, relation and object, normalised for comparison."""


def _triple_key(subject: str, relation: str, obj: str) -> TripleKey:
    """Returns a triple normalised for comparison: like answers, except that articles stay."""
    subject, relation, obj = (" ".join(lower_without_punctuation(text).split()) for text in (subject, relation, obj))
    return subject, relation, obj


def gold_evidences(question: Question, aliases: EntityAliases) -> list[frozenset[TripleKey]]:
    """Returns, for each gold triple, all its accepted spellings: each alias of its subject with each of its object.

    Raises:
        ScoringError: The question's evidence ids do not match its evidence triples.
    """
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

    Two predicted spellings of one gold triple count as two matches, so recall and F1 can exceed 1 (EM is then 0).
    """
    triples = {_triple_key(triple.subject, triple.relation, triple.object) for triple in predicted}
    matches = sum(any(triple in spellings for spellings in gold) for triple in triples)
    precision = matches / len(triples) if triples else 0.0
    recall = matches / len(gold) if gold else 0.0
    return Overlap(float(matches == len(triples) == len(gold)), harmonic_mean(precision, recall), precision, recall)


def joint_overlap(*parts: Overlap | None) -> Overlap | None:
    """Returns the joint metric of several overlaps: products of EM, precision and recall, and F1 from the products.

    None if any overlap is None, that is, if the agent did not predict all that the joint metric needs.
    """
    present = [part for part in parts if part is not None]
    if len(present) < len(parts):
        return None
    precision, recall = math.prod(part.precision for part in present), math.prod(part.recall for part in present)
    return Overlap(math.prod(part.em for part in present), harmonic_mean(precision, recall), precision, recall)
