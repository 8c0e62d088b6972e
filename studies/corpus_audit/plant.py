"""Plants holes in a corpus: gold pages that are removed, cut, retitled, altered, or replaced by another text."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence

from searchgym.questions.shortcuts import names_answer
from searchgym.records import Passage, Question, title_key

KINDS = ("missing", "cut", "retitled", "near-duplicate", "other text")
"""Kinds of planted holes, named as `searchgym corpus audit` names them."""


FAULTS = ("duplicated", "conflicting", "answer named", "unanswerable", "contaminated")
"""Faults that `faulty_set` plants, named as `searchgym questions passport` names them."""


def faulty_set(
    questions: Sequence[Question], passages: Sequence[Passage], count: int, seed: int
) -> tuple[list[Question], list[Passage], list[str], dict[str, set[str]]]:
    """Returns questions with faults, their corpus, the texts of training questions, and the ids of each fault.

    A duplicate has one word more. Half of a pair that conflicts is new, the other half is the question itself.
    """
    rng = random.Random(seed)
    open_ones = [q for q in questions if not names_answer(q) and " or " not in q.text and q.gold_titles]
    chosen = rng.sample(open_ones, len(FAULTS) * count)
    parts = dict(zip(FAULTS, (chosen[at : at + count] for at in range(0, len(chosen), count)), strict=True))
    changed = {q.id: q for q in questions}
    ids: dict[str, set[str]] = {fault: {q.id for q in part} for fault, part in parts.items()}
    for question in parts["duplicated"]:
        again = dataclasses.replace(question, id=f"{question.id}-again", text=f"Now, {question.text}")
        changed[again.id] = again
        ids["duplicated"].add(again.id)
    for question in parts["conflicting"]:
        other = dataclasses.replace(question, id=f"{question.id}-other", answers=("another answer",), aliases=())
        changed[other.id] = other
        ids["conflicting"].add(other.id)
    for question in parts["answer named"]:
        text = f"{question.text.rstrip('?')}, and is it {question.answers[0]}?"
        changed[question.id] = dataclasses.replace(question, text=text)
    lost = {title_key(question.gold_titles[0]) for question in parts["unanswerable"] if question.gold_titles}
    for question in changed.values():  # others that need these pages cannot be answered either
        if lost & {title_key(title) for title in question.gold_titles or ()}:
            ids["unanswerable"].add(question.id)
    ids["duplicated"] |= ids["conflicting"]  # these have the same text
    kept = [passage for passage in passages if title_key(passage.title) not in lost]
    return list(changed.values()), kept, [q.text.lower() for q in parts["contaminated"]], ids


def planted(
    questions: Sequence[Question],
    passages: Sequence[Passage],
    counts: Mapping[str, int],
    seed: int,
    altered: tuple[float, float] = (0.05, 0.2),
    kept: tuple[float, float] = (0.3, 0.8),
) -> tuple[list[Passage], dict[str, str]]:
    """Returns a corpus with holes, and the kind of hole by gold title.

    Args:
        questions: Questions with gold titles.
        passages: Corpus with one passage for each gold title; ambiguous titles are left alone.
        counts: Number of gold pages for each of `KINDS`.
        seed: Seed of the choice.
        altered: Smallest and largest share of words that are replaced in a near-duplicate.
        kept: Smallest and largest share of words that are left of a text that is cut.
    """
    rng = random.Random(seed)
    by_title: dict[str, list[int]] = {}
    for at, passage in enumerate(passages):
        by_title.setdefault(title_key(passage.title), []).append(at)
    titles = sorted({title_key(title) for question in questions for title in question.gold_titles or ()})
    chosen = [title for title in titles if len(by_title.get(title, ())) == 1]
    chosen = [title for title in chosen if len(passages[by_title[title][0]].text.split()) >= 12]
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    holes = dict(zip(rng.sample(chosen, len(kinds)), kinds, strict=True))
    rest = [passage for passage in passages if title_key(passage.title) not in titles]
    changed: list[Passage] = []
    for passage in passages:
        kind, words = holes.get(title_key(passage.title)), passage.text.split()
        if kind == "missing":
            continue
        if kind == "cut":
            keep = max(5, round(len(words) * rng.uniform(*kept)))
            words = words[:keep] if rng.random() < 0.5 else words[-keep:]
            passage = dataclasses.replace(passage, text=" ".join(words))
        elif kind == "retitled":
            passage = dataclasses.replace(passage, title=f"{rng.choice(rest).title} {rng.randrange(100, 999)}")
        elif kind == "near-duplicate":
            others = rng.choice(rest).text.split()
            for at in rng.sample(range(len(words)), max(1, round(len(words) * rng.uniform(*altered)))):
                words[at] = rng.choice([word for word in others if word != words[at]] or ["another"])
            passage = dataclasses.replace(passage, text=" ".join(words))
        elif kind == "other text":
            passage = dataclasses.replace(passage, text=rng.choice(rest).text)
        changed.append(passage)
    return changed, holes
