"""Base of generated questions: a corpus, its facts and links, and the pages that may be asked about."""

from __future__ import annotations

import copy
import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from searchgym.corpora.files import FilePath
from searchgym.corpora.questions import read_questions
from searchgym.questions.graphs.facts import Facts, PageFact
from searchgym.questions.graphs.graph import Entity, Graph
from searchgym.questions.graphs.packs import Pack
from searchgym.questions.spec import CLOZE, SPLITS, GeneratedSpec
from searchgym.records import Passage, Triple, title_key
from searchgym.text import WORD, base_title, norm, sentences

_RARE: Final = 3
"""Lowercase occurrences in the corpus from which on a word counts as an ordinary word."""
_LEAST: Final = 2
"""Smallest target of linked pages for which a split gets edges cut: fewer pages give no two-page question."""
_HUB: Final = 3
"""Multiple of the mean number of edges above which a page may be a hub, such as a list of all pages."""


class FactBase:
    """Corpus with its facts, indexed for drawing questions.

    All facts are used to check that a question has one answer; questions are drawn only from facts of allowed pages.

    Args:
        passages: The corpus.
        facts: Its facts and links.
        pack: Pack whose patterns matched the facts.
    """

    def __init__(self, passages: Sequence[Passage], facts: Facts, pack: Pack) -> None:
        self.passages, self.facts, self.pack = passages, facts, pack
        keys = Counter(title_key(passage.title) for passage in passages)
        single = {n for n, p in enumerate(passages) if keys[title_key(p.title)] == 1 and p.title.strip()}
        self._bases = Counter(norm(base_title(passage.title)) for passage in passages)
        small = Counter(word for passage in passages for word in WORD.findall(passage.text) if word.islower())
        self.ordinary = frozenset(word for word, times in small.items() if times >= _RARE)
        """Words that are not names, since the corpus also has them in lowercase."""
        self.graph = Graph()
        for number in sorted(single):
            self.graph.add_entity(Entity(passages[number].title, self.name(number), facts.kinds[number] or ""))
        self.of_page: defaultdict[int, dict[str, PageFact]] = defaultdict(dict)
        """Facts that questions may need, by page and relation."""
        for fact in facts.facts:
            if fact.subject in single and (fact.target is None or fact.target in single):
                self.graph.add(passages[fact.subject].title, fact.relation, self.node(fact))
                self.of_page[fact.subject][fact.relation] = fact
        self.allowed = frozenset(single)
        """Numbers of the pages that may be asked about."""
        self.forbidden: frozenset[str] = frozenset()
        """Names, normalised by `norm`, that no question may have as answer or waypoint."""

    def within(self, allowed: Collection[int], forbidden: Iterable[str] = ()) -> FactBase:
        """Returns a copy limited to questions about some pages; everything else is shared with this object.

        Args:
            allowed: Numbers of the pages.
            forbidden: Names that no question may have as answer or waypoint, such as those of evaluation questions.
        """
        part = copy.copy(self)
        part.forbidden = frozenset(norm(name) for name in forbidden)
        part.allowed = self.allowed & set(allowed)
        part.of_page = defaultdict(dict)
        for page, facts in self.of_page.items():
            for relation, fact in facts.items() if page in part.allowed else ():
                inside = fact.target is None or fact.target in part.allowed
                if inside and norm(self.object_text(fact)) not in part.forbidden:
                    part.of_page[page][relation] = fact
        return part

    def node(self, fact: PageFact) -> str:
        """Returns the graph's node of a fact's object: a page's title, or a literal's text."""
        return fact.text if fact.target is None else self.passages[fact.target].title

    def object_text(self, fact: PageFact) -> str:
        """Returns the object of a fact as an answer."""
        return fact.text if fact.target is None else base_title(self.passages[fact.target].title)

    def triple(self, fact: PageFact) -> Triple:
        """Returns a fact with the names that questions use."""
        return Triple(self.name(fact.subject), fact.relation, self.object_text(fact))

    def name(self, page: int) -> str:
        """Returns the name of a page's subject, or the whole title if the name alone is ambiguous."""
        title = self.passages[page].title
        base = base_title(title)
        shared = self._bases[norm(base)] > 1
        single_word = len(base.split()) == 1 and base != title and self.facts.called[page] == ""
        return title if shared or single_word else base

    def mention(self, page: int) -> str:
        """Returns a page's name with the word for its kind: ``the film Casablanca``."""
        word = self.facts.called[page]
        return f"the {word} {self.name(page)}" if word else self.name(page)

    def nameable(self, page: int) -> bool:
        """Returns whether a question can name a page: the page is allowed, and the word for its kind is known."""
        return page in self.allowed and self.facts.called[page] is not None

    def sentence(self, fact: PageFact) -> int:
        """Returns the number of the sentence in its passage that states a fact."""
        spans = sentences(self.passages[fact.subject].text)
        return next((n for n, (start, _) in enumerate(spans) if start == fact.start), 0)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Pages and names reserved for evaluation questions."""

    pages: frozenset[int] = frozenset()
    """Numbers of the corpus pages that are gold pages of evaluation questions, or share a name with one."""
    names: frozenset[str] = frozenset()
    """Names of the subjects of gold pages, and answers of at least two words, all normalised by `norm`."""


def hold_out(passages: Iterable[Passage], titles: Iterable[str], answers: Iterable[str] = ()) -> HeldOut:
    """Returns the pages and names of a corpus to reserve for evaluation questions.

    Args:
        passages: The corpus.
        titles: Titles of the questions' gold pages.
        answers: The questions' answers. Those of one word (yes, American) name no entity and are ignored.
    """
    keys = {title_key(title) for title in titles}
    names = {norm(base_title(title)) for title in keys} | {norm(a) for a in answers if len(norm(a).split()) > 1}
    pages = {
        number
        for number, passage in enumerate(passages)
        if title_key(passage.title) in keys or norm(base_title(passage.title)) in names
    }
    return HeldOut(frozenset(pages), frozenset(names))


def held_out_by(passages: Iterable[Passage], files: Sequence[FilePath]) -> HeldOut | None:
    """Returns the pages and names to reserve for the questions of some files, None without files; see `hold_out`."""
    if not files:
        return None
    questions = [question for file in files for question in read_questions(file)]
    titles = [title for question in questions for title in question.gold_titles or ()]
    return hold_out(passages, titles, [answer for question in questions for answer in question.golds])


def components(count: int, edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Returns the connected components of pages, largest first; ties are ordered by their first page."""
    above = list(range(count))

    def root(node: int) -> int:
        while above[node] != node:
            above[node] = above[above[node]]
            node = above[node]
        return node

    for a, b in edges:
        first, second = sorted((root(a), root(b)))
        above[second] = first
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for node in range(count):
        groups[root(node)].append(node)
    return sorted(groups.values(), key=lambda group: (-len(group), group[0]))


def split_pages(
    count: int,
    edges: Iterable[tuple[int, int]],
    shares: Sequence[float] = (0.8, 0.1, 0.1),
    together: Iterable[tuple[int, int]] = (),
) -> dict[str, frozenset[int]]:
    """Splits pages into train, validation and test with no edges between splits, or with few if that is impossible.

    Each component goes to the split that is furthest below its share, the largest components first, so that all three
    splits get long chains and single pages. If the pages are so well linked that a split ends up with less than half of
    its share of linked pages, edges are cut: a densely linked group moves to it from the split with the most to spare.

    Args:
        count: Number of pages.
        edges: Pairs of pages that a question may need together.
        shares: Shares of the pages that the three splits should have.
        together: Additional pairs, which are never separated.
    """
    edges, together = list(edges), list(together)
    sets = [set[int]() for _ in SPLITS]
    for group in components(count, [*edges, *together]):
        want = min((i for i in range(len(SPLITS)) if shares[i] > 0), key=lambda i: len(sets[i]) / shares[i])
        sets[want].update(group)
    linked = {page for edge in edges for page in edge}
    for i, share in enumerate(shares):
        target = round(share * len(linked))
        if target >= _LEAST and len(sets[i] & linked) < target / 2:
            rich = max(range(len(SPLITS)), key=lambda k: len(sets[k] & linked) - shares[k] * len(linked))
            inside = [(a, b) for a, b in edges if a in sets[rich] and b in sets[rich]]
            moved = _near_each_other(count, inside, together, target - len(sets[i] & linked))
            sets[i] |= moved
            sets[rich] -= moved
    return {name: frozenset(pages) for name, pages in zip(SPLITS, sets, strict=True)}


def pages_of_splits(count: int, facts: Facts, spec: GeneratedSpec, out: HeldOut) -> dict[str, frozenset[int]]:
    """Returns the pages of each split, without held-out pages.

    Args:
        count: Number of passages.
        facts: Their facts and links.
        spec: Shares of the splits, and the shapes, which decide whether links keep two pages together.
        out: Pages and names that are held out.
    """
    splits = split_pages(count, linked_pages(facts, spec, out), spec.shares)
    return {name: pages - out.pages for name, pages in splits.items()}


def linked_pages(facts: Facts, spec: GeneratedSpec, out: HeldOut) -> list[tuple[int, int]]:
    """Returns the pairs of pages that a question may need together."""
    edges = [(fact.subject, fact.target) for fact in facts.facts if fact.target is not None]
    if any(shape in CLOZE for shape, _ in spec.mix):
        edges += [(link.source, link.target) for link in facts.links]
    return [edge for edge in edges if not out.pages & set(edge)]


def _near_each_other(
    count: int, edges: Sequence[tuple[int, int]], together: Sequence[tuple[int, int]], size: int
) -> set[int]:
    """Returns about `size` pages with many edges among them and few to other pages.

    The group grows from a page with few edges. Each step adds the page with the largest share of its edges into the
    group. Hubs come last: pages with more than `size` edges and several times the mean. Pages that must stay together
    are added together.
    """
    group_of = {page: group for group in components(count, together) for page in group} if together else {}
    near: defaultdict[int, set[int]] = defaultdict(set)
    for a, b in edges:
        first, second = (group_of[page][0] if together else page for page in (a, b))
        if first != second:
            near[first].add(second)
            near[second].add(first)
    most = max(size, _HUB * sum(map(len, near.values())) / max(len(near), 1))
    heap = [(len(others) > most, 0.0, len(others), page) for page, others in near.items()]
    heapq.heapify(heap)
    visited, inside, grown = set[int](), Counter[int](), set[int]()
    while heap and len(grown) < size:
        page = heapq.heappop(heap)[-1]
        if page in visited:
            continue
        visited.add(page)
        grown.update(group_of[page] if together else [page])
        for other in near[page] - visited:
            inside[other] += 1
            degree = len(near[other])
            heapq.heappush(heap, (degree > most, -inside[other] / degree, degree, other))
    return grown
