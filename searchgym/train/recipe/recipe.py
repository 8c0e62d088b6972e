"""Recipes: one YAML file names the method, the model, the data and every number of a training run."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Ge

from searchgym.options import Options, dump
from searchgym.train.recipe.launching import Launcher, RayOptions
from searchgym.train.recipe.options import (
    AdvantageOptions,
    CheckpointOptions,
    CreditOptions,
    CriticOptions,
    CurriculumOptions,
    DeadlineOptions,
    GuardOptions,
    KeyOptions,
    LearnerOptions,
    LogOptions,
    LoraOptions,
    LossOptions,
    Method,
    OptimizerOptions,
    ProposerOptions,
    RolloutOptions,
    SupervisedOptions,
    ValidationOptions,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Options):
    """Everything that defines one training run."""

    name: str
    """Name of the recipe."""
    summary: str
    """What the recipe is for, in one sentence."""
    method: Method
    """``policy`` (reinforcement learning), ``rejection`` or ``supervised``."""
    model: str
    """Folder of a model with its tokenizer, a model on the hub (``OWNER/NAME``), or ``tiny``."""
    env: str
    """Id of the environment."""
    agent: str
    """Name or path of the agent card."""
    steps: Annotated[int, Ge(1)]
    """Number of steps."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of every generator in the run."""
    env_options: dict[str, Any] = field(default_factory=dict)
    """Options of the environment (`TaskOptions`), merged over the id's own."""
    max_generated_tokens: Annotated[int, Ge(1)] | None = None
    """Token budget: the run stops after the step in which it is reached, so that methods can be compared at equal cost.
    Tokens sampled for validation do not count. Default: no budget."""
    max_read_tokens: Annotated[int, Ge(1)] | None = None
    """Token budget of the learner: the run stops after the step in which it has read as many tokens of training
    sequences, prompts and observations too (`learner/tokens_read`; a critic's are not counted). Default: no budget."""
    models: dict[str, KeyOptions] = field(default_factory=dict)
    """Model keys and the roles that each answers for. Empty: one key, ``policy``, for all roles."""
    proposer: ProposerOptions = field(default_factory=ProposerOptions)
    curriculum: CurriculumOptions = field(default_factory=CurriculumOptions)
    rollout: RolloutOptions = field(default_factory=RolloutOptions)
    credit: CreditOptions = field(default_factory=CreditOptions)
    advantage: AdvantageOptions = field(default_factory=AdvantageOptions)
    loss: LossOptions = field(default_factory=LossOptions)
    supervised: SupervisedOptions = field(default_factory=SupervisedOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    lora: LoraOptions = field(default_factory=LoraOptions)
    critic: CriticOptions = field(default_factory=CriticOptions)
    learner: LearnerOptions = field(default_factory=LearnerOptions)
    validation: ValidationOptions = field(default_factory=ValidationOptions)
    checkpoint: CheckpointOptions = field(default_factory=CheckpointOptions)
    guard: GuardOptions = field(default_factory=GuardOptions)
    deadline: DeadlineOptions = field(default_factory=DeadlineOptions)
    log: LogOptions = field(default_factory=LogOptions)
    launch: Launcher = "here"
    """Where learner ranks and sampling servers start: ``here``, or on the nodes of a cluster with ``ray``."""
    ray: RayOptions = field(default_factory=RayOptions)

    @property
    def has_critic(self) -> bool:
        """True if a critic is trained beside the policy."""
        return self.method == "policy" and self.advantage.estimator == "gae"


def dump_recipe(recipe: Recipe) -> str:
    """Returns a recipe as YAML with every value resolved; `read_recipe` reads it back equal."""
    return dump(recipe)


def recipe_keys(cls: Any = Recipe, prefix: str = "") -> list[str]:
    """Returns the dotted names of every value of a recipe."""
    keys, hints = list[str](), typing.get_type_hints(cls)
    for one in dataclasses.fields(cls):
        name, hint = prefix + one.name, hints[one.name]
        keys += recipe_keys(hint, f"{name}.") if dataclasses.is_dataclass(hint) else [name]
    return keys


def recipe_values(recipe: Recipe) -> dict[str, Any]:
    """Returns every value of a recipe by its dotted name."""
    found = {}
    for key in recipe_keys():
        value: Any = recipe
        for part in key.split("."):
            value = getattr(value, part)
        found[key] = value
    return found
