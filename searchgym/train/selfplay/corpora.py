"""Walks over the facts stated in a corpus, and the questions made from walks."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial

from searchgym.questions.filters import Searches, Wording
from searchgym.questions.generate import question_of
from searchgym.questions.shapes.chains import chain_of, chains_by_relations
from searchgym.questions.shapes.clues import intersections
from searchgym.questions.shapes.comparisons import Makers, compare_by, compare_over, pairs_of
from searchgym.questions.shapes.draft import Draft
from searchgym.questions.source import FactBase
from searchgym.records import Question
from searchgym.retrieval.retriever import Retriever
from searchgym.train.selfplay.arms import Arm
from searchgym.train.selfplay.ground import Ground


class CorpusGround(Ground):
    """A graph of a corpus's facts; its questions are built and filtered as in `searchgym.questions.generate`.

    Args:
        source: Pages that questions may use, with their facts.
        retriever: Retriever over all passages, to filter questions that one search answers.
        top_k: Number of hits per search in the environment.
        hops: Numbers of pages that a question may need.
        seed: Seed of the order of walks.
    """

    def __init__(self, source: FactBase, retriever: Retriever, top_k: int, hops: Collection[int], seed: int) -> None:
        super().__init__(seed)
        self._source, pack = source, source.pack
        self._wording, self._searches = Wording(source), Searches(source, retriever, top_k)
        self._chains: dict[Arm, list[Draft]] = {}
        for number in sorted(set(hops)):
            groups = chains_by_relations(source, number, random.Random(f"chains {seed} {number}"))
            for relations in sorted(groups):
                arm = Arm("chain", number, "path", relations[0], relations[-1])
                self._chains.setdefault(arm, []).extend(chain_of(source, path) for path in groups[relations])
        self._pairs: dict[Arm, Callable[[random.Random], Makers]] = {}
        for name in pack.relations if 2 in hops else ():
            self._add_pairs("comparison", 2, (name, name), partial(compare_by, source, name))
        for bridge in pack.bridges if 4 in hops else ():
            ends = bridge.role, bridge.value
            self._add_pairs("bridge-comparison", 4, ends, partial(compare_over, source, bridge))
        self._clues = {Arm("intersection", 1, "both", *c.steps): c for c in (pack.clues if 1 in hops else ())}
        arms = sorted({**self._chains, **self._pairs, **self._clues})
        self.arms = tuple(arm for arm in arms if next(self.walks(arm), None) is not None)

    def _add_pairs(
        self, shape: str, hops: int, ends: tuple[str, str], makers: Callable[[random.Random], Makers]
    ) -> None:
        """Adds an arm for each operation that compares pairs; `makers` returns samplers of pairs by operation."""
        self._pairs |= {Arm(shape, hops, op, *ends): makers for op in makers(random.Random(0))}

    def walks(self, arm: Arm) -> Iterator[Draft]:
        """Yields the drafts of an arm; see `Ground.walks`."""
        rng = random.Random(f"walks {self.seed} {arm}")
        if arm in self._chains:
            return iter(rng.sample(self._chains[arm], len(self._chains[arm])))
        if arm in self._pairs:
            return pairs_of([self._pairs[arm](rng)[arm.op]])
        return intersections(self._source, [self._clues[arm]], rng)

    def question(self, arm: Arm, walk: Draft, number: int) -> Question | str:
        """Returns the question of a draft, or the filter that refuses it; see `Ground.question`."""
        if (reason := self._wording.refusal(walk)) is not None:
            return reason
        (searched,) = self._searches.search([walk])
        if (reason := self._searches.refusal(searched)) is not None:
            return reason
        question = question_of(self._source, searched, "train", number)
        return replace(question, id=f"{arm.name}-{number}", metadata={**question.metadata, "arm": list(arm)})
