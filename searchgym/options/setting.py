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
    staleness: int = 0
    """Steps that are sampled ahead of the learner."""
    lora: bool = False
    """True if adapters are trained."""
    dtype: str = "float32"
    """Type of the learner's weights."""
    rounds_adapters: bool = False
    """True if the sampler merges adapters into weights of that type."""
    trained_keys: int = 0
    """Number of the model keys that are named and trained."""
    launcher: str | None = None
    """Name of the launcher that starts programs elsewhere; None where they start here."""
    programs: bool = False
    """True if the learner or the sampler has processes of its own, which a launcher can start."""
    retriever: bool = False
    """True if the recipe names a retriever."""
    attempts: int = 2
    """Episodes per question."""
    paragraphs: bool = False
    """True if every question brings the paragraphs that are searched."""

    @property
    def by_episode(self) -> bool:
        """True if episodes are compared as wholes, so that calls of one episode cannot be told apart."""
        return self.normalise == "all" and not self.critic
