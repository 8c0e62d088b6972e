"""Draws the graph of a world: the number of entities of each kind, their names, and facts with consistent dates."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Final

from searchgym.questions.graphs.graph import MONTHS, Entity, Graph
from searchgym.questions.worlds.names import Namer
from searchgym.questions.worlds.schema import ALIAS, KINDS, MEMBER, RELATIONS, SPLITS, WorldSpec

_LEAST_ENTITIES: Final = 80
_LEAST_OF_A_KIND: Final = 6
_GENERATIONS: Final = 4
_FIRST_YEAR, _GENERATION, _SPREAD = 1780, 45, 25
"""Years of birth: generation g is born within `_SPREAD` years from `_FIRST_YEAR` + g * `_GENERATION`."""
_MARRIED: Final = 0.6
_NAMESAKES: Final = 0.12
"""Share of people, films, books and bands in `full` that share the name of another entity."""
_TWINS: Final = 0.5
"""Share of second namesakes whose page omits one fact."""
_ALIASES: Final = 0.15
_FIRST_NAMES: Final = 36
_MEMBERS: Final = (2, 4)

NOTES: Final = {
    "person": ("painter", "chemist", "sailor", "lawyer", "botanist", "poet", "architect", "surgeon", "gardener"),
    "film": ("war film", "comedy", "western", "musical", "silent film", "thriller", "documentary", "road movie"),
    "book": ("novel", "memoir", "travel book", "verse epic", "textbook", "fable", "ghost story", "cookbook"),
    "band": ("jazz band", "rock band", "brass band", "folk group", "choir", "string quartet", "punk band", "duo"),
}
"""Professions and genres in `full`, by kind; they distinguish namesakes."""
PATTERNS: Final = {
    "film": ("{}", "The Road to {}", "{} at Dawn", "A Night in {}", "The Last {}", "Return to {}"),
    "book": ("{}", "The Book of {}", "Letters from {}", "The {} Papers", "Farewell to {}", "Under {}"),
    "company": ("{}", "{} Works", "{} Brothers", "{} Trading", "House of {}"),
    "band": ("{}", "The {} Five", "The {} Players", "{} Union"),
    "mountain": ("Mount {}",),
    "river": ("River {}",),
}
_RELATIONS: Final = {
    "city": ("river", "mayor", "chartered"),
    "river": ("length", "source"),
    "mountain": ("height", "climber"),
    "film": ("director", "premiered", "basis"),
    "book": ("author", "published", "publisher"),
    "company": ("founder", "opened", "seat"),
    "band": ("singer", "formed", "home"),
}
"""Relations by kind, in the order in which their facts are drawn; the first relation of a work leads to its maker."""


@dataclass(slots=True)
class _EntityDraft:
    """An entity before all names are drawn, when its namesakes and title are still unknown."""

    name: str
    kind: str
    gender: str = "it"
    note: str = ""
    aliases: tuple[str, ...] = ()
    silent: str = ""
    """Relation omitted from the page, which makes the entity the unanswerable twin of its namesake."""
    generation: int = 0
    mother: _EntityDraft | None = None
    father: _EntityDraft | None = None
    title: str = ""


def generate(spec: WorldSpec, rng: random.Random) -> Graph:
    """Returns a random graph for a world; the number of entities follows from the number of questions.

    Args:
        spec: Specification of the world.
        rng: Random generator of the world.

    Raises:
        UsageError: No new names are left.
    """
    drafts = _Drafts(spec.level == "full", Namer(spec.split, rng), rng)
    total = _LEAST_ENTITIES + spec.size // 2
    for kind, share in KINDS.items():
        for number in range(max(_LEAST_OF_A_KIND, round(share * total))):
            drafts.add(kind, number % _GENERATIONS)
    graph = Graph(key=f"{rng.random()}")
    uses = Counter(draft.name for draft in drafts.entities)
    for draft in drafts.entities:
        shared = uses[draft.name] > 1
        draft.title = f"{draft.name} ({draft.note})" if shared else draft.name
        graph.add_entity(Entity(draft.title, draft.name, draft.kind, draft.gender, draft.note, draft.aliases, shared))
    _Facts(graph, drafts.entities, spec, rng).add_all()
    return graph


class _Drafts:
    """Drafts of entities: names of one word in `simple`; namesakes, families, aliases and genres in `full`."""

    def __init__(self, full: bool, names: Namer, rng: random.Random) -> None:
        self._full, self._names, self._rng = full, names, rng
        self.entities: list[_EntityDraft] = []
        self._people: list[list[_EntityDraft]] = [[] for _ in range(_GENERATIONS)]
        self._used: dict[str, dict[str, list[str]]] = {kind: {} for kind in KINDS}
        count = _FIRST_NAMES if full else 0
        self._first = {sex: [names.word("person") for _ in range(count)] for sex in ("she", "he")}

    def add(self, kind: str, generation: int) -> None:
        """Drafts one entity of a kind; only people have a generation, and parents from the previous one."""
        draft, rng = _EntityDraft("", kind), self._rng
        if kind == "person":
            draft.gender, draft.generation = rng.choice(("she", "he")), generation
            elders = self._people[generation - 1] if generation else []
            mothers, fathers = ([elder for elder in elders if elder.gender == sex] for sex in ("she", "he"))
            draft.mother = rng.choice(mothers) if mothers else None
            draft.father = rng.choice(fathers) if fathers else None
            self._people[generation].append(draft)
        draft.name = self._full_name(draft) if self._full else self._names.word(kind)
        if self._full:
            self._add_note(draft)
        self.entities.append(draft)

    def _full_name(self, draft: _EntityDraft) -> str:
        """Returns a name for an entity of `full`, sometimes the name of another entity."""
        kind, rng = draft.kind, self._rng
        if kind in NOTES and rng.random() < _NAMESAKES:
            first = self._first.get(draft.gender)
            once = [name for name, notes in self._used[kind].items() if len(notes) == 1]
            once = [name for name in once if first is None or name.split()[0] in first]
            if once:
                return rng.choice(once)
        if kind == "person":
            family = draft.father.name.split()[1] if draft.father else self._names.word("surname")
            name = f"{rng.choice(self._first[draft.gender])} {family}"
            return name if name not in self._used[kind] else f"{self._names.word('person')} {family}"
        return rng.choice(PATTERNS.get(kind, ("{}",))).format(self._names.word(kind))

    def _add_note(self, draft: _EntityDraft) -> None:
        """Assigns a profession or genre that no namesake of the entity has, and sometimes an alias."""
        notes = self._used[draft.kind].setdefault(draft.name, [])
        if draft.kind in NOTES:
            draft.note = self._rng.choice([note for note in NOTES[draft.kind] if note not in notes])
        if notes and self._rng.random() < _TWINS:
            draft.silent = self._rng.choice(
                [name for name, relation in RELATIONS.items() if relation.subject == draft.kind]
            )
        notes.append(draft.note)
        if self._rng.random() < _ALIASES:
            draft.aliases = (self._names.word(draft.kind),)


class _Facts:
    """Draws the facts of a graph that already has its entities."""

    def __init__(self, graph: Graph, drafts: list[_EntityDraft], spec: WorldSpec, rng: random.Random) -> None:
        self._graph, self._drafts, self._spec, self._rng = graph, drafts, spec, rng
        self._titles = {kind: [draft.title for draft in drafts if draft.kind == kind] for kind in KINDS}
        self._born: dict[str, int] = {}
        self._decks: dict[str, list[str]] = {}

    def add_all(self) -> None:
        """Adds every fact of every entity."""
        for draft in self._drafts:
            if draft.kind == "person":
                self._born[draft.title] = _FIRST_YEAR + draft.generation * _GENERATION + self._rng.randrange(_SPREAD)
        for draft in self._drafts:
            if draft.kind == "person":
                self._person(draft)
            else:
                self._thing(draft)
            for alias in draft.aliases:
                self._add(draft, ALIAS, alias)
            for relation in RELATIONS.values() if SPLITS[self._spec.split].held_out else ():
                if relation.held_out and relation.subject == draft.kind:
                    self._any(draft, relation.name, relation.object)

    def _add(self, draft: _EntityDraft, relation: str, value: str) -> None:
        """Adds a fact to the graph unless the entity's page omits its relation."""
        if relation != draft.silent:
            self._graph.add(draft.title, relation, value)

    def _any(self, draft: _EntityDraft, relation: str, kind: str) -> str:
        """Adds a fact whose object is a random entity of a kind, never the subject itself; returns the object.

        People are drawn with replacement. Other kinds have few entities, so these are drawn without replacement until
        all have been used, which keeps their frequencies similar.
        """
        deck = self._decks.setdefault(relation, [])
        value = draft.title
        while value == draft.title:
            if kind == "person":
                value = self._rng.choice(self._titles[kind])
                continue
            if not deck:
                deck.extend(self._rng.sample(self._titles[kind], len(self._titles[kind])))
            value = deck.pop()
        self._add(draft, relation, value)
        return value

    def _date(self, draft: _EntityDraft, relation: str, year: int) -> None:
        """Adds a date: in `simple` the year, in `full` a random day of it."""
        rng, full = self._rng, self._spec.level == "full"
        self._add(draft, relation, f"{rng.randint(1, 28)} {rng.choice(MONTHS)} {year}" if full else str(year))

    def _thing(self, draft: _EntityDraft) -> None:
        """Adds the facts of an entity that is not a person; its maker is 21 to 60 years old at its date."""
        rng, maker = self._rng, ""
        for name in _RELATIONS[draft.kind]:
            if name == "length":
                self._add(draft, name, str(rng.randint(60, 1900)))
            elif name == "height":
                self._add(draft, name, str(rng.randint(700, 6900)))
            elif name == "chartered":
                self._date(draft, name, rng.randint(1150, 1750))
            elif RELATIONS[name].object == "date":
                self._date(draft, name, self._born[maker] + rng.randint(21, 60))
            else:
                value = self._any(draft, name, RELATIONS[name].object)
                maker = maker or value
        if draft.kind == "band" and self._spec.level == "full":
            others = [title for title in self._titles["person"] if title != self._graph.one(draft.title, "singer")]
            for member in rng.sample(others, rng.randint(*_MEMBERS)):
                self._add(draft, MEMBER, member)

    def _person(self, draft: _EntityDraft) -> None:
        """Adds the facts of a person."""
        self._date(draft, "born", self._born[draft.title])
        self._any(draft, "birthplace", "city")
        for relation, parent in (("mother", draft.mother), ("father", draft.father)):
            if parent is not None:
                self._add(draft, relation, parent.title)
        if self._rng.random() < _MARRIED:
            peers = [
                other.title
                for other in self._drafts
                if other.generation == draft.generation and {other.gender, draft.gender} == {"she", "he"}
            ]
            if peers:
                self._add(draft, "spouse", self._rng.choice(peers))
        self._any(draft, "employer", "company")
