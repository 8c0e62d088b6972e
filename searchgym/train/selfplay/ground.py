"""Graphs that proposers walk for questions: the base class, and one for chains of relations."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from searchgym.questions.graphs.graph import Form
from searchgym.questions.shapes.chains import MOST_CHAINS
from searchgym.records import Question
from searchgym.train.selfplay.arms import Arm

Chain = tuple[str, ...]
"""Start of a chain, and its relations in order."""


class Ground:
    """Base class of graphs to walk, whose facts are stated in a corpus.

    Args:
        seed: Seed of the order of walks.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.arms: Sequence[Arm] = ()
        """Kinds of questions for which the graph has at least one walk."""

    def walks(self, arm: Arm) -> Iterator[Any]:
        """Yields the walks of an arm, each once, in a random order that depends only on the seed."""
        raise NotImplementedError(f"{type(self).__name__} defines no walks")

    def question(self, arm: Arm, walk: Any, number: int) -> Question | str:
        """Returns the question of a walk, or the name of the rule that rejects it.

        Args:
            arm: Kind of question.
            walk: One of its walks.
            number: Number of the walk within its arm, for the question's id.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no question")


class ChainGround(Ground):
    """Base class of graphs whose chains are enumerated at construction and walked as logical forms."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.chains: defaultdict[Arm, list[Chain]] = defaultdict(list)

    def find_chains(
        self,
        starts: Iterable[str],
        hops: int,
        shape: str,
        chains_from: Callable[[str], Iterator[Chain]],
        accept: Callable[[Chain], bool] = lambda chain: True,
    ) -> None:
        """Enumerates at most `MOST_CHAINS` chains of one length, from the starts in random order.

        Args:
            starts: Nodes at which chains may start.
            hops: Number of relations in a chain.
            shape: Shape of the chains' questions.
            chains_from: Yields the relations of the chains from a start.
            accept: Returns True for chains that may be used.
        """
        order = list(starts)
        random.Random(f"starts {self.seed} {hops}").shuffle(order)
        chains = ((start, *steps) for start in order for steps in chains_from(start))
        for chain in itertools.islice(chains, MOST_CHAINS):
            if accept(chain):
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
    """Yields the relations of every chain whose nodes are all different.

    Args:
        start: Node to start from.
        hops: Number of relations that follow.
        facts: Returns the (relation, object) pairs of a node, only of relations with a single object.
        fits: Returns True if a relation may follow the steps so far; called with (relation, steps, is last).
        steps: Relations that lead to the start.
        seen: Nodes on the way to the start.
    """
    seen |= {start}
    for relation, value in facts(start):
        if value in seen or not fits(relation, steps, hops == 1):
            continue
        if hops == 1:
            yield (*steps, relation)
        else:
            yield from relations_from(value, hops - 1, facts, fits, (*steps, relation), seen)
