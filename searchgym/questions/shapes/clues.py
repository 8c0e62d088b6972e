"""Questions about a page that only two clues tell: intersections, and veiled chains."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from searchgym.questions.graphs.facts import PageFact
from searchgym.questions.graphs.graph import MONTHS
from searchgym.questions.graphs.packs import Clues
from searchgym.questions.shapes.chains import chains_by_relations, question_of
from searchgym.questions.shapes.draft import YEAR, Draft, Path, steps_of, take_turns, value_of, worded
from searchgym.questions.source import FactBase
from searchgym.questions.spec import VEILED
from searchgym.records import Hop


def intersections(source: FactBase, pairs: Iterable[Clues], rng: random.Random) -> Iterator[Draft]:
    """Yields questions for the one page that fits two clues; each clue alone fits several pages."""
    fitting = Counter((fact.relation, source.node(fact)) for fact in source.facts.facts)  # pages, allowed or not
    for clues in pairs:
        one, other = clues.steps
        pages = sorted(
            page for page, facts in source.of_page.items() if {one, other} <= facts.keys() and source.nameable(page)
        )
        rng.shuffle(pages)
        for page in pages:
            facts = tuple(source.of_page[page][step] for step in clues.steps)
            if any(fitting[fact.relation, source.node(fact)] < 2 for fact in facts):
                continue
            values = [value_of(source, fact) for fact in facts]
            text = worded(clues.ask, a=values[0], b=values[1], kind=source.facts.called[page] or "")
            paths = [{"start": source.node(fact), "steps": [f"~{fact.relation}"]} for fact in facts]
            form = {"op": "both", "paths": paths}
            relations = ("both", one, other)
            yield Draft("intersection", text, source.name(page), (page,), facts, form, (), relations)


def veiled(source: FactBase, hops: int, rng: random.Random) -> Iterator[Draft]:
    """Yields chains of `hops` facts whose first page is described by two clues instead of named.

    Only that page fits both clues, and neither is a fact along the chain. Of a date only the year is given.

    Source: OpenSeeker, arXiv 2603.15594, which makes names vague by a language model; its code of this step is not
    public. Here a description is made of facts, exact, and unique in the corpus.
    """
    described = _descriptions(source)
    by_relations = chains_by_relations(source, hops, rng)
    for path in take_turns([iter(by_relations[key]) for key in sorted(by_relations)]):
        page, along = path[0].subject, {fact.relation for fact in path}
        for text, facts in described.get(page, ()):
            if along.isdisjoint(fact.relation for fact in facts):
                yield _veiled(source, path, text, facts)


def _descriptions(source: FactBase) -> dict[int, list[tuple[str, tuple[PageFact, ...]]]]:
    """Returns descriptions of pages, each with the two facts that it states; only one page fits each of them."""
    fitting: defaultdict[tuple[str, str], set[int]] = defaultdict(set)  # pages, allowed or not, by a clue
    for fact in source.facts.facts:
        fitting[fact.relation, _clue(source, fact)].add(fact.subject)
    described: defaultdict[int, list[tuple[str, tuple[PageFact, ...]]]] = defaultdict(list)
    for clues in (clues for clues in source.pack.clues if clues.noun):
        for page, by_relation in source.of_page.items():
            if not set(clues.steps) <= by_relation.keys() or not source.nameable(page):
                continue
            one, other = facts = tuple(by_relation[step] for step in clues.steps)
            values = [_clue(source, fact) for fact in facts]
            if not set(MONTHS).isdisjoint(values):  # "born in November": no place
                continue
            if fitting[one.relation, values[0]] & fitting[other.relation, values[1]] == {page}:
                text = clues.noun.format(a=values[0], b=values[1], kind=source.facts.called[page] or "")
                described[page].append((text, facts))
    return described


def _clue(source: FactBase, fact: PageFact) -> str:
    """Returns the object of a fact as a description gives it: the year of a date."""
    year = YEAR.search(fact.text)
    if source.pack.relations[fact.relation].object == "date" and year is not None:
        return year[0]
    return value_of(source, fact)


def _veiled(source: FactBase, path: Path, text: str, facts: tuple[PageFact, ...]) -> Draft:
    """Returns the draft of a path of facts whose first page is described by two facts."""
    pages, relations = tuple(fact.subject for fact in path), tuple(fact.relation for fact in path)
    names = tuple(source.name(page) for page in pages)
    first, *later = steps_of(source, [path])
    mention = source.mention(pages[0])
    hops = (Hop(f"Who or what is {text}?", names[0]), Hop(first.question.replace(mention, "#1"), first.answer))
    return Draft(
        VEILED,
        question_of(source, text, relations),
        source.object_text(path[-1]),
        pages,
        (*facts, *path),
        {"op": VEILED, "start": source.passages[pages[0]].title, "steps": list(relations)},
        names,
        (*(fact.relation for fact in facts), *relations),
        (*hops, *(Hop(_next(hop.question), hop.answer) for hop in later)),
        queries=(text.removeprefix("the "), *names[1:]),
    )


def _next(question: str) -> str:
    """Returns the question of a hop with a hop before it: ``#1`` becomes ``#2``."""
    return re.sub(r"#(\d+)", lambda match: f"#{int(match[1]) + 1}", question)
