"""Checks of the stages from sampled tokens to advantages, each by the inputs and outputs of its stage."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from searchgym.records import Episode, Question
from searchgym.testing.reference.advantages import gae_advantages, group_advantages, with_signal
from searchgym.testing.reference.rewards import sequences
from searchgym.testing.selfcheck.findings import Findings
from searchgym.testing.selfcheck.watched import Exchange
from searchgym.train.algorithms.samples import Sample
from searchgym.train.recipe.method import Method
from searchgym.train.recipe.recipe import Recipe

TOKENS: Final = "tokens are those sampled"
MASKS: Final = "masks cover what was sampled"
CALLS: Final = "each call is learnt from once, by its own model"
GROUPS: Final = "groups are attempts at one question"
ADVANTAGES: Final = "advantages follow their formula"
ATTEMPTS: Final = "attempts differ"
RESAMPLED: Final = "groups without signal are replaced, and counted"
EVERY: Final = (TOKENS, MASKS, CALLS, GROUPS)
"""Names of the checks that apply to every recipe."""


@dataclass(frozen=True, slots=True)
class SampledStep:
    """Sampled tokens and episodes of a step, and the trainer's samples of them."""

    exchanges: Mapping[str, Sequence[Exchange]]
    """Requests and replies of the samplers, by ``QUESTION#ATTEMPT``."""
    episodes: Sequence[Episode]
    """Sampled episodes with made-up rewards."""
    samples: Sequence[Sample]
    """Training samples made from the episodes, before their advantages are computed."""
    keys: Mapping[str, str]
    """Model key of each role."""
    questions: Mapping[str, Question]
    """Questions of the episodes, by id."""
    listed: Sequence[Question]
    """All questions of the environment."""
    rounds: Sequence[Sequence[Question]]
    """Questions of the first draw and of each round of resampling."""
    imagined: Sequence[tuple[Episode, Episode]] = ()
    """Made-up episodes, each with the sampled episode whose tokens it has."""

    def exchanges_of(self, episode: Episode) -> Sequence[Exchange]:
        """Returns the requests and replies of an episode's models; a reply in several requests is joined to one."""
        whole: list[Exchange] = []
        for request, reply in self.exchanges.get(f"{episode.question_id}#{episode.attempt}", ()):
            for index, (first, before) in enumerate(whole):
                if np.array_equal(request.ids, np.concatenate([first.ids, before.ids])):
                    ids, logp = np.concatenate([before.ids, reply.ids]), np.concatenate([before.logp, reply.logp])
                    whole[index] = (first, replace(reply, ids=ids, logp=logp))
                    break
            else:
                whole.append((request, reply))
        return whole


def check_sampled(findings: Findings, sampled: SampledStep, recipe: Recipe) -> None:
    """Checks the samples of a step against the samplers' replies and the episodes."""
    for name, check in ((TOKENS, check_tokens), (MASKS, check_masks), (ATTEMPTS, check_attempts)):
        with findings.stage(name):
            check(findings, sampled)
    for name, check_by in ((CALLS, check_calls), (GROUPS, check_groups), (RESAMPLED, check_resampled)):
        if name != RESAMPLED or (recipe.method.compares and recipe.rollout.resample):
            with findings.stage(name):
                check_by(findings, sampled, recipe)


def check_tokens(findings: Findings, sampled: SampledStep) -> None:
    """Checks that prompts, responses and log-probs in the samples are exactly those of the samplers."""
    calls = wrong = other = 0
    replies = {
        episode.id: [(r.ids.tobytes(), a.ids.tobytes(), a.logp.tobytes()) for r, a in sampled.exchanges_of(episode)]
        for episode in sampled.episodes
    }
    for sample in sampled.samples:
        for call in sample.calls:
            calls += 1
            mine, unmatched = slice(call.start, call.end), replies[sample.episode_id]
            tokens = (sample.ids[: call.start].tobytes(), sample.ids[mine].tobytes())
            entry = (*tokens, sample.sampler_logp[mine].tobytes())
            if entry in unmatched:
                unmatched.remove(entry)
            elif any(reply[:2] == tokens for reply in unmatched):
                other += 1
            else:
                wrong += 1
    message = f"{calls} calls, {wrong} with other tokens than sampled, {other} with other log-probs"
    findings.add(TOKENS, calls > 0 and not wrong and not other, message)


def check_masks(findings: Findings, sampled: SampledStep) -> None:
    """Checks that the loss mask covers exactly the sampled tokens, and that log-probs and rewards stay inside it."""
    wrong = outside = 0
    for sample in sampled.samples:
        inside = np.zeros(len(sample.ids), np.bool_)
        for call in sample.calls:
            inside[call.start : call.end] = True
        wrong += int((sample.mask != inside).sum())
        outside += int(np.count_nonzero(sample.sampler_logp[~inside]) + np.count_nonzero(sample.reward[~inside]))
    findings.add(MASKS, not wrong and not outside, f"{wrong} tokens masked the wrong way, {outside} numbers outside")


def check_calls(findings: Findings, sampled: SampledStep, recipe: Recipe) -> None:
    """Checks that each call is in one sample, with its role, turn and model, and with the calls that it continues."""
    trains_prefixes = any(term.trains_prefixes for term in recipe.credit.loaded().values())
    frozen = {name for name, section in recipe.models.items() if section.frozen and not recipe.method.compares}
    expected: Counter[tuple[str, frozenset[int]]] = Counter()
    for episode in counted(sampled.episodes, recipe.method):
        for sequence in sequences(episode, sampled.exchanges_of(episode)):
            calls = [i for i in sequence if trains_prefixes or not episode.calls[i].prefix]
            if section := frozenset(i for i in calls if episode.calls[i].model_key not in frozen):
                expected[episode.id, section] += 1
    actual = Counter((sample.episode_id, frozenset(call.index for call in sample.calls)) for sample in sampled.samples)
    by_id = {episode.id: episode for episode in sampled.episodes}
    strange = 0
    for sample in sampled.samples:
        for call in sample.calls:
            original = by_id[sample.episode_id].calls[call.index]
            right = (
                original.role,
                original.turn,
                original.prefix,
                original.start,
                original.end,
                sampled.keys[original.role],
            )
            strange += (call.role, call.turn, call.prefix, call.start, call.end, sample.model_key) != right
    missing, extra = (expected - actual).total(), (actual - expected).total()
    message = f"{actual.total()} samples, {missing} sequences of calls missing, {extra} unexpected, "
    message += f"{strange} calls with a wrong role, model or position"
    findings.add(CALLS, not (missing or extra or strange), message)


def counted(episodes: Sequence[Episode], method: Method) -> list[Episode]:
    """Returns the episodes to learn from: those whose retriever worked and whose reward the method accepts."""
    eligible = [episode for episode in episodes if episode.stop_reason != "retriever_error"]
    if (least := method.least_reward) is not None:
        eligible = [episode for episode in eligible if episode.reward >= least - 1e-6]
    return eligible


def check_groups(findings: Findings, sampled: SampledStep, recipe: Recipe) -> None:
    """Checks that a group consists of all attempts at one question, without failed episodes."""
    by_id = {episode.id: episode for episode in sampled.episodes}
    members: dict[str | None, set[str]] = defaultdict(set)
    expected: dict[str, set[str]] = defaultdict(set)
    wrong = 0
    for sample in sampled.samples:
        episode = by_id[sample.episode_id]
        members[sample.group_uid].add(sample.episode_id)
        wrong += (sample.question_id, sample.attempt) != (episode.question_id, episode.attempt)
    learnt = {sample.episode_id for sample in sampled.samples}
    for episode in counted(sampled.episodes, recipe.method):
        if episode.id in learnt:
            expected[episode.question_id].add(episode.id)
    right = sorted(map(sorted, members.values())) == sorted(map(sorted, expected.values()))
    mixed = sum(len({by_id[name].question_id for name in group}) > 1 for group in members.values())
    message = f"{len(members)} groups of {len(learnt)} episodes, {mixed} of several questions"
    findings.add(GROUPS, right and not wrong and None not in members, message)


def check_attempts(findings: Findings, sampled: SampledStep) -> None:
    """Checks that attempts at a question differ, unless equal attempts are likely under the model."""
    chance, copies = 0.0, 0
    by_question: dict[str, list[Sequence[Exchange]]] = defaultdict(list)
    for episode in sampled.episodes:
        by_question[episode.question_id].append(sampled.exchanges_of(episode))
    for attempts in by_question.values():
        if len({tuple(reply.ids.tobytes() for _, reply in attempt) for attempt in attempts}) > 1:
            findings.add(ATTEMPTS, True, "at one question, models replied differently")
            return
        copies += len(attempts) - 1
        chance += (len(attempts) - 1) * sum(float(reply.logp.sum()) for _, reply in attempts[0])
    message = f"all {copies} further attempts are copies of the first; chance of that: e^{chance:.1f}"
    findings.add(ATTEMPTS, chance > -20, message)


def check_resampled(findings: Findings, sampled: SampledStep, recipe: Recipe) -> None:
    """Checks that each round of resampling adds new questions, at most one per group without signal."""
    rounds, seen = [{question.id for question in ids} for ids in sampled.rounds], set[str]()
    limit = recipe.rollout.resample
    wrong, twice, missed = 0, 0, list[int]()
    for number, ids in enumerate(rounds):
        seen |= ids
        samples = [sample for sample in sampled.samples if sample.question_id in seen]
        missed.append(len(rounds[0]) - len(with_signal(samples, recipe.advantage)))
        more = rounds[number + 1] if number + 1 < len(rounds) else set()
        twice += len(more & seen)
        due = missed[-1] > 0 and number < limit and len(seen) < len(sampled.listed)
        wrong += not 0 < len(more) <= missed[-1] if due else len(more)
    if max(missed) > 0:
        message = f"{missed[0]} of {len(rounds[0])} without signal, {len(rounds) - 1} rounds, {wrong} of a wrong size"
        findings.add(RESAMPLED, not (wrong or twice), f"{message}, {twice} questions repeated")


def check_advantages(
    findings: Findings, samples: Sequence[Sample], prepared: Sequence[Sample], recipe: Recipe, frozen: Sequence[Sample]
) -> None:
    """Checks the advantages of samples, and which samples were dropped.

    Args:
        findings: Receives the result.
        samples: All samples of the step, with values and log-probs where the advantages need them.
        prepared: Remaining samples of the trained model keys, with advantages.
        recipe: Recipe under test.
        frozen: Samples of the step that are not trained on.
    """
    coef = recipe.loss.kl_coef if recipe.loss.kl_in == "reward" else 0.0
    pairs: Sequence[tuple[Any, Any] | None]
    if recipe.has_critic:
        pairs = gae_advantages(samples, recipe.advantage, coef, recipe.critic.tokens == "response", frozen)
    else:
        rows = group_advantages(samples, recipe.advantage, coef)
        pairs = [None if values is None else (values, None) for values in rows]
    asleep = {name for name, section in recipe.models.items() if section.frozen}
    expected = {_name(sample): pair for sample, pair in zip(samples, pairs, strict=True) if pair is not None}
    expected_names = {
        _name(sample) for sample in samples if _name(sample) in expected and sample.model_key not in asleep
    }
    worst, outside = 0.0, 0
    for sample in prepared:
        values, returns = expected.get(_name(sample), (sample.advantage[sample.mask], None))
        worst = max(worst, float(np.abs(sample.advantage[sample.mask] - values).max(initial=0.0)))
        outside += int(np.count_nonzero(sample.advantage[~sample.mask]))
        if returns is not None:
            worst = max(worst, np.inf if sample.returns is None else float(np.abs(sample.returns - returns).max()))
    names = Counter(map(_name, prepared))
    misplaced = len(set(names) ^ expected_names) + sum(count - 1 for count in names.values())
    moving = any(np.any(sample.advantage) for sample in prepared)
    message = (
        f"{len(prepared)} samples of {len(samples)}, {misplaced} wrongly kept or dropped, off by {worst:.2g} at most"
    )
    message += "" if moving else "; all are 0: nothing would be learnt"
    findings.add(ADVANTAGES, worst < 1e-3 and not outside and not misplaced and moving, message)


def _name(sample: Sample) -> tuple[str, tuple[int, ...]]:
    """Returns a key of a sample that is unique within its step."""
    return sample.episode_id, tuple(call.index for call in sample.calls)
