"""Credit term ``pages``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt, Interval
from typing_extensions import override

from searchgym.records import Episode, Question, is_simulated, title_key
from searchgym.train.credit.evidence import gold_turns
from searchgym.train.credit.term import CreditContext, EpisodeTerm


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages(EpisodeTerm):
    """Rewards an episode by how well the pages that it retrieved or opened match the question's gold pages.

    With the environment's reward r, clipped to [0, 1], and the F-score F of the pages, the last call of each sequence
    gets ``eta F + (1 - eta) r F``; together with ``outcome`` the sum is ``r + eta F + (1 - eta) r F``. Precision counts
    different pages, so that retrieving everything earns little. A question without gold pages has F = 0.

    Source: LongRLVR, arXiv 2603.02146, by notes (beta 2), whose F compares cited chunks of a long context with the
    gold ones. Deviations: retrieved or opened pages stand for citations; eta's default is ours.
    """

    eta: Annotated[float, Interval(ge=0, le=1)] = 0.1
    """Share of the reward for pages that does not depend on the answer."""
    beta: Annotated[float, Gt(0)] = 2.0
    """Weight of recall in the F-score; with 1, precision and recall count equally."""
    of: Literal["found", "opened"] = "found"
    """Pages that count: all that searches returned, or only those that the agent opened."""

    @override
    def value(self, episode: Episode, context: CreditContext) -> float:
        question, right = context.question(episode), min(max(episode.reward, 0.0), 1.0)
        return (self.eta + (1 - self.eta) * right) * self.f_score(episode, question)

    def f_score(self, episode: Episode, question: Question) -> float:
        """Returns ``(1 + b^2) P R / (b^2 P + R)`` of an episode's pages; 0 if precision and recall are 0."""
        opened = {title_key(page.title) for page in episode.opens if page.part}
        pages, turns = opened, gold_turns(episode, question)
        if self.of == "found":
            hits = (hit.passage for search in episode.searches for hit in search.hits)
            pages = pages | {title_key(page.title) for page in hits if not is_simulated(page)}
        gold = {title for title, turn in turns.items() if turn is not None} & pages
        if not gold:
            return 0.0
        precision, recall, square = len(gold) / len(pages), len(gold) / len(turns), self.beta**2
        return (1 + square) * precision * recall / (square * precision + recall)
