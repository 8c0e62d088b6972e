"""Credit term ``overlong``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from typing_extensions import override

from searchgym.options import Setting
from searchgym.records import Episode
from searchgym.train.algorithms.samples import at_ends
from searchgym.train.credit.term import CreditContext, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlong(Term):
    """Penalises the last call of a sequence if the model wrote more tokens in it than a limit.

    With n tokens of the model in the sequence, limit L and cache C: 0 up to ``L - C``, then ``(L - C - n) / C``, and -1
    from L on.

    Source: DAPO, arXiv 2503.14476, equation 13 (L = 20,480, C = 4,096), its soft overlong punishment.
    """

    passed_back: ClassVar = False

    limit: Annotated[int, Ge(1)]
    """Number of model tokens in a sequence from which the full penalty, -1, applies."""
    cache: Annotated[int, Ge(1)]
    """Number of tokens before the limit over which the penalty grows linearly from 0 to -1."""

    @override
    def check(self, setting: Setting) -> Iterable[str]:
        if self.cache > self.limit:
            yield f"cache is {self.cache}: more than limit, {self.limit}"

    @override
    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:

        def charge(calls: list[int]) -> float:
            written = sum(episode.calls[index].end - episode.calls[index].start for index in calls)
            return min(0.0, max(-1.0, (self.limit - self.cache - written) / self.cache))

        return at_ends(episode, charge)
