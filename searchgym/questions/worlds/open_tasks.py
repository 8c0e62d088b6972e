"""Open tasks over a generated world: short reports, and questions with several answers, each with its rubric."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from typing import Any, Final, Literal

from searchgym.errors import UsageError
from searchgym.questions.graphs.graph import Fact, Graph
from searchgym.questions.worlds.build import other_names, world_graph
from searchgym.questions.worlds.language import language_of, sentence
from searchgym.questions.worlds.schema import ALIAS, LITERALS, MEMBER, RELATIONS, SPLITS, WorldSpec
from searchgym.records import Question, SupportingFact
from searchgym.scoring.judges.kinds.rules import HEDGES
from searchgym.scoring.judges.rubric import RUBRIC, WANTED
from searchgym.text import WORD, norm

SEVERAL: Final = {
    "director": "Which films were directed by {o}?",
    "author": "Which books were written by {o}?",
    "founder": "Which companies were founded by {o}?",
    "publisher": "Which books are sold by {o}?",
    "river": "Which cities lie on the river {o}?",
    "seat": "Which companies have their seat in {o}?",
    "home": "Which bands play in {o}?",
    "birthplace": "Which people come from the city of {o}?",
    "employer": "Which people work for {o}?",
}
"""Questions for all subjects of a relation, by relation."""
MOST: Final = 6
"""Maximum number of answers of a question with several answers; the minimum is 2."""
_FREQUENT: Final = frozenset(
    norm(
        "a an and are as at by did do does for from had has have he her him his in into is it its of on one she that "
        "the their them they this to was were what when where which who whom whose with same first"
    ).split()
)
"""Words that occur in phrases of many relations and so do not distinguish them."""


def open_tasks(
    world: WorldSpec, asks: Literal["report", "several"], *, n: int = 100, seed: int = 0, facts: int = 4
) -> tuple[Question, ...]:
    """Returns the open tasks of a world: equal arguments give equal tasks.

    Args:
        world: Specification of the world; only its graph is built.
        asks: Type of task: ``report`` or ``several`` answers.
        n: Number of tasks.
        seed: Seed of the random draws.
        facts: Number of facts of a report.

    Raises:
        UsageError: The world is too small for this many tasks.
    """
    graph = world_graph(world)
    rng = random.Random(f"open {asks} {seed} {facts} {graph.key}")
    tasks: list[Question] = []
    for fields in _reports(graph, world, facts, rng) if asks == "report" else _several(graph, rng):
        tasks.append(Question(id=f"{asks}-{world.split}-{world.seed}-{len(tasks)}", kind=asks, **fields))
        if len(tasks) == n:
            return tuple(tasks)
    raise UsageError(
        f"a world of {world.size} questions has {len(tasks)} tasks of kind {asks}, but {n} were requested: ask "
        "for fewer (n), or for a larger world (world.size)"
    )


# -- reports -------------------------------------------------------------------------------------------------------


def _reports(graph: Graph, world: WorldSpec, count: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Yields the fields of report tasks, on facts of one page and of a page linked from it."""
    phrases, half = language_of(world.level).phrases, SPLITS[world.split].templates
    titles = list(graph.entities)
    rng.shuffle(titles)
    for title in titles:
        facts = _facts_about(graph, title, count, rng)
        if facts is None:
            continue
        asks, rubric, stated = [], [], []
        for fact, through in facts:
            subject = graph.entities[title].mention
            if through is not None:
                subject = rng.choice(phrases[through].noun[half]).format(s=subject)
            asks.append(sentence(rng.choice(phrases[fact.relation].ask[half]).format(s=subject)))
            stated.append(statement(graph, fact))
            words = relation_words(fact.relation, world.level)
            says = [list(names) for names in (names_of(graph, fact.subject), words, names_of(graph, fact.object))]
            rubric.append({"text": f"It states: {stated[-1]}", "says": says})
        yield {
            "text": f"Write a short report about {graph.entities[title].mention}, one sentence for each: "
            + " ".join(asks),
            "answers": (" ".join(stated),),
            "supporting_facts": tuple(SupportingFact(page) for page in dict.fromkeys(f.subject for f, _ in facts)),
            "metadata": {RUBRIC: rubric, "facts": [list(fact) for fact, _ in facts]},
        }


def _facts_about(graph: Graph, title: str, count: int, rng: random.Random) -> list[tuple[Fact, str | None]] | None:
    """Returns facts of a page and, last, one of a linked page, with the linking relation or None; None if too few."""
    facts = _facts_of(graph, title)
    doors = [fact for fact in facts if RELATIONS[fact.relation].object not in LITERALS]
    if len(facts) < count - 1 or not doors:
        return None
    door = rng.choice(doors)
    behind = [fact for fact in _facts_of(graph, door.object) if fact.object != title]
    if not behind:
        return None
    chosen = [door, *rng.sample([fact for fact in facts if fact != door], count - 2)]
    return [*((fact, None) for fact in chosen), (rng.choice(behind), door.relation)]


def _facts_of(graph: Graph, title: str) -> list[Fact]:
    """Returns the facts of a page whose relations have exactly one object."""
    facts = [Fact(title, relation, values[0]) for relation, values in graph.facts[title].items() if len(values) == 1]
    return [fact for fact in facts if fact.relation not in (MEMBER, ALIAS)]


def statement(graph: Graph, fact: Fact, phrase: str | None = None) -> str:
    """Returns a sentence that states a fact with the names of its subject and object.

    Args:
        graph: Graph of the world.
        fact: The fact.
        phrase: Clause with ``{s}`` and ``{o}``. Default: the first wording of level ``simple``.
    """
    phrase = language_of("simple").phrases[fact.relation].state[0][0] if phrase is None else phrase
    return sentence(phrase.format(s=graph.mention(fact.subject), o=graph.mention(fact.object))) + "."


def names_of(graph: Graph, value: str) -> tuple[str, ...]:
    """Returns the names by which a text may refer to an entity, or the text of a literal."""
    entity = graph.entities.get(value)
    return (value,) if entity is None else (entity.name, *other_names(entity))


def relation_words(relation: str, level: str) -> tuple[str, ...]:
    """Returns words of a relation's phrases that distinguish it from other relations between the same kinds.

    The words come from level ``simple`` and, in a world of level ``full``, also from that level. A rule-based judge
    recognises no others.
    """
    kinds = (RELATIONS[relation].subject, RELATIONS[relation].object)
    rivals = [r.name for r in RELATIONS.values() if (r.subject, r.object) == kinds and r.name != relation]
    levels = dict.fromkeys(("simple", level))
    excluded = _FREQUENT.union(HEDGES, *(_words(rival, name) for rival in rivals for name in levels))
    return tuple(sorted(set[str]().union(*(_words(relation, name) for name in levels)) - excluded))


def _words(relation: str, level: str) -> set[str]:
    """Returns the lowercase words of a relation's name and phrases; phrases of two sentences are left out."""
    phrases, terms = language_of(level).phrases[relation], {relation}
    for template in itertools.chain(*phrases.state, *phrases.ask, *phrases.noun):
        if "|" not in template:
            terms |= {word.lower() for word in WORD.findall(re.sub(r"\{\w+\}", " ", template))}
    return terms


# -- several answers -----------------------------------------------------------------------------------------------


def _several(graph: Graph, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Yields the fields of questions with several answers, all of which are required."""
    pairs = [
        (value, relation)
        for value, relations in graph.back.items()
        for relation, subjects in relations.items()
        if relation in SEVERAL and value in graph.entities and 2 <= len(set(subjects)) <= MOST
    ]
    rng.shuffle(pairs)
    for value, relation in pairs:
        subjects = sorted(set(graph.back[value][relation]))
        answers = [names_of(graph, subject) for subject in subjects]
        if len({names[0] for names in answers}) < len(answers):
            continue  # namesakes: an answer would be ambiguous
        yield {
            "text": SEVERAL[relation].format(o=graph.entities[value].mention) + " Give all, separated by semicolons.",
            "answers": ("; ".join(names[0] for names in answers),),
            "supporting_facts": tuple(SupportingFact(subject) for subject in subjects),
            "metadata": {
                WANTED: [list(names) for names in answers],
                RUBRIC: [{"text": f"It names {names[0]}.", "says": [list(names)]} for names in answers],
            },
        }
