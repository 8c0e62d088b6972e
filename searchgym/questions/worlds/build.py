"""Builds a world (graph, pages and questions) in memory, fully determined by its specification."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from searchgym.questions.graphs.graph import Entity, Graph
from searchgym.questions.worlds.generate import generate
from searchgym.questions.worlds.language import Asker, language_of
from searchgym.questions.worlds.pages import WrittenPage, write_page
from searchgym.questions.worlds.questions import Drafter, WorldDraft, pages_of
from searchgym.questions.worlds.report import findable_titles, gold_ranks, stratum
from searchgym.questions.worlds.schema import SPLITS, VERSION, World, WorldSpec, check_spec, counts_of
from searchgym.records import Hop, Paragraph, Passage, Question, SupportingFact, Triple

if TYPE_CHECKING:
    from searchgym.retrieval.bm25.search import BM25Retriever

CONTEXT: Final = 10
"""Number of paragraphs in a question's context, gold ones included, as in HotpotQA and 2WikiMultihopQA."""


def build_world(spec: WorldSpec) -> World:
    """Builds a world; the same specification gives the same world in any process.

    Raises:
        UnknownNameError: The level, split or a stratum is unknown.
        UsageError: The specification is not valid.
        WorldTooSmallError: The world is too small for the requested questions.
    """
    check_spec(spec)
    rng = _generator(spec)
    graph = generate(spec, rng)
    language, half = language_of(spec.level), SPLITS[spec.split].templates
    pages = {entity.title: write_page(language, graph, entity, half, rng) for entity in graph.entities.values()}
    titles = list(graph.entities)
    rng.shuffle(titles)
    passages = [Passage(str(number), title, "".join(pages[title].sentences)) for number, title in enumerate(titles)]
    accepted = _drawn(spec, graph, passages, Asker(language, half, graph, rng), rng)
    contexts = _Contexts(graph, pages, rng)
    questions = tuple(
        Question(
            id=f"{spec.level}-{spec.split}-{spec.seed}-{number}",
            text=text,
            answers=(graph.display(draft.answer),),
            aliases=other_names(graph.entities[draft.answer]) if draft.answer in graph.entities else (),
            kind=draft.shape,
            level=f"{draft.hops}-hop",
            supporting_facts=tuple(
                SupportingFact(fact.subject, sentence)
                for fact in draft.facts
                for sentence in pages[fact.subject].where[fact.relation]
            ),
            evidences=tuple(Triple(*map(graph.display, fact)) for fact in draft.facts),
            hops=hops,
            paragraphs=contexts.paragraphs(pages_of(draft)),
            metadata={"hops": draft.hops, "form": draft.form} | ranks,
        )
        for number, (draft, text, hops, ranks) in enumerate(accepted)
    )
    return World(spec, tuple(passages), questions, tuple(Triple(*fact) for fact in graph.triples()))


def world_graph(spec: WorldSpec) -> Graph:
    """Returns the graph of the world that `build_world` would build; makes neither pages nor questions.

    Raises:
        UnknownNameError, UsageError: No world can be built from `spec`; see `build_world`.
    """
    check_spec(spec)
    return generate(spec, _generator(spec))


def _generator(spec: WorldSpec) -> random.Random:
    """Returns the random generator of a world.

    The seed depends on every field of the spec and on the version, so a new version changes all worlds.
    """
    key = f"{VERSION} {spec.level} {spec.split} {spec.size} {spec.seed} {sorted(spec.hops)} {sorted(spec.strata)}"
    return random.Random(f"world {key}")


def other_names(entity: Entity) -> tuple[str, ...]:
    """Returns the accepted alternative names of an entity: title, mention and aliases, without repeats."""
    names = dict.fromkeys((entity.title, entity.mention, *entity.aliases))
    return tuple(name for name in names if name != entity.name)


def _drawn(
    spec: WorldSpec, graph: Graph, passages: Sequence[Passage], asker: Asker, rng: random.Random
) -> list[tuple[WorldDraft, str, tuple[Hop, ...], dict[str, Any]]]:
    """Draws the questions of the world's mix, shuffled: draft, text, hops, and ranks of the gold pages (`full`)."""
    index: BM25Retriever | None = None
    findable: frozenset[str] = frozenset()
    if spec.level == "full":
        from searchgym.retrieval.index.index import build_in_memory

        index = build_in_memory(passages)
        findable = findable_titles(passages, index)
    accepted: list[tuple[WorldDraft, str, tuple[Hop, ...], dict[str, Any]]] = []

    def accept(draft: WorldDraft) -> bool:
        """Words a draft and adds it; refuses it if the title of a gold page does not find it, or by its stratum."""
        text, hops = asker.ask(draft.form, draft.shape, draft.facts)
        ranked: dict[str, Any] = {}
        if index is not None:
            gold = pages_of(draft)
            (ranks,) = gold_ranks([(text, gold)], index)
            ranked = {"ranks": list(ranks), "stratum": stratum(ranks)}
            if not findable.issuperset(gold) or (spec.strata and ranked["stratum"] not in spec.strata):
                return False
        accepted.append((draft, text, hops, ranked))
        return True

    drafter = Drafter(graph, spec, rng)
    for cell, count in counts_of(spec).items():
        for _ in range(count):
            drafter.draw(*cell, accept)
    rng.shuffle(accepted)
    return accepted


class _Contexts:
    """Draws shuffled contexts of questions: gold pages, their namesakes, then random pages of the same kinds."""

    def __init__(self, graph: Graph, pages: Mapping[str, WrittenPage], rng: random.Random) -> None:
        self._graph, self._pages, self._rng = graph, pages, rng
        self._titles = list(graph.entities)
        kinds = dict.fromkeys(entity.kind for entity in graph.entities.values())
        self._by_kind = {kind: [entity.title for entity in graph.of_kind(kind)] for kind in kinds}

    def paragraphs(self, gold: Sequence[str]) -> tuple[Paragraph, ...]:
        """Returns the context of a question, given the titles of its gold pages."""
        rng, graph = self._rng, self._graph
        chosen = list(gold)
        for title in gold:
            entity = graph.entities[title]
            chosen += [other for other in self._by_kind[entity.kind] if graph.entities[other].name == entity.name]
        chosen = list(dict.fromkeys(chosen))[:CONTEXT]
        turn = 0
        while len(chosen) < CONTEXT:
            same_kind = self._by_kind[graph.entities[gold[turn % len(gold)]].kind]
            title = rng.choice(same_kind if turn < 3 * CONTEXT else self._titles)  # some kinds have few entities
            if title not in chosen:
                chosen.append(title)
            turn += 1
        rng.shuffle(chosen)
        return tuple(Paragraph(title, self._pages[title].sentences, title in gold) for title in chosen)
