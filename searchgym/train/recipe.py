"""Recipes: one YAML file names the method, the model, the data and every number of a training run.

A recipe is as strict as a card: unknown keys, wrong types and impossible combinations are refused before anything
runs. ``key=value`` overrides name a value by its dotted path (``optimizer.lr=1e-4``).
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from searchgym.cards import build, find_card, parse_yaml
from searchgym.errors import CardError, UnknownNameError
from searchgym.train.combinations import combination_problems

Method = Literal["grpo", "rejection", "supervised"]
Estimator = Literal["grpo", "rloo", "reinforce++", "reinforce++-baseline", "stratified"]
Reduction = Literal["token-mean", "sequence-mean", "constant"]
KL = Literal["k1", "k2", "k3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOptions:
    """What is sampled for one step."""

    questions: int = 16
    """Questions per step."""
    attempts: int = 8
    """Episodes per question: the size of a group."""
    temperature: float = 1.0
    """Of the sampler and of the trainer's log-probs alike."""
    top_p: float = 1.0
    """Nucleus of the sampler. Below 1 only where no probability ratio is taken (``method: rejection``)."""
    concurrency: int = 64
    """Episodes under way at once."""
    resample: int = 0
    """Rounds, at most, in which groups without signal are replaced by attempts at other questions (DAPO, arXiv
    2503.14476, section 3.2). 1 to 3 keep a step's batch nearly full; each costs its episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageOptions:
    """How rewards of a group become advantages; see `searchgym.train.advantages`."""

    estimator: Estimator = "grpo"
    """With whom an episode is compared, and how."""
    std: Literal["sample", "population", "none"] = "sample"
    """Deviation that the centred rewards are divided by: over n - 1, over n, or no division (Dr.GRPO)."""
    eps: float = 1e-6
    """Added to the deviation."""
    std_floor: float = 0.0
    """The deviation is at least this: differences of F1 near 0 are not blown up to noise."""
    min_group: int = 2
    """Groups with fewer episodes get advantage 0."""
    drop_zero_variance: bool = True
    """Leave groups without signal out of the batch, its denominator too; False keeps them with advantage 0."""
    drop_overlong: bool = False
    """Leave episodes that ended by a full context or a turn's token limit out of the batch, its denominator too. Their
    group is compared with them first (overlong filtering of DAPO, arXiv 2503.14476, section 3.4)."""
    alpha: float = 0.5
    """``stratified``: share of the comparison within the stratum, from 0 (GRPO) to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOptions:
    """The policy loss; see `searchgym.train.losses`."""

    clip_low: float = 0.2
    """Ratios below 1 - this are clipped where the advantage is negative."""
    clip_high: float = 0.2
    """Ratios above 1 + this are clipped where the advantage is positive."""
    dual_clip: float | None = None
    """Ratios above this, where the advantage is negative, count as this: a bound on the loss of one token. Usually 3
    (arXiv 1912.09729); more than 1 + `clip_high`."""
    ratio: Literal["token", "sequence"] = "token"
    """Of each token, or the geometric mean over its sequence (GSPO, arXiv 2507.18071, with ``reduction: sequence-mean``
    and clips around 3e-4)."""
    importance_cap: float | None = None
    """Each token's loss is weighted by its probability under the trainer over that under the sampler, at most this.
    Usually 2, for a sampler that computes otherwise than the trainer."""
    kl_coef: float = 0.0
    """Weight of the KL estimate to the model as it was at step 0; 0 keeps no reference model."""
    kl_estimator: KL = "k3"
    """See `searchgym.train.losses.kl_estimate`."""
    kl_in: Literal["loss", "reward"] = "loss"
    """A term of the loss, or a penalty on the return before episodes are compared (with k1)."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    llds_coef: float = 0.0
    """Weight of the penalty on likelihoods that fall although the advantage is not negative (LLDS, usually 0.2)."""
    llds_unit: Literal["call", "response"] = "call"
    """What must have fallen as a whole for LLDS to act on its tokens."""
    reduction: Reduction = "token-mean"
    """Every token of the step weighs the same, or every sequence does, or every token weighs the same in every step."""
    constant_length: int | None = None
    """``constant``: tokens that every sequence counts as in the denominator (Dr.GRPO: the most it can have)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedOptions:
    """Maximum likelihood: on demonstrations, or on the model's own successful episodes."""

    targets: Literal["model", "all"] = "model"
    """Learn the model's tokens, or every token but the first (a reader trained from scratch)."""
    batch: int = 64
    """Demonstrations per step (``method: supervised``)."""
    demonstrations: str | None = None
    """Episode file with the demonstrations (``method: supervised``), or a name the caller knows."""
    min_reward: float = 1.0
    """Own episodes with at least this reward are learnt from (``method: rejection``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerOptions:
    """AdamW, its schedule, and how a step's samples are cut into updates and micro-batches."""

    lr: float = 1e-6
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    eps: float = 1e-8
    weight_decay: float = 0.0
    """On matrices only, never on biases and norms."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this 2-norm; 0 leaves them as they are."""
    warmup_steps: int = 0
    """Steps over which the rate rises linearly to `lr`."""
    schedule: Literal["constant", "cosine"] = "constant"
    min_lr_ratio: float = 0.0
    """Where the cosine ends, as a share of `lr`."""
    minibatches: int = 1
    """Updates per pass over a step's samples."""
    epochs: int = 1
    """Passes over a step's samples."""
    micro_batch_tokens: int = 8192
    """Padded tokens of one forward pass at most; a longer sample is alone in its own."""
    autocast: Literal["bfloat16"] | None = None
    """Type of the matrix products; weights and losses stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationOptions:
    """Greedy evaluation inside the loop."""

    every: int = 10
    """Steps between validations; 0: never. Step 0 and the last step are validated too."""
    questions: int = 100
    """Questions asked each time, always the same."""
    metric: str = "em"
    """Score whose best value keeps a checkpoint."""
    env_options: dict[str, Any] = field(default_factory=dict)
    """Options of the environment that is validated on, over those of training: another split, say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions:
    """What is kept in the run folder."""

    every: int = 10
    """Steps between checkpoints; 0: only the last step and the best."""
    keep_last: int = 1
    """Newest checkpoints kept, beside the best by `ValidationOptions.metric`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Where metrics and episodes go, beside ``metrics.jsonl``."""

    tensorboard: bool = True
    wandb: str | None = None
    """Project in Weights & Biases."""
    episodes_every: int = 1
    """Steps between those whose episodes and advantages are written; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One training run."""

    name: str
    summary: str
    method: Method
    model: str
    """Folder of a model and its tokenizer, or a name the caller knows."""
    env: str
    """Environment id."""
    agent: str
    """Agent card."""
    steps: int
    seed: int = 0
    env_options: dict[str, Any] = field(default_factory=dict)
    """Options of the environment (`TaskOptions`), over the id's own."""
    max_generated_tokens: int | None = None
    """Stop after the step in which this many tokens were sampled for training: equal budgets for a comparison."""
    rollout: RolloutOptions = field(default_factory=RolloutOptions)
    advantage: AdvantageOptions = field(default_factory=AdvantageOptions)
    loss: LossOptions = field(default_factory=LossOptions)
    supervised: SupervisedOptions = field(default_factory=SupervisedOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    validation: ValidationOptions = field(default_factory=ValidationOptions)
    checkpoint: CheckpointOptions = field(default_factory=CheckpointOptions)
    log: LogOptions = field(default_factory=LogOptions)


def load_recipe(name: str, overrides: Iterable[str] = ()) -> Recipe:
    """Reads a recipe and its overrides.

    Args:
        name: Name of a shipped recipe, or a path to a YAML file.
        overrides: ``key=value``, the key dotted, the value as YAML; the last one of a key wins.

    Raises:
        UnknownNameError: No such recipe, or no such key; the nearest is suggested.
        CardError: The file or a value does not fit, or the combination is impossible.
    """
    try:
        path = find_card("train", name)
    except UnknownNameError as error:
        raise UnknownNameError("recipe", name, error.known) from None
    return read_recipe(path, overrides)


def read_recipe(path: Path, overrides: Iterable[str] = ()) -> Recipe:
    """Reads the recipe of a file; see `load_recipe`."""
    try:
        data = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CardError(f"{path}: cannot be read as YAML: {error}") from error
    if isinstance(data, dict):
        for override in overrides:
            _override(data, override)
    recipe = build(Recipe, data, str(path))
    check_recipe(recipe, str(path))
    return recipe


def dump_recipe(recipe: Recipe) -> str:
    """Returns a recipe as YAML with every value resolved; `read_recipe` reads it back equal."""
    return yaml.safe_dump(dataclasses.asdict(recipe), sort_keys=False, allow_unicode=True)


def recipe_keys(cls: Any = Recipe, prefix: str = "") -> list[str]:
    """Returns the dotted names of every value of a recipe."""
    keys = []
    for name, hint in typing.get_type_hints(cls).items():
        keys += recipe_keys(hint, f"{prefix}{name}.") if dataclasses.is_dataclass(hint) else [prefix + name]
    return keys


def _override(data: dict[str, Any], override: str) -> None:
    """Writes one ``key=value`` into the plain data of a recipe."""
    key, equals, text = override.partition("=")
    if not equals:
        raise CardError(f"override {override!r}: expected key=value, for example optimizer.lr=1e-4")
    known = recipe_keys()
    if whole := next((name for name in known if key.startswith(f"{name}.")), None):
        inside = key.removeprefix(f"{whole}.")
        raise CardError(f"override {override!r}: {whole} is one value, give all of it: {whole}='{{{inside}: ...}}'")
    if key not in known:
        raise UnknownNameError("recipe key", key, known)
    *parents, last = key.split(".")
    for parent in parents:
        inner = data.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise CardError(f"override {override!r}: {parent} is {inner!r} in the recipe, expected keys and values")
        data = inner
    try:
        data[last] = parse_yaml(text)
    except yaml.YAMLError as error:
        raise CardError(f"override {override!r}: the value cannot be read as YAML: {error}") from error


def check_recipe(recipe: Recipe, where: str) -> None:
    """Refuses values out of range and combinations that cannot work.

    Raises:
        CardError: Names every problem found.
    """
    problems = [*_range_problems(recipe), *combination_problems(recipe)]
    if problems:
        raise CardError(f"{where}: " + "; ".join(problems))


def _range_problems(recipe: Recipe) -> list[str]:
    """Returns one line per value that is out of range."""
    found = []
    for key in recipe_keys():
        value: Any = recipe
        for part in key.split("."):
            value = getattr(value, part)
        if isinstance(value, float) and not math.isfinite(value):
            found.append(f"{key} is {value}: expected a finite number")
        elif key in _AT_LEAST and value is not None and value < _AT_LEAST[key]:
            found.append(f"{key} is {value}: expected at least {_AT_LEAST[key]}")
    betas = recipe.optimizer.betas
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        found.append(f"optimizer.betas is {betas}: expected two numbers in [0, 1)")
    if recipe.rollout.temperature <= 0:
        found.append(f"rollout.temperature is {recipe.rollout.temperature}: attempts need one above 0")
    if not 0 < recipe.rollout.top_p <= 1:
        found.append(f"rollout.top_p is {recipe.rollout.top_p}: expected above 0 and at most 1")
    return found


_AT_LEAST: dict[str, float] = {
    "steps": 1,
    "seed": 0,
    "max_generated_tokens": 1,
    "rollout.questions": 1,
    "rollout.attempts": 1,
    "rollout.concurrency": 1,
    "rollout.resample": 0,
    "advantage.eps": 0,
    "advantage.std_floor": 0,
    "advantage.min_group": 2,
    "advantage.alpha": 0,
    "loss.clip_low": 0,
    "loss.clip_high": 0,
    "loss.kl_coef": 0,
    "loss.entropy_coef": 0,
    "loss.importance_cap": 1,
    "loss.llds_coef": 0,
    "loss.constant_length": 1,
    "supervised.batch": 1,
    "optimizer.lr": 0,
    "optimizer.eps": 0,
    "optimizer.weight_decay": 0,
    "optimizer.max_grad_norm": 0,
    "optimizer.warmup_steps": 0,
    "optimizer.min_lr_ratio": 0,
    "optimizer.minibatches": 1,
    "optimizer.epochs": 1,
    "optimizer.micro_batch_tokens": 1,
    "validation.every": 0,
    "validation.questions": 1,
    "checkpoint.every": 0,
    "checkpoint.keep_last": 1,
    "log.episodes_every": 0,
}
