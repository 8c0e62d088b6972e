"""Made-up questions with predictions for every official format, from a seed: hard cases on purpose.

`made` returns rows as the official gold files have them, and predictions of which some have no answer, state no
support, repeat titles, name pages without sentences, or answer with empty text. Nothing in them is from real data.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from searchgym.eval.formats import Prediction
from searchgym.records import Answer, Passage, SupportingFact, Triple
from searchgym.scoring import UNANSWERABLE_SUFFIX, normalise_answer

Row = dict[str, Any]

WORDS = (
    "Beyoncé", "Straße", "naïve", "İzmir", "東京", "a\u0301", "“Help!”", "the", "A", "an", "AC/DC", "A.N.", "1990–1991",
    "1990-1991", "U.S.", "the_end", "?!", "x\u00a0y", "King's", "🜁", "river", "River", "of", "Dunmere", "Sarn", "yes",
    "noanswer", "3.14", "#2", "Ωmega", "ﬁnch", "l'an", "theatre", "\u200bzero", "tab\there",
)  # fmt: skip
CLOSED = ("yes", "no", "noanswer", "Yes.", "The no")
RELATIONS = ("director", "place of birth", "country", "the mother")


class Made(NamedTuple):
    """Gold rows with predictions."""

    gold: list[Row]
    """Rows of the official gold file, in order."""
    predictions: list[Prediction]
    """One for each row, in the same order."""
    aliases: list[Row]
    """Rows of 2WikiMultihopQA's ``id_aliases.json``; empty for other formats."""


def made(format: str, n: int = 1000, seed: int = 0) -> Made:
    """Returns made-up gold rows of a format with predictions.

    Args:
        format: A key of `PREDICTION_FORMATS`.
        n: Number of rows; even for MuSiQue, whose questions come in pairs.
        seed: Seed.
    """
    return MAKERS[format](random.Random(f"{format}/{seed}"), n)


# -- texts ---------------------------------------------------------------------------------------------------------


def phrase(rng: random.Random, longest: int = 4) -> str:
    """Returns a few words."""
    return " ".join(rng.choices(WORDS, k=rng.randint(1, longest)))


def gold_answer(rng: random.Random) -> str:
    """Returns a gold answer, which is never blank but may be one of yes, no and noanswer, or only articles."""
    return rng.choice(CLOSED) if rng.random() < 0.2 else "The The" if rng.random() < 0.03 else phrase(rng)


def answer_text(rng: random.Random, golds: Sequence[str]) -> str | None:
    """Returns a predicted answer: a gold one, one that is nearly so, another, an empty one, or None.

    None only where no gold answer normalises to an empty text: the formats that cannot leave an answer out write it as
    an empty one, which would equal such a gold answer.
    """
    gold = rng.choice(golds)
    words = gold.split(" ")
    changed: list[Callable[[], str]] = [
        lambda: gold,
        lambda: f"the  {gold.upper()}!",
        lambda: " ".join(rng.sample(words, len(words))),
        lambda: " ".join(words[1:]),
        lambda: f"{gold} {phrase(rng, 2)}",
        lambda: phrase(rng),
        lambda: rng.choice(CLOSED),
        lambda: rng.choice(("", " ", "the", "?!.")),
        lambda: f'"{gold}"\n</answer> \\ \u2028',
    ]
    if rng.random() < 0.05 and all(map(normalise_answer, golds)):
        return None
    return rng.choice(changed)()


def titles(rng: random.Random, n: int) -> list[str]:
    """Returns titles, of which some differ only by case or are the same."""
    own = [phrase(rng, 2) for _ in range(n)]
    return [rng.choice((title, title, title, title.upper(), rng.choice(own))) for title in own]


def pages(rng: random.Random, n: int) -> tuple[Passage, ...]:
    """Returns passages with different ids, some of them chunks of one page."""
    ids = rng.sample(range(60), n)
    return tuple(Passage(f"{id // 2}#{id % 2}", phrase(rng, 2), phrase(rng, 9)) for id in ids)


# -- HotpotQA and 2WikiMultihopQA ----------------------------------------------------------------------------------


def hotpotqa_row(rng: random.Random, id: str) -> Row:
    """Returns a row of HotpotQA."""
    context = [[title, [f"{phrase(rng, 6)}. " for _ in range(rng.randint(1, 4))]] for title in titles(rng, 6)]
    facts = [[title, rng.randrange(len(sentences))] for title, sentences in rng.sample(context, rng.randint(1, 4))]
    return {
        "_id": id,
        "question": f"{phrase(rng)}?",
        "answer": gold_answer(rng),
        "type": rng.choice(("bridge", "comparison")),
        "level": "hard",
        "supporting_facts": facts,
        "context": context,
    }


def support(rng: random.Random, row: Row) -> tuple[SupportingFact, ...] | None:
    """Returns predicted supporting facts: none, empty, with repeats, with other sentences, or of pages only."""
    if rng.random() < 0.15:
        return None
    gold = [SupportingFact(title, number) for title, number in row["supporting_facts"]]
    chosen = rng.sample(gold, rng.randint(0, len(gold)))
    for _ in range(rng.choice((0, 0, 1, 3))):
        title, sentences = rng.choice(row["context"])
        chosen.append(SupportingFact(title, rng.randrange(len(sentences) + 1)))
    if chosen and rng.random() < 0.3:
        chosen.append(rng.choice(chosen))
        chosen.append(SupportingFact(chosen[0].title.upper(), chosen[0].sentence))
    if rng.random() < 0.1:
        chosen = [SupportingFact(fact.title) for fact in chosen]
    return tuple(chosen)


def hotpotqa(rng: random.Random, n: int) -> Made:
    """Returns made-up rows of HotpotQA."""
    rows = [hotpotqa_row(rng, f"5a{number:04x}é") for number in range(n)]
    return Made(rows, hotpotqa_predictions(rng, rows), [])


def hotpotqa_predictions(rng: random.Random, rows: Sequence[Row]) -> list[Prediction]:
    """Returns predictions for rows of HotpotQA, made up or real."""
    predictions = []
    for row in rows:
        text, facts = answer_text(rng, (row["answer"],)), support(rng, row)
        answer = None if text is None else Answer(text, supporting_facts=facts)
        predictions.append(Prediction(row["_id"], answer))
    return predictions


def two_wiki(rng: random.Random, n: int) -> Made:
    """Returns made-up rows of 2WikiMultihopQA's release with entity ids."""
    entities = [f"Q{number}" for number in range(40)]
    aliases = [
        {"Q_id": id, "aliases": [phrase(rng) for _ in range(rng.randint(0, 3))], "demonyms": [phrase(rng, 1)]}
        for id in entities[:30]
    ]
    names: dict[str, list[str]] = {str(row["Q_id"]): [*row["aliases"], *row["demonyms"]] for row in aliases}
    rows, predictions = [], []
    for number in range(n):
        row, with_ids = hotpotqa_row(rng, f"q{number}"), rng.random() < 0.7
        count, has_id = rng.randint(1, 4), rng.random() < 0.8
        ids = [[rng.choice(entities), rng.choice(RELATIONS), rng.choice(entities)] for _ in range(count)]
        row["evidences"] = [[phrase(rng), relation, phrase(rng)] for _, relation, _ in ids]
        row["evidences_id"], row["answer_id"] = ids if with_ids else [], rng.choice(entities) if has_id else None
        rows.append(row)
        golds = (row["answer"], *names.get(row["answer_id"] or "", ()))
        text, facts = answer_text(rng, golds), support(rng, row)
        triples = None if rng.random() < 0.15 else _triples(rng, row, names)
        answer = None if text is None else Answer(text, supporting_facts=facts, evidences=triples)
        predictions.append(Prediction(row["_id"], answer))
    return Made(rows, predictions, aliases)


def _triples(rng: random.Random, row: Row, names: dict[str, list[str]]) -> tuple[Triple, ...]:
    """Returns predicted triples: gold ones under one or two of their names, in another case, and others."""
    found = []
    for number, (subject, relation, obj) in enumerate(row["evidences"]):
        if rng.random() < 0.6:
            found.append(Triple(f"{subject}.", relation.upper(), obj))
            if row["evidences_id"] and (other := names.get(row["evidences_id"][number][0])):
                found.append(Triple(rng.choice(other), relation, obj))
    if rng.random() < 0.3:
        found.append(Triple(phrase(rng), rng.choice(RELATIONS), phrase(rng)))
    return tuple(found)


# -- MuSiQue, KILT and FlashRAG ------------------------------------------------------------------------------------


def musique(rng: random.Random, n: int) -> Made:
    """Returns made-up rows of MuSiQue-Full: pairs of one id, of which one is unanswerable, not side by side."""
    rows, predictions = [], []
    for number in range(n // 2):
        id, golds = f"2hop__{number}_{number + 1}", [gold_answer(rng)]
        golds += [phrase(rng) for _ in range(rng.choice((0, 0, 1, 2)))]
        states, gives_up = rng.random() < 0.8, rng.random() < 0.05 and all(map(normalise_answer, golds))
        for answerable in rng.sample((True, False), 2):
            row = _musique_row(rng, id, golds, answerable)
            indices = [rng.randrange(8) for _ in range(rng.randint(0, 4))]
            indices += [p["idx"] for p in row["paragraphs"] if p["is_supporting"] and rng.random() < 0.7]
            text = None if gives_up else answer_text(rng, golds)
            answer = None
            if text is not None:
                right = rng.random() < 0.8
                paragraphs = None if rng.random() < 0.15 else tuple(indices)
                answer = Answer(text, paragraphs=paragraphs, answerable=(answerable == right) if states else None)
            rows.append(row)
            predictions.append(Prediction(id + ("" if answerable else UNANSWERABLE_SUFFIX), answer))
    order = rng.sample(range(len(rows)), len(rows))
    return Made([rows[at] for at in order], [predictions[at] for at in order], [])


def _musique_row(rng: random.Random, id: str, golds: list[str], answerable: bool) -> Row:
    """Returns a row of MuSiQue."""
    gold = rng.sample(range(8), 2 if answerable else 1)
    paragraphs = [
        {"idx": at, "title": title, "paragraph_text": phrase(rng, 9), "is_supporting": at in gold}
        for at, title in enumerate(titles(rng, 8))
    ]
    return {
        "id": id,
        "question": f"{phrase(rng)}?",
        "answer": golds[0],
        "answer_aliases": golds[1:],
        "answerable": answerable,
        "question_decomposition": [],
        "paragraphs": paragraphs,
    }


def kilt(rng: random.Random, n: int) -> Made:
    """Returns made-up rows of KILT, with several accepted answers, blank ones, and outputs without an answer."""
    rows, predictions = [], []
    for number in range(n):
        golds = [gold_answer(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
        found = pages(rng, rng.randint(0, 6))
        outputs: list[Row] = [{"answer": gold} for gold in golds]
        named = [{"wikipedia_id": p.id.partition("#")[0], "title": p.title} for p in (*found[:2], *pages(rng, 1))]
        outputs[0]["provenance"] = rng.sample(named, rng.randint(1, len(named)))
        outputs += rng.choice(([], [], [{"answer": "  "}], [{"provenance": named[-1:]}]))
        rows.append({"id": f"k{number}", "input": f"{phrase(rng)}?", "output": outputs, "meta": {}})
        text = answer_text(rng, golds)
        predictions.append(Prediction(f"k{number}", None if text is None else Answer(text), found))
    return Made(rows, predictions, [])


def flashrag(rng: random.Random, n: int) -> Made:
    """Returns made-up rows of FlashRAG, with several accepted answers."""
    rows, predictions = [], []
    for number in range(n):
        golds = [gold_answer(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
        rows.append({"id": f"test_{number}", "question": f"{phrase(rng)}?", "golden_answers": golds})
        text = answer_text(rng, golds)
        found = pages(rng, rng.randint(0, 6))
        predictions.append(Prediction(f"test_{number}", None if text is None else Answer(text), found))
    return Made(rows, predictions, [])


MAKERS: dict[str, Callable[[random.Random, int], Made]] = {
    "hotpotqa": hotpotqa,
    "2wiki": two_wiki,
    "musique": musique,
    "kilt": kilt,
    "flashrag": flashrag,
}
"""Functions that make rows, by the name of the format."""
