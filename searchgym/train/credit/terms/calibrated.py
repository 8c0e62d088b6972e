"""Credit term ``calibrated``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from typing_extensions import override

from searchgym.options import Setting
from searchgym.records import Episode
from searchgym.scoring.answers import exact_match, golds_with_words
from searchgym.scoring.confidence import brier_reward, candidates_of
from searchgym.scoring.judges.rubric import wanted_of
from searchgym.train.credit.term import CreditContext, EpisodeTerm, answer_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated(EpisodeTerm):
    """Rewards the confidences of an answer's candidates by ``1 - mean_i (y_i - p_i)^2``, in [0, 1].

    y_i is 1 if candidate i is a right answer, and p_i its stated confidence (``Ada Park (0.6); Bo Lind (0.3)``). An
    answer that states a candidate twice, a candidate without a confidence from 0 to 1, or confidences above 1 in sum
    gets 0. Wrong candidates with confidence 0 earn 1, so a second term must reward right ones: ``any-of``, or
    ``outcome`` for single answers.

    Source: Reaching Beyond the Mode, its released reward (RLCR with several answers). See
    `searchgym.scoring.confidence.brier_reward`.
    """

    @override
    def check(self, setting: Setting) -> Iterable[str]:
        if not {"any-of", "outcome"} & set(setting.terms):
            yield "wrong candidates with confidence 0 earn everything: name any-of or outcome beside it"

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        candidates = candidates_of(answer_of(episode))
        golds = [name for names in wanted_of(context.question(episode)) for name in golds_with_words(names)]
        return brier_reward(candidates, [exact_match(candidate.text, golds) > 0 for candidate in candidates])
