"""Builds a world (graph, pages and questions) in memory, determined by its specification alone."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from searchgym.questions.graphs.graph import Entity, Graph
from searchgym.questions.worlds.full import FULL
from searchgym.questions.worlds.generate import generate
from searchgym.questions.worlds.language import Asker, Language, Page
from searchgym.questions.worlds.questions import Draft, Drafter, pages_of
from searchgym.questions.worlds.report import findable_titles, gold_ranks, stratum
from searchgym.questions.worlds.schema import SPLITS, VERSION, WorldSpec, check_spec, counts_of
from searchgym.questions.worlds.simple import SIMPLE
from searchgym.questions.worlds.world import World
from searchgym.records import Hop, Paragraph, Passage, Question, SupportingFact, Triple

LANGUAGES: Final[dict[str, Language]] = {"simple": SIMPLE, "full": FULL}
"""Wordings of pages and questions, by level."""
CONTEXT: Final = 10
"""Number of paragraphs in a question's context, gold ones included, as in HotpotQA and 2WikiMultihopQA."""


def build_world(spec: WorldSpec) -> World:
    """Builds a world; the same specification gives the same world in any process.

    Raises:
        UnknownNameError: The level, split or a stratum is unknown.
        UsageError: The specification is not valid.
        WorldTooSmallError: Its world is too small for the questions that it asks for.
    """
    check_spec(spec)
    rng = _generator(spec)
    graph = generate(spec, rng)
    language, half = LANGUAGES[spec.level], SPLITS[spec.split].templates
    pages = {entity.title: language.page(graph, entity, half, rng) for entity in graph.entities.values()}
    titles = list(graph.entities)
    rng.shuffle(titles)
    passages = [Passage(str(number), title, "".join(pages[title].sentences)) for number, title in enumerate(titles)]
    questions = _Questions(spec, graph, pages, passages, Asker(language, half, graph, rng), rng)
    return World(spec, tuple(passages), questions.make(), tuple(Triple(*fact) for fact in graph.triples()))


def world_graph(spec: WorldSpec) -> Graph:
    """Returns the graph of the world that `build_world` builds, without its pages and questions.

    Raises:
        UnknownNameError, UsageError: No world can be built from `spec`; see `build_world`.
    """
    check_spec(spec)
    return generate(spec, _generator(spec))


def _generator(spec: WorldSpec) -> random.Random:
    """Returns the random generator of a world.

    Every field of the spec seeds it, and so does the version: a new one makes new worlds throughout.
    """
    key = f"{VERSION} {spec.level} {spec.split} {spec.size} {spec.seed} {sorted(spec.hops)} {sorted(spec.strata)}"
    return random.Random(f"world {key}")


def other_names(entity: Entity) -> tuple[str, ...]:
    """Returns the accepted names of an entity other than its name: title, mention and aliases, without repeats."""
    names = dict.fromkeys((entity.title, entity.mention, *entity.aliases))
    return tuple(name for name in names if name != entity.name)


class _Worded(NamedTuple):
    """A draft of a question with its wording."""

    draft: Draft
    text: str
    """Text of the question."""
    hops: tuple[Hop, ...]
    retrieval: dict[str, Any]
    """Ranks of the gold pages and stratum for level ``full``, else empty."""


class _Questions:
    """Draws and words the questions of a world."""

    def __init__(
        self,
        spec: WorldSpec,
        graph: Graph,
        pages: Mapping[str, Page],
        passages: Sequence[Passage],
        asker: Asker,
        rng: random.Random,
    ) -> None:
        self._spec, self._graph, self._pages, self._asker, self._rng = spec, graph, pages, asker, rng
        self._titles = list(graph.entities)
        self._by_kind = {
            kind: [entity.title for entity in graph.of_kind(kind)]
            for kind in dict.fromkeys(entity.kind for entity in graph.entities.values())
        }
        if spec.level == "full":
            from searchgym.retrieval.index.index import build_in_memory

            self._index = build_in_memory(passages)
            self._findable = findable_titles(passages, self._index)

    def make(self) -> tuple[Question, ...]:
        """Returns all questions of the world's mix, shuffled; their ids are ``LEVEL-SPLIT-SEED-NUMBER``."""
        drafter = Drafter(self._graph, self._spec, self._rng)
        accepted: list[_Worded] = []

        def accept(draft: Draft) -> bool:
            worded = self._word(draft)
            accepted.extend([worded] if worded is not None else [])
            return worded is not None

        for cell, count in counts_of(self._spec).items():
            for _ in range(count):
                drafter.draw(*cell, accept)
        self._rng.shuffle(accepted)
        return tuple(self._question(number, worded) for number, worded in enumerate(accepted))

    def _word(self, draft: Draft) -> _Worded | None:
        """Returns a draft with its wording; None if a gold page's title does not find it or the stratum is unwanted."""
        text, hops = self._asker.ask(draft.form, draft.shape, draft.facts)
        if self._spec.level != "full":
            return _Worded(draft, text, hops, {})
        gold = pages_of(draft)
        (ranks,) = gold_ranks([(text, gold)], self._index)
        if not self._findable.issuperset(gold) or (self._spec.strata and stratum(ranks) not in self._spec.strata):
            return None
        return _Worded(draft, text, hops, {"ranks": list(ranks), "stratum": stratum(ranks)})

    def _question(self, number: int, worded: _Worded) -> Question:
        """Returns the question record of a worded draft, with all annotations."""
        spec, graph, draft = self._spec, self._graph, worded.draft
        entity = graph.entities.get(draft.answer)
        return Question(
            id=f"{spec.level}-{spec.split}-{spec.seed}-{number}",
            text=worded.text,
            answers=(graph.display(draft.answer),),
            aliases=() if entity is None else other_names(entity),
            kind=draft.shape,
            level=f"{draft.hops}-hop",
            supporting_facts=tuple(
                SupportingFact(fact.subject, sentence)
                for fact in draft.facts
                for sentence in self._pages[fact.subject].where[fact.relation]
            ),
            evidences=tuple(Triple(*map(graph.display, fact)) for fact in draft.facts),
            hops=worded.hops,
            paragraphs=self._context(pages_of(draft)),
            metadata={"hops": draft.hops, "form": draft.form} | worded.retrieval,
        )

    def _context(self, gold: Sequence[str]) -> tuple[Paragraph, ...]:
        """Returns a question's context: gold pages, their namesakes, then random pages of the same kinds; shuffled."""
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
