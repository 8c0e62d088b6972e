"""Checks of rewards: of the drawn samples, and of imagined episodes in which every credit term has its say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from searchgym.records import Episode
from searchgym.testing.reference.rewards import TERMS, call_rewards, sequences
from searchgym.testing.reference.terms import Case, Score, names_of
from searchgym.testing.selfcheck.findings import Findings
from searchgym.testing.selfcheck.stages import Drawn, counted
from searchgym.train.credit.credit import Credit
from searchgym.train.recipe.recipe import Recipe

REWARDS: Final = "rewards are on their calls"
CREDIT: Final = "credit terms follow their formulas"
OFF: Final = 1e-5
"""Difference of two rewards that rounding explains."""


@dataclass(frozen=True, slots=True)
class CreditCheck:
    """The checks of a recipe's rewards.

    Args:
        recipe: The checked recipe.
        penalties: Penalty of each role for an illegal output.
        score: Scores an answer to an episode's question.
    """

    recipe: Recipe
    penalties: Mapping[str, float]
    score: Score

    def check_samples(self, findings: Findings, drawn: Drawn) -> None:
        """Checks the reward of each call of the step's samples, on its last token."""
        if others := self._unwritten():
            findings.skip(REWARDS, others)
            return
        made = [(episode, episode) for episode in drawn.episodes]
        right, offs = self._right(drawn, made, counted(drawn.episodes, self.recipe.method)), [0.0]
        for sample in drawn.samples:
            want, pairs = np.zeros((2, len(sample.ids))), right.get(sample.episode_id)
            for call in sample.calls:
                want[:, call.end - 1] = np.inf if pairs is None else pairs[call.index]
            kept = np.zeros(len(sample.ids)) if sample.local_reward is None else sample.local_reward
            offs.append(float(np.abs(np.stack([sample.reward, kept]).astype(np.float64) - want).max()))
        said = f"{len(drawn.samples)} samples by {' + '.join(self.recipe.credit)}, off by {max(offs):.2g} at most"
        findings.add(REWARDS, max(offs) <= OFF, said)

    def check_imagined(
        self, findings: Findings, drawn: Drawn, made: Sequence[tuple[Episode, Episode]], credit: Credit
    ) -> None:
        """Checks the rewards of episodes whose searches and answers no small model would make.

        Args:
            findings: Takes the result.
            drawn: The step that they have their tokens from.
            made: Imagined episodes, each with the episode whose tokens it has.
            credit: Gives the rewards that are checked.
        """
        if others := self._unwritten():
            findings.skip(CREDIT, others)
            return
        every, offs, seen = [episode for episode, _ in made], [0.0], set[float]()
        right = self._right(drawn, made, [e for e in every if e.stop_reason != "retriever_error"])
        for episode, given in zip(every, credit.rewards(every), strict=True):
            pairs = right.get(episode.id)
            if given is None or pairs is None:
                offs.append(0.0 if given is None and pairs is None else np.inf)
                continue
            offs.append(
                float(
                    np.abs(
                        np.stack([given.total, given.local_rewards], 1) - np.asarray(pairs, np.float64).reshape(-1, 2)
                    ).max(initial=0)
                )
            )
            seen |= {round(total, 6) for total, _ in pairs}
        said = f"{len(every)} imagined episodes by {' + '.join(self.recipe.credit)} with {len(seen)} different rewards"
        findings.add(CREDIT, max(offs) <= OFF, f"{said} of calls, off by {max(offs):.2g} at most")

    def _unwritten(self) -> str:
        """Names the terms that are not written a second time; "" if there are none."""
        others = sorted(set(self.recipe.credit) - set(TERMS))
        return f"not written a second time here: {', '.join(others)}" if others else ""

    def _right(
        self, drawn: Drawn, made: Sequence[tuple[Episode, Episode]], wanted: Sequence[Episode]
    ) -> dict[str, list[tuple[float, float]]]:
        """Returns the rewards of the calls of the wanted ones among some episodes, by episode."""
        terms, right = self.recipe.credit.loaded(), dict[str, list[tuple[float, float]]]()
        named = names_of(drawn.listed) if "waypoint" in terms else (set[str](), set[str]())
        attempts: dict[str, list[Episode]] = {}
        for episode, _ in made:
            if episode.stop_reason != "retriever_error":
                attempts.setdefault(episode.question_id, []).append(episode)
        bases = {episode.id: base for episode, base in made}
        for episode in wanted:
            rows = sequences(bases[episode.id], drawn.exchanges_of(bases[episode.id]))
            question = drawn.questions[episode.question_id]
            case = Case(episode, rows, question, attempts[question.id], named, terms, self.score, self.penalties)
            right[episode.id] = call_rewards(case)
        return right
