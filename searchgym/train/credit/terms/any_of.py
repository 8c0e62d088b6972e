"""Credit term ``any-of``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge
from typing_extensions import override

from searchgym.options import Setting
from searchgym.records import Episode
from searchgym.scoring.answers import exact_match, golds_with_words
from searchgym.scoring.confidence import candidates_of
from searchgym.scoring.judges.rubric import wanted_of
from searchgym.train.credit.term import CreditContext, EpisodeTerm, answer_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyOf(EpisodeTerm):
    """Rewards an answer with several candidates for the right ones: the share of the right answers that it states.

    For a question with one right answer this is 1 if any candidate is right. For a question with n right answers it is
    the number of different ones among the candidates, divided by the smaller of n and `most`. An answer with more than
    `most` candidates gets 0, so that stating everything earns nothing. Use this term instead of ``outcome``.

    Source: Reaching Beyond the Mode, its released reward (RLVR with several answers, 3 candidates), which divides by
    the number of candidates. Its format reward is the term ``format``.
    """

    most: Annotated[int, Ge(1)] = 3
    """Maximum number of candidates in an answer."""

    @override
    def check(self, setting: Setting) -> Iterable[str]:
        if "outcome" in setting.terms:
            yield "it replaces outcome, for which an answer with several candidates is wrong: name only one of the two"

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        texts = [candidate.text for candidate in candidates_of(answer_of(episode))]
        if not 1 <= len(texts) <= self.most:
            return 0.0
        golds = [golds_with_words(names) for names in wanted_of(context.question(episode))]
        right = sum(any(exact_match(text, names) for text in texts) for names in golds)
        return min(right / min(len(golds), self.most), 1.0)
