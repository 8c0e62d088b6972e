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
        if not self._written(findings, REWARDS):
            return
        right = self._right(
            drawn, [(episode, episode) for episode in drawn.episodes], counted(drawn.episodes, self.recipe.method)
        )
        wrong = total = 0
        worst = 0.0
        for sample in drawn.samples:
            want = np.zeros((2, len(sample.ids)))
            for call in sample.calls:
                pairs = right.get(sample.episode_id)
                want[:, call.end - 1] = np.inf if pairs is None else pairs[call.index]
            kept = np.zeros(len(sample.ids), np.float32) if sample.kept is None else sample.kept
            off = float(max(np.abs(sample.reward - want[0]).max(), np.abs(kept - want[1]).max()))
            wrong, total, worst = wrong + (off > 1e-5), total + 1, max(worst, off)
        said = f"{total} samples by {' + '.join(self.recipe.credit)}, {wrong} off, by {worst:.2g} at most"
        findings.add(REWARDS, not wrong, said)

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
        if not self._written(findings, CREDIT):
            return
        every = [episode for episode, _ in made]
        right = self._right(drawn, made, [e for e in every if e.stop_reason != "retriever_error"])
        wrong, worst, seen = 0, 0.0, set[float]()
        for episode, given in zip(every, credit.rewards(every), strict=True):
            pairs = right.get(episode.id)
            if given is None or pairs is None:
                wrong += (given is None) != (pairs is None)
                continue
            found = np.stack([given.total, given.kept], 1)
            off = float(np.abs(found - np.reshape(pairs, (-1, 2))).max(initial=0.0))
            wrong, worst = wrong + (off > 1e-5), max(worst, off)
            seen |= {round(total, 6) for total, _ in pairs}
        terms = " + ".join(self.recipe.credit)
        said = f"{len(every)} imagined episodes by {terms} with {len(seen)} different rewards of calls, {wrong} off"
        findings.add(CREDIT, not wrong, f"{said}, by {worst:.2g} at most")

    def _written(self, findings: Findings, name: str) -> bool:
        """Tells whether all terms are written a second time; otherwise records that they are not checked."""
        others = sorted(set(self.recipe.credit) - set(TERMS))
        if others:
            why = "is" if len(others) == 1 else "are"
            findings.skip(name, f"{', '.join(others)} {why} not written a second time here")
        return not others

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
