"""The values of a recipe, by what they govern."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from searchgym.rollout.sampler import VllmOptions

Method = Literal["policy", "rejection", "supervised"]
Estimator = Literal["gae", "grpo", "rloo", "reinforce++", "reinforce++-baseline", "stratified"]
Reduction = Literal["token-mean", "sequence-mean", "episode-mean", "constant"]
KL = Literal["k1", "k2", "k3"]


Device = Literal["auto", "cpu", "cuda"]
"""auto: a GPU if there is one."""


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
    device: Device = "auto"
    """Of the sampler. vLLM takes what it was built for."""
    sampler: Literal["transformers", "vllm", "auto"] = "transformers"
    """What samples: transformers repeats a run to the bit, vLLM is faster; auto: vLLM where it is installed."""
    vllm: VllmOptions = field(default_factory=VllmOptions)
    probe: int = 4
    """Prompts that vLLM continues after each update, for the trainer to compare log-probs on; 0: none."""
    probe_limit: float | None = None
    """Mean difference of log-probs, in nats, above which the run ends; if not given, 0.001 in float32 and 0.02 in
    bfloat16."""
    staleness: int = 0
    """Steps that may be sampled ahead of the one that is learnt from, by weights that lack their updates. 0: sampling
    and learning take turns."""
    resample: int = 0
    """Rounds, at most, in which groups without signal are replaced by attempts at other questions (DAPO, arXiv
    2503.14476, section 3.2). 1 to 3 keep a step's batch nearly full; each costs its episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions:
    """One set of weights, behind some of the agent's roles."""

    roles: list[str] | None = None
    """That ask it; those that no other key names if not given."""
    model: str | None = None
    """What it begins as; the recipe's model if not given."""
    frozen: bool = False
    """It is sampled from and never trained."""
    lr: float | None = None
    """`OptimizerOptions.lr` of its own."""
    critic_lr: float | None = None
    """The same of its critic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditOptions:
    """How calls are rewarded; see `searchgym.train.algorithms.credit`."""

    terms: list[str] = field(default_factory=lambda: ["outcome"])
    """They add up: ``outcome``, ``difference``, ``praise``, ``format``, ``costs``, or ``module:function``."""
    alpha: float = 0.5
    """``praise``: weight of what a search did to the prefix answer."""
    train_prefixes: bool = True
    """``praise``: whether prefix answers are learnt from, too."""
    turn_cost: float = 0.0
    """``costs``: of three rounds beyond the first."""
    search_cost: float = 0.0
    """``costs``: of three searches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageOptions:
    """How rewards of a group become advantages; see `searchgym.train.algorithms.advantages`."""

    estimator: Estimator = "grpo"
    """With whom an episode is compared, and how."""
    normalise: Literal["all", "role", "role-turn"] = "all"
    """What is compared or whitened together. ``all``: episodes as wholes (gae and reinforce++: all tokens of the step);
    ``role``: each call with those of its role; ``role-turn``: with those of its role in the same turn, or of its role
    where those are fewer than `min_group`."""
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
    gamma: float = 1.0
    """``gae``: discount per token."""
    lam: float = 1.0
    """``gae``: share of the estimate that comes from later tokens."""
    whiten: bool = True
    """``gae``: advantages are centred and divided by their deviation over all trained tokens of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOptions:
    """The policy loss; see `searchgym.train.algorithms.losses`."""

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
    """See `searchgym.train.algorithms.losses.kl_estimate`."""
    kl_in: Literal["loss", "reward"] = "loss"
    """A term of the loss, or a penalty on the return before episodes are compared (with k1)."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    llds_coef: float = 0.0
    """Weight of the penalty on likelihoods that fall although the advantage is not negative (LLDS, usually 0.2)."""
    llds_unit: Literal["call", "response"] = "call"
    """What must have fallen as a whole for LLDS to act on its tokens."""
    reduction: Reduction = "token-mean"
    """Every token of the step weighs the same, or every sequence does (in a team, every call), or every episode does,
    or every token weighs the same in every step."""
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
    packing: Literal["auto", "always", "never"] = "auto"
    """Samples of a forward pass in one row, one after the other, or in padded rows; auto: packed on a GPU."""
    autocast: Literal["bfloat16"] | None = None
    """Type of the matrix products; weights and losses stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraOptions:
    """An adapter in the place of the policy's own weights; see `searchgym.train.learner.lora`."""

    rank: int = 0
    """Of its matrices; 0 trains the whole model."""
    alpha: float = 32.0
    """The adapter's product counts alpha / rank times."""
    targets: list[str] | None = None
    """Ends of the names of the matrices that get one (``q_proj``); all of the body's if not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticOptions:
    """The critic of ``advantage.estimator: gae``; see `searchgym.train.learner.critic`."""

    model: str | None = None
    """Folder or name of the language model whose body it begins with; the policy's if not given."""
    tokens: Literal["model", "response"] = "model"
    """Which tokens have a value and belong to the chain of GAE: the model's own, or observations too (Search-R1)."""
    value_clip: float | None = 0.5
    """Values move at most this far from those before the step; none: no bound."""
    warmup_steps: int = 0
    """Steps at the start in which the critic learns and the policy does not."""
    optimizer: OptimizerOptions = field(default_factory=lambda: OptimizerOptions(lr=1e-5))
    """Of the critic, with minibatches and epochs of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerOptions:
    """Where and how models are trained; see `searchgym.train.learner.learner`."""

    device: Device = "auto"
    """Of the weights; with several ranks each has a GPU of its own."""

    gpus: list[int] | None = None
    """Numbers of the GPUs of the ranks, in their order; 0 and on if not given."""

    backend: Literal["torch", "deepspeed"] = "torch"
    """Plain torch in this process, or DeepSpeed in processes of its own."""
    ranks: int = 1
    """``deepspeed``: processes; on a GPU machine one per GPU."""
    listen: str | None = None
    """``deepspeed``: HOST:PORT at which ranks report that are started elsewhere, by torchrun; none: they are started
    here. All machines must share the run folder."""
    zero: int = 0
    """``deepspeed``: what the ranks share out: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 weights too."""
    offload_optimizer: bool = False
    """``deepspeed``, from ZeRO 1: the optimizer's state lies in the machine's memory."""
    offload_parameters: bool = False
    """``deepspeed``, ZeRO 3: the weights lie in the machine's memory."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights; with bfloat16 DeepSpeed updates a copy in float32."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, about a third more time."""


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
class DeadlineOptions:
    """Seconds that a phase of a step may take; past them the run ends with stacks and a checkpoint."""

    rollout: float = 3600.0
    learn: float = 3600.0
    """Of the updates, and of each of what comes before (values, log-probs) and after them (passing weights on)."""
    validation: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOptions:
    """Ranges of metrics; past one for `patience` steps in a row the run ends, its last good checkpoint named."""

    patience: int = 3
    min_entropy: float | None = None
    """Of `learner/entropy`, in nats."""
    max_entropy: float | None = None
    max_kl: float | None = None
    """Of `learner/old_kl`, per token: how far one step's updates go."""
    max_ref_kl: float | None = None
    """Of `learner/ref_kl`, per token."""
    max_response_tokens: float | None = None
    """Of `rollout/generated_tokens`, per episode."""
    min_legal: float | None = None
    """Of `role/ROLE/legal`, for each role: its prompt and its parser do not fit, or it writes nothing legal."""
    max_zero_variance: float | None = None
    """Of `groups/zero_variance_share`."""
