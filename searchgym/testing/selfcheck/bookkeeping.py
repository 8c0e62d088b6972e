"""Checks around an update: settings of requests, versions, metrics, and the choice of validation questions."""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from searchgym.agents.base import load_agent
from searchgym.records import Episode, Question
from searchgym.testing.selfcheck.findings import Findings
from searchgym.testing.selfcheck.watched import Exchange
from searchgym.train.algorithms.samples import Sample
from searchgym.train.loop.folder import Row
from searchgym.train.recipe.recipe import Recipe

SETTINGS: Final = "requests have the recipe's settings"
VERSIONS: Final = "samples name the weights they come from"
METRICS: Final = "metrics of a step are those of its episodes"
CHOICE: Final = "validation questions keep the shares of their kinds"
EVERY: Final = (SETTINGS, VERSIONS, METRICS)
"""Names of the checks that apply to every recipe."""
TWIN: Final = "#unanswerable"
"""Part of the ids of questions that are drawn in pairs, which have another rule."""


def check_settings(findings: Findings, exchanges: Sequence[Exchange], recipe: Recipe, *, greedy: bool) -> None:
    """Checks temperature, top-p and token limit of requests to the samplers.

    Args:
        findings: Receives the result.
        exchanges: Requests and replies.
        recipe: Recipe under test.
        greedy: True for requests of a validation.
    """
    if not exchanges:
        return
    limits = [role.max_tokens for role in load_agent(recipe.agent).roles.values()]
    limit = recipe.rollout.max_tokens or max(limits, default=0)
    expected = (0.0, 1.0) if greedy else (recipe.rollout.temperature, recipe.rollout.top_p)
    settings = [request.sampling for request, _ in exchanges]
    other = sum((each.temperature, each.top_p) != expected for each in settings)
    long = sum(each.max_tokens > limit for each in settings)
    long += sum(len(reply.ids) > limit for _, reply in exchanges)
    message = f"{len(settings)} requests, {other} with another temperature or top_p than {expected}"
    findings.add(SETTINGS, not (other or long), f"{message}, {long} for or with more than {limit} tokens")


def check_versions(findings: Findings, samples: Sequence[Sample], versions: Mapping[str, int], row: Row) -> None:
    """Checks that samples name the version of the learner's weights, and that none is reported as stale.

    Args:
        findings: Receives the result.
        samples: Samples of a step that was not sampled ahead.
        versions: Version of the weights of each trained model key, before the update.
        row: Metrics of the step.
    """
    trained = [sample for sample in samples if sample.model_key in versions]
    wrong = sum(sample.policy_version != versions[sample.model_key] for sample in trained)
    age = row.get("rollout/staleness", 0.0)
    message = f"{len(trained)} samples, {wrong} with another version than the learner's; rollout/staleness is {age:g}"
    findings.add(VERSIONS, not (wrong or age), message)


def step_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Returns metrics of a step's episodes by their definitions on the page of metrics."""
    count = len(episodes)
    rewards = [episode.reward for episode in episodes]
    calls = [call for episode in episodes for call in episode.calls]
    words = [call.end - call.start for call in calls]
    words += [int(episode.notes.get("discarded_tokens", 0)) for episode in episodes]
    stops = Counter(episode.stop_reason for episode in episodes)
    scores = defaultdict[str, list[float]](list)
    for episode in episodes:
        for name, value in episode.scores.items():
            scores[name].append(value)
    metrics = {name: statistics.fmean(values) for name, values in scores.items()} | {
        "reward": statistics.fmean(rewards),
        "reward_std": statistics.pstdev(rewards),
        "turns": sum(episode.turns for episode in episodes) / count,
        "searches": sum(len(episode.searches) for episode in episodes) / count,
        "answered": stops["answer"] / count,
        "context_full": stops["context"] / count,
        "retriever_error": stops["retriever_error"] / count,
        "illegal": sum(not call.legal for call in calls) / max(len(calls), 1),
        "generated_tokens": sum(words) / count,
        "tokens": float(sum(words)),
    }
    return {f"rollout/{name}": value for name, value in metrics.items()}


def check_metrics(findings: Findings, rows: Sequence[Row], expected: Mapping[int, Mapping[str, float]]) -> None:
    """Compares the metrics in a run's folder with those of its episodes and samples.

    Args:
        findings: Receives the result.
        rows: Metrics of the run.
        expected: Metrics by 1-based step.
    """
    wrong, count, by_step = list[str](), 0, {row["step"]: row for row in rows}
    for step, metrics in expected.items():
        row = by_step.get(step, {})
        count += len(metrics)
        wrong += [
            f"{name} of step {step} is {row.get(name)}, {value:.6g} is right"
            for name, value in metrics.items()
            if name not in row or abs(row[name] - value) > 1e-6 * max(1.0, abs(value))
        ]
    findings.add(METRICS, bool(expected) and not wrong, "; ".join(wrong[:3]) or f"{count} values")


def check_choice(findings: Findings, chosen: Sequence[Question], questions: Sequence[Question]) -> None:
    """Checks that validation questions are a stratified subset, by the rule that their draw is documented with.

    Each kind has its share, rounded down or up. Among the questions of one kind and number of hops, those with the
    smallest SHA-256 of ``"0:ID"`` are chosen.

    Args:
        findings: Receives the result.
        chosen: Questions of a validation.
        questions: All questions of its environment.
    """
    if any(TWIN in question.id for question in questions):
        findings.skip(CHOICE, "questions with an unanswerable twin are drawn in pairs")
        return
    sizes, numbers = (Counter(question.kind for question in each) for each in (questions, chosen))
    share = len(chosen) / len(questions)
    uneven = sum(abs(numbers[kind] - share * size) >= 1 for kind, size in sizes.items())
    strata, ids = defaultdict[tuple[object, object], list[str]](list), {question.id for question in chosen}
    for question in questions:
        hops = question.metadata.get("hops", None if question.hops is None else len(question.hops))
        strata[question.kind, hops].append(question.id)
    later = 0
    for members in strata.values():
        ranked = sorted(members, key=lambda name: hashlib.sha256(f"0:{name}".encode()).hexdigest())
        count = len(ids.intersection(members))
        later += len(ids.intersection(members).difference(ranked[:count]))
    message = f"{len(chosen)} of {len(questions)} in {len(sizes)} kinds, {uneven} kinds with another share, "
    findings.add(CHOICE, not (uneven or later), f"{message}{later} questions out of the order of their hashes")
