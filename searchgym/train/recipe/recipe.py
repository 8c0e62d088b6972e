"""Recipes: YAML files that define a training run completely: method, model, data and all numbers."""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import yaml
from annotated_types import Ge

from searchgym.options import Kind, Named, Options, Setting, dump, find_kind, kind_name, plain
from searchgym.scoring.judges.judge import Judge, default_judge
from searchgym.train.algorithms.estimator import AdvantageOptions
from searchgym.train.algorithms.loss_options import LossOptions
from searchgym.train.credit.term import Term
from searchgym.train.credit.terms.outcome import Outcome
from searchgym.train.curriculum.stages import Schedule
from searchgym.train.recipe.launching import Launcher
from searchgym.train.recipe.method import Method
from searchgym.train.recipe.options import (
    CheckpointOptions,
    CriticOptions,
    DeadlineOptions,
    GuardOptions,
    KeyOptions,
    LearnerOptions,
    LogOptions,
    LoraOptions,
    OptimizerOptions,
    RolloutOptions,
    ValidationOptions,
)
from searchgym.train.selfplay.kind import Proposer


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Options):
    """Everything that defines one training run."""

    name: str
    """Name of the recipe."""
    summary: str
    """Purpose of the recipe, in one sentence."""
    method: Method
    """Training method: ``policy`` (reinforcement learning), ``rejection`` or ``supervised``."""
    model: str
    """Model to train: a folder with model and tokenizer, a name on the hub (``OWNER/NAME``), or ``tiny``."""
    template: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments of the model's chat template, such as ``enable_thinking: false``, and ``date``, the day that the
    template shows (``YYYY-MM-DD``). Default: the template's defaults, and the day on which the run begins, which is
    recorded."""
    env: str
    """Id of the environment."""
    agent: str
    """Name or path of the agent card."""
    steps: Annotated[int, Ge(1)]
    """Number of training steps."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of every random generator in the run."""
    env_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Options of the environment (`TaskOptions`), merged over those of its id."""
    max_generated_tokens: Annotated[int, Ge(1)] | None = None
    """Budget of sampled tokens: the run stops after the step that reaches it, so that methods can be compared at equal
    cost. Tokens sampled for validation do not count. Default: no budget."""
    max_read_tokens: Annotated[int, Ge(1)] | None = None
    """Budget of tokens processed by the learner: the run stops after the step that reaches it. Counts whole training
    sequences with their prompts and observations (`learner/tokens_read`), but not the critic's. Default: no budget."""
    models: dict[str, KeyOptions] = dataclasses.field(default_factory=dict)
    """Model keys, each a set of weights for some of the agent's roles. Default: one key, ``policy``, for all roles."""
    proposer: Proposer | None = None
    """Question generator: ``path``, which learns which kinds of questions help training, or ``uniform``. Default: the
    environment's questions are used."""
    curriculum: Schedule | None = None
    """Stages of the training, with the options that differ between them; ``steps`` or ``pass-rate`` sets when the next
    stage begins. Default: none."""
    rollout: RolloutOptions = dataclasses.field(default_factory=RolloutOptions)
    credit: Named[Term] = dataclasses.field(default_factory=lambda: Named[Term](outcome=Outcome()))
    """Credit terms by name, each with a weight or with the options of its class. Their rewards are added."""
    judge: Judge = dataclasses.field(default_factory=default_judge)
    """Judge for credit terms that need one: its name, ``kind`` and options, ``module:Class``, or else a frozen model
    key or a model (`ModelJudge`)."""
    advantage: AdvantageOptions = dataclasses.field(default_factory=AdvantageOptions)
    loss: LossOptions = dataclasses.field(default_factory=LossOptions)
    optimizer: OptimizerOptions = dataclasses.field(default_factory=OptimizerOptions)
    lora: LoraOptions = dataclasses.field(default_factory=LoraOptions)
    critic: CriticOptions = dataclasses.field(default_factory=CriticOptions)
    learner: LearnerOptions = dataclasses.field(default_factory=LearnerOptions)
    validation: ValidationOptions = dataclasses.field(default_factory=ValidationOptions)
    checkpoint: CheckpointOptions = dataclasses.field(default_factory=CheckpointOptions)
    guard: GuardOptions = dataclasses.field(default_factory=GuardOptions)
    deadline: DeadlineOptions = dataclasses.field(default_factory=DeadlineOptions)
    log: LogOptions = dataclasses.field(default_factory=LogOptions)
    launch: Launcher = dataclasses.field(default_factory=lambda: find_kind(Launcher, "here")())
    """Launcher of learner ranks and sampling servers: ``here`` (this machine), or ``ray`` (the nodes of a cluster)."""

    @property
    def setting(self) -> Setting:
        """Properties of the recipe that the checks of kinds read."""
        advantage, launch = self.advantage, self.launch
        return Setting(
            estimator=kind_name(advantage.estimator),
            critic=self.has_critic,
            whole_episodes=self.advantage.estimator.whole_episodes,
            valued=self.critic.tokens,
            normalise=advantage.normalise,
            chain=advantage.chain,
            terms=tuple(self.credit),
            staleness=self.rollout.staleness,
            lora=self.lora.rank > 0,
            dtype=self.learner.dtype,
            rounds_adapters=self.rollout.sampler.rounds_adapters,
            trained_keys=sum(not key.frozen for key in self.models.values()),
            launcher=kind_name(self.launch) if launch.elsewhere else None,
            programs=self.learner.backend.apart or self.rollout.sampler.engines > 0,
            retriever="retriever" in self.env_options,
            attempts=self.rollout.attempts,
            paragraphs=bool(self.env_options.get("distractors")),
        )

    @property
    def has_critic(self) -> bool:
        """True if a critic is trained in addition to the policy."""
        return self.method.compares and self.advantage.estimator.critic

    @property
    def sizes_itself(self) -> bool:
        """True if the number of tokens in a micro-batch is still to be determined."""
        return "auto" in (self.optimizer.micro_batch_tokens, self.critic.optimizer.micro_batch_tokens)


def dump_recipe(recipe: Recipe) -> str:
    """Returns a recipe as YAML with every value resolved; `read_recipe` restores an equal recipe."""
    return dump(recipe)


class KindField(NamedTuple):
    """Type of a recipe key whose value is one kind, or several kinds by name."""

    base: type[Kind]
    default: Any
    """Default value as plain data; None if the key has no default."""


def _values(cls: Any, prefix: str = "") -> Iterator[tuple[str, KindField | None]]:
    """Yields the dotted name of each value of a recipe; a kind, and kinds by name, are one value."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        name, hint = prefix + field.name, hints[field.name]
        types = typing.get_args(hint) or (hint,)  # of kinds by name and of optional kinds, the first type counts
        if isinstance(types[0], type) and issubclass(types[0], Kind):
            factory: Any = field.default_factory
            yield name, KindField(types[0], None if factory is dataclasses.MISSING else plain(factory()))
        elif dataclasses.is_dataclass(hint):
            yield from _values(hint, f"{name}.")
        else:
            yield name, None


def recipe_keys(cls: Any = Recipe) -> list[str]:
    """Returns the dotted names of all values of a recipe, or of another class of options."""
    return [name for name, _ in _values(cls)]


def recipe_kinds() -> dict[str, KindField]:
    """Returns the keys of a recipe whose values are kinds, by their dotted names."""
    return {name: kind for name, kind in _values(Recipe) if kind is not None}


def override_of(key: str, value: Any) -> str:
    """Returns the override ``KEY=VALUE`` that sets a recipe's value."""
    text = yaml.safe_dump(plain(value), default_flow_style=True, sort_keys=False, width=math.inf)
    return f"{key}={text.strip().removesuffix('...').strip()}"


def recipe_values(recipe: Recipe) -> dict[str, Any]:
    """Returns the values of a recipe by their dotted names."""
    return {key: functools.reduce(getattr, key.split("."), recipe) for key in recipe_keys()}
