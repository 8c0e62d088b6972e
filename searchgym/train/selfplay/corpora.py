"""Walks over the facts that a corpus states, and the questions that they become."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from searchgym.questions.draw import (
    Draft,
    chain_of,
    chains_by_relations,
    compare_by,
    compare_over,
    intersections,
    pairs_of,
)
from searchgym.questions.filters import Searches, Wording
from searchgym.questions.generate import question_of
from searchgym.questions.source import Source
from searchgym.records import Question
from searchgym.retrieval.retriever import Retriever
from searchgym.train.selfplay.arms import Arm
from searchgym.train.selfplay.ground import Ground


class CorpusGround(Ground):
    """A corpus's facts, walked for questions as `searchgym.questions.generate` draws them, with its filters.

    Args:
        source: The pages that may be asked about, with their facts.
        retriever: Retriever over all passages, which tells what one search gives away.
        top_k: Number of hits per search in the environment.
        hops: Numbers of pages that a question may need.
        seed: Seed of the order of walks.
    """

    def __init__(self, source: Source, retriever: Retriever, top_k: int, hops: Collection[int], seed: int) -> None:
        super().__init__(seed)
        self._source, pack = source, source.pack
        self._wording, self._searches = Wording(source), Searches(source, retriever, top_k)
        self._streams: dict[Arm, Callable[[random.Random], Iterator[Draft]]] = {}
        for number in sorted(set(hops)):
            groups = chains_by_relations(source, number, random.Random(f"chains {seed} {number}"))
            by_arm: defaultdict[Arm, list[Draft]] = defaultdict(list)
            for relations in sorted(groups):
                arm = Arm("chain", number, "path", relations[0], relations[-1])
                by_arm[arm] += [chain_of(source, path) for path in groups[relations]]
            for arm, drafts in by_arm.items():
                self._streams[arm] = lambda rng, drafts=drafts: iter(rng.sample(drafts, len(drafts)))
        for name in pack.relations if 2 in hops else ():
            self._add_pairs("comparison", 2, (name, name), partial(compare_by, source, name))
        for bridge in pack.bridges if 4 in hops else ():
            ends = (bridge.role, bridge.value)
            self._add_pairs("bridge-comparison", 4, ends, partial(compare_over, source, bridge))
        for clues in pack.clues if 1 in hops else ():
            arm = Arm("intersection", 1, "both", *clues.steps)
            self._streams[arm] = lambda rng, clues=clues: intersections(source, [clues], rng)
        self.arms = tuple(arm for arm in sorted(self._streams) if next(self.walks(arm), None) is not None)

    def _add_pairs(
        self, shape: str, hops: int, ends: tuple[str, str], drafts: Callable[[random.Random], Mapping[str, Any]]
    ) -> None:
        """Adds an arm for each operation that compares pairs; `drafts` returns what draws them, by operation."""
        for op in drafts(random.Random(0)):
            self._streams[Arm(shape, hops, op, *ends)] = lambda rng, op=op: pairs_of([drafts(rng)[op]])

    def walks(self, arm: Arm) -> Iterator[Draft]:
        """Yields the drafts of an arm; see `Ground.walks`."""
        return self._streams[arm](random.Random(f"walks {self.seed} {arm}"))

    def question(self, arm: Arm, walk: Draft, number: int) -> Question | str:
        """Returns the question of a draft, or the filter that refuses it; see `Ground.question`."""
        if (reason := self._wording.refusal(walk)) is not None:
            return reason
        (searched,) = self._searches.search([walk])
        if (reason := self._searches.refusal(searched)) is not None:
            return reason
        made = question_of(self._source, searched, "train", number)
        return replace(made, id=f"{arm.name}-{number}", metadata={**made.metadata, "arm": list(arm)})
