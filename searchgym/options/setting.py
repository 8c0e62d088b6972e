"""What a kind may know of the run that uses it, for its own check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Choices of a run that the check of a kind may look at."""

    estimator: str = "grpo"
    """Name of the advantage estimator."""
    critic: bool = False
    """True if the estimator asks a critic."""
    whole_episodes: bool = False
    """True if the estimator needs rewards of whole episodes."""
    valued: str = "model"
    """Tokens that have a value; see `CriticOptions.tokens`."""
    normalise: str = "all"
    """What is compared together; see `AdvantageOptions.normalise`."""
    chain: str = "call"
    """How far rewards are passed back; see `AdvantageOptions.chain`."""
    terms: tuple[str, ...] = ()
    """Names of the credit terms."""
    attempts: int = 2
    """Episodes per question."""
    paragraphs: bool = False
    """True if every question brings the paragraphs that are searched."""

    @property
    def by_episode(self) -> bool:
        """True if episodes are compared as wholes, so that calls of one episode cannot be told apart."""
        return self.normalise == "all" and not self.critic


def check_problems(kind: Any, setting: Setting) -> list[str]:
    """Returns what the `check` of a kind says against a run, or that it failed."""
    try:
        return list(kind.check(setting))
    except Exception as error:  # whatever the class of another package raises
        return [f"its check failed: {type(error).__name__}: {error}"]
