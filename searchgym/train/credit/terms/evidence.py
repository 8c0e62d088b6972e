"""Credit term ``evidence``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval
from typing_extensions import override

from searchgym.options import Setting
from searchgym.records import Episode
from searchgym.train.algorithms.samples import at_ends
from searchgym.train.credit.evidence import MEASURES
from searchgym.train.credit.term import CreditContext, Rows, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence(Term):
    """Mixes a measure of an episode's evidence into the reward, so that a right answer needs support.

    With reward r and measure m, the sum of this term and ``outcome`` is ``(1 - share) r + share m`` for the last call
    of each sequence. Questions without evidence keep the outcome.

    Source: CaRR and its C-GRPO, arXiv 2601.06021, and the released code (share 0.3, ``right``, ``connected``);
    LongTraceRL (0.3, ``right``, ``entities``). Deviation: in CaRR a language model names the entities of the response
    and judges which facts its citations support; here a fact is supported if a retrieved passage contains its subject
    and its object.
    """

    rewards_one: ClassVar = "episode"
    sums_up: ClassVar = False

    measure: Literal["connected", "supported", "entities"] = "connected"
    """Measure of evidence, each a share: facts ``connected`` with the answer through facts that the searches support
    (CaRR), all ``supported`` facts, or ``entities`` named in the model's text (LongTraceRL)."""
    share: Annotated[float, Interval(gt=0, lt=1)] = 0.3
    """Share of the measure in the reward; the outcome has the rest."""
    where: Literal["right", "wrong", "all"] = "right"
    """Episodes that the term rewards: ``right`` (reward above 0, as in CaRR's runs and LongTraceRL), ``wrong`` (reward
    0), or ``all``."""
    scaled: bool = False
    """If true, the measure is divided by its maximum in the group (CaRR); not with ``where: right``."""

    @override
    def check(self, setting: Setting) -> Iterable[str]:
        if self.scaled and self.where == "right":
            yield "scaled needs where wrong or all, as in CaRR's code"

    @override
    def rewards(self, group: Sequence[Episode], context: CreditContext) -> Rows:
        question = context.question(group[0])
        if not question.evidences:
            return [[0.0] * len(episode.calls) for episode in group]
        measured = [MEASURES[self.measure](question, episode) for episode in group]
        largest = (max(measured) or 1.0) if self.scaled else 1.0
        rows = []
        for episode, value in zip(group, measured, strict=True):
            mixed = self.where in ("all", "right" if episode.reward > 0 else "wrong")
            rows.append(at_ends(episode, self.share * (value / largest - episode.reward) if mixed else 0.0))
        return rows
