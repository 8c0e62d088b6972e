"""Credit term ``candidates``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

import numpy as np
from annotated_types import Ge
from typing_extensions import override

from searchgym.records import Episode, Question, title_key
from searchgym.scoring.answers import f1_score, golds_with_words
from searchgym.scoring.confidence import parts_of
from searchgym.scoring.judges.rubric import best_of_candidates, rubric_of, weightings
from searchgym.train.credit.term import CreditContext, EpisodeTerm, answer_of

CITED: Final = re.compile(r"\[([^\[\]]*)\]")
"""Matches a page that a candidate cites: ``Ulm [Ada Park] [Ulm Minster]``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates(EpisodeTerm):
    """Rewards an answer with several candidates by how well they cover the components of the reward, in [0, 1].

    A candidate has a vector of rewards: whether it passes each criterion of the question's rubric (``criteria``), or
    whether it cites each gold page in square brackets, and the F1 of the rest as an answer (``hops``). Its score under
    a weighting is the weighted sum. The reward is the best candidate's score under each random weighting, averaged over
    the weightings, which are the same for all attempts at a question. An answer with more than `most` candidates gets
    0.

    Source: VPO, arXiv 2605.22817, by notes; see `scoring.judges.rubric.best_of_candidates`. There the vector for search
    has one indicator for each hop's citation, and the answer's F1 (``hops``), with 3 candidates. Criteria as
    components, and citations in square brackets, are ours.
    """

    asks_judge: ClassVar = True

    components: Literal["criteria", "hops"] = "criteria"
    """Components of a candidate's reward vector; ``hops`` needs no judge."""
    most: Annotated[int, Ge(1)] = 4
    """Maximum number of candidates in an answer."""
    draws: Annotated[int, Ge(1)] = 64
    """Number of random weightings of the components over which the score is averaged."""

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        question, parts = context.question(episode), parts_of(answer_of(episode))
        if not 1 <= len(parts) <= self.most:
            return 0.0
        if self.components == "hops":
            rows = [hop_rewards(question, part) for part in parts]
        else:
            criteria = rubric_of(question)
            rows = [[float(v) for v in context.judge.passes(question.text, part, criteria)] for part in parts]
        return best_of_candidates(np.array(rows, np.float64), weightings(question.id, len(rows[0]), self.draws))


def hop_rewards(question: Question, candidate: str) -> list[float]:
    """Returns a candidate's reward vector: 1 for each gold page that it cites, else 0; then the F1 of its answer."""
    cited = {title_key(title) for title in CITED.findall(candidate)}
    pages = [float(title_key(title) in cited) for title in question.gold_titles or ()]
    return [*pages, f1_score(CITED.sub(" ", candidate), golds_with_words(question.golds))]
