"""Checks of the way from sampled tokens to advantages, each on what its stage was given and made of it."""

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
"""Checks of every recipe."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was sampled in a step, and the samples that the trainer made of it."""

    exchanges: Mapping[str, Sequence[Exchange]]
    """Requests and replies of the samplers, by ``QUESTION#ATTEMPT``."""
    episodes: Sequence[Episode]
    """Episodes with their made-up rewards."""
    samples: Sequence[Sample]
    """Samples that the trainer made, before advantages."""
    keys: Mapping[str, str]
    """Model key of each role."""
    questions: Mapping[str, Question]
    """The questions that were asked, by id."""
    listed: Sequence[Question]
    """All questions of the environment."""
    rounds: Sequence[Sequence[Question]]
    """The questions that were asked first, and those of each round of resampling."""
    imagined: Sequence[tuple[Episode, Episode]] = ()
    """Episodes that no model made, each with the episode whose tokens it has."""

    def exchanges_of(self, episode: Episode) -> Sequence[Exchange]:
        """Returns what an episode's models were asked and replied; further requests of a response are part of it."""
        whole: list[Exchange] = []
        for request, reply in self.exchanges.get(f"{episode.question_id}#{episode.attempt}", ()):
            for place, (first, before) in enumerate(whole):
                if np.array_equal(request.ids, np.concatenate([first.ids, before.ids])):
                    ids, logp = np.concatenate([before.ids, reply.ids]), np.concatenate([before.logp, reply.logp])
                    whole[place] = (first, replace(reply, ids=ids, logp=logp))
                    break
            else:
                whole.append((request, reply))
        return whole


def check_drawn(findings: Findings, drawn: Drawn, recipe: Recipe) -> None:
    """Checks the samples of a step against the samplers' replies and the episodes."""
    for name, check in ((TOKENS, check_tokens), (MASKS, check_masks), (ATTEMPTS, check_attempts)):
        with findings.stage(name):
            check(findings, drawn)
    for name, check_by in ((CALLS, check_calls), (GROUPS, check_groups), (RESAMPLED, check_resampled)):
        if name != RESAMPLED or (recipe.method.compares and recipe.rollout.resample):
            with findings.stage(name):
                check_by(findings, drawn, recipe)


def check_tokens(findings: Findings, drawn: Drawn) -> None:
    """Checks that prompts, responses and log-probs in the samples are exactly those of the samplers."""
    calls = wrong = other = 0
    replies = {
        episode.id: [(r.ids.tobytes(), a.ids.tobytes(), a.logp.tobytes()) for r, a in drawn.exchanges_of(episode)]
        for episode in drawn.episodes
    }
    for sample in drawn.samples:
        for call in sample.calls:
            calls += 1
            mine, known = slice(call.start, call.end), replies[sample.episode_id]
            tokens = (sample.ids[: call.start].tobytes(), sample.ids[mine].tobytes())
            held = (*tokens, sample.sampler_logp[mine].tobytes())
            if held in known:
                known.remove(held)
            elif any(found[:2] == tokens for found in known):
                other += 1
            else:
                wrong += 1
    said = f"{calls} calls, {wrong} not as they were sampled, {other} with other log-probs"
    findings.add(TOKENS, calls > 0 and not wrong and not other, said)


def check_masks(findings: Findings, drawn: Drawn) -> None:
    """Checks that the loss mask covers exactly the sampled tokens, and that log-probs and rewards stay inside it."""
    wrong = outside = 0
    for sample in drawn.samples:
        own = np.zeros(len(sample.ids), np.bool_)
        for call in sample.calls:
            own[call.start : call.end] = True
        wrong += int((sample.mask != own).sum())
        outside += int(np.count_nonzero(sample.sampler_logp[~own]) + np.count_nonzero(sample.reward[~own]))
    findings.add(MASKS, not wrong and not outside, f"{wrong} tokens masked the wrong way, {outside} numbers outside")


def check_calls(findings: Findings, drawn: Drawn, recipe: Recipe) -> None:
    """Checks that each call is in one sample, with its role, turn and model, next to the calls that it continues."""
    trains_prefixes = any(term.trains_prefixes for term in recipe.credit.loaded().values())
    frozen = {name for name, own in recipe.models.items() if own.frozen and not recipe.method.compares}
    wanted: Counter[tuple[str, frozenset[int]]] = Counter()
    for episode in counted(drawn.episodes, recipe.method):
        for sequence in sequences(episode, drawn.exchanges_of(episode)):
            calls = [i for i in sequence if trains_prefixes or not episode.calls[i].prefix]
            if own := frozenset(i for i in calls if episode.calls[i].model_key not in frozen):
                wanted[episode.id, own] += 1
    held = Counter((sample.episode_id, frozenset(call.index for call in sample.calls)) for sample in drawn.samples)
    by_id = {episode.id: episode for episode in drawn.episodes}
    strange = 0
    for sample in drawn.samples:
        for call in sample.calls:
            made = by_id[sample.episode_id].calls[call.index]
            right = (made.role, made.turn, made.prefix, made.start, made.end, drawn.keys[made.role])
            strange += (call.role, call.turn, call.prefix, call.start, call.end, sample.model_key) != right
    missing, extra = (wanted - held).total(), (held - wanted).total()
    said = f"{held.total()} samples, {missing} of calls that continue each other missing, {extra} of others, "
    findings.add(CALLS, not (missing or extra or strange), f"{said}{strange} calls of another role, model or place")


def counted(episodes: Sequence[Episode], method: Method) -> list[Episode]:
    """Returns the episodes to learn from: those whose retriever worked, and with the reward that the method asks."""
    kept = [episode for episode in episodes if episode.stop_reason != "retriever_error"]
    if (least := method.least_reward) is not None:
        kept = [episode for episode in kept if episode.reward >= least - 1e-6]
    return kept


def check_groups(findings: Findings, drawn: Drawn, recipe: Recipe) -> None:
    """Checks that a group holds the attempts at one question, all of them, and no failed episode."""
    by_id = {episode.id: episode for episode in drawn.episodes}
    members: dict[str | None, set[str]] = defaultdict(set)
    wanted: dict[str, set[str]] = defaultdict(set)
    wrong = 0
    for sample in drawn.samples:
        episode = by_id[sample.episode_id]
        members[sample.group_uid].add(sample.episode_id)
        wrong += (sample.question_id, sample.attempt) != (episode.question_id, episode.attempt)
    learnt = {sample.episode_id for sample in drawn.samples}
    for episode in counted(drawn.episodes, recipe.method):
        if episode.id in learnt:
            wanted[episode.question_id].add(episode.id)
    right = sorted(map(sorted, members.values())) == sorted(map(sorted, wanted.values()))
    mixed = sum(len({by_id[name].question_id for name in group}) > 1 for group in members.values())
    said = f"{len(members)} groups of {len(learnt)} episodes, {mixed} of several questions"
    findings.add(GROUPS, right and not wrong and None not in members, said)


def check_attempts(findings: Findings, drawn: Drawn) -> None:
    """Checks that attempts at a question are not copies, unless the model is so sure that chance makes them equal."""
    chance, copies = 0.0, 0
    by_question: dict[str, list[Sequence[Exchange]]] = defaultdict(list)
    for episode in drawn.episodes:
        by_question[episode.question_id].append(drawn.exchanges_of(episode))
    for attempts in by_question.values():
        if len({tuple(reply.ids.tobytes() for _, reply in attempt) for attempt in attempts}) > 1:
            findings.add(ATTEMPTS, True, "at one question, models replied differently")
            return
        copies += len(attempts) - 1
        chance += (len(attempts) - 1) * sum(float(reply.logp.sum()) for _, reply in attempts[0])
    said = f"all {copies} further attempts are copies of the first; chance of that: e^{chance:.1f}"
    findings.add(ATTEMPTS, chance > -20, said)


def check_resampled(findings: Findings, drawn: Drawn, recipe: Recipe) -> None:
    """Checks that each round asks one new question for each group without signal; their episodes stay in the step."""
    rounds, asked = [{question.id for question in own} for own in drawn.rounds], set[str]()
    limit = recipe.rollout.resample
    wrong, twice, missed = 0, 0, list[int]()
    for number, own in enumerate(rounds):
        asked |= own
        samples = [sample for sample in drawn.samples if sample.question_id in asked]
        missed.append(len(rounds[0]) - len(with_signal(samples, recipe.advantage)))
        more = rounds[number + 1] if number + 1 < len(rounds) else set()
        twice += len(more & asked)
        due = missed[-1] > 0 and number < limit and len(asked) < len(drawn.listed)
        wrong += not 0 < len(more) <= missed[-1] if due else len(more)
    if max(missed) > 0:
        said = f"{missed[0]} of {len(rounds[0])} without signal, {len(rounds) - 1} rounds, {wrong} of a wrong size"
        findings.add(RESAMPLED, not (wrong or twice), f"{said}, {twice} questions asked again")


def check_advantages(
    findings: Findings, given: Sequence[Sample], made: Sequence[Sample], recipe: Recipe, frozen: Sequence[Sample]
) -> None:
    """Checks the advantages that were made of samples, and which samples were left out.

    Args:
        findings: Takes the result.
        given: All samples of the step, with values and log-probs where the advantages need them.
        made: Samples of the trained keys that remain, with advantages.
        recipe: The checked recipe.
        frozen: Samples of the step that nothing is learnt from.
    """
    coef = recipe.loss.kl_coef if recipe.loss.kl_in == "reward" else 0.0
    pairs: Sequence[tuple[Any, Any] | None]
    if recipe.has_critic:
        pairs = gae_advantages(given, recipe.advantage, coef, recipe.critic.tokens == "response", frozen)
    else:
        rows = group_advantages(given, recipe.advantage, coef)
        pairs = [None if values is None else (values, None) for values in rows]
    asleep = {name for name, own in recipe.models.items() if own.frozen}
    expected = {_name(sample): pair for sample, pair in zip(given, pairs, strict=True) if pair is not None}
    wanted = {_name(sample) for sample in given if _name(sample) in expected and sample.model_key not in asleep}
    worst, outside = 0.0, 0
    for sample in made:
        values, returns = expected.get(_name(sample), (sample.advantage[sample.mask], None))
        worst = max(worst, float(np.abs(sample.advantage[sample.mask] - values).max(initial=0.0)))
        outside += int(np.count_nonzero(sample.advantage[~sample.mask]))
        if returns is not None:
            worst = max(worst, np.inf if sample.returns is None else float(np.abs(sample.returns - returns).max()))
    names = Counter(map(_name, made))
    kept_wrong = len(set(names) ^ wanted) + sum(count - 1 for count in names.values())
    moving = any(np.any(sample.advantage) for sample in made)
    said = f"{len(made)} samples of {len(given)}, {kept_wrong} kept or left out wrongly, off by {worst:.2g} at most"
    said += "" if moving else "; all are 0: nothing would be learnt"
    findings.add(ADVANTAGES, worst < 1e-3 and not outside and not kept_wrong and moving, said)


def _name(sample: Sample) -> tuple[str, tuple[int, ...]]:
    """Returns what tells a sample from the others of a step."""
    return sample.episode_id, tuple(call.index for call in sample.calls)
