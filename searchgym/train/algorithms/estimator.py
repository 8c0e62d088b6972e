"""Interface of advantage estimators, options of advantages, and comparison within groups.

`searchgym.train.algorithms.advantages` chooses the samples to compare and sets the advantages of tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Interval

from searchgym.errors import DataError
from searchgym.options import Kind, Options, find_kind
from searchgym.train.algorithms.samples import Sample, Targets

K = TypeVar("K", bound=Hashable)
Floats = npt.NDArray[np.float64]
"""A float64 array."""


@dataclass(frozen=True, slots=True)
class Group:
    """Members of one comparison: the attempts at one question, or similar calls."""

    returns: Floats
    """(n,) float64 rewards minus the KL penalty."""
    rewards: Floats
    """(n,) float64 rewards without the KL penalty, which decide whether members are equal."""
    searches: npt.NDArray[np.int64]
    """(n,) int64 number of searches of each member's episode."""


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Counts of a batch's groups by outcome, for metrics."""

    groups: int
    """Number of groups in the batch."""
    small: int
    """Number of groups with fewer than `AdvantageOptions.min_group` episodes."""
    zero_variance: int
    """Number of groups that are large enough but whose rewards are all equal."""
    more: Mapping[str, int] = field(default_factory=dict)
    """Further counts by name, such as ``strata``; see `Estimator.tally`."""

    def metrics(self) -> dict[str, float]:
        """Returns the counts by metric name."""
        counts = {"groups": self.groups, "small": self.small, "zero_variance": self.zero_variance, **self.more}
        row = {f"groups/{name}": float(value) for name, value in counts.items()}
        return row | {"groups/zero_variance_share": self.zero_variance / max(self.groups, 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator(Kind):
    """Base class of estimators, which turn a group's rewards into advantages; a subclass's fields are its options."""

    kinds_in: ClassVar = "searchgym.train.algorithms.estimators"
    noun: ClassVar = "estimator"
    critic: ClassVar[bool] = False
    """True if the estimator uses the values of a trained critic instead of comparing episodes."""
    over_batch: ClassVar[bool] = False
    """True if all episodes of the batch form one group."""
    whitens: ClassVar[bool] = False
    """True if advantages are whitened over the tokens of the batch after the comparison; needs `Scaled`."""
    kl_by_token: ClassVar[bool] = False
    """True if each token is charged the KL penalties from that token on, not those of the whole episode."""
    whole_episodes: ClassVar[bool] = False
    """True if the estimator needs rewards of whole episodes, from which it computes rewards of calls."""

    def compare(self, group: Group) -> Floats:
        """Computes the advantages of one group whose rewards differ, (n,) float64.

        Args:
            group: Returns, rewards and numbers of searches of at least `AdvantageOptions.min_group` episodes or calls.
        """
        raise NotImplementedError(f"{type(self).__name__} compares nothing")

    def roles(self) -> Iterable[str]:
        """Returns the roles that the options name, which the agent must have. Default: none."""
        return ()

    def tally(self, group: Group) -> Mapping[str, int]:
        """Returns counts for one group with signal, which metrics sum over groups. Default: none."""
        return {}

    def assign(
        self,
        samples: Sequence[Sample],
        options: AdvantageOptions,
        kl_coef: float = 0.0,
        targets: Targets | None = None,
        frozen: Sequence[Sample] = (),
    ) -> tuple[list[Sample], GroupCounts | None]:
        """Sets the advantages of a batch of samples; see `searchgym.train.algorithms.advantages.Comparing`.

        Args:
            samples: All samples of whole groups, with values and log-probs if the estimator or `kl_coef` needs them.
            options: Rules of comparison and of dropping samples.
            kl_coef: Weight of the KL penalty in the reward.
            targets: Token positions that have a value, for estimators with a critic.
            frozen: Samples of frozen model keys in the same episodes, for estimators with a critic.

        Returns:
            The samples that stay in the batch, with advantages; and the counts of groups, None without groups.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no assign")

    def warning(self, metrics: Sequence[Mapping[str, float]]) -> str | None:
        """Returns a warning after a step, given the metrics of all steps so far. Default: none."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled(Estimator):
    """Base class of estimators that divide centred values by their standard deviation."""

    std: Literal["sample", "population", "none"] = "sample"
    """Standard deviation that divides centred values: over n - 1, over n, or no division (Dr.GRPO)."""
    eps: Annotated[float, Ge(0)] = 1e-6
    """Constant added to the standard deviation."""
    std_floor: Annotated[float, Ge(0)] = 0.0
    """Lower bound of the standard deviation; without one, tiny differences in F1 are amplified to noise."""

    def divisor(self, values: Floats, std: str | None = None) -> float:
        """Returns the divisor of centred values: ``max(std, floor) + eps``, or 1 with ``std: none``.

        Args:
            values: (n,) float64.
            std: Standard deviation to use instead of the option's; ignored if the option is ``none``.
        """
        if self.std == "none":
            return 1.0
        deviation = float(np.std(values, ddof=1 if (std or self.std) == "sample" else 0))
        return max(deviation, self.std_floor) + self.eps

    def scaled(self, values: Floats, std: str | None = None) -> Floats:
        """Returns values less their mean, divided by `divisor`; (n,) float64."""
        centred: Floats = (values - values.mean()) / self.divisor(values, std)
        return centred


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageOptions(Options):
    """Options of advantages, which are computed from a group's rewards; see `searchgym.train.algorithms.advantages`."""

    estimator: Estimator = field(default_factory=lambda: find_kind(Estimator, "grpo")())
    """Advantage estimator: its name, or ``kind`` and options."""
    normalise: Literal["all", "role", "role-turn", "query"] = "all"
    """Units that are compared or whitened together. ``all``: whole episodes (gae and reinforce-pp: all tokens of the
    step); ``role``: calls of the same role; ``role-turn``: calls of the same role in the same turn, or all calls of the
    role if fewer than `min_group` share the turn; ``query``: calls that ranked hits of similar queries, other calls as
    with ``role``."""
    query_overlap: Annotated[float, Interval(gt=0, le=1)] = 0.8
    """Least token F1 of two queries that count as similar with ``normalise: query`` (CoSearch's value)."""
    chain: Literal["none", "call", "episode"] = "call"
    """Earlier calls that a call's reward is passed back to. ``call``: those in the same sequence, so that in a team
    each call has only its own rewards; ``episode``: all earlier calls of the episode (ours; for the term ``gain``);
    ``none``: no other call (VPR)."""
    rescale: Literal["none", "batch"] = "none"
    """``batch``: after the comparison within groups, the advantages of all groups with signal are centred and divided
    by their standard deviation over the batch, each episode or call once (BN-GSPO of SenseNova-MARS, by notes)."""
    min_group: Annotated[int, Ge(2)] = 2
    """Smallest group that is compared; in smaller groups all advantages are 0."""
    drop_zero_variance: bool = True
    """If true, groups without signal leave the batch and the loss denominator; if false, they stay with advantage 0."""
    drop_overlong: bool = False
    """If true, episodes ended by a full context or a token limit leave the batch and the loss denominator after the
    comparison with their group (overlong filtering of DAPO, arXiv 2503.14476, section 3.4)."""


ROUNDING, SINGLE = 1e-9, 1e-6
"""Absolute tolerance for float64 sums of order 1, and relative tolerance for float32; see `equal`."""


def equal(values: Floats) -> bool:
    """Returns True if all values are equal up to rounding.

    Rounding differences must not count as signal: divided by their standard deviation, they would give advantages
    around 1.
    """
    return float(values.max() - values.min()) <= max(ROUNDING, SINGLE * float(np.abs(values).max()))


def whiten(values: Sequence[Floats], divisor: Callable[[Floats], float]) -> list[Floats]:
    """Whitens values over all trained tokens t of the batch: ``(A_t - mean(A)) / (max(std(A), floor) + eps)``.

    Source: REINFORCE++, arXiv 2501.03262: advantages are normalised over the global batch, token by token (so a long
    episode weighs more), as OpenRLHF and verl do. Deviation from both: nothing is clamped, and eps is added outside the
    square root.

    Args:
        values: One (n,) float64 array per sequence.
        divisor: Returns the divisor of centred values, ``max(std, floor) + eps``; see `Scaled.divisor`.

    Returns:
        Whitened values in the same shapes; all 0 if the values are equal.
    """
    every = np.concatenate([np.zeros(0), *values])
    if not len(every) or equal(every):
        return [np.zeros_like(row) for row in values]
    mean, by = every.mean(), divisor(every)
    return [(row - mean) / by for row in values]


def group_advantages(
    rewards: Floats,
    groups: Sequence[str],
    options: AdvantageOptions,
    *,
    searches: Sequence[int] | None = None,
    penalties: Floats | None = None,
) -> tuple[Floats, GroupCounts]:
    """Computes one advantage per episode, by comparison within groups.

    The results are not whitened, even if the estimator whitens; see `whiten`.

    Args:
        rewards: (N,) float64, one per episode.
        groups: N group keys; equal keys are compared with each other.
        options: Estimator and minimum group size.
        searches: Number of searches of each episode. Default: 0.
        penalties: (N,) float64 KL penalties to subtract from the rewards. Default: none.

    Returns:
        (N,) float64 advantages, exactly 0 in a group without signal; and the counts of groups by outcome.

    Raises:
        DataError: A reward that is not finite.
    """
    rewards = np.asarray(rewards, np.float64)
    returns = rewards if penalties is None else rewards - penalties
    counts = np.zeros(len(rewards), np.int64) if searches is None else np.asarray(searches, np.int64)
    advantages = np.zeros(len(rewards))
    fates, members = group_fates(rewards, groups, options), members_of(groups)
    more: Counter[str] = Counter()
    for key, indices in members.items():
        if fates[key] == "signal":
            group = Group(returns[indices], rewards[indices], counts[indices])
            advantages[indices] = options.estimator.compare(group)
            more.update(options.estimator.tally(group))
    return advantages, replace(counts_of(fates), more=dict(more))


def counts_of(fates: Mapping[str, str]) -> GroupCounts:
    """Returns the counts of groups by outcome, from the outcome of each; see `group_fates`."""
    outcomes = list(fates.values())
    return GroupCounts(len(fates), outcomes.count("small"), outcomes.count("zero_variance"))


def group_fates(rewards: Floats, groups: Sequence[str], options: AdvantageOptions) -> dict[str, str]:
    """Returns the outcome of each group by key: ``"signal"``, ``"small"`` or ``"zero_variance"``; see `GroupCounts`.

    Raises:
        DataError: A reward that is not finite.
    """
    if not np.isfinite(rewards).all():
        bad = int(np.flatnonzero(~np.isfinite(rewards))[0])
        raise DataError(f"reward {rewards[bad]} in group {groups[bad]!r}: a reward must be finite")
    fates = {}
    for key, indices in members_of(groups).items():
        if len(indices) < options.min_group:
            fates[key] = "small"
        else:
            fates[key] = "zero_variance" if equal(rewards[indices]) else "signal"
    return fates


def members_of(groups: Sequence[K]) -> dict[K, list[int]]:
    """Returns, for each group key, the indices of its members."""
    members: dict[K, list[int]] = {}
    for i, key in enumerate(groups):
        members.setdefault(key, []).append(i)
    return members
