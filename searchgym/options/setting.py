"""What a kind may know of the run that uses it, for its own check."""

from __future__ import annotations

from dataclasses import dataclass


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

    @property
    def by_episode(self) -> bool:
        """True if episodes are compared as wholes, so that calls of one episode cannot be told apart."""
        return self.normalise == "all" and not self.critic
