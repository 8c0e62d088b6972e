"""Credit term ``format``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from searchgym.records import Episode
from searchgym.train.credit.term import CreditContext, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(Term):
    """Penalises illegal outputs: such a call gets its role's penalty, other calls get 0; see `RoleCard.penalty`."""

    passed_back: ClassVar = False

    @override
    def differs(self, penalties: Mapping[str, float]) -> bool:
        """Returns True if any role has a penalty; otherwise every call gets 0."""
        return any(penalties.values())

    @override
    def of_episode(self, episode: Episode, context: CreditContext) -> list[float]:
        return [0.0 if call.legal else context.penalties.get(call.role, 0.0) for call in episode.calls]
