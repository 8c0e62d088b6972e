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
    """Options of the policy loss; see `searchgym.train.algorithms.losses`."""

    clip_low: Annotated[float, Interval(ge=0, lt=1)] = 0.2
    """Lower clip: where the advantage is negative, ratios below 1 - `clip_low` are clipped."""
    clip_high: Annotated[float, Ge(0)] = 0.2
    """Upper clip: where the advantage is positive, ratios above 1 + `clip_high` are clipped."""
    dual_clip: float | None = None
    """Upper bound of the ratio where the advantage is negative, which limits the loss of a token. Usually 3 (arXiv
    1912.09729); must exceed 1 + `clip_high`. Default: no bound."""
    ratio: Literal["token", "sequence"] = "token"
    """Unit of the probability ratio: each token's ratio, or the geometric mean over its sequence (GSPO, arXiv
    2507.18071, with ``reduction: sequence-mean`` and clips around 3e-4)."""
    importance_cap: Annotated[float, Ge(1)] | None = None
    """Cap of the importance weight, which multiplies a token's loss: its probability under the trainer divided by that
    under the sampler. Usually 2, if sampler and trainer compute differently. Default: no weight."""
    kl_coef: Annotated[float, Ge(0)] = 0.0
    """Weight of the estimated KL divergence from the model of step 0; with 0 no reference model is kept."""
    kl_estimator: KL = "k3"
    """Estimator of the KL divergence; see `searchgym.train.algorithms.losses.kl_estimate`."""
    kl_cap: Annotated[float, Gt(0)] | None = 10.0
    """Upper bound of a token's ``k3`` estimate; a token beyond it has no gradient (verl's ``low_var_kl``). null: no
    bound."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Use of the KL estimate: as a term of the loss, or (k1 only) subtracted from the return before episodes are
    compared."""
    entropy_coef: Annotated[float, Ge(0)] = 0.0
    """Weight of the entropy bonus."""
    llds_coef: Annotated[float, Ge(0)] = 0.0
    """Weight of the LLDS penalty on falling likelihoods of tokens with a non-negative advantage; usually 0.2."""
    llds_unit: Literal["call", "response"] = "call"
    """Unit whose total likelihood must have fallen before LLDS penalises its tokens."""
    reduction: Reduction = "token-mean"
    """Unit of equal weight in the loss: each token of the step (``token-mean``), each sequence (in a team, each call),
    each episode, or (``constant``) each token, whatever the number of tokens in a step."""
    constant_length: Annotated[int, Ge(1)] | None = None
    """Number of tokens that each sequence adds to the denominator with ``reduction: constant`` (Dr.GRPO: the longest
    possible response)."""
