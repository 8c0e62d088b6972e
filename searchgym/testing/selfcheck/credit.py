"""Checks of the rewards of a step's samples, and of made-up episodes in which every credit term has an effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from searchgym.records import Episode
from searchgym.testing.reference.case import Case, Score
from searchgym.testing.reference.rewards import TERMS, call_rewards, sequences
from searchgym.testing.reference.terms import names_of
from searchgym.testing.selfcheck.findings import Findings
from searchgym.testing.selfcheck.stages import SampledStep, counted
from searchgym.train.credit.credit import Credit
from searchgym.train.recipe.recipe import Recipe

REWARDS: Final = "rewards are on their calls"
CREDIT: Final = "credit terms follow their formulas"
OFF: Final = 1e-5
"""Maximum difference of two rewards that counts as rounding."""


@dataclass(frozen=True, slots=True)
class CreditCheck:
    """Checks of a recipe's rewards.

    Args:
        recipe: Recipe under test.
        penalties: Penalty of each role for an illegal output.
        score: Function that scores an answer to an episode's question.
    """

    recipe: Recipe
    penalties: Mapping[str, float]
    score: Score

    def check_samples(self, findings: Findings, sampled: SampledStep) -> None:
        """Checks that each call of the step's samples has its reward on its last token."""
        if others := self._unwritten():
            findings.skip(REWARDS, others)
            return
        with_bases = [(episode, episode) for episode in sampled.episodes]
        right, offs = self._right(sampled, with_bases, counted(sampled.episodes, self.recipe.method)), [0.0]
        for sample in sampled.samples:
            want, pairs = np.zeros((2, len(sample.ids))), right.get(sample.episode_id)
            for call in sample.calls:
                want[:, call.end - 1] = np.inf if pairs is None else pairs[call.index]
            unshared = np.zeros(len(sample.ids)) if sample.local_reward is None else sample.local_reward
            offs.append(float(np.abs(np.stack([sample.reward, unshared]).astype(np.float64) - want).max()))
        message = f"{len(sampled.samples)} samples by {' + '.join(self.recipe.credit)}, off by {max(offs):.2g} at most"
        findings.add(REWARDS, max(offs) <= OFF, message)

    def check_imagined(
        self, findings: Findings, sampled: SampledStep, imagined: Sequence[tuple[Episode, Episode]], credit: Credit
    ) -> None:
        """Checks the rewards of made-up episodes, with searches and answers that a small model would not produce.

        Args:
            findings: Receives the result.
            sampled: Step whose tokens the episodes have.
            imagined: Made-up episodes, each with the sampled episode whose tokens it has.
            credit: Computes the rewards under test.
        """
        if others := self._unwritten():
            findings.skip(CREDIT, others)
            return
        every, offs, seen = [episode for episode, _ in imagined], [0.0], set[float]()
        right = self._right(sampled, imagined, [e for e in every if e.stop_reason != "retriever_error"])
        for episode, rewards in zip(every, credit.rewards(every), strict=True):
            pairs = right.get(episode.id)
            if rewards is None or pairs is None:
                offs.append(0.0 if rewards is None and pairs is None else np.inf)
                continue
            offs.append(
                float(
                    np.abs(
                        np.stack([rewards.total, rewards.local_rewards], 1)
                        - np.asarray(pairs, np.float64).reshape(-1, 2)
                    ).max(initial=0)
                )
            )
            seen |= {round(total, 6) for total, _ in pairs}
        message = (
            f"{len(every)} imagined episodes by {' + '.join(self.recipe.credit)} with {len(seen)} different rewards"
        )
        findings.add(CREDIT, max(offs) <= OFF, f"{message} of calls, off by {max(offs):.2g} at most")

    def _unwritten(self) -> str:
        """Lists the credit terms that have no second implementation; "" if there are none."""
        others = sorted(set(self.recipe.credit) - set(TERMS))
        return f"no second implementation of: {', '.join(others)}" if others else ""

    def _right(
        self, sampled: SampledStep, with_bases: Sequence[tuple[Episode, Episode]], selected: Sequence[Episode]
    ) -> dict[str, list[tuple[float, float]]]:
        """Returns the right rewards of the calls of the selected episodes, by episode id."""
        terms, right = self.recipe.credit.loaded(), dict[str, list[tuple[float, float]]]()
        named = names_of(sampled.listed) if "waypoint" in terms else (set[str](), set[str]())
        attempts: dict[str, list[Episode]] = {}
        for episode, _ in with_bases:
            if episode.stop_reason != "retriever_error":
                attempts.setdefault(episode.question_id, []).append(episode)
        bases = {episode.id: base for episode, base in with_bases}
        for episode in selected:
            rows = sequences(bases[episode.id], sampled.exchanges_of(bases[episode.id]))
            question = sampled.questions[episode.question_id]
            case = Case(episode, rows, question, attempts[question.id], named, terms, self.score, self.penalties)
            right[episode.id] = call_rewards(case)
        return right
