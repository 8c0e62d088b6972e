"""Parsers of question formats, each from one row to one `Question`; `searchgym.corpora.questions` lists the formats.

Every parser takes a row and its 0-based position. Its DataErrors have no location; `parse_rows` adds it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

from searchgym.corpora.fields import (
    Row,
    accepted,
    as_texts,
    gold_field,
    id_field,
    object_field,
    objects_field,
    optional_bool,
    optional_text,
    spaced,
    text_field,
    texts_field,
    tuples_field,
)
from searchgym.corpora.readers import browsecomp
from searchgym.corpora.rows import Parser
from searchgym.errors import DataError, did_you_mean
from searchgym.records import Hop, Paragraph, Question, SupportingFact, Triple, title_key
from searchgym.scoring import UNANSWERABLE_SUFFIX

T = TypeVar("T")


def _hotpotqa(row: Row, position: int) -> Question:
    """Makes a question from a HotpotQA row, also from the simplified form without id and context."""
    facts = _facts(row, "supporting_facts")
    pages = tuples_field(row, "context", "title", "sentences")
    texts = spaced([as_texts("context", sentences) for _, sentences in pages])
    titles = as_texts("context", [title for title, _ in pages])
    paragraphs = _marked([Paragraph(t, s) for t, s in zip(titles, texts, strict=True)], facts or ())
    return Question(
        id=id_field(row, "_id", "id", position=position),
        text=text_field(row, "question"),
        answers=gold_field(row, "answer"),
        kind=optional_text(row, "type"),
        level=optional_text(row, "level"),
        supporting_facts=facts,
        paragraphs=paragraphs or None,
        metadata=_rest(row, HOTPOTQA),
    )


def _marked(paragraphs: Sequence[Paragraph], facts: Sequence[SupportingFact]) -> tuple[Paragraph, ...]:
    """Marks the paragraphs that facts name; of several with one title, those with the most of the named sentences."""
    sentences_by_title: dict[str, list[int]] = {}
    for fact in facts:
        sentences_by_title.setdefault(title_key(fact.title), []).extend(
            [] if fact.sentence is None else [fact.sentence]
        )
    keys = [title_key(paragraph.title) for paragraph in paragraphs]
    counts = [
        sum(0 <= number < len(paragraph.sentences) for number in sentences_by_title.get(key, ()))
        for key, paragraph in zip(keys, paragraphs, strict=True)
    ]
    most = {
        key: max(n for other, n in zip(keys, counts, strict=True) if other == key)
        for key in keys
        if key in sentences_by_title
    }
    return tuple(
        dataclasses.replace(paragraph, supporting=most.get(key) == count)
        for key, paragraph, count in zip(keys, paragraphs, counts, strict=True)
    )


def _two_wiki(row: Row, position: int) -> Question:
    """Makes a question from a 2WikiMultihopQA row: HotpotQA's fields and triples, and entity ids in the ids release."""
    evidences, evidence_ids = _triples(row, "evidences"), _triples(row, "evidences_id")
    if evidence_ids is not None and len(evidence_ids) != len(evidences or ()):
        raise DataError(f"'evidences_id': {len(evidence_ids)} triples for {len(evidences or ())} evidences")
    question = _hotpotqa(row, position)
    return dataclasses.replace(
        question,
        evidences=evidences,
        evidence_ids=evidence_ids,
        answer_id=optional_text(row, "answer_id"),
        metadata=_rest(question.metadata, ("evidences", "evidences_id", "answer_id")),
    )


def _musique(row: Row, position: int) -> Question:
    """Makes a question from a MuSiQue row, whose id begins with the kind (``2hop__...``)."""
    id = id_field(row, "id")
    answerable = optional_bool(row, "answerable")
    steps, paragraphs = objects_field(row, "question_decomposition"), []
    for number, item in enumerate(objects_field(row, "paragraphs")):
        if item.get("idx", number) != number:  # hops refer to paragraphs by this index
            raise DataError(f"'paragraphs': idx {item['idx']!r} at position {number}")
        text = text_field(item, "paragraph_text")
        paragraphs.append(Paragraph(text_field(item, "title"), (text,), bool(optional_bool(item, "is_supporting"))))
    used = ("id", "question", "answer", "answer_aliases", "answerable", "question_decomposition", "paragraphs")
    return Question(
        id=id if answerable is not False else id + UNANSWERABLE_SUFFIX,
        text=text_field(row, "question"),
        answers=gold_field(row, "answer"),
        aliases=accepted("answer_aliases", texts_field(row, "answer_aliases")),
        kind=id.split("__")[0] if "__" in id else None,
        hops=tuple(_hop(step, "paragraph_support_idx") for step in steps) or None,
        paragraphs=tuple(paragraphs) or None,
        answerable=answerable,
        metadata=_rest(row, used),
    )


def _flashrag(row: Row, position: int) -> Question:
    """Makes a question from a FlashRAG row, or from one that has ``answers`` in place of ``golden_answers``.

    The row itself may have ``supporting_facts``, which come before those of its metadata.
    """
    key = "answers" if "golden_answers" not in row and "answers" in row else "golden_answers"
    question = Question(
        id=id_field(row, "id", position=position),
        text=text_field(row, "question"),
        answers=gold_field(row, key),
        **_flashrag_metadata(row, ("id", "question", key, "supporting_facts")),
    )
    facts = _facts(row, "supporting_facts")
    return question if facts is None else dataclasses.replace(question, supporting_facts=facts)


def _kilt(row: Row, position: int) -> Question:
    """Makes a question from a KILT row, whose outputs are accepted answers, pages that support them, or both.

    Blank answers are ignored, as in KILT's script. The pages of each output are one sufficient set; the first set is
    used, because a `Question` holds only one.
    """
    outputs = objects_field(row, "output")
    golds = [answer for output in outputs if (answer := optional_text(output, "answer") or "").strip()]
    pages = (tuple(optional_text(page, "title") for page in objects_field(output, "provenance")) for output in outputs)
    titles = next((titles_of_output for titles_of_output in pages if any(titles_of_output)), ())
    return Question(
        id=id_field(row, "id"),
        text=text_field(row, "input"),
        answers=gold_field({"output": list(dict.fromkeys(golds))}, "output"),
        supporting_facts=tuple(SupportingFact(title) for title in dict.fromkeys(titles) if title) or None,
        metadata=_rest(row, ("id", "input", "output")),
    )


def _search_r1(row: Row, position: int) -> Question:
    """Makes a question from a Search-R1 row, whose kind is its data source, since a file may mix data sets.

    The id joins source, split and index, as ``id`` is not unique. A kind in the row's metadata stays there as ``type``.
    """
    fields = _flashrag_metadata(row, ("id", "question", "golden_answers", "prompt", "reward_model", "extra_info"))
    kind = {} if fields["kind"] is None else {"type": fields["kind"]}
    source = text_field(row, "data_source")
    extra, truth = object_field(row, "extra_info"), object_field(object_field(row, "reward_model"), "ground_truth")
    return Question(
        id=f"{source}_{text_field(extra, 'split')}_{id_field(extra, 'index')}",
        text=optional_text(row, "question") or _question_of_prompt(row.get("prompt")),
        answers=gold_field(truth, "target"),
        **(fields | {"kind": source, "metadata": kind | fields["metadata"]}),
    )


def _question_of_prompt(prompt: Any) -> str:
    """Returns the question in Search-R1's prompt: the text after the first ``Question:`` of the last message."""
    message = prompt[-1] if isinstance(prompt, list) and prompt else None
    content = message.get("content") if isinstance(message, Mapping) else None
    _, mark, question = content.partition("Question:") if isinstance(content, str) else ("", "", "")
    if not mark or not question.strip():
        raise DataError(f"'prompt': expected messages, the last with 'Question: ...', got {prompt!r:.60}")
    return str(question.strip())


def _flashrag_metadata(row: Row, used: Collection[str]) -> dict[str, Any]:
    """Returns the arguments of `Question` that FlashRAG's metadata gives in its multi-hop data sets.

    Metadata has no fixed form: a field that cannot be read is treated as unknown and stays in `Question.metadata`.
    """

    def flashrag_steps(metadata: Row, key: str) -> list[tuple[Hop, str | None]]:  # each with the title of its page
        steps = objects_field(metadata, key)
        return [(_hop(step, None), optional_text(object_field(step, "support_paragraph"), "title")) for step in steps]

    metadata = object_field(row, "metadata")
    kind, level = (_if_readable(optional_text, metadata, key) for key in ("type", "level"))
    steps = _if_readable(flashrag_steps, metadata, "question_decomposition") or []
    pages = tuple(SupportingFact(title) for _, title in steps if title is not None)
    facts = _if_readable(_facts, metadata, "supporting_facts") or pages or None
    readable = {"type": kind, "level": level, "supporting_facts": facts, "question_decomposition": steps}
    return {
        "kind": kind,
        "level": level,
        "supporting_facts": facts,
        "hops": tuple(hop for hop, _ in steps) or None,
        "metadata": _rest(metadata, [key for key in readable if readable[key]]) | _rest(row, (*used, "metadata")),
    }


def _if_readable(read: Callable[[Row, str], T], row: Row, key: str) -> T | None:
    """Returns the result of ``read(row, key)``, or None if the field has another form."""
    try:
        return read(row, key)
    except DataError:
        return None


def _searchgym(row: Row, position: int) -> Question:
    """Makes a question from a row that `question_row` wrote."""
    names = [field.name for field in dataclasses.fields(Question)]
    for key in row:
        if key not in names:
            raise DataError(f"unknown key {key!r}{did_you_mean(str(key), names)}")
    if isinstance(row.get("hops"), int):
        raise DataError(
            f"'hops': expected the questions of a decomposition, got {row['hops']!r}; a number of hops belongs in "
            f'"metadata": {{"hops": {row["hops"]!r}}}'
        )
    paragraphs = tuple(
        Paragraph(text_field(item, "title"), texts_field(item, "sentences"), bool(optional_bool(item, "supporting")))
        for item in objects_field(row, "paragraphs")
    )
    return Question(
        id=id_field(row, "id"),
        text=text_field(row, "text"),
        answers=gold_field(row, "answers"),
        aliases=accepted("aliases", texts_field(row, "aliases")),
        kind=optional_text(row, "kind"),
        level=optional_text(row, "level"),
        supporting_facts=_facts(row, "supporting_facts"),
        evidences=_triples(row, "evidences"),
        evidence_ids=_triples(row, "evidence_ids"),
        answer_id=optional_text(row, "answer_id"),
        hops=tuple(_hop(item, "paragraph") for item in objects_field(row, "hops")) or None,
        paragraphs=paragraphs or None,
        answerable=optional_bool(row, "answerable"),
        metadata=dict(object_field(row, "metadata")),
    )


def _facts(row: Row, key: str) -> tuple[SupportingFact, ...] | None:
    """Returns a field of supporting facts, None if there are none."""
    facts = tuples_field(row, key, "title", "sent_id")
    for title, sentence in facts:
        if not isinstance(title, str) or not isinstance(sentence, int | None) or isinstance(sentence, bool):
            raise DataError(f"{key!r}: expected [title, sentence number], got {[title, sentence]!r:.60}")
    return tuple(SupportingFact(title, sentence) for title, sentence in facts) or None


def _triples(row: Row, key: str) -> tuple[Triple, ...] | None:
    """Returns a field of triples, None if there are none."""
    triples = tuples_field(row, key, "subject", "relation", "object")
    return tuple(Triple(*as_texts(key, triple)) for triple in triples) or None


def _hop(row: Row, paragraph: str | None) -> Hop:
    """Makes a hop from one step of a decomposition; `paragraph` is the key of its supporting paragraph's index."""
    index = None if paragraph is None else row.get(paragraph)
    if not isinstance(index, int | None) or isinstance(index, bool):
        raise DataError(f"{paragraph!r}: expected the index of a paragraph, got {index!r:.60}")
    return Hop(text_field(row, "question"), text_field(row, "answer"), index)


def _rest(row: Row, used: Collection[str]) -> dict[str, Any]:
    """Returns the fields of a row that are neither in `used` nor null."""
    return {key: value for key, value in row.items() if key not in used and value is not None}


def unused_keys(row: Row, format: str) -> list[str]:
    """Returns the keys of a row that no feature reads, in the formats that people write by hand; else none."""
    return list(_rest(row, USED[format])) if format in USED else []


HOTPOTQA: Final = ("_id", "id", "question", "answer", "type", "level", "supporting_facts", "context")
"""Keys of HotpotQA's rows."""
USED: Final[Mapping[str, Collection[str]]] = {
    "hotpotqa": (*HOTPOTQA, "hops"),
    "flashrag": ("id", "question", "golden_answers", "answers", "supporting_facts", "metadata", "hops"),
}
"""Keys of rows that are used, for each format that people write by hand."""
FORMATS: dict[str, Parser[Question]] = {
    "hotpotqa": _hotpotqa,
    "2wiki": _two_wiki,
    "musique": _musique,
    "flashrag": _flashrag,
    "kilt": _kilt,
    "search-r1": _search_r1,
    "browsecomp": browsecomp.question_of,
    "searchgym": _searchgym,
}
"""Parsers of question rows, by the name of the format."""
