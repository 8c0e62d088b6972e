"""Measures shortcuts (answers without the intended searches) in any question set, generated sets and worlds alike.

A multi-hop question has a shortcut if one page states all of it, if one of its clues is enough, if it names an entity
that should be found on the way, or if the wording alone reveals the answer (FORT-Searcher, arXiv 2606.12087, names four
such shortcuts). Each measure is a share of questions; a question set is clean if all shares are near chance.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from searchgym.questions.worlds.report import guess, unnamed_title
from searchgym.records import Hit, Passage, Question, Triple, title_key
from searchgym.retrieval.retriever import Retriever
from searchgym.scoring import exact_match, golds_with_words
from searchgym.text import base_title, holds, norm, tidy

MEASURES: Final = (
    "one_search", "by_names", "closed_book", "majority", "first_title", "co_covered", "single_clue", "exposed",
)  # fmt: skip
"""Names of the measures."""


@dataclass(frozen=True, slots=True)
class Shortcuts:
    """Shortcuts of a question set, measured for each question."""

    questions: tuple[Question, ...]
    scores: Mapping[str, Mapping[str, float]]
    """Scores by measure and question id: 1 if the shortcut works on the question, else 0."""

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row of means for each shape and number of hops."""
        groups: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
        for question in self.questions:
            groups[question.kind or "", hops_of(question)].append(question.id)
        return [
            {"shape": shape, "hops": hops, "n": len(ids)}
            | {name: round(sum(self.scores[name][id] for id in ids) / len(ids), 4) for name in MEASURES}
            for (shape, hops), ids in sorted(groups.items(), key=lambda item: (item[0][1], item[0][0]))
        ]


def hops_of(question: Question) -> int:
    """Returns the number of pages that a question needs, from its metadata, else from its gold titles."""
    hops = question.metadata.get("hops")
    return hops if isinstance(hops, int) else len(question.gold_titles or ())


def names_answer(question: Question) -> bool:
    """Returns whether the answer is yes or no, or is named in the question."""
    answer = question.answers[0]
    return norm(answer) in ("yes", "no") or holds(question.text, answer)


def measure(
    questions: Sequence[Question],
    passages: Iterable[Passage],
    retriever: Retriever,
    top_k: int = 3,
    facts: Iterable[Triple] | None = None,
) -> Shortcuts:
    """Measures the shortcuts of a question set over its corpus.

    Args:
        questions: Questions with gold titles.
        passages: The corpus, read once.
        retriever: Retriever over the corpus.
        top_k: Number of hits per search.
        facts: All facts of the corpus, to count the entities that fit a clue. Default: the questions' evidence.
    """
    hits = retriever.search([question.text for question in questions], top_k)
    pages = {title_key(title) for question in questions for title in question.gold_titles or ()}.union(
        *map(_titles, hits)
    )
    texts = {
        title: f" {norm(tidy(p.title + ' ' + p.text))} " for p in passages if (title := title_key(p.title)) in pages
    }
    names = [(q.id, title) for q in questions for title in q.gold_titles or ()]
    of_names = retriever.search([base_title(title) for _, title in names], top_k)
    missed = {
        id for (id, title), page_hits in zip(names, of_names, strict=True) if title_key(title) not in _titles(page_hits)
    }
    triples = None if facts is None else list(facts)
    majority = _majority(questions, triples)
    fitting: defaultdict[tuple[str, str], set[str]] = defaultdict(set)  # subjects by relation and object
    for fact in [fact for q in questions for fact in q.evidences or ()] if triples is None else triples:
        fitting[fact.relation, fact.object].add(fact.subject)
    ways: dict[str, Callable[[Question, Sequence[Hit]], float]] = {
        "one_search": lambda q, page_hits: {title_key(t) for t in q.gold_titles or ("",)} <= _titles(page_hits),
        "by_names": lambda q, _: bool(q.gold_titles) and q.id not in missed,
        "closed_book": lambda q, _: exact_match(guess(q.text), golds_with_words(q.golds)),
        "majority": lambda q, _: exact_match(guess(q.text) or majority(q), golds_with_words(q.golds)),
        "first_title": lambda q, hits: exact_match(guess(q.text) or unnamed_title(q, hits), golds_with_words(q.golds)),
        "co_covered": lambda q, page_hits: _co_covered(q, texts, page_hits),
        "single_clue": lambda q, _: (
            _form(q).get("op") == "both" and any(len(fitting[f.relation, f.object]) < 2 for f in q.evidences or ())
        ),
        "exposed": lambda q, _: _exposed(q),
    }
    return Shortcuts(
        tuple(questions),
        {
            name: {q.id: float(way(q, page_hits)) for q, page_hits in zip(questions, hits, strict=True)}
            for name, way in ways.items()
        },
    )


def _titles(hits: Sequence[Hit]) -> set[str]:
    return {title_key(hit.passage.title) for hit in hits}


def _last(question: Question) -> str:
    """Returns the last relation of a question's path."""
    return question.evidences[-1].relation if question.evidences else ""


def _majority(questions: Sequence[Question], facts: Iterable[Triple] | None) -> Callable[[Question], str]:
    """Returns a function that predicts the most frequent object of a question's last relation.

    Objects are counted over all facts of the corpus, or else over the answers of the other questions. The question's
    answer is left out, since in a small set it would often be the most frequent one by itself.
    """
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    if facts is not None:
        for fact in facts:
            counts[fact.relation][fact.object] += 1
        return lambda question: next((name for name, _ in counts[_last(question)].most_common(1)), "")
    for question in questions:
        counts[_last(question)][question.answers[0]] += 1

    def of_others(question: Question) -> str:
        others = counts[_last(question)] - Counter([question.answers[0]])
        return next((name for name, _ in others.most_common(1)), "")

    return of_others


def _co_covered(question: Question, texts: Mapping[str, str], hits: Sequence[Hit]) -> bool:
    """Returns whether one gold page or hit contains all names on the path and the answer."""
    gold = [title_key(title) for title in question.gold_titles or ()]
    if len(gold) < 2 or names_answer(question):
        return False
    names = [norm(base_title(title)) for title in gold] + [norm(question.answers[0])]
    pages = {*gold, *_titles(hits)}
    return any(all(f" {name} " in texts.get(page, "") for name in names) for page in pages)


def _form(question: Question) -> Mapping[str, Any]:
    """Returns the logical form of a question, empty if it has none."""
    form = question.metadata.get("form")
    return form if isinstance(form, dict) else {}


def _exposed(question: Question) -> bool:
    """Returns whether a question names a gold page that its path reaches only at a later step."""
    form, gold = _form(question), list(question.gold_titles or ())
    if form.get("op") != "path" or len(gold) < 2:
        return False
    return any(holds(question.text, base_title(title)) for title in gold if title != form["start"])
