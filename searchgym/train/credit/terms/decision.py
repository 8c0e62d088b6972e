"""Credit term ``decision``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Interval
from typing_extensions import override

from searchgym.errors import DataError
from searchgym.records import Episode
from searchgym.train.credit.term import CreditContext, Rows, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Term):
    """Rewards the decision to search: 1 if an episode's first call searched exactly when a search was needed, else 0.

    An illegal decision, after which the agent searches, gets 0. A question counts as known if the trial answers without
    a search (`Call.prefix`) have a mean score of at least `known` over the group; then searching is wrong, otherwise
    not searching is. A trial answer gets its own score as reward, so that answering from memory is trained too. A group
    without a trial answer is refused with a DataError.

    Source: AdaSearch, arXiv 2512.16883, which trains the decision separately from solving; its exact reward is not
    public. The label, the threshold and the reward are ours.
    """

    rewards_one: ClassVar = "call"
    trains_prefixes: ClassVar = True

    known: Annotated[float, Interval(gt=0, le=1)] = 0.5
    """Minimum mean score of trial answers with which a question counts as known."""

    @override
    def rewards(self, group: Sequence[Episode], context: CreditContext) -> Rows:
        rows = [[context.score(e, c.answer or "") if c.prefix else 0.0 for c in e.calls] for e in group]
        tried = [row[i] for row, e in zip(rows, group, strict=True) for i, c in enumerate(e.calls) if c.prefix]
        if not tried:
            raise DataError(
                f"episode {group[0].id} has no trial answer, but credit decision needs some: use agent adasearch"
            )
        in_memory = sum(tried) / len(tried) >= self.known
        for row, episode in zip(rows, group, strict=True):
            first = next((i for i, call in enumerate(episode.calls) if not call.prefix), None)
            if first is not None:
                row[first] = float(episode.calls[first].legal and bool(episode.searches) != in_memory)
        return rows
