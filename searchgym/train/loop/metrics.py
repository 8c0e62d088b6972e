"""Metrics of episodes: the figures that the loop reports for rollouts and validations."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

import numpy as np

from searchgym.errors import ScoringError, TrainingError
from searchgym.records import Episode, Question
from searchgym.train.algorithms.samples import Sample, is_overlong


def generated_tokens(episodes: Sequence[Episode]) -> int:
    """Counts the tokens that models wrote in episodes."""
    return sum(call.end - call.start for episode in episodes for call in episode.calls)


def rollout_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Describes the episodes of a step.

    Returns:
        Means over episodes: ``reward``, each score, ``searches``, ``opens`` (if any), ``turns``, ``generated_tokens``,
        ``observation_words``; shares: ``answered``, ``context_full``, ``overlong``, ``retriever_error`` of episodes,
        ``invalid`` of actions, ``illegal`` of calls; ``reward_std`` (over n), ``max_generated_tokens`` and
        ``longest_prompt``, the most tokens that a call began with.
    """
    rewards = [episode.reward for episode in episodes]
    lengths = [generated_tokens([episode]) for episode in episodes]
    calls = [call for episode in episodes for call in episode.calls]
    scores = sorted({name for episode in episodes for name in episode.scores})
    return {
        "reward": float(np.mean(rewards)),
        "reward_std": float(np.std(rewards)),
        **{name: float(np.mean([e.scores[name] for e in episodes if name in e.scores])) for name in scores},
        "searches": float(np.mean([len(episode.searches) for episode in episodes])),
        **({"opens": opens} if (opens := float(np.mean([len(episode.opens) for episode in episodes]))) else {}),
        "turns": float(np.mean([episode.turns for episode in episodes])),
        "observation_words": float(np.mean([episode.observation_words for episode in episodes])),
        "answered": float(np.mean([episode.stop_reason == "answer" for episode in episodes])),
        "context_full": float(np.mean([episode.stop_reason == "context" for episode in episodes])),
        "overlong": float(np.mean([is_overlong(episode) for episode in episodes])),
        "retriever_error": float(np.mean([episode.stop_reason == "retriever_error" for episode in episodes])),
        "invalid": sum(episode.invalid for episode in episodes) / max(sum(episode.turns for episode in episodes), 1),
        "illegal": float(np.mean([not call.legal for call in calls])) if calls else 0.0,
        "generated_tokens": float(np.mean(lengths)),
        "max_generated_tokens": float(max(lengths)),
        "longest_prompt": float(max((call.start for call in calls), default=0)),
    }


def check_contexts(episodes: Sequence[Episode], step: int) -> None:
    """Reports a first step in which contexts were too small, and ends a run in which no episode of a step fits.

    Args:
        episodes: All episodes of the step.
        step: 1-based.

    Raises:
        TrainingError: Every episode ended because a context was full.
    """
    full = [episode for episode in episodes if episode.stop_reason == "context"]
    if not full or (step > 1 and len(full) < len(episodes)):
        return
    most = max((call.start for episode in full for call in episode.calls), default=0)
    reached = f"the longest prompt that still fitted has {most} tokens" if most else "no prompt fitted"
    said = (
        f"{len(full)} of {len(episodes)} episodes of step {step} ended because a context was full ({full[0].error}; "
        f"{reached}): use a model with a longer context, shorter prompts, or smaller top_k, max_observation_words or "
        "max_turns"
    )
    if len(full) == len(episodes):
        raise TrainingError(said)
    sys.stderr.write(f"{said}\n")


def role_metrics(episodes: Sequence[Episode], rewards: Sequence[Sequence[float]]) -> dict[str, float]:
    """Describes the calls of each role; returns nothing if all calls have one role.

    Args:
        episodes: Episodes of a step.
        rewards: Rewards of each episode's calls.

    Returns:
        ``ROLE/calls`` per episode, ``ROLE/legal`` (share), ``ROLE/reward`` (mean per call).
    """
    calls: dict[str, list[tuple[bool, float]]] = {}
    for episode, of_calls in zip(episodes, rewards, strict=True):
        for call, reward in zip(episode.calls, of_calls, strict=True):
            calls.setdefault(call.role, []).append((call.legal, reward))
    if len(calls) < 2:
        return {}
    metrics: dict[str, float] = {}
    for role, seen in sorted(calls.items()):
        legal, earned = zip(*seen, strict=True)
        metrics |= {f"{role}/calls": len(seen) / len(episodes), f"{role}/legal": float(np.mean(legal))}
        metrics[f"{role}/reward"] = float(np.mean(earned))
    return metrics


def advantage_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Describes the advantages of trained tokens: ``mean``, ``std`` (over n), ``min``, ``max``, share ``positive``.

    Returns:
        The figures; nothing if no token is trained.
    """
    values = np.concatenate([np.zeros(0), *(sample.advantage[sample.mask] for sample in samples)])
    if not len(values):
        return {}
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "min": float(values.min()),
        "max": float(values.max()),
        "positive": float((values > 0).mean()),
    }


def validation_metrics(episodes: Sequence[Episode], questions: Sequence[Question]) -> dict[str, float]:
    """Describes one greedy episode per question; see `rollout_metrics`.

    Raises:
        ScoringError: The episodes do not match the questions one to one.
    """
    asked, answered = sorted(q.id for q in questions), sorted(e.question_id for e in episodes)
    if asked != answered:
        odd = sorted(set(asked) ^ set(answered)) or [a for a, b in itertools.pairwise(answered) if a == b]
        raise ScoringError(
            f"{len(asked)} questions, {len(answered)} validation episodes; at odds: {', '.join(odd[:5])}"
        )
    return rollout_metrics(episodes)
