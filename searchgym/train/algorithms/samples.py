"""Samples: the training sequences of an episode, built from its token tree without changing a token.

Each context of an episode with calls becomes one sequence, including the tokens inherited from its parents. Each call
is trained on exactly once; see `_sequences`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from searchgym.errors import DataError
from searchgym.records import Call, Episode

SampleKind = Literal["policy", "demonstration"]


@dataclass(frozen=True, slots=True)
class SampleCall:
    """One call that a sample trains on, and the range of its tokens in the sample."""

    index: int
    """Index in `Episode.calls`; the call's id is ``"<episode id>/<index>"``."""
    start: int
    """Index in the sample of the call's first token."""
    end: int
    """Index in the sample after the call's last token."""
    role: str
    """Role that made the call."""
    turn: int
    """Turn of the episode in which the call was made."""
    prefix: bool = False
    """True for a trial answer, which is generated in training only; see `Call.prefix`."""
    query: str | None = None
    """Query whose hits the call ranked; None if the call ranked no hits."""
    state: bytes = b""
    """Digest of the set of pages that the episode had retrieved or opened before the call's turn; empty if none."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One training sequence of T tokens."""

    ids: npt.NDArray[np.int32]
    """(T,) int32 token ids."""
    mask: npt.NDArray[np.bool_]
    """(T,) bool: True for tokens to train on, which the model wrote in this sample's calls, end-of-turn included."""
    reward: npt.NDArray[np.float32]
    """(T,) float32: each call's reward on its last token, else 0."""
    advantage: npt.NDArray[np.float32]
    """(T,) float32 advantages, set by `searchgym.train.algorithms.advantages`; 0 before that and outside the mask."""
    sampler_logp: npt.NDArray[np.float32]
    """(T,) float32 natural-log probabilities recorded by the sampler; 0 outside the mask and in demonstrations."""
    calls: tuple[SampleCall, ...]
    """Calls that the sample trains on, in order."""
    model_key: str
    """Key of the model that wrote the calls and learns from them."""
    episode_id: str
    """Id of the episode."""
    question_id: str
    """Id of the episode's question."""
    attempt: int
    """Number of the attempt at the question."""
    group_uid: str | None
    """Key of the group of episodes that are compared with each other; None: no group."""
    policy_version: int
    """Version (number of updates) of the oldest weights that sampled one of the calls."""
    searches: int = 0
    """Number of searches in the episode."""
    overlong: bool = False
    """True if the episode was cut off; see `is_overlong`."""
    old_logp: npt.NDArray[np.float32] | None = None
    """(T,) float32 log-probs under the trainer's weights before the step's first update; None: not computed yet."""
    ref_logp: npt.NDArray[np.float32] | None = None
    """(T,) float32 log-probs under the reference model; None: not computed yet."""
    value: npt.NDArray[np.float32] | None = None
    """(T,) float32 values estimated by the critic, 0 at tokens without one; None without a critic."""
    returns: npt.NDArray[np.float32] | None = None
    """(T,) float32 returns, which the critic learns, at the same tokens as `value`; None until GAE sets them."""
    local_reward: npt.NDArray[np.float32] | None = None
    """(T,) float32 part of `reward` that ``advantage.chain: episode`` does not pass to earlier calls, such as a penalty
    for an illegal output. Default: none."""
    weight: float = 1.0
    """Weight of the sample in sums and denominators: 1 (the default), or 0 for a padding row."""
    kind: SampleKind = "policy"
    """Origin of the sequence: sampled by the policy (the default), or a demonstration, which has no log-probs."""

    @property
    def call_ids(self) -> tuple[str, ...]:
        """Ids of the calls that the sample trains on, in order."""
        return tuple(f"{self.episode_id}/{call.index}" for call in self.calls)


Targets = Callable[[Sample], npt.NDArray[np.int64]]
"""Function that returns the positions of a sample's tokens to learn from: (n,) int64, ascending, never 0."""


def model_targets(sample: Sample) -> npt.NDArray[np.int64]:
    """Returns the positions of the trained tokens of a sample, (n,) int64."""
    return np.flatnonzero(sample.mask)


def response_targets(sample: Sample) -> npt.NDArray[np.int64]:
    """Returns all positions from the first trained token to the last, including observations, (n,) int64."""
    positions = model_targets(sample)
    return np.arange(positions[0], positions[-1] + 1) if len(positions) else positions


VALUED: dict[str, Targets] = {"model": model_targets, "response": response_targets}
"""Functions that choose the tokens that get a critic's value, by `CriticOptions.tokens`."""


def samples_from(
    episode: Episode,
    kind: SampleKind = "policy",
    rewards: Sequence[float] | None = None,
    local_rewards: Sequence[float] | None = None,
    replayed: bool = False,
) -> list[Sample]:
    """Returns the training sequences of an episode; none if no model wrote a token in it.

    Args:
        episode: A finished episode with contexts and calls.
        kind: ``"policy"`` requires log-probs of every trained span, ``"demonstration"`` ignores them.
        rewards: One reward per call. Default: `outcome_rewards`.
        local_rewards: Part of each call's reward that is not passed to earlier calls; see `Sample.local_reward`.
            Default: none.
        replayed: Whether calls that repeat those of another episode are trained on again, with their log-probs of
            then; if not, they are context only.

    Raises:
        DataError: Calls and spans do not match, log-probs are missing, or a sequence has calls of several model keys.
    """
    rewards = outcome_rewards(episode) if rewards is None else rewards
    sequences = _sequences(episode, 0 if replayed else episode.replayed)
    return [_sample(episode, sequence, kind, rewards, local_rewards) for sequence in sequences]


def outcome_rewards(episode: Episode) -> list[float]:
    """Returns one reward per call: the episode's reward on the last call of each of its sequences, 0 on the others."""
    return at_ends(episode, episode.reward)


def at_ends(episode: Episode, value: float | Callable[[list[int]], float]) -> list[float]:
    """Returns one reward per call: a value on the last call of each of an episode's sequences, 0 on the others.

    Prefix answers (trial answers in training) get 0.

    Args:
        episode: A finished episode.
        value: The reward, or a function that computes it from the indices of a sequence's calls.
    """
    rewards = [0.0] * len(episode.calls)
    for sequence in _sequences(episode):
        if calls := [index for index, call in sequence.calls if not call.prefix]:
            rewards[calls[-1]] = value(calls) if callable(value) else value
    return rewards


class _Sequence(NamedTuple):
    """Calls to train on in one context."""

    context: int
    calls: list[tuple[int, Call]]
    """Calls to train on, each with its index in the episode."""
    context_ranges: list[tuple[int, int]]
    """Token ranges of other calls, which are in the sequence but not trained on."""


def _sequences(episode: Episode, first: int = 0) -> list[_Sequence]:
    """Returns the training sequences of an episode: each call is in the first one that contains all of it.

    Calls before number `first` are context only, and contexts with no other calls yield no sequence.

    Positions are counted from the root, so that a token has the same position in every context that sees it. Three
    contexts, of which 1 and 2 were forked from 0 at token 40 and 60::

        position    0        20       40       60       80
        context 0   | prompt | call 0 | page   | call 1 |         sequence 0 trains on calls 0 and 1
        context 1                     | call 2 |                  sequence 1 trains on call 2, call 0 is only context
        context 2                              | ....   | call 3  sequence 2 trains on call 3, call 0 is only context

    A context whose calls are all inherited by another context yields no sequence: without call 1, context 0 would yield
    none, and context 1 would train on call 0 too. Contexts that contain only prefix answers do not count as such.
    """
    calls = [(index, call) for index, call in enumerate(episode.calls) if call.end > call.start]
    contexts = sorted({call.context for _, call in calls})
    seen: dict[int, dict[int, int]] = {}  # tokens from the root that a context sees of itself and of each ancestor
    for context in contexts:
        node, total = episode.contexts[context], sum(len(span.ids) for span in episode.tokens(context))
        seen[context] = {context: total}
        while node.parent is not None:
            total = min(total, node.fork)
            seen[context][node.parent] = total
            node = episode.contexts[node.parent]
    for index, call in calls:
        if call.end > (total := seen[call.context][call.context]):
            where = f"episode {episode.id}, context {call.context}"
            raise DataError(f"{where}: call {index} ends at token {call.end} of {total}")
    only_prefixes = {c for c in contexts if all(call.prefix for _, call in calls if call.context == c)}
    sequences: list[_Sequence] = []
    trained = set(range(first))
    for context in contexts:
        others = [seen[other] for other in contexts if other not in (context, *only_prefixes)]
        own_calls = [call for _, call in calls if call.context == context]
        if all(any(call.end <= other.get(context, 0) for other in others) for call in own_calls):
            continue  # another context contains all of them
        visible = [(index, call) for index, call in calls if call.start < seen[context].get(call.context, 0)]
        to_train = [(i, call) for i, call in visible if i not in trained and call.end <= seen[context][call.context]]
        trained |= (indices := {index for index, _ in to_train})
        context_ranges = [
            (c.start, min(c.end, seen[context][c.context])) for index, c in visible if index not in indices
        ]
        if to_train:
            sequences.append(_Sequence(context, to_train, context_ranges))
    return sequences


def is_overlong(episode: Episode) -> bool:
    """Returns True if an episode was cut off by a full context, or by a token limit before it had an answer."""
    cut = bool(episode.calls) and episode.calls[-1].cut and episode.stop_reason != "answer"
    return episode.stop_reason == "context" or cut


def with_all_targets(sample: Sample) -> Sample:
    """Returns a copy of the sample that trains on every token except the first, which has no prediction."""
    return dataclasses.replace(sample, mask=np.arange(len(sample.ids)) > 0)


def _sample(
    episode: Episode,
    sequence: _Sequence,
    kind: SampleKind,
    rewards: Sequence[float],
    local_rewards: Sequence[float] | None,
) -> Sample:
    """Builds the sample of one sequence."""
    where = f"episode {episode.id}, context {sequence.context}"
    spans = episode.tokens(sequence.context)
    ids = np.concatenate([span.ids for span in spans]).astype(np.int32, copy=False)
    mask = np.concatenate([np.full(len(span.ids), span.kind == "model") for span in spans])
    for start, end in sequence.context_ranges:
        mask[start:end] = False
    if mask[0]:
        raise DataError(f"{where} begins with a model's token, which has no prediction: begin with a prompt")
    calls = []
    for index, call in sequence.calls:
        if not mask[call.start : call.end].all():
            raise DataError(f"{where}: call {index} has tokens {call.start}:{call.end}, which are not all the model's")
        query = None
        if call.ranked is not None:
            query = " / ".join(search.query for search in episode.searches if search.turn == call.turn - 1)
        state = _state(episode, call.turn)
        calls.append(SampleCall(index, call.start, call.end, call.role, call.turn, call.prefix, query, state))
    keys = {call.model_key for _, call in sequence.calls}
    if len(keys) != 1:
        raise DataError(f"{where} holds calls of several model keys ({', '.join(sorted(keys))}): one per context")
    logp = np.zeros(len(ids), np.float32)
    if kind == "policy":
        sampled = [np.full(len(span.ids), np.nan) if span.logp is None else span.logp for span in spans]
        logp[mask] = np.concatenate(sampled)[mask]
        if not np.isfinite(logp).all():
            why = "only demonstrations lack them"
            raise DataError(f"{where}: log-probs of a model span are missing or not finite: {why}")
    return Sample(
        ids=ids,
        mask=mask,
        reward=_on_last_tokens(rewards, calls, len(ids)),
        advantage=np.zeros(len(ids), np.float32),
        sampler_logp=logp,
        calls=tuple(calls),
        model_key=keys.pop(),
        episode_id=episode.id,
        question_id=episode.question_id,
        attempt=episode.attempt,
        group_uid=episode.group_uid,
        policy_version=min(call.policy_version for _, call in sequence.calls),
        searches=len(episode.searches),
        overlong=is_overlong(episode),
        local_reward=None if local_rewards is None else _on_last_tokens(local_rewards, calls, len(ids)),
        kind=kind,
    )


def _state(episode: Episode, turn: int) -> bytes:
    """Returns the digest of the pages that an episode had retrieved or opened before a turn; see `SampleCall.state`."""
    pages = {hit.passage.id for search in episode.searches if search.turn < turn for hit in search.hits}
    pages |= {f"opened {opened.title}" for opened in episode.opens if opened.turn < turn and opened.part}
    lines = "\n".join(sorted(pages)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(lines, digest_size=8).digest() if pages else b""


def _on_last_tokens(numbers: Sequence[float], calls: Sequence[SampleCall], length: int) -> npt.NDArray[np.float32]:
    """Returns a row with each call's number at its last token and 0 elsewhere, (T,) float32."""
    row = np.zeros(length, np.float32)
    for call in calls:
        row[call.end - 1] = numbers[call.index]
    return row


def retokenisation_mismatches(samples: Sequence[Sample], episode: Episode) -> int:
    """Counts the calls of an episode that are not trained on exactly as they were sampled.

    A call counts if its tokens in the samples differ from the episode's model spans at the same position, or are not
    all in the mask. The count is 0 by construction; text that was decoded and tokenised again would raise it.
    """
    count = 0
    for sample in samples:
        for trained in sample.calls:
            call = episode.calls[trained.index]
            node = episode.contexts[call.context]
            position, sampled = node.fork, [np.zeros(0, np.int32)]
            for span in node.spans:
                if span.kind == "model" and call.start <= position < call.end:
                    sampled.append(span.ids)
                position += len(span.ids)
            tokens = slice(trained.start, trained.end)
            same = np.array_equal(sample.ids[tokens], np.concatenate(sampled))
            count += not (same and sample.mask[tokens].all())
    return count
