"""Fault ``rate-limit``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from searchgym.envs.faults.fault import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit(Fault):
    """The engine refuses the search; the same search may succeed in the next turn."""

    notice: ClassVar = "The search engine refused the request (429, too many requests): search again."
