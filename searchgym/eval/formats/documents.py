"""Predictions as one JSON document: HotpotQA's ``{"answer": {id: text}, "sp": {id: [[title, sentence], ...]}}``.

2WikiMultihopQA's has ``"evidence": {id: [[subject, relation, object], ...]}`` as well. An id is left out of ``sp`` or
``evidence`` if the agent stated none: the official scripts report it as missing and count 0. A sentence that is not
known is null, which equals no gold sentence. Ids without an answer stand under ``"not_stated": {"answer": [...]}``,
a key of this project that the official scripts do not read: for them the answer is missing, and counts 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from searchgym.corpora.fields import as_texts, tuples_field
from searchgym.corpora.files import FilePath
from searchgym.errors import DataError
from searchgym.eval.formats.predictions import PREDICTION_FORMATS, Prediction
from searchgym.records import Answer, SupportingFact, Triple

NOT_STATED: Final = "not_stated"
"""Key that lists what the format demands and the agent did not state."""


def document_of(predictions: Iterable[Prediction], format: str) -> dict[str, Any]:
    """Returns predictions as the document of a format.

    Args:
        predictions: The predictions.
        format: ``hotpotqa`` or ``2wiki``.
    """
    document: dict[str, Any] = {key: {} for key in PREDICTION_FORMATS[format]}
    silent = []
    for prediction in predictions:
        answer = prediction.answer
        if answer is None:
            silent.append(prediction.id)
            continue
        document["answer"][prediction.id] = answer.text
        if answer.supporting_facts is not None:
            document["sp"][prediction.id] = [[fact.title, fact.sentence] for fact in answer.supporting_facts]
        if "evidence" in document and answer.evidences is not None:
            document["evidence"][prediction.id] = [[t.subject, t.relation, t.object] for t in answer.evidences]
    return document | ({NOT_STATED: {"answer": silent}} if silent else {})


def of_document(document: Mapping[str, Any], format: str, path: FilePath) -> Iterator[Prediction]:
    """Yields the predictions of a document, in the order of its answers.

    Raises:
        DataError: A part is missing or has another form, or an id has supporting facts or triples but no answer.
    """
    parts = {key: _part(document, key, path) for key in PREDICTION_FORMATS[format]}
    silent = _silent(document, path)
    for id in [*silent, *(id for key in list(parts)[1:] for id in parts[key])]:
        if (id in parts["answer"]) == (id in silent):
            what = "an answer and is listed as one without" if id in silent else "no answer, but facts beside it"
            raise DataError(f"id {id!r:.80} has {what}: give each id one answer, or leave it out", path)
    for id, text in parts["answer"].items():
        try:
            yield Prediction(id, _answer(id, text, parts))
        except DataError as error:
            raise DataError(f"id {id!r:.80}: {error.reason}", path) from None
    yield from (Prediction(id, None) for id in silent)


def _part(document: Mapping[str, Any], key: str, path: FilePath) -> Mapping[str, Any]:
    """Returns the mapping from ids of one part of a document."""
    part = document.get(key)
    if not isinstance(part, Mapping):
        got = f"got {part!r:.60}" if key in document else f"there are {', '.join(map(str, document))}"
        raise DataError(f'no {key!r}: expected {{id: ...}}, {got}; a part with nothing in it is "{key}": {{}}', path)
    return part


def _silent(document: Mapping[str, Any], path: FilePath) -> tuple[str, ...]:
    """Returns the ids without an answer."""
    marked = document.get(NOT_STATED, {})
    try:
        return as_texts("answer", marked.get("answer", []) if isinstance(marked, Mapping) else marked)
    except DataError as error:
        raise DataError(f"{NOT_STATED}: {error.reason}", path) from None


def _answer(id: str, text: object, parts: Mapping[str, Mapping[str, Any]]) -> Answer:
    """Returns the answer of one id with what stands beside it."""
    if not isinstance(text, str):
        raise DataError(f"'answer': expected text, got {text!r:.60}")
    facts = triples = None
    if id in parts["sp"]:
        facts = tuple(SupportingFact(*_fact(fact)) for fact in _tuples(parts, "sp", id, "title", "sentence"))
    if id in parts.get("evidence", {}):
        rows = _tuples(parts, "evidence", id, "subject", "relation", "object")
        triples = tuple(Triple(*as_texts("evidence", row)) for row in rows)
    return Answer(text, supporting_facts=facts, evidences=triples)


def _tuples(parts: Mapping[str, Mapping[str, Any]], key: str, id: str, *columns: str) -> list[tuple[Any, ...]]:
    """Returns the entries of one id in one part."""
    value = parts[key][id]
    if not isinstance(value, list):
        raise DataError(f"{key!r}: expected a list of [{', '.join(columns)}], got {value!r:.60}")
    return tuples_field({key: value}, key, *columns)


def _fact(pair: tuple[Any, ...]) -> tuple[str, int | None]:
    """Returns the title and the number of a supporting sentence."""
    title, sentence = pair
    if not isinstance(title, str) or not isinstance(sentence, int | None) or isinstance(sentence, bool):
        raise DataError(f"'sp': expected [title, number of the sentence from 0], got {list(pair)!r:.60}")
    return title, sentence
