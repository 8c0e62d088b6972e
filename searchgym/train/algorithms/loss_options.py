"""The options of the policy loss, apart from its code, which needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from searchgym.options import Options

Reduction = Literal["token-mean", "sequence-mean", "episode-mean", "constant"]
KL = Literal["k1", "k2", "k3"]


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
