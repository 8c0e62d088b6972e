"""The options of a recipe, one dataclass per section."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from annotated_types import Ge, Gt, Interval
from typing_extensions import override

from searchgym.options import Options, find_kind
from searchgym.rollout.sampler_kind import SamplerKind
from searchgym.train.algorithms.value_loss import ValueLoss
from searchgym.train.curriculum.forks import TreeOptions
from searchgym.train.curriculum.starts import StartOptions
from searchgym.train.recipe.backend import LearnerBackend

Checkpointing = Literal["none", "selective", "full"]
"""Activations that the backward pass computes again; see `searchgym.train.learner.recomputed`."""
MICRO_BATCH: Final = 8192
"""Default number of tokens in a forward pass."""
CPU_MICRO_BATCH: Final = 2048
"""Number of tokens in a forward pass for ``auto`` on a CPU, whose caches they fit."""
Beta = Annotated[float, Interval(ge=0, lt=1)]
"""Decay rate of a moment of AdamW."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOptions(Options):
    """Number of episodes sampled per step, their limits, and the sampling engine."""

    questions: Annotated[int, Ge(1)] = 16
    """Number of questions per step."""
    attempts: Annotated[int, Ge(1)] = 8
    """Episodes per question: the size of a group."""
    temperature: Annotated[float, Gt(0)] = 1.0
    """Softmax temperature of the sampler; the trainer computes log-probs at the same temperature."""
    top_p: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Probability mass of nucleus sampling. Below 1 only for methods without probability ratios (``method:
    rejection``)."""
    max_tokens: Annotated[int, Ge(1)] | None = None
    """Maximum number of tokens in one output of a role, in training and validation. Default: the agent's card."""
    max_thought_tokens: Annotated[int, Ge(1)] | None = None
    """Number of tokens after which an open thought is closed, in training and validation. The closing marker is not
    trained on. Default: the agent's card."""
    concurrency: Annotated[int, Ge(1)] = 64
    """Maximum number of episodes running at once."""
    controllers: Annotated[int, Interval(ge=1, le=64)] = 1
    """Number of processes that share the episodes of each step, each with engines of its own: the training's and
    further ones. With `SamplerKind` ``vllm`` on GPUs, its servers are dealt out to them. `concurrency` is that of each
    process."""
    sampler: SamplerKind = field(default_factory=lambda: find_kind(SamplerKind, "transformers")())
    """Sampling engine: its name, or ``kind`` and options. ``transformers`` makes runs reproducible bit for bit,
    ``vllm`` is faster; ``auto`` uses vLLM if it is installed."""
    probe: Annotated[int, Ge(0)] = 4
    """Number of prompts that the sampler completes after each update, to compare its log-probs with the trainer's; at
    most one for every eight samples of the step. 0 turns the check off."""
    staleness: Annotated[int, Ge(0)] = 0
    """Number of steps by which sampling may run ahead of learning, with weights that lack those updates. With 0,
    sampling and learning alternate."""
    partial: Annotated[int, Ge(0)] = 0
    """Number of steps by which episodes may outlast their step: groups of so many further steps run at once, and a step
    learns from the first groups that end. Needs `staleness`; calls are then at most `staleness` + `partial` steps
    old."""
    starts: StartOptions | None = None
    """Groups that begin at a prefix of an earlier episode. Default: all begin at a question."""
    tree: TreeOptions | None = None
    """Attempts that fork from turns of other attempts at the same question. Default: all begin at the question."""
    durable: Literal["auto", "steps", "responses"] = "auto"
    """What a resumed run does not sample again: ``responses``, every response that is on disk, or ``steps``, only
    rollouts that were complete. ``auto`` is ``steps`` if the run repeats bit for bit (``transformers`` without
    staleness), else ``responses``, which costs such a run the cache between turns: its turns read their whole context
    again."""
    resample: Annotated[int, Ge(0)] = 0
    """Maximum number of rounds that replace groups without signal with attempts at other questions (DAPO, arXiv
    2503.14476, section 3.2). With 1 to 3 rounds a batch is nearly full; each round costs the tokens of its episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions(Options):
    """One model key: a set of weights that some of the agent's roles sample from."""

    roles: list[str] | None = None
    """Roles that sample from these weights; ``[]`` for the weights of a judge. Default: every role that no other key
    claims."""
    model: str | None = None
    """Initial model of the weights. Default: the recipe's model."""
    template: dict[str, Any] | None = None
    """Arguments of the model's chat template. Default: the recipe's."""
    frozen: bool = False
    """If true, the weights are sampled from but never trained."""
    lr: Annotated[float, Ge(0)] | None = None
    """Learning rate of this key. Default: `OptimizerOptions.lr` of the recipe."""
    critic_lr: Annotated[float, Ge(0)] | None = None
    """Learning rate of this key's critic. Default: the recipe's `CriticOptions.optimizer`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerOptions(Options):
    """Options of AdamW, of its learning-rate schedule, and of the split of a step into updates and micro-batches."""

    lr: Annotated[float, Ge(0)] = 1e-6
    """Peak learning rate."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay rates of AdamW's two moments."""
    eps: Annotated[float, Ge(0)] = 1e-8
    """Constant added to AdamW's denominator."""
    weight_decay: Annotated[float, Ge(0)] = 0.0
    """Decoupled weight decay, applied to matrices only, never to biases and norms."""
    max_grad_norm: Annotated[float, Ge(0)] = 1.0
    """Maximum 2-norm of the gradients; larger gradients are scaled down to it. 0 turns clipping off."""
    warmup_steps: Annotated[int, Ge(0)] = 0
    """Steps over which the learning rate rises linearly to `lr`."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Course of the learning rate after the warm-up."""
    min_lr_ratio: Annotated[float, Ge(0)] = 0.0
    """Final learning rate of the cosine schedule, as a share of `lr`."""
    minibatches: Annotated[int, Ge(1)] = 1
    """Number of updates per pass over a step's samples."""
    minibatch_samples: Annotated[int, Ge(1)] | None = None
    """Maximum number of sequences per update, instead of `minibatches`: a step's sequences are split into updates of
    nearly equal size. Equals verl's ``ppo_mini_batch_size``; in a team each call is a sequence."""
    epochs: Annotated[int, Ge(1)] = 1
    """Number of passes over a step's samples."""
    micro_batch_tokens: Annotated[int, Ge(1)] | Literal["auto"] = MICRO_BATCH
    """Maximum number of tokens in one forward pass, padding included; a longer sample gets its own pass. ``auto`` takes
    as many as fit into the GPU's free memory when the run starts, and 2048 on a CPU, which fit its cache; the run
    records the number."""
    autocast: Literal["bfloat16"] | None = None
    """Data type of matrix products in the learner and in the ``transformers`` sampler; weights, the residual stream,
    logits and losses keep their type. Default: no autocast."""

    @property
    def pass_tokens(self) -> int:
        """Maximum number of tokens in one forward pass; that of a CPU until ``auto`` is replaced by a number."""
        return CPU_MICRO_BATCH if self.micro_batch_tokens == "auto" else self.micro_batch_tokens

    @property
    def several(self) -> bool:
        """True if a step may make more than one update, so that probability ratios differ from 1."""
        return self.minibatch_samples is not None or self.minibatches * self.epochs > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraOptions(Options):
    """Options of a LoRA adapter, trained instead of the policy; see `searchgym.train.learner.lora`."""

    rank: Annotated[int, Ge(0)] = 0
    """Rank of the adapter's matrices; 0 trains the whole model."""
    alpha: Annotated[float, Ge(0)] = 32.0
    """Scale of the adapter: its matrix product is multiplied by alpha / rank."""
    targets: list[str] | None = None
    """Name endings of the matrices that get an adapter (``q_proj``). Default: all matrices of the model's body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticOptions(Options):
    """Options of the critic for ``advantage.estimator: gae``; see `searchgym.train.learner.critic`."""

    model: str | None = None
    """Folder or name of the language model whose body initialises the critic. Default: the policy's model."""
    tokens: Literal["model", "response"] = "model"
    """Tokens that get a value and take part in GAE: those the model generated (``model``), or observations too
    (``response``, as in Search-R1)."""
    loss: ValueLoss = field(default_factory=lambda: find_kind(ValueLoss, "squared")())
    """What the critic minimises: its name, or ``kind`` and options. ``squared`` is the squared error; ``hl-gauss``
    learns a distribution over bins of returns."""
    value_clip: Annotated[float, Ge(0)] | None = 0.5
    """Maximum difference between a value and its estimate before the step; null sets no bound. Only ``squared`` uses
    it."""
    warmup_steps: Annotated[int, Ge(0)] = 0
    """Number of initial steps in which only the critic learns; if all steps, it values a model that stays as it is."""
    optimizer: OptimizerOptions = field(default_factory=lambda: OptimizerOptions(lr=1e-5))
    """Optimizer of the critic, with its own minibatches and epochs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerOptions(Options):
    """Device, training engine and number type of the trained models; see `searchgym.train.learner.learner`."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the weights. ``auto`` is a GPU if one is available, else the CPU; each of several ranks uses a separate
    GPU."""
    backend: LearnerBackend = field(default_factory=lambda: find_kind(LearnerBackend, "torch")())
    """Training engine: its name, or ``kind`` and options. ``torch`` trains in this process, ``deepspeed`` in separate
    processes on one or more GPUs."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the weights. With bfloat16, DeepSpeed updates a float32 copy."""
    frozen_layers: Annotated[int, Ge(0)] = 0
    """Number of lowest layers that are not trained; the embeddings below them are frozen too. On a CPU, freezing a
    third of the layers saves a third of the time. Frozen layers get no LoRA adapter."""
    gradient_checkpointing: Checkpointing = "none"
    """Activations that the backward pass computes again, to save memory: ``selective`` all but the results of matrix
    products and attention, which takes little time; ``full`` all of a layer, which takes about a third more. Compiled
    layers compute again what ``selective`` does."""
    compile: bool = False
    """If true, the layers are compiled by torch, which takes a minute at the start and makes updates faster. Needs a
    C++ compiler on a CPU."""

    @property
    def recomputed(self) -> Checkpointing:
        """Activations that are computed again, by checkpointing or by torch's compiler."""
        return "selective" if self.compile and self.gradient_checkpointing == "none" else self.gradient_checkpointing


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationOptions(Options):
    """Options of the greedy evaluation during training."""

    every: Annotated[int, Ge(0)] = 10
    """Number of steps between validations; 0 turns validation off. Step 0 and the last step are validated too."""
    questions: Annotated[int, Ge(1)] = 100
    """Number of validation questions. They are sampled by kind, and are the same at every validation and for every
    seed."""
    metric: str = "em"
    """Score that selects the best checkpoint."""
    env_options: dict[str, Any] = field(default_factory=dict)
    """Options of the validation environment, merged over those of the training environment, such as another split.
    Single fields of ``generated`` and ``masked`` can be replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions(Options):
    """Options for writing and deleting checkpoints."""

    every: Annotated[int, Ge(0)] = 10
    """Number of steps between checkpoints; with 0, only the last and the best step are saved."""
    keep_last: Annotated[int, Ge(1)] = 1
    """Number of newest checkpoints to keep, in addition to the best one by `ValidationOptions.metric`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions(Options):
    """Logs that are written in addition to ``metrics.jsonl``."""

    curve: bool = True
    """If true, the training curve is plotted to ``curve.png`` at every checkpoint."""
    tensorboard: bool = True
    """If true, metrics are also written as TensorBoard events."""
    wandb: str | None = None
    """Weights & Biases project that receives the metrics. Default: none."""
    episodes_every: Annotated[int, Ge(0)] = 1
    """Interval, in steps, at which episodes and advantages are written; 0 writes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineOptions(Options):
    """Time limits of a step's phases, in seconds. Exceeding one ends the run with stack traces and a checkpoint."""

    rollout: Annotated[float, Ge(0.001)] = 3600.0
    """Maximum seconds for sampling a step's episodes."""
    learn: Annotated[float, Ge(0.001)] = 3600.0
    """Maximum seconds for the updates of a step. Preparing samples and publishing weights have the same limit each."""
    validation: Annotated[float, Ge(0.001)] = 3600.0
    """Maximum seconds for one validation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound(Options):
    """Range of a metric within which a run continues."""

    min: float | None = None
    """Minimum. Default: no lower bound."""
    max: float | None = None
    """Maximum. Default: no upper bound."""

    @override
    def problems(self) -> Iterable[str]:
        if self.min is None and self.max is None:
            yield "expected min, max or both"
        elif self.min is not None and self.max is not None and self.min > self.max:
            yield f"min is {self.min:g} and max {self.max:g}: no value is between them"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOptions(Options):
    """Bounds of metrics. A metric that is out of bounds for `patience` consecutive steps ends the run."""

    patience: Annotated[int, Ge(1)] = 3
    """Number of consecutive steps out of bounds after which the run ends."""
    min_legal: float | None = None
    """Lower bound of each role's share of legal outputs, `role/ROLE/legal`. A lower share means that prompt and parser
    do not match, or that the model writes nothing legal. Default: no bound."""
    bounds: dict[str, Bound | None] = field(default_factory=dict)
    """Bounds by metric, such as ``{learner/entropy: {min: 0.1}}``, which also apply to the same metric of each model
    key; null removes a bound. Default: `learner/sampler_difference` is at most 0.02 nats per token, because a larger
    one means that sampler and learner have different policies; ten times its maximum ends a run at once. It is not
    checked on samples of older weights."""
