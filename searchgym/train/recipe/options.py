"""The options of a recipe, one dataclass per section."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from annotated_types import Ge, Gt, Interval

from searchgym.options import Options
from searchgym.rollout.sampler import VllmOptions

Method = Literal["policy", "rejection", "supervised"]
Estimator = Literal["gae", "grpo", "rloo", "reinforce++", "reinforce++-baseline", "stratified", "tree"]
Reduction = Literal["token-mean", "sequence-mean", "episode-mean", "constant"]
KL = Literal["k1", "k2", "k3"]
Beta = Annotated[float, Interval(ge=0, lt=1)]
"""Decay rate of a moment of AdamW."""


WAYPOINT_RULES: Final = ("query", "page", "led", "few")
"""What may be asked of a search that earns a waypoint; see `CreditOptions.waypoint_rules`."""
Evidence = Literal["connected", "supported", "entities"]
"""Measure of an episode's evidence; see `searchgym.train.credit.evidence`."""
Device = Literal["auto", "cpu", "cuda"]
"""Device to compute on; ``auto`` is a GPU if one is available, else the CPU."""


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
    concurrency: Annotated[int, Ge(1)] = 64
    """Maximum number of episodes running at once."""
    device: Device = "auto"
    """Device of the transformers sampler; vLLM uses the device that it was built for."""
    sampler: Literal["transformers", "vllm", "auto"] = "transformers"
    """Sampling engine: transformers reproduces a run bit for bit, vLLM is faster; ``auto`` is vLLM where it is
    installed."""
    vllm: VllmOptions = field(default_factory=VllmOptions)
    """Options of the vLLM engine."""
    probe: Annotated[int, Ge(0)] = 4
    """Prompts that the sampler continues after each update so that the trainer can compare log-probs; 0 turns the
    probe off."""
    probe_limit: float | None = None
    """Mean absolute difference of log-probs, in nats, above which the run ends. Default: 0.001 in float32, 0.02 in
    bfloat16."""
    staleness: Annotated[int, Ge(0)] = 0
    """Steps that may be sampled ahead of the step being learnt from, with weights that lack those updates. With 0,
    sampling and learning alternate."""
    resample: Annotated[int, Ge(0)] = 0
    """Maximum number of rounds in which groups without signal are replaced by attempts at other questions (DAPO, arXiv
    2503.14476, section 3.2). 1 to 3 keep a batch nearly full; each round costs the tokens of its episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerOptions(Options):
    """Who makes the questions of a run; see `searchgym.selfplay`."""

    kind: Literal["none", "uniform", "path"] = "none"
    """``none``: the environment's questions; ``path``: a policy that walks the graph behind the environment's corpus
    and learns which kinds of questions teach; ``uniform``: the same walks, drawn evenly for the whole run."""
    arms: Literal["hops", "shape", "last", "relations"] = "last"
    """What the policy tells apart: numbers of hops; shapes, hops and operations; these and the last relation; or the
    first relation too."""
    reward: Literal["signal", "hard"] = "signal"
    """Reward of a question with pass rate p: ``signal`` is 4 p (1 - p), ``hard`` is 1 - p."""
    decay: Annotated[float, Interval(ge=0, le=1)] = 0.9
    """Weight per step of what earlier steps showed: the solver changes, so the policy must forget."""
    prior: Annotated[float, Ge(0)] = 2.0
    """Number of questions by which an arm is shrunk towards its shape, and a shape towards all."""
    temperature: Annotated[float, Gt(0)] = 0.25
    """Lowest temperature of the policy over mean advantages."""
    min_entropy: Annotated[float, Interval(ge=0, le=1)] = 0.7
    """Least entropy of the policy, as a share of that of even draws."""
    max_named: Annotated[float, Interval(ge=0, le=1)] = 0.15
    """Largest share of questions that name their answer or ask for yes or no: they are coin-flips to a solver that
    knows nothing, which 4 p (1 - p) rewards most."""
    hops: list[int] = field(default_factory=lambda: [1, 2, 3, 4])
    """Numbers of pages that a question may need."""
    triples: str | None = None
    """File of triples (subject, relation, object with tabs between them) to walk, whose subjects are titles in the
    environment's corpus. Default: a world's own graph, or the facts that are found in the corpus."""
    pool: Annotated[int, Ge(0)] = 256
    """Most earlier questions that are kept to fill up a step for which too few new ones are found."""
    tries: Annotated[int, Ge(1)] = 50
    """Drafts per question after which the pool fills up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOptions(Options):
    """One stage of a curriculum: its mix of questions, and how much of what searches find is noise."""

    mix: dict[str | int, Annotated[float, Ge(0)]] = field(default_factory=dict)
    """Weights of the values of `CurriculumOptions.by`, such as ``{1: 0.5, 2: 0.5}``. Empty: as many as there are."""
    share: Annotated[float, Gt(0)] = 1.0
    """Weight of the stage's share of the steps, with ``advance: steps``."""
    noise: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Probability that all hits of a search are replaced by random passages; not in validation."""
    distractors: Annotated[int, Ge(0)] = 0
    """Number of the hits of a search, the last ones, that are replaced by random passages at random ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumOptions(Options):
    """Stages of a training that follow each other; see `searchgym.curriculum`."""

    stages: list[StageOptions] = field(default_factory=list)
    """Stages in order. Empty: no curriculum."""
    by: str = "hops"
    """What tells questions apart: ``hops``, ``kind``, ``level`` or a key of their metadata."""
    advance: Literal["steps", "pass_rate"] = "steps"
    """When the next stage begins: after its share of the steps, or once enough answers are right."""
    up: Annotated[float, Ge(0)] = 0.6
    """``pass_rate``: mean share of right answers, over `window` steps, from which on the next stage follows."""
    down: Annotated[float, Ge(0)] = 0.0
    """``pass_rate``: the same share below which the stage before comes again; 0 for never."""
    window: Annotated[int, Ge(1)] = 3
    """``pass_rate``: number of steps of a stage over which the share is averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions(Options):
    """One model key: a set of weights that some of the agent's roles sample from."""

    roles: list[str] | None = None
    """Roles that sample from these weights; ``[]`` for those of a judge. Default: every role that no other key
    claims."""
    model: str | None = None
    """Model that the weights start from. Default: the recipe's model."""
    frozen: bool = False
    """If true, the weights are sampled from but never trained."""
    lr: Annotated[float, Ge(0)] | None = None
    """Learning rate of this key. Default: `OptimizerOptions.lr` of the recipe."""
    critic_lr: Annotated[float, Ge(0)] | None = None
    """Learning rate of this key's critic. Default: the rate of the recipe's critic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermOptions(Options):
    """How a credit term counts: its weight, and whose calls it rewards."""

    weight: float = 1.0
    """Factor of the term's rewards."""
    roles: list[str] | None = None
    """Roles whose calls get the term's rewards. Default: all roles."""
    share: Literal["full", "split"] = "full"
    """``outcome``: whether each call gets the whole reward, or an equal part of it (UnityMAS-O, arXiv 2605.26646)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditOptions(Options):
    """How calls are rewarded; see `searchgym.train.credit.terms`."""

    terms: list[str] | dict[str, float | TermOptions] = field(default_factory=lambda: ["outcome"])
    """Reward terms, which are added: ``outcome``, ``waypoint``, ``evidence``, ``vpr``, ``difference``, ``gain``,
    ``praise``, ``format``, ``overlong``, ``costs``, ``process``, ``decomposition``, ``search_count``, ``hiersearch``,
    ``ikea``, ``decision``, ``ranking``, ``rubric``, ``gated``, ``tournament``, ``candidates`` or ``module:function``.
    Either names, or names with weights or `TermOptions`."""
    judge: str = "rules"
    """Judge of ``rubric``, ``gated``, ``tournament`` and ``candidates``: ``rules``, a frozen model key, a model, or
    ``URL#NAME`` behind an OpenAI-compatible server, or ``module:function``, which returns a judge."""
    judge_seconds: Annotated[float, Ge(0.001)] = 60.0
    """Seconds that one verdict may take; an episode without a verdict leaves the training."""
    gate_delta: Annotated[float, Ge(1e-06)] = 0.05
    """``gated``: smoothing of the gate, above 0: with every other bottom line met, what a missed one of n leaves is
    about delta to the power of 1/n."""
    tournament_rounds: Annotated[int, Ge(1)] = 4
    """``tournament``: number of tournaments among a group's answers."""
    candidates: Annotated[int, Ge(1)] = 4
    """``candidates``: most candidates in an answer."""
    draws: Annotated[int, Ge(1)] = 64
    """``candidates``: number of weightings over which a set of candidates is scored."""
    alpha: Annotated[float, Ge(0)] = 0.5
    """``praise``: weight of the change in the prefix answer's score that a search causes."""
    train_prefixes: bool = True
    """``praise``: if true, prefix answers are trained on too."""
    turn_cost: Annotated[float, Ge(0)] = 0.0
    """``costs``: reward deducted for three or more rounds beyond the first, proportionally less for fewer."""
    search_cost: Annotated[float, Ge(0)] = 0.0
    """``costs``: reward deducted for three or more searches, proportionally less for fewer."""
    waypoint_lambda: float = 0.3
    """``waypoint``: reward of an episode that reached every waypoint and is wrong; above 0 and below 1."""
    waypoint_rules: list[str] = field(default_factory=lambda: list(WAYPOINT_RULES))
    """``waypoint``: what must hold of one search for a waypoint to count: ``query`` names it, the hits hold its
    ``page``, an earlier page had named it (``led``), and the query names ``few`` entities."""
    waypoint_names: Annotated[int, Ge(1)] = 2
    """``waypoint``: entities that a query may name under the rule ``few``."""
    waypoint_answered: bool = False
    """``waypoint``: if true, an episode earns it only if it ends with an answer."""
    evidence_of: Evidence = "connected"
    """``evidence``: what is measured: facts that the episode's searches support and that are ``connected`` with the
    answer (CaRR), all facts that are ``supported``, or ``entities`` that the model's text names (LongTraceRL)."""
    evidence_weight: float = 0.3
    """``evidence``: the measure's share of the reward; the outcome has the rest. Between 0 and 1."""
    evidence_where: Literal["right", "wrong", "all"] = "right"
    """``evidence``: episodes whose reward it mixes into: those above 0, as in CaRR's runs and LongTraceRL, those at 0,
    or all."""
    evidence_scaled: bool = False
    """``evidence``: if true, the measure is divided by the largest of the group (CaRR); not where ``right``."""
    length_limit: Annotated[int, Ge(1)] | None = None
    """``overlong``: tokens of a sequence from which on the whole reward of 1 is deducted."""
    length_cache: Annotated[int, Ge(1)] | None = None
    """``overlong``: tokens before the limit over which the deduction grows from 0 to 1."""
    local_first: bool = False
    """``hiersearch``: if true, early searches of a further retriever are penalised."""
    known_share: Annotated[float, Interval(gt=0, le=1)] = 0.5
    """``decision``: mean score of trial answers from which on a question counts as known; above 0 and at most 1."""
    ranking_of: Literal["ndcg", "hits"] = "ndcg"
    """``ranking``: quality of an order: nDCG of the pages shown, or the mean of Hit@1, Hit@3 and Hit@5 (CoSearch)."""
    ranking_gate: float = 0.5
    """``ranking``: quality above which the episode's reward is added; from 0 to 1."""

    def by_name(self) -> dict[str, TermOptions]:
        """Returns the options of each term by its name, in the recipe's order."""
        if isinstance(self.terms, list):
            return {name: TermOptions() for name in self.terms}
        return {
            name: own if isinstance(own, TermOptions) else TermOptions(weight=own) for name, own in self.terms.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageOptions(Options):
    """How the rewards of a group become advantages; see `searchgym.train.algorithms.advantages`."""

    estimator: Estimator = "grpo"
    """Advantage estimator: which episodes are compared with each other, and by which formula."""
    normalise: Literal["all", "role", "role-turn", "query"] = "all"
    """What is compared or whitened together. ``all``: whole episodes (gae and reinforce++: all tokens of the step);
    ``role``: calls of the same role; ``role-turn``: calls of the same role in the same turn, or of the same role where
    those are fewer than `min_group`; ``query``: calls that ranked the hits of queries that are alike, and other calls
    as with ``role``."""
    query_overlap: Annotated[float, Interval(gt=0, le=1)] = 0.8
    """``normalise: query``: token F1 from which on two queries are alike (CoSearch's)."""
    chain: Literal["none", "call", "episode"] = "call"
    """How far rewards are passed back. ``call``: to earlier calls of the same sequence, so that in a team each call has
    its own rewards alone; ``episode``: to all earlier calls of the episode (ours; for the term ``gain``); ``none``: to
    no other call (VPR)."""
    std: Literal["sample", "population", "none"] = "sample"
    """Standard deviation that centred rewards are divided by: over n - 1, over n, or no division (Dr.GRPO). Strata of
    ``stratified`` are divided by the one over n, or not at all."""
    eps: Annotated[float, Ge(0)] = 1e-6
    """Constant added to the standard deviation."""
    std_floor: Annotated[float, Ge(0)] = 0.0
    """Lower bound of the standard deviation: without it, differences of F1 near 0 are amplified to noise."""
    min_group: Annotated[int, Ge(2)] = 2
    """Smallest group that is compared; in a smaller one every advantage is 0."""
    drop_zero_variance: bool = True
    """If true, groups without signal leave the batch and the loss denominator; if false, they stay with advantage 0."""
    drop_overlong: bool = False
    """If true, episodes that a full context or a turn's token limit ended leave the batch and the loss denominator,
    after they were compared with their group (overlong filtering of DAPO, arXiv 2503.14476, section 3.4)."""
    alpha: Annotated[float, Interval(ge=0, le=1)] = 0.5
    """``stratified``: weight of the comparison within the stratum, from 0 (plain GRPO) to 1."""
    shared: bool = True
    """``tree``: if false, no two attempts share a call: the control, GRPO without division whose first call counts
    twice."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 1.0
    """``gae``: discount factor per token."""
    lam: Annotated[float, Interval(ge=0, le=1)] = 1.0
    """``gae``: lambda, the weight of later tokens in the estimate."""
    whiten: bool = True
    """``gae``: if true, advantages are centred and divided by their deviation over all tokens of the step."""
    whiten_over: Literal["trained", "valued"] = "trained"
    """``gae``: tokens whose advantages make the mean and deviation: the trained ones, or all that have a value, with
    ``critic.tokens: response`` observations too (Search-R1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOptions(Options):
    """The policy loss; see `searchgym.train.algorithms.losses`."""

    clip_low: Annotated[float, Interval(ge=0, lt=1)] = 0.2
    """Lower clip: where the advantage is negative, ratios below 1 - `clip_low` are clipped."""
    clip_high: Annotated[float, Ge(0)] = 0.2
    """Upper clip: where the advantage is positive, ratios above 1 + `clip_high` are clipped."""
    dual_clip: float | None = None
    """Upper bound of the ratio where the advantage is negative, which bounds the loss of one token. Usually 3
    (arXiv 1912.09729); must exceed 1 + `clip_high`. Default: no bound."""
    ratio: Literal["token", "sequence"] = "token"
    """Probability ratio of each token, or the geometric mean over its sequence (GSPO, arXiv 2507.18071, with
    ``reduction: sequence-mean`` and clips around 3e-4)."""
    importance_cap: Annotated[float, Ge(1)] | None = None
    """Cap of the importance weight, a token's probability under the trainer divided by that under the sampler, which
    multiplies its loss. Usually 2, where sampler and trainer compute differently. Default: no weight."""
    kl_coef: Annotated[float, Ge(0)] = 0.0
    """Weight of the KL estimate to the model as it was at step 0; 0 keeps no reference model."""
    kl_estimator: KL = "k3"
    """Estimator of the KL divergence; see `searchgym.train.algorithms.losses.kl_estimate`."""
    kl_cap: Annotated[float, Gt(0)] | None = 10.0
    """``k3``: largest estimate of a token, beyond which it has no gradient (verl's ``low_var_kl``); null: no cap."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where the KL estimate acts: as a term of the loss, or (k1 only) subtracted from the return before episodes are
    compared."""
    entropy_coef: Annotated[float, Ge(0)] = 0.0
    """Weight of the entropy bonus."""
    llds_coef: Annotated[float, Ge(0)] = 0.0
    """Weight of the LLDS penalty on likelihoods that fall although the advantage is not negative; usually 0.2."""
    llds_unit: Literal["call", "response"] = "call"
    """Unit whose total likelihood must have fallen before LLDS penalises its tokens."""
    reduction: Reduction = "token-mean"
    """What has equal weight in the loss: every token of the step, every sequence (in a team, every call), every
    episode, or (``constant``) every token of every step."""
    constant_length: Annotated[int, Ge(1)] | None = None
    """``constant``: tokens that each sequence counts for in the denominator (Dr.GRPO: the longest possible
    response)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedOptions(Options):
    """Maximum likelihood: on demonstrations, or on the model's own successful episodes."""

    targets: Literal["model", "all"] = "model"
    """Tokens that are learnt: the model's own, or every token except the first (to train a reader from scratch)."""
    batch: Annotated[int, Ge(1)] = 64
    """Demonstrations per step (``method: supervised``)."""
    demonstrations: str | None = None
    """Path of the episode file with the demonstrations (``method: supervised``)."""
    min_reward: float = 1.0
    """Reward that an episode needs in order to be learnt from (``method: rejection``)."""


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

    def updates(self, samples: int) -> int:
        """Returns the number of updates that a pass over some samples makes."""
        if self.minibatch_samples is None:
            return max(1, min(self.minibatches, samples))
        return -(-samples // self.minibatch_samples)

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

    device: Device = "auto"
    """Device of the weights; with several ranks, each has its own GPU."""

    gpus: list[int] | None = None
    """GPU numbers of the ranks, in order. Default: counted from 0."""

    backend: Literal["torch", "deepspeed"] = "torch"
    """Training engine: plain torch in this process, or DeepSpeed in separate processes."""
    ranks: Annotated[int, Ge(1)] = 1
    """``deepspeed``: number of processes; on a GPU machine one per GPU."""
    listen: str | None = None
    """``deepspeed``: HOST:PORT at which to wait for ranks that torchrun starts elsewhere; all machines must share the
    run folder. Default: the ranks are started on this machine."""
    zero: Annotated[int, Ge(0)] = 0
    """``deepspeed``: ZeRO stage, which sets what is sharded over the ranks: 0 nothing, 1 the optimizer's state, 2
    gradients too, 3 weights too."""
    offload_optimizer: bool = False
    """``deepspeed``, ZeRO 1 and higher: keep the optimizer's state in main memory."""
    offload_parameters: bool = False
    """``deepspeed``, ZeRO 3: keep the weights in main memory."""
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
class GuardOptions(Options):
    """Bounds of metrics; a metric out of bounds for `patience` steps in a row ends the run, naming its checkpoint."""

    patience: Annotated[int, Ge(1)] = 3
    """Steps in a row that a metric must be out of bounds."""
    min_entropy: float | None = None
    """Lower bound of `learner/entropy`, in nats per token."""
    max_entropy: float | None = None
    """Upper bound of `learner/entropy`, in nats per token."""
    max_kl: float | None = None
    """Upper bound of `learner/old_kl`, in nats per token: how far one step moves the policy."""
    max_ref_kl: float | None = None
    """Upper bound of `learner/ref_kl`, in nats per token."""
    max_response_tokens: float | None = None
    """Upper bound of `rollout/generated_tokens`, per episode."""
    min_legal: float | None = None
    """Lower bound of `role/ROLE/legal`, a share, for each role: below it, prompt and parser do not fit each other or
    the model writes nothing legal."""
    max_sampler_difference: float | None = 0.02
    """Upper bound of `learner/sampler_difference`, in nats per token: above it, sampler and learner do not compute the
    same policy. Ten times as much ends the run in a single step. Not checked with `rollout.staleness`, whose samples
    are of older weights."""
    max_zero_variance: float | None = None
    """Upper bound of `groups/zero_variance_share`."""
