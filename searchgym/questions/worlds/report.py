"""Describes and measures a world: its card, the scores of agents with little or no search (floors), and retrieval."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from searchgym.questions.saved import table
from searchgym.questions.worlds.schema import NAMED, SPLITS, STRATA, VERSION, mix_of
from searchgym.records import Hit, Passage, Question
from searchgym.scoring import exact_match

if TYPE_CHECKING:
    from searchgym.questions.worlds.schema import World
    from searchgym.retrieval.bm25.search import BM25Retriever

TOP_K: Final = 3
"""Number of hits per search; equal to `top_k` in the environment cards of worlds."""
DEPTH: Final = 20
"""Number of hits among which the rank of a gold page is determined."""


def card_of(world: World) -> dict[str, Any]:
    """Returns the card of a world as plain data."""
    spec, split = world.spec, SPLITS[world.spec.split]
    counts = Counter((q.kind, q.metadata["hops"]) for q in world.questions)
    names = ("names of the train split", "names of validation alone", "names of test and transfer alone")[split.names]
    templates = ("templates of train and validation", "templates of test and transfer alone")[split.templates]
    relations = "every question needs a held-out relation" if split.held_out else "no held-out relation"
    return {
        "format": "searchgym world",
        "version": VERSION,
        "spec": dataclasses.asdict(spec) | {"hops": list(spec.hops), "strata": list(spec.strata)},
        "split": [names, templates, relations],
        "pages": len(world.passages),
        "questions": len(world.questions),
        "triples": len(world.triples),
        "mix": [
            {"shape": shape, "hops": hops, "share": round(share, 4), "questions": counts[shape, hops]}
            for (shape, hops), share in mix_of(spec).items()
        ],
        "meaning": "Results on worlds compare methods on this substrate; they are not evidence about real QA.",
    }


def report_of(world: World) -> dict[str, Any]:
    """Returns the measurements of a world (floors, retrieval, shapes) as plain data; EM and recall are in [0, 1]."""
    from searchgym.retrieval.index.index import build_in_memory

    retriever = build_in_memory(world.passages)
    shapes = defaultdict(list)
    for question in world.questions:
        shapes[question.kind, question.metadata["hops"]].append(question)
    floors = _floors(world, retriever)
    named = [q for q in world.questions if q.kind in NAMED]
    return {
        "pages": len(world.passages),
        "questions": len(world.questions),
        "words_per_page": _mean((len(p.text.split()) for p in world.passages), 2),
        "words_per_question": _mean((len(q.text.split()) for q in world.questions), 2),
        "floors": {
            "multi_hop_unnamed": _means(floors, [q for q in world.questions if _is_unnamed(q)]),
            "named": _means(floors, named) | {"chance": 0.5 if named else None},
        },
        "retrieval": _retrieval(world, retriever),
        "shapes": [
            {"shape": shape, "hops": hops, "n": len(questions)} | _means(floors, questions)
            for (shape, hops), questions in sorted(shapes.items(), key=lambda item: (item[0][1], str(item[0][0])))
        ],
    }


def markdown(report: Mapping[str, Any]) -> str:
    """Returns the report of a world as Markdown tables."""
    retrieval = dict(report["retrieval"])
    strata = retrieval.pop("strata")
    tables = {
        "Floors, multi hop unnamed": [report["floors"]["multi_hop_unnamed"]],
        "Floors, named": [report["floors"]["named"]],
        "Retrieval by the question's own text": [retrieval],
        "Strata": [strata],
        "Shapes": report["shapes"],
    }
    sections = [f"# World\n\n{report['questions']} questions over {report['pages']} pages.\n"]
    return "\n".join([*sections, *(f"## {title}\n\n{table(rows, 'None')}" for title, rows in tables.items())])


def _mean(values: Iterable[float], digits: int = 4) -> float:
    """Returns the rounded mean of some values; 0 if there are none."""
    numbers = list(values)
    return round(sum(numbers) / len(numbers), digits) if numbers else 0.0


def _means(floors: Mapping[str, Mapping[str, float]], questions: Sequence[Question]) -> dict[str, Any]:
    """Returns the mean EM of each floor over questions; None if there are none."""
    return {
        name: _mean(scores[question.id] for question in questions) if questions else None
        for name, scores in floors.items()
    }


def _is_unnamed(question: Question) -> bool:
    """Returns whether a question is multi-hop and neither names its answer nor offers it as a choice."""
    return question.kind not in NAMED and question.metadata["hops"] > 1


# -- floors --------------------------------------------------------------------------------------------------------


def _floors(world: World, retriever: BM25Retriever) -> dict[str, dict[str, float]]:
    """Returns the EM of each floor, by question id."""
    names = {passage.title: re.sub(r" \([^()]*\)$", "", passage.title) for passage in world.passages}
    objects: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for triple in world.triples:
        objects[triple.relation][names.get(triple.object, triple.object)] += 1

    def majority(question: Question) -> str:
        """Returns the most frequent object of the last relation of a question's path."""
        return objects[question.metadata["form"]["steps"][-1]].most_common(1)[0][0]

    floors: dict[str, Callable[[Question, Sequence[Hit]], str]] = {
        "closed_book": lambda question, _: guess(question.text),
        "majority_of_type": lambda question, _: guess(question.text) or majority(question),
        "single_search": lambda question, hits: guess(question.text) or unnamed_title(question, hits),
    }
    searched = retriever.search([question.text for question in world.questions], TOP_K)
    return {
        name: {q.id: exact_match(answer(q, hits), q.golds) for q, hits in zip(world.questions, searched, strict=True)}
        for name, answer in floors.items()
    }


def guess(text: str) -> str:
    """Returns a guess from the wording: the first choice, yes to a yes/no question, otherwise the empty string."""
    choice = re.search(r"([^,]+) or [^,]+\?$", text)
    if choice:
        return choice[1].strip()
    asks = re.match(r"(is|are|was|were|do|does|did|has|have|had)\b", text.lower())
    return "yes" if asks else ""


def unnamed_title(question: Question, hits: Sequence[Hit]) -> str:
    """Returns the title of the first hit that the question does not name, otherwise the empty string."""
    text = question.text.lower()
    return next((hit.passage.title for hit in hits if hit.passage.title.lower() not in text), "")


# -- retrieval -----------------------------------------------------------------------------------------------------


def gold_ranks(queries: Sequence[tuple[str, Sequence[str]]], retriever: BM25Retriever) -> list[tuple[int | None, ...]]:
    """Returns the ranks of gold pages when each question's text is the query.

    Args:
        queries: Pairs (text of a question, titles of its gold pages).
        retriever: Retriever over the world's pages.

    Returns:
        For each question, the 1-based rank of each gold page; None if beyond `DEPTH`.
    """
    ranks = []
    for (_, gold), hits in zip(queries, retriever.search([text for text, _ in queries], DEPTH), strict=True):
        rank_of = {hit.passage.title: rank for rank, hit in enumerate(hits, start=1)}
        ranks.append(tuple(rank_of.get(title) for title in gold))
    return ranks


def findable_titles(passages: Sequence[Passage], retriever: BM25Retriever) -> frozenset[str]:
    """Returns the titles that find their page among the first `TOP_K` hits when the title is the query."""
    titles = [passage.title for passage in passages]
    searched = zip(titles, retriever.search(titles, TOP_K), strict=True)
    return frozenset(title for title, hits in searched if title in [hit.passage.title for hit in hits])


def stratum(ranks: Sequence[int | None]) -> str:
    """Returns the stratum of a question, determined by the worst rank of its gold pages.

    Since several pages cannot all have rank 1, the n gold pages of a question are in stratum ``1`` if they are the
    first n hits.

    Args:
        ranks: 1-based ranks of the gold pages, None for a page beyond `DEPTH`.
    """
    worst = max(DEPTH + 1 if rank is None else rank for rank in ranks)
    if worst <= len(ranks):
        return STRATA[0]
    return STRATA[1] if worst <= 5 else STRATA[2] if worst <= DEPTH else STRATA[3]


def _retrieval(world: World, retriever: BM25Retriever) -> dict[str, Any]:
    """Returns the recall of gold pages with questions as queries, and of pages with their titles as queries."""
    ranks = gold_ranks([(q.text, q.gold_titles or ()) for q in world.questions], retriever)
    in_top_5 = [[rank is not None and rank <= 5 for rank in of_question] for of_question in ranks]
    findable = findable_titles(world.passages, retriever)
    strata = Counter(map(stratum, ranks))
    pairs = [hits for hits in in_top_5 if len(hits) == 2]
    unnamed = [of_q for of_q, question in zip(ranks, world.questions, strict=True) if _is_unnamed(question)]
    return {
        "recall@5": _mean(sum(hits) / len(hits) for hits in in_top_5),
        "recall@5_of_two_pages": _mean(sum(hits) / 2 for hits in pairs) if pairs else None,
        "both_gold@5": _mean(all(hits) for hits in pairs) if pairs else None,
        "all_gold@3_of_multi_hop_unnamed": _mean(
            all(rank is not None and rank <= TOP_K for rank in of_q) for of_q in unnamed
        ),
        "title_finds_gold@3": _mean(title in findable for q in world.questions for title in q.gold_titles or ()),
        "strata": {name: strata[name] for name in STRATA},
    }
