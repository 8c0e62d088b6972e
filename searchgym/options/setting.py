"""Settings of a run that kinds check themselves against."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Settings of a run, passed to `Kind.check`."""

    estimator: str = "grpo"
    """Name of the advantage estimator."""
    critic: bool = False
    """Whether the estimator uses a critic."""
    whole_episodes: bool = False
    """Whether the estimator needs one reward per whole episode."""
    valued: str = "model"
    """Tokens for which the critic predicts a value; see `CriticOptions.tokens`."""
    normalise: str = "all"
    """Group within which rewards are compared; see `AdvantageOptions.normalise`."""
    chain: str = "call"
    """Scope over which rewards are passed back; see `AdvantageOptions.chain`."""
    terms: tuple[str, ...] = ()
    """Names of the credit terms."""
    staleness: int = 0
    """Number of steps by which sampling may run ahead of learning."""
    lora: bool = False
    """Whether LoRA adapters are trained."""
    dtype: str = "float32"
    """Data type of the learner's weights."""
    rounds_adapters: bool = False
    """Whether the sampler merges adapters into its weights, which rounds them to `dtype`."""
    trained_keys: int = 0
    """Number of model keys that the recipe names and trains."""
    launcher: str | None = None
    """Name of the launcher that starts processes on other machines; None if all run on this one."""
    programs: bool = False
    """Whether the learner or the sampler runs in separate processes, which a launcher can start."""
    retriever: bool = False
    """Whether the recipe names a retriever."""
    attempts: int = 2
    """Number of episodes per question."""
    paragraphs: bool = False
    """Whether each question is searched in its own paragraphs."""

    @property
    def by_episode(self) -> bool:
        """Whether whole episodes are compared, so that all calls of an episode get the same advantage."""
        return self.normalise == "all" and not self.critic
