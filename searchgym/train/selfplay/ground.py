"""Graphs to walk for questions: one class for each sort of graph, which share the chains of relations."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from searchgym.questions.draw import MOST_CHAINS
from searchgym.questions.graphs.graph import Form
from searchgym.records import Question
from searchgym.train.selfplay.arms import Arm

Chain = tuple[str, ...]
"""Start of a chain, and its relations in order."""


class Ground:
    """A graph to walk, with a corpus that states its facts.

    Args:
        seed: Seed of the order of walks.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.arms: Sequence[Arm] = ()
        """Kinds of questions that the graph has at least one walk for."""

    def walks(self, arm: Arm) -> Iterator[Any]:
        """Yields walks of an arm, none twice, in a random order that depends on the seed alone."""
        raise NotImplementedError(f"{type(self).__name__} defines no walks")

    def question(self, arm: Arm, walk: Any, number: int) -> Question | str:
        """Returns the question of a walk, or the rule that refuses it.

        Args:
            arm: Kind of question.
            walk: One of its walks.
            number: Number of the walk among those of the arm, which names the question.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no question")


class ChainGround(Ground):
    """A graph whose chains are found at the start, and walked as logical forms."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.chains: defaultdict[Arm, list[Chain]] = defaultdict(list)

    def find_chains(
        self,
        starts: Iterable[str],
        hops: int,
        shape: str,
        chains_from: Callable[[str], Iterator[Chain]],
        wanted: Callable[[Chain], bool] = lambda chain: True,
    ) -> None:
        """Finds chains of a length, from the starts in random order, `MOST_CHAINS` at most.

        Args:
            starts: Where chains may start.
            hops: Number of their relations.
            shape: Shape of their questions.
            chains_from: Yields the relations of the chains from a start.
            wanted: Whether a chain may be asked for.
        """
        order = list(starts)
        random.Random(f"starts {self.seed} {hops}").shuffle(order)
        found = ((start, *steps) for start in order for steps in chains_from(start))
        for chain in itertools.islice(found, MOST_CHAINS):
            if wanted(chain):
                self.chains[Arm(shape, hops, "path", chain[1], chain[-1])].append(chain)

    def walks(self, arm: Arm) -> Iterator[Form]:
        """Yields the logical forms of an arm's chains; see `Ground.walks`."""
        chains = list(self.chains[arm])
        random.Random(f"walks {self.seed} {arm}").shuffle(chains)
        for start, *steps in chains:
            yield {"op": "path", "start": start, "steps": steps}


def relations_from(
    start: str,
    hops: int,
    facts: Callable[[str], Iterable[tuple[str, str]]],
    fits: Callable[[str, Chain, bool], bool] = lambda relation, steps, last: True,
    steps: Chain = (),
    seen: frozenset[str] = frozenset(),
) -> Iterator[Chain]:
    """Yields the relations of all chains over different nodes.

    Args:
        start: Node to start from.
        hops: Number of relations that follow.
        facts: Returns the (relation, object) pairs of a node that are its only ones of the relation.
        fits: Whether a relation may follow some steps, and be the last one.
        steps: Relations that lead to the start.
        seen: Nodes on the way to it.
    """
    seen |= {start}
    for relation, value in facts(start):
        if value in seen or not fits(relation, steps, hops == 1):
            continue
        if hops == 1:
            yield (*steps, relation)
        else:
            yield from relations_from(value, hops - 1, facts, fits, (*steps, relation), seen)
