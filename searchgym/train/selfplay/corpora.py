"""Walks over the facts that a corpus states, and the questions that they become."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

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
from searchgym.questions.source import FactBase
from searchgym.records import Question
from searchgym.retrieval.retriever import Retriever
from searchgym.train.selfplay.arms import Arm
from searchgym.train.selfplay.proposal import Proposal


class CorpusGround:
    """A corpus's facts, walked for questions as `searchgym.questions.generate` draws them, with its filters.

    Args:
        source: The pages that may be asked about, with their facts.
        retriever: Retriever over all passages, which tells what one search gives away.
        top_k: Number of hits per search in the environment.
        hops: Numbers of pages that a question may need.
        seed: Seed of the order of walks.
    """

    def __init__(self, source: FactBase, retriever: Retriever, top_k: int, hops: Collection[int], seed: int) -> None:
        self._source, self._seed = source, seed
        self._wording, self._searches = Wording(source), Searches(source, retriever, top_k)
        self._streams: dict[Arm, Callable[[random.Random], Iterator[Draft]]] = {}
        for number in sorted(set(hops)):
            self._add_chains(number)
        if 2 in hops:
            for name in source.pack.relations:
                for op in compare_by(source, name, random.Random(0)):
                    self._streams[Arm("comparison", 2, op, name, name)] = self._comparing(name, op)
        if 4 in hops:
            for number, bridge in enumerate(source.pack.bridges):
                for op in compare_over(source, bridge, random.Random(0)):
                    arm = Arm("bridge-comparison", 4, op, bridge.role, bridge.value)
                    self._streams[arm] = self._bridging(number, op)
        if 1 in hops:
            for number, clues in enumerate(source.pack.clues):
                self._streams[Arm("intersection", 1, "both", *clues.steps)] = self._clues(number)
        self.arms: Sequence[Arm] = tuple(
            arm for arm in sorted(self._streams) if next(self.walks(arm), None) is not None
        )

    def walks(self, arm: Arm) -> Iterator[Draft]:
        """Yields the drafts of an arm in a random order that depends on the seed alone."""
        return self._streams[arm](random.Random(f"walks {self._seed} {arm}"))

    def proposal(self, arm: Arm, walk: Draft, number: int) -> Proposal | str:
        """Returns the proposal of a draft, or the filter that refuses it."""
        reason = self._wording.refusal(walk)
        if reason is not None:
            return reason
        (searched,) = self._searches.search([walk])
        reason = self._searches.refusal(searched)
        if reason is not None:
            return reason
        question = question_of(self._source, searched, "train", number)
        return Proposal(_called(question, arm, number), walk.form, walk.waypoints, arm)

    def _add_chains(self, hops: int) -> None:
        groups = chains_by_relations(self._source, hops, random.Random(f"chains {self._seed} {hops}"))
        by_arm: defaultdict[Arm, list[Draft]] = defaultdict(list)
        for relations in sorted(groups):
            arm = Arm("chain", hops, "path", relations[0], relations[-1])
            by_arm[arm] += [chain_of(self._source, path) for path in groups[relations]]
        for arm, drafts in by_arm.items():
            self._streams[arm] = _shuffled(drafts)

    def _comparing(self, name: str, op: str) -> Callable[[random.Random], Iterator[Draft]]:
        return lambda rng: pairs_of([compare_by(self._source, name, rng)[op]])

    def _bridging(self, number: int, op: str) -> Callable[[random.Random], Iterator[Draft]]:
        return lambda rng: pairs_of([compare_over(self._source, self._source.pack.bridges[number], rng)[op]])

    def _clues(self, number: int) -> Callable[[random.Random], Iterator[Draft]]:
        return lambda rng: intersections(self._source, [self._source.pack.clues[number]], rng)


def _shuffled(drafts: Sequence[Draft]) -> Callable[[random.Random], Iterator[Draft]]:
    """Returns what yields drafts in random order."""
    return lambda rng: iter(rng.sample(drafts, len(drafts)))


def _called(question: Question, arm: Arm, number: int) -> Question:
    """Returns a question under the name of its arm."""
    return replace(question, id=f"{arm.name}-{number}", metadata={**question.metadata, "arm": list(arm)})
