"""Predictions for questions, and the official formats in which they are written and read.

The formats of HotpotQA and 2WikiMultihopQA are one JSON document: ``{"answer": {id: text}, "sp": {id: [[title,
sentence], ...]}}``, for 2WikiMultihopQA with ``"evidence": {id: [[subject, relation, object], ...]}``. If the agent
stated no supporting facts or no evidence, its id is missing there; the official scripts report this and count 0. An
unknown sentence is null, which equals no gold sentence. Ids without an answer are listed in ``"not_stated": {"answer":
[...]}``, a key of this project that the official scripts ignore: for them the answer is missing and counts 0.

The formats of MuSiQue, KILT and FlashRAG are JSON lines, one row per question. They require values that an agent may
not have stated. Such a field gets a neutral value (an empty text, no paragraph; ``predicted_answerable`` is true, as
for every question of MuSiQue's answerable release), and its name is listed in the row's ``"not_stated"``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from searchgym.corpora.fields import Row, as_texts, id_field, optional_text, text_field, texts_field, tuples_field
from searchgym.corpora.files import FilePath
from searchgym.corpora.passages import split_contents
from searchgym.errors import DataError
from searchgym.records import Answer, Passage, Question, SupportingFact, Triple
from searchgym.scoring import UNANSWERABLE_SUFFIX

NOT_STATED: Final = "not_stated"
"""Key of the list of values that the format requires and the agent did not state."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Prediction for one question."""

    id: str
    """Id of the question."""
    answer: Answer | None
    """Answer of the agent with its supporting facts and other statements; None without an answer."""
    pages: tuple[Passage, ...] = ()
    """Retrieved passages without duplicates, in the order of their first retrieval."""


@dataclass(frozen=True, slots=True)
class PredictionFormat:
    """One official format of predictions."""

    keys: tuple[str, ...]
    """Keys of the document, or of each row."""
    keeps: frozenset[str]
    """Data that the format can hold besides the answer's text: names of fields of `Answer`, and ``pages``."""
    matches: Callable[[Row], bool]
    """Function that checks whether a document or a row has this format."""
    write: Callable[[Prediction, Question], dict[str, Any]] | None = None
    """Function that converts a prediction to a row; None for a format that is one document."""
    read: Callable[[Row], Prediction] | None = None
    """Function that converts a row to a prediction; None for a format that is one document."""


def reduced_to_format(prediction: Prediction, format: str) -> Prediction:
    """Returns a prediction without the data that a format cannot hold."""
    keep, answer = PREDICTION_FORMATS[format].keeps, prediction.answer
    if answer is not None:
        answer = Answer(answer.text, **{name: getattr(answer, name) for name in keep - {"pages"}})
    return Prediction(prediction.id, answer, prediction.pages if "pages" in keep else ())


# -- documents -----------------------------------------------------------------------------------------------------


def is_document(row: Row) -> bool:
    """Checks whether an object is a whole document, which has no id, and not a row."""
    return isinstance(row.get("answer"), Mapping) and "id" not in row


def document_of(predictions: Iterable[Prediction], format: str) -> dict[str, Any]:
    """Converts predictions to the document of a format, ``hotpotqa`` or ``2wiki``."""
    document: dict[str, Any] = {key: {} for key in PREDICTION_FORMATS[format].keys}
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
    """Yields the predictions of a document, in the order of its answers; ids without an answer come last.

    Raises:
        DataError: A part is missing or malformed, or an id has supporting facts or triples but no answer.
    """
    parts: dict[str, Mapping[str, Any]] = {}
    for key in PREDICTION_FORMATS[format].keys:
        part = document.get(key)
        if not isinstance(part, Mapping):
            got = f"got {part!r:.60}" if key in document else f"there are {', '.join(map(str, document))}"
            raise DataError(
                f'no {key!r}: expected {{id: ...}}, {got}; a part with nothing in it is "{key}": {{}}', path
            )
        parts[key] = part
    marked = document.get(NOT_STATED, {})
    try:
        silent = as_texts("answer", marked.get("answer", []) if isinstance(marked, Mapping) else marked)
    except DataError as error:
        raise DataError(f"{NOT_STATED}: {error.reason}", path) from None
    for id in [*silent, *(id for key in list(parts)[1:] for id in parts[key])]:
        if (id in parts["answer"]) == (id in silent):
            what = "an answer but is listed as one without" if id in silent else "no answer, but other statements"
            raise DataError(f"id {id!r:.80} has {what}: give each id one answer, or leave it out", path)
    for id, text in parts["answer"].items():
        try:
            yield Prediction(id, _answer(id, text, parts))
        except DataError as error:
            raise DataError(f"id {id!r:.80}: {error.reason}", path) from None
    yield from (Prediction(id, None) for id in silent)


def _answer(id: str, text: object, parts: Mapping[str, Mapping[str, Any]]) -> Answer:
    """Returns the answer of one id, with its supporting facts and evidence."""
    if not isinstance(text, str):
        raise DataError(f"'answer': expected text, got {text!r:.60}")
    facts: list[SupportingFact] = []
    for title, sentence in _tuples(parts["sp"].get(id, []), "sp", "title", "sentence"):
        if not isinstance(title, str) or not isinstance(sentence, int | None) or isinstance(sentence, bool):
            raise DataError(f"'sp': expected [title, index of the sentence from 0], got {[title, sentence]!r:.60}")
        facts.append(SupportingFact(title, sentence))
    triples = parts.get("evidence", {})
    rows = _tuples(triples.get(id, []), "evidence", "subject", "relation", "object")
    evidences = tuple(Triple(*as_texts("evidence", row)) for row in rows)
    return Answer(
        text,
        supporting_facts=tuple(facts) if id in parts["sp"] else None,
        evidences=evidences if id in triples else None,
    )


def _tuples(value: object, key: str, *columns: str) -> list[tuple[Any, ...]]:
    """Returns the entries of one id in one part of a document."""
    if not isinstance(value, list):
        raise DataError(f"{key!r}: expected a list of [{', '.join(columns)}], got {value!r:.60}")
    return tuples_field({key: value}, key, *columns)


# -- rows ----------------------------------------------------------------------------------------------------------


def _silent(**unknown: bool) -> dict[str, Any]:
    """Returns the entry ``not_stated`` of a row, given whether each field is missing; empty if none is."""
    names = [name for name, missing in unknown.items() if missing]
    return {NOT_STATED: names} if names else {}


def _objects(row: Row, key: str) -> list[Row]:
    """Returns the value of a field that is a list of objects; empty if the field is absent."""
    value = row.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise DataError(f"{key!r}: expected a list of objects, got {value!r:.60}")
    return value


def musique_row(prediction: Prediction, question: Question) -> dict[str, Any]:
    """Converts a prediction to MuSiQue's row; an unanswerable question gets the id of its answerable twin."""
    answer = prediction.answer or Answer("")
    return {
        "id": prediction.id.removesuffix(UNANSWERABLE_SUFFIX),
        "predicted_answer": answer.text,
        "predicted_support_idxs": list(answer.paragraphs or ()),
        "predicted_answerable": answer.answerable is not False,
        **_silent(
            predicted_answer=prediction.answer is None,
            predicted_support_idxs=answer.paragraphs is None,
            predicted_answerable=answer.answerable is None,
        ),
    }


def of_musique(row: Row) -> Prediction:
    """Converts a row of MuSiQue's format to a prediction."""
    silent, text = texts_field(row, NOT_STATED), text_field(row, "predicted_answer")
    indices, answerable = row.get("predicted_support_idxs"), row.get("predicted_answerable")
    if not isinstance(indices, list) or not all(type(index) is int for index in indices):
        raise DataError(f"'predicted_support_idxs': expected a list of numbers of paragraphs, got {indices!r:.60}")
    if not isinstance(answerable, bool):
        raise DataError(f"'predicted_answerable': expected true or false, got {answerable!r:.60}")
    paragraphs = None if "predicted_support_idxs" in silent else tuple(indices)
    answer = Answer(text, paragraphs=paragraphs, answerable=None if "predicted_answerable" in silent else answerable)
    return Prediction(id_field(row, "id"), None if "predicted_answer" in silent else answer)


def kilt_row(prediction: Prediction, question: Question, wikipedia_ids: bool = False) -> dict[str, Any]:
    """Converts a prediction to KILT's row, whose provenance is the list of retrieved pages.

    Args:
        prediction: Prediction to convert.
        question: Question of the prediction.
        wikipedia_ids: Whether passage ids are ids of Wikipedia pages, with ``#`` and a suffix for chunks. If false,
            pages get no ``wikipedia_id``, and KILT's script counts none of them as retrieved.
    """
    answer = prediction.answer
    output: dict[str, Any] = {"answer": "" if answer is None else answer.text}
    for page in prediction.pages:
        provenance = {"wikipedia_id": page.id.partition("#")[0]} if wikipedia_ids else {}
        provenance |= {"title": page.title, "text": page.text}
        output.setdefault("provenance", []).append({**provenance, "meta": {"passage_id": page.id}})
    return {"id": prediction.id, "input": question.text, "output": [output], **_silent(answer=answer is None)}


def of_kilt(row: Row) -> Prediction:
    """Converts a row of KILT's format to a prediction; it must have one output with an answer, as for KILT's script."""
    outputs = row.get("output")
    if not isinstance(outputs, list) or len(outputs) != 1 or not isinstance(outputs[0], Mapping):
        raise DataError(f"'output': expected a list of one object with the answer, got {outputs!r:.60}")
    text, pages = text_field(outputs[0], "answer"), []
    for page in _objects(outputs[0], "provenance"):
        title, meta = optional_text(page, "title") or "", page.get("meta")
        source = meta if isinstance(meta, Mapping) and "passage_id" in meta else page
        id = id_field({"title": title or None, **source}, "passage_id", "wikipedia_id", "title")
        pages.append(Passage(id, title, optional_text(page, "text") or ""))
    answer = None if "answer" in texts_field(row, NOT_STATED) else Answer(text)
    return Prediction(id_field(row, "id"), answer, tuple(pages))


def flashrag_row(prediction: Prediction, question: Question) -> dict[str, Any]:
    """Converts a prediction to FlashRAG's row, an item of the data set with the output of a pipeline."""
    answer = prediction.answer
    results = [{"id": p.id, "title": p.title, "contents": f"{p.title}\n{p.text}"} for p in prediction.pages]
    return {
        "id": prediction.id,
        "question": question.text,
        "golden_answers": list(question.answers),
        "output": {"pred": "" if answer is None else answer.text, "retrieval_result": results},
        **_silent(pred=answer is None),
    }


def of_flashrag(row: Row) -> Prediction:
    """Converts a row of FlashRAG's format to a prediction; a page's title is its ``title``, or else its first line."""
    output, pages = row.get("output"), []
    if not isinstance(output, Mapping):
        raise DataError(f"'output': expected an object with the prediction, got {output!r:.60}")
    for page in _objects(output, "retrieval_result"):
        contents, title = text_field(page, "contents"), page.get("title")
        parts = split_contents(contents)
        if isinstance(title, str) and contents.startswith(f"{title}\n"):
            parts = title, contents[len(title) + 1 :]
        pages.append(Passage(id_field(page, "id"), *parts))
    answer = None if "pred" in texts_field(row, NOT_STATED) else Answer(text_field(output, "pred"))
    return Prediction(id_field(row, "id"), answer, tuple(pages))


PREDICTION_FORMATS: Final[Mapping[str, PredictionFormat]] = MappingProxyType(
    {
        "hotpotqa": PredictionFormat(
            ("answer", "sp"), frozenset({"supporting_facts"}), lambda row: is_document(row) and "evidence" not in row
        ),
        "2wiki": PredictionFormat(
            ("answer", "sp", "evidence"),
            frozenset({"supporting_facts", "evidences"}),
            lambda row: is_document(row) and "evidence" in row,
        ),
        "musique": PredictionFormat(
            ("id", "predicted_answer", "predicted_support_idxs", "predicted_answerable"),
            frozenset({"paragraphs", "answerable"}),
            lambda row: "predicted_answer" in row,
            musique_row,
            of_musique,
        ),
        "kilt": PredictionFormat(
            ("id", "input", "output"),
            frozenset({"pages"}),
            lambda row: "output" in row and not isinstance(row["output"], Mapping),
            kilt_row,
            of_kilt,
        ),
        "flashrag": PredictionFormat(
            ("id", "question", "golden_answers", "output"),
            frozenset({"pages"}),
            lambda row: isinstance(row.get("output"), Mapping),
            flashrag_row,
            of_flashrag,
        ),
    }
)
"""Official formats by name; no object matches two of them."""
