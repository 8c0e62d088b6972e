"""The options of a recipe, one dataclass per section."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval
from typing_extensions import override

from searchgym.options import Options, find_kind
from searchgym.rollout.sampler_kind import SamplerKind
from searchgym.train.recipe.backend import LearnerBackend

Beta = Annotated[float, Interval(ge=0, lt=1)]
"""Decay rate of a moment of AdamW."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOptions(Options):
    """Which episodes are sampled for each step, and by which engine."""

    questions: Annotated[int, Ge(1)] = 16
    """Number of questions per step."""
    attempts: Annotated[int, Ge(1)] = 8
    """Episodes per question: the size of a group."""
    temperature: Annotated[float, Gt(0)] = 1.0
    """Softmax temperature of the sampler; the trainer computes log-probs at the same temperature."""
    top_p: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Nucleus sampling: probability mass that is kept. Values below 1 only where no probability ratio is taken
    (``method: rejection``)."""
    max_tokens: Annotated[int, Ge(1)] | None = None
    """Maximum tokens of one output of a role, in training and validation. Default: the agent's card."""
    max_thought_tokens: Annotated[int, Ge(1)] | None = None
    """Tokens of one output after which a thought that is still open is closed, in training and validation; its closing
    marker is not trained on. Default: the agent's card."""
    concurrency: Annotated[int, Ge(1)] = 64
    """Maximum number of episodes running at once."""
    sampler: SamplerKind = field(default_factory=lambda: find_kind(SamplerKind, "transformers")())
    """Sampling engine: its name, or ``kind`` and options. ``transformers`` reproduces a run bit for bit, ``vllm`` is
    faster; ``auto`` is vLLM where it is installed."""
    probe: Annotated[int, Ge(0)] = 4
    """Prompts that the sampler continues after each update so that the trainer can compare log-probs; 0 turns the
    probe off."""
    staleness: Annotated[int, Ge(0)] = 0
    """Steps that may be sampled ahead of the step being learnt from, with weights that lack those updates. With 0,
    sampling and learning alternate."""
    resample: Annotated[int, Ge(0)] = 0
    """Maximum number of rounds in which groups without signal are replaced by attempts at other questions (DAPO, arXiv
    2503.14476, section 3.2). 1 to 3 keep a batch nearly full; each round costs the tokens of its episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions(Options):
    """One model key: a set of weights that some of the agent's roles sample from."""

    roles: list[str] | None = None
    """Roles that sample from these weights; ``[]`` for those of a judge. Default: every role that no other key
    claims."""
    model: str | None = None
    """Model that the weights start from. Default: the recipe's model."""
    template: dict[str, Any] | None = None
    """Arguments of its chat template. Default: the recipe's."""
    frozen: bool = False
    """If true, the weights are sampled from but never trained."""
    lr: Annotated[float, Ge(0)] | None = None
    """Learning rate of this key. Default: `OptimizerOptions.lr` of the recipe."""
    critic_lr: Annotated[float, Ge(0)] | None = None
    """Learning rate of this key's critic. Default: the rate of the recipe's critic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerOptions(Options):
    """AdamW, its schedule, and how a step's samples are cut into updates and micro-batches."""

    lr: Annotated[float, Ge(0)] = 1e-6
    """Peak learning rate."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay rates of AdamW's two moments."""
    eps: Annotated[float, Ge(0)] = 1e-8
    """Constant in AdamW's denominator."""
    weight_decay: Annotated[float, Ge(0)] = 0.0
    """Decoupled weight decay, applied to matrices only, never to biases and norms."""
    max_grad_norm: Annotated[float, Ge(0)] = 1.0
    """Maximum 2-norm of the gradients, which are scaled down to it; 0 turns clipping off."""
    warmup_steps: Annotated[int, Ge(0)] = 0
    """Steps over which the learning rate rises linearly to `lr`."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate after the warm-up."""
    min_lr_ratio: Annotated[float, Ge(0)] = 0.0
    """Final learning rate of the cosine schedule, as a share of `lr`."""
    minibatches: Annotated[int, Ge(1)] = 1
    """Updates per pass over a step's samples."""
    minibatch_samples: Annotated[int, Ge(1)] | None = None
    """Most sequences of an update, instead of `minibatches`: as many updates of near-equal size as the step's sequences
    ask for. What verl calls ``ppo_mini_batch_size``; in a team each call is a sequence."""
    epochs: Annotated[int, Ge(1)] = 1
    """Passes over a step's samples."""
    micro_batch_tokens: Annotated[int, Ge(1)] = 8192
    """Maximum number of tokens of one forward pass, padding included; a longer sample gets its own pass."""
    packing: Literal["auto", "always", "never"] = "auto"
    """Whether samples of a forward pass are concatenated in one row (packed) or padded to rows of equal length;
    ``auto`` packs on a GPU."""
    autocast: Literal["bfloat16"] | None = None
    """Data type of the matrix products, in the learner and in the sampler of this package; weights, the residual
    stream, logits and losses keep theirs. Default: no autocast."""

    @property
    def several(self) -> bool:
        """True if a step may make more than one update, so that ratios leave 1."""
        return self.minibatch_samples is not None or self.minibatches * self.epochs > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraOptions(Options):
    """A LoRA adapter that is trained instead of the policy's own weights; see `searchgym.train.learner.lora`."""

    rank: Annotated[int, Ge(0)] = 0
    """Rank of the adapter's matrices; 0 trains the whole model."""
    alpha: Annotated[float, Ge(0)] = 32.0
    """Scale of the adapter: its product is multiplied by alpha / rank."""
    targets: list[str] | None = None
    """Name endings of the matrices that get an adapter (``q_proj``). Default: all matrices of the model's body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticOptions(Options):
    """The critic of ``advantage.estimator: gae``; see `searchgym.train.learner.critic`."""

    model: str | None = None
    """Folder or name of the language model whose body the critic starts from. Default: the policy's model."""
    tokens: Literal["model", "response"] = "model"
    """Tokens that have a value and take part in GAE: the model's own, or observations too (Search-R1)."""
    value_clip: Annotated[float, Ge(0)] | None = 0.5
    """Maximum distance of a value from the value before the step; null sets no bound."""
    warmup_steps: Annotated[int, Ge(0)] = 0
    """Steps at the start of the run in which only the critic learns."""
    optimizer: OptimizerOptions = field(default_factory=lambda: OptimizerOptions(lr=1e-5))
    """Optimizer of the critic, with its own minibatches and epochs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerOptions(Options):
    """Where and how models are trained; see `searchgym.train.learner.learner`."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the weights, ``auto`` is a GPU if one is available, else the CPU; with several ranks, each has its own
    GPU."""
    backend: LearnerBackend = field(default_factory=lambda: find_kind(LearnerBackend, "torch")())
    """Training engine: its name, or ``kind`` and options. ``torch`` trains in this process, ``deepspeed`` in separate
    ones, on one GPU or many."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the weights; with bfloat16, DeepSpeed updates a float32 copy."""
    frozen_layers: Annotated[int, Ge(0)] = 0
    """Number of the lowest layers that are not trained, nor the embeddings below them: on a CPU, a third of the layers
    frozen takes a third less time. With an adapter, they get none."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationOptions(Options):
    """Greedy evaluation inside the loop."""

    every: Annotated[int, Ge(0)] = 10
    """Steps between validations; 0: never. Step 0 and the last step are validated too."""
    questions: Annotated[int, Ge(1)] = 100
    """Number of validation questions: drawn by kind, the same ones each time and with every seed of the recipe."""
    metric: str = "em"
    """Score by which the best checkpoint is chosen."""
    env_options: dict[str, Any] = field(default_factory=dict)
    """Options of the validation environment, merged over those of the training environment: for example
    another split. Of ``generated`` and ``masked`` single fields are replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions(Options):
    """Which checkpoints are written and kept."""

    every: Annotated[int, Ge(0)] = 10
    """Steps between checkpoints; 0: only the last step and the best."""
    keep_last: Annotated[int, Ge(1)] = 1
    """Number of newest checkpoints to keep, beside the best one by `ValidationOptions.metric`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions(Options):
    """Which logs are written beside ``metrics.jsonl``."""

    curve: bool = True
    """If true, ``curve.png`` is drawn at every checkpoint."""
    tensorboard: bool = True
    """If true, metrics are written as TensorBoard events too."""
    wandb: str | None = None
    """Project in Weights & Biases that metrics are sent to. Default: none."""
    episodes_every: Annotated[int, Ge(0)] = 1
    """Steps between the steps whose episodes and advantages are written; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineOptions(Options):
    """Seconds that each phase of a step may take; exceeding them ends the run with stacks and a checkpoint."""

    rollout: Annotated[float, Ge(0.001)] = 3600.0
    """Maximum seconds for sampling a step's episodes."""
    learn: Annotated[float, Ge(0.001)] = 3600.0
    """Maximum seconds for the updates; the same limit holds for preparing samples and for publishing the weights."""
    validation: Annotated[float, Ge(0.001)] = 3600.0
    """Maximum seconds for one validation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound(Options):
    """Values of a metric with which a run goes on."""

    min: float | None = None
    """Least value. Default: any."""
    max: float | None = None
    """Greatest value. Default: any."""

    @override
    def problems(self) -> Iterable[str]:
        if self.min is None and self.max is None:
            yield "expected min, max or both"
        elif self.min is not None and self.max is not None and self.min > self.max:
            yield f"min is {self.min:g} and max {self.max:g}: no value is between them"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOptions(Options):
    """Bounds of metrics; a metric out of bounds for `patience` steps in a row ends the run, naming its checkpoint."""

    patience: Annotated[int, Ge(1)] = 3
    """Steps in a row that a metric must be out of bounds."""
    min_legal: float | None = None
    """Lower bound of `role/ROLE/legal`, a share, for each role: below it, prompt and parser do not fit each other or
    the model writes nothing legal."""
    bounds: dict[str, Bound | None] = field(default_factory=dict)
    """Bounds by metric, such as ``{learner/entropy: {min: 0.1}}``, of each key's too; null for none. By default,
    `learner/sampler_difference` is at most 0.02 nats per token, else sampler and learner have different policies; ten
    times its maximum ends a run at once. Not checked on samples of older weights."""
