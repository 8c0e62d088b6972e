"""Launcher ``here``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from searchgym.train.recipe.launching import Launcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Here(Launcher):
    """Starts all programs on this machine, or connects to the addresses in the recipe."""

    elsewhere: ClassVar = False
