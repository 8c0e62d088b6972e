"""Predictions as JSON lines, one row per question: MuSiQue's, KILT's and FlashRAG's.

These formats demand values that an agent may not have stated. Such a field has the value that claims nothing (an empty
text, no paragraph; ``predicted_answerable`` is true, as for every question of MuSiQue's answerable release) and is
named in the row's ``"not_stated"``, a key of this project that the official scripts do not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from searchgym.corpora.fields import Row, id_field, optional_text, text_field, texts_field
from searchgym.corpora.passages import split_contents
from searchgym.errors import DataError
from searchgym.eval.formats.documents import NOT_STATED
from searchgym.eval.formats.predictions import Prediction
from searchgym.records import Answer, Passage, Question
from searchgym.scoring import UNANSWERABLE_SUFFIX


def _silent(**unknown: bool) -> dict[str, Any]:
    """Returns the mark of the fields that were not stated; nothing if all were."""
    names = [name for name, missing in unknown.items() if missing]
    return {NOT_STATED: names} if names else {}


# -- MuSiQue -------------------------------------------------------------------------------------------------------


def musique_row(prediction: Prediction, question: Question) -> dict[str, Any]:
    """Returns a prediction as MuSiQue's row; an unanswerable question has the id of its answerable twin."""
    answer = prediction.answer
    indices = None if answer is None else answer.paragraphs
    answerable = None if answer is None else answer.answerable
    return {
        "id": prediction.id.removesuffix(UNANSWERABLE_SUFFIX),
        "predicted_answer": "" if answer is None else answer.text,
        "predicted_support_idxs": list(indices or ()),
        "predicted_answerable": True if answerable is None else answerable,
        **_silent(
            predicted_answer=answer is None,
            predicted_support_idxs=indices is None,
            predicted_answerable=answerable is None,
        ),
    }


def of_musique(row: Row) -> Prediction:
    """Returns the prediction of MuSiQue's row."""
    silent, text = texts_field(row, NOT_STATED), text_field(row, "predicted_answer")
    indices, answerable = row.get("predicted_support_idxs"), row.get("predicted_answerable")
    if not isinstance(indices, list) or not all(type(index) is int for index in indices):
        raise DataError(f"'predicted_support_idxs': expected a list of numbers of paragraphs, got {indices!r:.60}")
    if not isinstance(answerable, bool):
        raise DataError(f"'predicted_answerable': expected true or false, got {answerable!r:.60}")
    answer = Answer(
        text,
        paragraphs=None if "predicted_support_idxs" in silent else tuple(indices),
        answerable=None if "predicted_answerable" in silent else answerable,
    )
    return Prediction(id_field(row, "id"), None if "predicted_answer" in silent else answer)


# -- KILT ----------------------------------------------------------------------------------------------------------


def kilt_row(prediction: Prediction, question: Question, wikipedia_ids: bool = False) -> dict[str, Any]:
    """Returns a prediction as KILT's row, whose provenance is the pages that were returned, in their order.

    Args:
        prediction: The prediction.
        question: Its question.
        wikipedia_ids: Whether the ids of passages are those of Wikipedia pages, before a ``#`` in the ids of chunks;
            else the pages have no ``wikipedia_id``, and KILT's script takes no page for retrieved.
    """
    answer = prediction.answer
    output: dict[str, Any] = {"answer": "" if answer is None else answer.text}
    if prediction.pages:
        output["provenance"] = [_provenance(page, wikipedia_ids) for page in prediction.pages]
    return {"id": prediction.id, "input": question.text, "output": [output], **_silent(answer=answer is None)}


def _provenance(page: Passage, wikipedia_ids: bool) -> dict[str, Any]:
    """Returns one page of a provenance."""
    own = {"wikipedia_id": page.id.partition("#")[0]} if wikipedia_ids else {}
    return {**own, "title": page.title, "text": page.text, "meta": {"passage_id": page.id}}


def of_kilt(row: Row) -> Prediction:
    """Returns the prediction of KILT's row, which must have one output with an answer, as KILT's script demands."""
    outputs = row.get("output")
    if not isinstance(outputs, list) or len(outputs) != 1 or not isinstance(outputs[0], Mapping):
        raise DataError(f"'output': expected a list of one object with the answer, got {outputs!r:.60}")
    text = text_field(outputs[0], "answer")
    pages = tuple(_kilt_page(page) for page in _objects(outputs[0], "provenance"))
    return Prediction(id_field(row, "id"), None if "answer" in texts_field(row, NOT_STATED) else Answer(text), pages)


def _kilt_page(page: Row) -> Passage:
    """Returns the passage of one page of a provenance; the text is empty if the file has none."""
    title, meta = optional_text(page, "title") or "", page.get("meta")
    own = meta if isinstance(meta, Mapping) and "passage_id" in meta else page
    id = id_field({"title": title or None, **own}, "passage_id", "wikipedia_id", "title")
    return Passage(id, title, optional_text(page, "text") or "")


# -- FlashRAG ------------------------------------------------------------------------------------------------------


def flashrag_row(prediction: Prediction, question: Question) -> dict[str, Any]:
    """Returns a prediction as FlashRAG's row, an item of its data set with the output of a pipeline."""
    answer = prediction.answer
    found = [{"id": p.id, "title": p.title, "contents": f"{p.title}\n{p.text}"} for p in prediction.pages]
    return {
        "id": prediction.id,
        "question": question.text,
        "golden_answers": list(question.answers),
        "output": {"pred": "" if answer is None else answer.text, "retrieval_result": found},
        **_silent(pred=answer is None),
    }


def of_flashrag(row: Row) -> Prediction:
    """Returns the prediction of FlashRAG's row."""
    output = row.get("output")
    if not isinstance(output, Mapping):
        raise DataError(f"'output': expected an object with the prediction, got {output!r:.60}")
    pages = tuple(_flashrag_page(page) for page in _objects(output, "retrieval_result"))
    answer = None if "pred" in texts_field(row, NOT_STATED) else Answer(text_field(output, "pred"))
    return Prediction(id_field(row, "id"), answer, pages)


def _flashrag_page(page: Row) -> Passage:
    """Returns the passage of one retrieved document: by its title if it is given, else by its first line."""
    contents, title = text_field(page, "contents"), page.get("title")
    if isinstance(title, str) and contents.startswith(f"{title}\n"):
        return Passage(id_field(page, "id"), title, contents[len(title) + 1 :])
    return Passage(id_field(page, "id"), *split_contents(contents))


def _objects(row: Row, key: str) -> list[Row]:
    """Returns a field that is a list of objects; empty if the field is absent."""
    value = row.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise DataError(f"{key!r}: expected a list of objects, got {value!r:.60}")
    return value


READERS: Final[Mapping[str, Callable[[Row], Prediction]]] = MappingProxyType(
    {"musique": of_musique, "kilt": of_kilt, "flashrag": of_flashrag}
)
"""Functions that read a row, by the name of the format."""
WRITERS: Final[Mapping[str, Callable[[Prediction, Question], dict[str, Any]]]] = MappingProxyType(
    {"musique": musique_row, "kilt": kilt_row, "flashrag": flashrag_row}
)
"""Functions that make a row, by the name of the format."""
