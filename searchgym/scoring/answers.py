"""Normalisation of answers, exact match, token F1 and the overlap of evidence, shared by rewards and every scorer."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import product
from typing import Final, NamedTuple

from searchgym.errors import ScoringError, UsageError
from searchgym.records import Question, Triple

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})


def lower_without_punctuation(text: str) -> str:
    """Returns the text in lower case without ASCII punctuation.

    Raises:
        ScoringError: If `text` is not a string.
    """
    try:
        return text.lower().translate(_PUNCTUATION)
    except (AttributeError, TypeError) as error:
        raise ScoringError(f"only text can be scored, got {type(text).__name__} {text!r}; pass a str") from error


def normalise_answer(text: str) -> str:
    """Normalises as SQuAD does, for all six scorers: lower case, no ASCII punctuation, articles or extra spaces.

    The order matters (``"A.N."`` becomes ``"an"``, then ``""``). Accents and typographic punctuation are kept.

    Raises:
        ScoringError: If `text` is not a string.
    """
    return " ".join(_ARTICLES.sub(" ", lower_without_punctuation(text)).split())


def _normalised(golds: Sequence[str]) -> list[str]:
    if isinstance(golds, str):
        raise UsageError(f"golds must be a sequence of strings, got the string {golds!r}; pass ({golds!r},)")
    return [normalise_answer(gold) for gold in golds]


def golds_with_words(golds: Sequence[str]) -> list[str]:
    """Returns the gold answers without those that normalise to an empty string, such as *The The*.

    SearchGym's own rewards and counts use these. By the official scripts, an answer without words matches the dropped
    ones, and every answer covers them.
    """
    return [gold for gold, text in zip(golds, _normalised(golds), strict=True) if text]


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """Returns 1.0 if a gold answer equals the prediction after normalisation, else 0.0 (also without any gold)."""
    return float(normalise_answer(prediction) in _normalised(golds))


def cover_match(prediction: str, golds: Sequence[str]) -> float:
    """Returns 1.0 if the normalised prediction contains a normalised gold answer as a substring of characters.

    Equals FlashRAG's ``acc`` and Search-R1's ``subem``. A gold answer that normalises to an empty string matches every
    prediction.
    """
    text = normalise_answer(prediction)
    return float(any(gold in text for gold in _normalised(golds)))


def word_cover_match(prediction: str, golds: Sequence[str]) -> float:
    """Returns 1.0 if the words of a gold answer follow each other in the prediction, both normalised.

    Unlike `cover_match`, *no* is not in *unknown*, and a gold answer without words is in no prediction.
    """
    text = f" {normalise_answer(prediction)} "
    return float(any(gold and f" {gold} " in text for gold in _normalised(golds)))


class Overlap(NamedTuple):
    """Agreement of a prediction with the gold data: EM, F1, precision and recall, usually in [0, 1]."""

    em: float
    f1: float
    precision: float
    recall: float


def harmonic_mean(precision: float, recall: float) -> float:
    """Returns F1, the harmonic mean of precision and recall; 0 if both are 0."""
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0


def _token_overlap(prediction: str, gold: str) -> Overlap:
    """Compares two normalised texts as multisets of words; without a common word all numbers except EM are 0."""
    predicted_words, gold_words = prediction.split(), gold.split()
    em = float(prediction == gold)
    common = sum((Counter(predicted_words) & Counter(gold_words)).values())
    if common == 0:
        return Overlap(em, 0.0, 0.0, 0.0)
    precision, recall = common / len(predicted_words), common / len(gold_words)
    return Overlap(em, harmonic_mean(precision, recall), precision, recall)


def answer_overlap(prediction: str, golds: Sequence[str]) -> Overlap:
    """Compares an answer with every gold answer by HotpotQA's rule and returns each number's maximum.

    If either side normalises to yes, no or noanswer, only equality scores above 0. The maxima may come from different
    gold answers, as in 2WikiMultihopQA and FlashRAG. If both sides normalise to an empty string, EM is 1 but F1 is 0.
    """
    text = normalise_answer(prediction)
    best = Overlap(0.0, 0.0, 0.0, 0.0)
    for gold in _normalised(golds):
        if text != gold and not _CLOSED_ANSWERS.isdisjoint((text, gold)):
            continue
        best = Overlap(*map(max, best, _token_overlap(text, gold)))
    return best


def f1_score(prediction: str, golds: Sequence[str]) -> float:
    """Returns the largest token F1 over the gold answers by HotpotQA's rule (see `answer_overlap`)."""
    return answer_overlap(prediction, golds).f1


def plain_f1_score(prediction: str, golds: Sequence[str]) -> float:
    """Returns the largest token F1 over the gold answers by KILT's rule: yes and no are ordinary words."""
    text = normalise_answer(prediction)
    return max((_token_overlap(text, gold).f1 for gold in _normalised(golds)), default=0.0)


def musique_f1_score(prediction: str, golds: Sequence[str]) -> float:
    """Returns the largest token F1 over the gold answers by MuSiQue's rule.

    Unlike HotpotQA's, it treats yes and no as ordinary words and gives 1 if both sides are empty.
    """
    text = normalise_answer(prediction)
    normalised = _normalised(golds)
    return max((_token_overlap(text, gold).f1 if text or gold else 1.0 for gold in normalised), default=0.0)


MAX_LENGTH_RATIO: Final = 2
"""Maximum ratio of the number of words of an answer's part to that of its gold span."""


def span_recall(prediction: str, gold: str) -> float:
    """Returns the mean word recall over a gold answer's spans, each compared with the answer's part at the same index.

    Spans and parts are separated by semicolons. A part with more than twice as many words as its span scores 0, and so
    does an answer with more parts than spans; otherwise listing everything would maximise recall.

    Source: MaskSearch, arXiv 2505.20285, rewards recall of words; its code is not public. The comparison by index, the
        separator and the guard against listing are inferred or ours.
    """
    spans = [Counter(normalise_answer(part).split()) for part in gold.split(";")]
    parts = [Counter(normalise_answer(part).split()) for part in prediction.split(";")]
    if len(parts) > len(spans):
        return 0.0
    recalls = [
        (span & part).total() / span.total() if part.total() <= MAX_LENGTH_RATIO * span.total() else 0.0
        for span, part in zip(spans, parts, strict=False)
        if span
    ]
    return sum(recalls) / len(spans)


# -- evidence ------------------------------------------------------------------------------------------------------

EntityAliases = Mapping[str, AbstractSet[str]]
"""Entity id to further names of the entity: aliases and demonyms from 2WikiMultihopQA's ``id_aliases.json``."""


def set_overlap(predicted: Sequence[Hashable], gold: Sequence[Hashable]) -> Overlap:
    """Compares two collections by membership; repeated elements count each time.

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
    """Normalises a triple for comparison: like answers, but articles are kept."""
    subject, relation, obj = (" ".join(lower_without_punctuation(text).split()) for text in (subject, relation, obj))
    return subject, relation, obj


def gold_evidences(question: Question, aliases: EntityAliases) -> list[frozenset[TripleKey]]:
    """Returns all accepted spellings of each gold triple: each name of its subject with each of its object.

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

    None if any overlap is None, that is, if a prediction that the joint metric needs is missing.
    """
    present = [part for part in parts if part is not None]
    if len(present) < len(parts):
        return None
    precision, recall = math.prod(part.precision for part in present), math.prod(part.recall for part in present)
    return Overlap(math.prod(part.em for part in present), harmonic_mean(precision, recall), precision, recall)
