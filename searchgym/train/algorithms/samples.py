"""Samples: the training sequences of an episode, made from its token tree without touching a token.

Each context of an episode that holds calls becomes one sequence, including the tokens it inherits from its parents.
Each call is trained on exactly once: where two contexts share a trunk, the first context trains on the trunk's calls,
and the others only see them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from searchgym.errors import DataError
from searchgym.records import Call, Episode, Span

SampleKind = Literal["policy", "demonstration"]
"""Origin of a sample: sampled by the policy, with log-probs, or a demonstration without them."""


@dataclass(frozen=True, slots=True)
class SampleCall:
    """One call that a sample trains on, and where its tokens are in the sample."""

    index: int
    """Index in `Episode.calls`; the call's id is ``"<episode id>/<index>"``."""
    start: int
    """First token, an index into the sample."""
    end: int
    """End of the tokens (exclusive)."""
    role: str
    """Role that made the call."""
    turn: int
    """Turn of the episode in which the call was made."""
    prefix: bool = False
    """True for a trial answer that only training asks for; see `Call.prefix`."""
    query: str | None = None
    """Query whose hits the call ranked; None if it ranked none."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One training sequence of T tokens."""

    ids: npt.NDArray[np.int32]
    """(T,) int32 token ids."""
    mask: npt.NDArray[np.bool_]
    """(T,) bool: True for tokens to train on: those the model wrote in this sample's calls, end-of-turn included."""
    reward: npt.NDArray[np.float32]
    """(T,) float32: each call's reward on its last token, else 0."""
    advantage: npt.NDArray[np.float32]
    """(T,) float32 advantages, set by `searchgym.train.algorithms.advantages`; 0 before that and outside the mask."""
    sampler_logp: npt.NDArray[np.float32]
    """(T,) float32 natural-log probabilities under the sampler; 0 outside the mask and in demonstrations."""
    calls: tuple[SampleCall, ...]
    """The calls trained on, in order."""
    model_key: str
    """Key of the model that wrote the calls and learns from them."""
    episode_id: str
    """Id of the episode."""
    question_id: str
    """Id of the episode's question."""
    attempt: int
    """Number of the attempt at the question."""
    group_uid: str | None
    """Key of the group of episodes to compare with; None: no group."""
    policy_version: int
    """Number of updates made to the oldest weights that sampled one of the calls."""
    searches: int = 0
    """Number of searches in the episode."""
    overlong: bool = False
    """True if the episode was cut off; see `is_overlong`."""
    old_logp: npt.NDArray[np.float32] | None = None
    """(T,) float32 log-probs under the trainer's weights before the step's first update; None: not computed yet."""
    ref_logp: npt.NDArray[np.float32] | None = None
    """(T,) float32 log-probs under the reference model; None: not computed yet."""
    value: npt.NDArray[np.float32] | None = None
    """(T,) float32 estimates of the critic at the tokens that have one, else 0; None without a critic."""
    returns: npt.NDArray[np.float32] | None = None
    """(T,) float32 returns, the critic's targets, at the same tokens as `value`; None until GAE has set them."""
    kept: npt.NDArray[np.float32] | None = None
    """(T,) float32: the part of `reward` that group estimators with ``advantage.chain: episode`` pass to no earlier
    call, such as a penalty for the call's own form. Default: none of it."""
    weight: float = 1.0
    """Weight in sums and denominators. Default: 1; 0 for a padding row."""
    kind: SampleKind = "policy"
    """Origin of the sequence. Default: ``"policy"``."""

    @property
    def call_ids(self) -> tuple[str, ...]:
        """Ids of the calls trained on, in order."""
        return tuple(f"{self.episode_id}/{call.index}" for call in self.calls)


Targets = Callable[[Sample], npt.NDArray[np.int64]]
"""Function from a sample to the positions of the tokens to learn from: (n,) int64, ascending, never position 0."""


def model_targets(sample: Sample) -> npt.NDArray[np.int64]:
    """Returns the positions of the trained tokens of a sample, (n,) int64."""
    return np.flatnonzero(sample.mask)


def response_targets(sample: Sample) -> npt.NDArray[np.int64]:
    """Returns every position from the first trained token to the last, observations in between included, (n,) int64."""
    places = model_targets(sample)
    return np.arange(places[0], places[-1] + 1) if len(places) else places


VALUED: dict[str, Targets] = {"model": model_targets, "response": response_targets}
"""Functions that choose the tokens with a critic's value, by `CriticOptions.tokens`."""


def samples_from(
    episode: Episode,
    kind: SampleKind = "policy",
    rewards: Sequence[float] | None = None,
    kept: Sequence[float] | None = None,
) -> list[Sample]:
    """Returns the training sequences of an episode; none if no model wrote a token in it.

    Args:
        episode: A finished episode with contexts and calls.
        kind: ``"policy"`` requires log-probs of every trained span, ``"demonstration"`` ignores them.
        rewards: One reward per call. Default: `outcome_rewards`.
        kept: Part of each call's reward that earlier calls have no share in; see `Sample.kept`. Default: none.

    Raises:
        DataError: Calls and spans do not match, log-probs are missing, or a sequence mixes model keys.
    """
    rewards = outcome_rewards(episode) if rewards is None else rewards
    return [_sample(episode, *sequence, kind, rewards, kept) for sequence in _sequences(episode)]


def outcome_rewards(episode: Episode) -> list[float]:
    """Returns one reward per call: the episode's reward on the last call of each of its sequences, 0 on the others."""
    return at_ends(episode, episode.reward)


def at_ends(episode: Episode, value: float) -> list[float]:
    """Returns one reward per call: the value on the last call of each of an episode's sequences, 0 on the others.

    Prefix answers, which only training asks for, get 0.
    """
    rewards = [0.0] * len(episode.calls)
    for calls in sequences_of(episode):
        rewards[calls[-1]] = value
    return rewards


def sequences_of(episode: Episode) -> list[list[int]]:
    """Returns the calls of each training sequence of an episode, as indices, without prefix answers."""
    own = [[index for index, call in mine if not call.prefix] for _, mine, _ in _sequences(episode)]
    return [calls for calls in own if calls]


_Sequence = tuple[int, list[tuple[int, Call]], list[tuple[int, int]]]
"""(context, indexed calls to train on, token ranges of other calls, which are only shown)."""


def _sequences(episode: Episode) -> list[_Sequence]:
    """Returns the training sequences of an episode; see `samples_from`."""
    calls = [(i, call) for i, call in enumerate(episode.calls) if call.end > call.start]
    holders = sorted({call.context for _, call in calls})
    prefixes = {c for c in holders if all(call.prefix for _, call in calls if call.context == c)}
    reach = {context: _reach(episode, context) for context in holders}

    def covered(context: int) -> bool:
        """True if another context inherits every call of this one."""
        inside = [call for _, call in calls if call.context == context]
        others = [reach[other] for other in holders if other not in (context, *prefixes)]
        return all(any(call.end <= seen.get(context, 0) for seen in others) for call in inside)

    sequences: list[_Sequence] = []
    claimed: set[int] = set()  # each call is trained on once, by the first context that holds all of it
    for index, call in calls:
        if call.end > (total := reach[call.context][call.context]):
            raise DataError(
                f"episode {episode.id}, context {call.context}: call {index} ends at token {call.end} of {total}"
            )
    for context in holders:
        if covered(context):
            continue
        seen = reach[context]
        inside = [(i, call) for i, call in calls if call.start < seen.get(call.context, 0)]
        mine = [(i, c) for i, c in inside if i not in claimed and c.end <= seen[c.context]]
        indices = {i for i, _ in mine}
        foreign = [(call.start, min(call.end, seen[call.context])) for i, call in inside if i not in indices]
        claimed |= indices
        sequences.append((context, mine, foreign))
    return sequences


def is_overlong(episode: Episode) -> bool:
    """Returns True if an episode was cut off: by a full context, or without an answer after a call cut at its limit."""
    cut = bool(episode.calls) and episode.calls[-1].cut and episode.stop_reason != "answer"
    return episode.stop_reason == "context" or cut


def with_all_targets(sample: Sample) -> Sample:
    """Returns a copy of the sample with every token in the mask except the first, which nothing predicts."""
    return dataclasses.replace(sample, mask=np.arange(len(sample.ids)) > 0)


def _reach(episode: Episode, context: int) -> dict[int, int]:
    """Returns how many tokens, counted from the root, a context sees of itself and of each of its ancestors."""
    total = sum(len(span.ids) for span in episode.tokens(context))
    seen = {context: total}
    node = episode.contexts[context]
    while node.parent is not None:
        total = min(total, node.fork)
        seen[node.parent] = total
        node = episode.contexts[node.parent]
    return seen


def _sample(
    episode: Episode,
    context: int,
    mine: list[tuple[int, Call]],
    foreign: list[tuple[int, int]],
    kind: SampleKind,
    rewards: Sequence[float],
    kept: Sequence[float] | None,
) -> Sample:
    """Builds the sample of one context, trained on the calls `mine` but not on the token ranges `foreign`."""
    where = f"episode {episode.id}, context {context}"
    spans = episode.tokens(context)
    ids: npt.NDArray[np.int32] = _join([span.ids for span in spans], np.int32)
    mask = _join([np.full(len(span.ids), span.kind == "model") for span in spans], np.bool_)
    for start, end in foreign:
        mask[start:end] = False
    if mask[0]:
        raise DataError(f"{where} begins with a model's token: nothing predicts it, begin with a prompt")
    for index, call in mine:
        if not mask[call.start : call.end].all():
            raise DataError(f"{where}: call {index} says tokens {call.start}:{call.end}, which are no model span")
    keys = {call.model_key for _, call in mine}
    if len(keys) != 1:
        raise DataError(f"{where} holds calls of several model keys ({', '.join(sorted(keys))}): one per context")
    reward = _on_last_tokens(rewards, mine, len(ids))
    return Sample(
        ids=ids,
        mask=mask,
        reward=reward,
        advantage=np.zeros(len(ids), np.float32),
        sampler_logp=_logp(spans, mask, where) if kind == "policy" else np.zeros(len(ids), np.float32),
        calls=tuple(
            SampleCall(i, c.start, c.end, c.role, c.turn, c.prefix, _ranked_query(episode, c)) for i, c in mine
        ),
        model_key=keys.pop(),
        episode_id=episode.id,
        question_id=episode.question_id,
        attempt=episode.attempt,
        group_uid=episode.group_uid,
        policy_version=min(call.policy_version for _, call in mine),
        searches=len(episode.searches),
        overlong=is_overlong(episode),
        kept=None if kept is None else _on_last_tokens(kept, mine, len(ids)),
        kind=kind,
    )


def _ranked_query(episode: Episode, call: Call) -> str | None:
    """Returns the query, or the queries of one action, whose hits a call ranked; None if it ranked none."""
    if call.ranked is None:
        return None
    return " / ".join(search.query for search in episode.searches if search.turn == call.turn - 1)


def _on_last_tokens(
    numbers: Sequence[float], calls: Sequence[tuple[int, Call]], length: int
) -> npt.NDArray[np.float32]:
    """Returns the number of each call on the call's last token, and 0 elsewhere, (T,) float32."""
    placed = np.zeros(length, np.float32)
    for index, call in calls:
        placed[call.end - 1] = numbers[index]
    return placed


def _logp(spans: Sequence[Span], mask: npt.NDArray[np.bool_], where: str) -> npt.NDArray[np.float32]:
    """Returns the sampler's log-probs on the mask and 0 elsewhere, (T,) float32."""
    logp = _join([np.full(len(s.ids), np.nan) if s.logp is None else s.logp for s in spans], np.float32)
    if not np.isfinite(logp[mask]).all():
        raise DataError(f"{where}: log-probs of a model span are missing or not finite: only demonstrations lack them")
    return np.where(mask, logp, np.float32(0))


def _join(arrays: Sequence[npt.NDArray[Any]], dtype: type[Any]) -> npt.NDArray[Any]:
    """Concatenates arrays as one type."""
    return np.concatenate(arrays).astype(dtype, copy=False)


def retokenisation_mismatches(samples: Sequence[Sample], episode: Episode) -> int:
    """Counts the calls of an episode that are not trained on exactly as they were sampled.

    A call counts if its tokens in the sample differ from the episode's model spans at the same position, or are not all
    in the mask. The count is 0 by construction; text that was decoded and tokenised again would raise it.

    Args:
        samples: Samples made of the episode by `samples_from`, as the learner gets them.
        episode: The episode as the rollout recorded it.
    """
    count = 0
    for sample in samples:
        for call in sample.calls:
            sampled = _sampled(episode, episode.calls[call.index])
            here = slice(call.start, call.end)
            if not np.array_equal(sample.ids[here], sampled) or not sample.mask[here].all():
                count += 1
    return count


def _sampled(episode: Episode, call: Call) -> npt.NDArray[np.int32]:
    """Returns the token ids of the model spans between a call's start and end, in the call's context."""
    node = episode.contexts[call.context]
    place, sampled = node.fork, [np.zeros(0, np.int32)]
    for span in node.spans:
        if span.kind == "model" and call.start <= place < call.end:
            sampled.append(span.ids)
        place += len(span.ids)
    return np.concatenate(sampled)
