"""Estimator ``gae``: generalised advantage estimation, PPO's advantages from rewards and a critic's values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from annotated_types import Interval
from typing_extensions import override

from searchgym.errors import DataError
from searchgym.options import Setting
from searchgym.train.algorithms.advantages import calls_of_episodes, k1_of, whiten_cells, with_advantage
from searchgym.train.algorithms.estimator import AdvantageOptions, Floats, GroupCounts, Scaled, whiten
from searchgym.train.algorithms.samples import Sample, Targets


@dataclass(frozen=True, slots=True, kw_only=True)
class Gae(Scaled):
    """Computes advantages from a critic's values, token by token; see `gae`.

    With ``chain: episode`` (ours) the tokens of all calls of an episode form one chain in the order of the calls, even
    if each call is a separate sequence: the value after the last token of a call is that of the next call's first
    token. A call of a frozen model key has no values: its reward is added to the token before it.
    """

    critic: ClassVar = True

    gamma: Annotated[float, Interval(ge=0, le=1)] = 1.0
    """Discount factor per token."""
    lam: Annotated[float, Interval(ge=0, le=1)] = 1.0
    """Lambda of GAE, the weight of later tokens in the estimate."""
    whiten: bool = True
    """If true, advantages are centred and divided by their standard deviation over the tokens of the step."""
    whiten_over: Literal["trained", "valued"] = "trained"
    """Tokens over which mean and standard deviation are computed: the trained tokens, or all tokens with a value, which
    with ``critic.tokens: response`` include observations (Search-R1)."""

    @override
    def check(self, setting: Setting) -> Iterable[str]:
        if setting.chain == "none":
            yield "advantage.chain none: gae passes rewards back by its lam; choose another estimator"
        if self.whiten_over == "valued" and not (self.whiten and setting.normalise == "all"):
            yield "whiten_over valued needs whiten and advantage.normalise all"
        if self.whiten_over == "valued" and setting.valued != "response":
            yield "whiten_over valued needs critic.tokens response: else only trained tokens have values"

    def assign(
        self,
        samples: Sequence[Sample],
        options: AdvantageOptions,
        kl_coef: float = 0.0,
        targets: Targets | None = None,
        frozen: Sequence[Sample] = (),
    ) -> tuple[list[Sample], GroupCounts | None]:
        """Sets the advantages of samples, and the returns that the critic learns; see `Estimator.assign`.

        Returns:
            The samples with advantages on their masks, and with ``returns = advantage + value`` (before whitening) on
            the target tokens; and None, because there are no groups.

        Raises:
            DataError: A sample has no values, or a reward is not finite.
        """
        assert targets is not None
        rewards = [_token_rewards(sample, kl_coef) for sample in samples]
        rewards += [_token_rewards(sample, 0.0) for sample in frozen]
        values = []
        for sample in samples:
            if sample.value is None:
                raise DataError(f"episode {sample.episode_id} has no values: GAE needs a critic's estimates")
            values.append(sample.value.astype(np.float64))
        by_token = [np.zeros(len(sample.ids)) for sample in samples]
        returns = [np.zeros(len(sample.ids), np.float32) for sample in samples]
        for chain in _chains(samples, frozen, options, targets):
            pieces, earned = [], [0.0]  # a reward before the first token belongs to no token
            for piece in chain:
                of_tokens = rewards[piece.sample][piece.positions]
                if piece.sample < len(samples):
                    pieces.append(piece)
                    earned += of_tokens.tolist()
                else:  # add a frozen call's rewards to the preceding token
                    earned[-1] += float(of_tokens.sum())
            of_chain = np.concatenate([np.zeros(0), *(values[p.sample][p.positions] for p in pieces)])
            advantages, start = gae(np.array(earned[1:]), of_chain, self.gamma, self.lam), 0
            for sample_index, positions in pieces:
                part = advantages[start : start + len(positions)]
                by_token[sample_index][positions] = part
                returns[sample_index][positions] = part + values[sample_index][positions]
                start += len(positions)
        valued = [dataclasses.replace(sample, returns=row) for sample, row in zip(samples, returns, strict=True)]
        if self.whiten and self.whiten_over == "valued":
            valued_positions = [targets(sample) for sample in valued]
            white = whiten([row[at] for row, at in zip(by_token, valued_positions, strict=True)], self.divisor)
            for row, at, numbers in zip(by_token, valued_positions, white, strict=True):
                row[at] = numbers
        trained = [row[sample.mask] for sample, row in zip(valued, by_token, strict=True)]
        if self.whiten and self.whiten_over == "trained":
            trained = whiten_cells(trained, valued, options)
        remaining = [
            with_advantage(sample, row)
            for sample, row in zip(valued, trained, strict=True)
            if not (options.drop_overlong and sample.overlong)
        ]
        return remaining, None


def gae(rewards: Floats, values: Floats, gamma: float, lam: float) -> Floats:
    """Computes GAE's advantages of one sequence, backwards from its end.

    ``A_k = delta_k + gamma lam A_{k+1}`` with ``delta_k = r_k + gamma V_{k+1} - V_k``. k counts the tokens with values,
    not positions in the sequence: without observations, the last token before one is followed by the first token after
    it. The value after the last token is 0: an episode that was cut off counts as one that ended.

    Source: GAE, arXiv 1506.02438, equations 11, 12 and 16. Search-R1 and verl let the chain run through observations
    (``critic.tokens: response``).

    Args:
        rewards: (n,) float64, one per token.
        values: (n,) float64 estimates of the critic, each computed before its token.
        gamma: Discount factor.
        lam: Weight of later rewards: with 0 only the next value counts, with 1 only the rewards.

    Returns:
        (n,) float64 advantages.
    """
    advantages = np.zeros(len(rewards))
    following = later = 0.0
    for k in range(len(rewards) - 1, -1, -1):
        later = rewards[k] + gamma * following - values[k] + gamma * lam * later
        advantages[k], following = later, values[k]
    return advantages


class _Piece(NamedTuple):
    """Consecutive tokens of a chain: one call, preceded by its observation if that has values."""

    sample: int
    """Index of the sample; samples of frozen model keys are counted after the others."""
    positions: npt.NDArray[np.int64]
    """(n,) int64 positions in the sample."""


def _token_rewards(sample: Sample, kl_coef: float) -> Floats:
    """Returns the reward of each token of a sample, minus k1 on trained tokens, (T,) float64."""
    rewards = np.where(sample.mask, sample.reward, 0).astype(np.float64)
    if not np.isfinite(rewards).all():
        raise DataError(f"episode {sample.episode_id}: a reward must be finite")
    if kl_coef:
        rewards[sample.mask] -= kl_coef * k1_of(sample)
    return rewards


def _chains(
    samples: Sequence[Sample], frozen: Sequence[Sample], options: AdvantageOptions, targets: Targets
) -> list[list[_Piece]]:
    """Returns the chains of tokens for GAE: one per sample, or one per episode and one per trial answer."""
    if options.chain == "call":
        return [[_Piece(i, targets(sample))] for i, sample in enumerate(samples)]
    every = [*samples, *frozen]
    pieces: dict[tuple[int, int], _Piece] = {}
    for i, sample in enumerate(every):
        positions, start = targets(sample), 0
        for j, call in enumerate(sample.calls):
            pieces[i, j] = _Piece(i, positions[(positions >= start) & (positions < call.end)])
            start = call.end
    chains = [[pieces.pop(call) for call in episode] for episode in calls_of_episodes(every)]
    return chains + [[piece] for piece in pieces.values() if piece.sample < len(samples)]
