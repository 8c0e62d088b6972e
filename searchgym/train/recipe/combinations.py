"""Checks for combinations of options that cannot work; each message gives the reason and what to change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from searchgym.options import Unloaded, check_kind, kind_name
from searchgym.scoring.judges.judge import default_judge
from searchgym.train.algorithms.estimators.grpo import Grpo
from searchgym.train.credit.term import term_problems
from searchgym.train.credit.terms.outcome import Outcome
from searchgym.train.recipe.options import CriticOptions
from searchgym.train.recipe.recipe import Recipe


def changed(options: Any) -> list[str]:
    """Returns the names of the options that differ from their defaults."""
    defaults = type(options)()
    return [name for name in options.__dataclass_fields__ if getattr(options, name) != getattr(defaults, name)]


def combination_problems(recipe: Recipe) -> list[str]:
    """Returns one line per combination of values that cannot work."""
    checks = [_key_problems, _kind_problems, _step_problems, _controller_problems]
    if recipe.method.compares:
        checks = [
            _rollout_problems,
            _continued_problems,
            _tree_problems,
            _advantage_problems,
            _loss_problems,
            _credit_problems,
            *checks,
        ]
    elif not isinstance(recipe.method, Unloaded):
        checks = [_unused, *checks]
    return [problem for check in checks for problem in check(recipe)]


def _kind_problems(recipe: Recipe) -> Iterator[str]:
    """Yields problems with the kinds that every method uses, and with the source of questions."""
    sources = {name: kind for name in ("proposer", "curriculum") if (kind := getattr(recipe, name)) is not None}
    kinds = {
        "rollout.sampler": recipe.rollout.sampler,
        "learner.backend": recipe.learner.backend,
        "launch": recipe.launch,
        **sources,
    }
    for key, kind in kinds.items():
        yield from (f"{key}: {problem}" for problem in check_kind(kind, recipe.setting))
    if recipe.learner.compile and recipe.learner.backend.sharding.zero == 3:
        yield "learner.compile needs zero 0, 1 or 2: ZeRO 3 gathers weights inside the layers, which cannot be compiled"
    if recipe.method.demonstrated:
        yield from (f"{name}: method {kind_name(recipe.method)} asks no questions" for name in sources)
    if len(sources) > 1:
        yield "curriculum: the proposer chooses the questions; leave out one of the two"


def _step_problems(recipe: Recipe) -> Iterator[str]:
    """Yields problems with the split of a step into updates, and with the number of steps."""
    loss, optimizer = recipe.loss, recipe.optimizer
    if loss.reduction == "constant" and loss.constant_length is None:
        yield "loss.reduction constant needs loss.constant_length, the most tokens a model writes in a sequence"
    if loss.reduction == "episode-mean" and (optimizer.minibatches > 1 or optimizer.minibatch_samples is not None):
        yield "loss.reduction episode-mean needs optimizer.minibatches 1: an episode must not be split over updates"
    for section, options in (("optimizer", optimizer), ("critic.optimizer", recipe.critic.optimizer)):
        if options.minibatch_samples is not None and options.minibatches > 1:
            yield f"{section}.minibatches and {section}.minibatch_samples both split a step into updates: choose one"
    if loss.reduction != "constant" and loss.constant_length is not None:
        yield f"loss.constant_length acts with loss.reduction constant only, not with {loss.reduction}"
    if recipe.method.demonstrated and recipe.models:
        yield f"models: method {kind_name(recipe.method)} trains one model, from demonstrations"
    if optimizer.warmup_steps > recipe.steps:
        yield f"optimizer.warmup_steps is {optimizer.warmup_steps} of {recipe.steps} steps"


def _rollout_problems(recipe: Recipe) -> Iterator[str]:
    """Yields problems with the sampling options, given the method."""
    rollout, advantage, estimator = recipe.rollout, recipe.advantage, recipe.advantage.estimator
    batch = estimator.over_batch or estimator.critic
    size = rollout.attempts * (rollout.questions if batch else 1)
    if not estimator.critic and size < advantage.min_group:
        why = f"no group reaches advantage.min_group, {advantage.min_group}, and every advantage would be 0"
        yield f"{'rollout.questions x ' if batch else ''}rollout.attempts is {size}: {why}"
    if rollout.top_p < 1:
        yield f"rollout.top_p is {rollout.top_p}: a ratio needs the whole distribution, set it to 1"
    if rollout.staleness and recipe.loss.importance_cap is None:
        why = "stale samples need importance weights"
        yield f"rollout.staleness is {rollout.staleness}: {why}; set loss.importance_cap (usually 2)"
    if rollout.resample and batch:
        yield f"rollout.resample replaces groups without signal; {recipe.setting.estimator} has none"
    if rollout.resample and not advantage.drop_zero_variance:
        yield "rollout.resample replaces groups that advantage.drop_zero_variance false keeps: choose one"


def _continued_problems(recipe: Recipe) -> Iterator[str]:
    """Yields problems with episodes that begin at prefixes, or that outlast their step."""
    rollout, estimator = recipe.rollout, recipe.advantage.estimator
    if (starts := rollout.starts) is not None:
        if round(starts.share * rollout.questions) == 0:
            yield f"rollout.starts.share is {starts.share:g}: of {rollout.questions} questions that is no group"
        if round(starts.share * rollout.questions) == rollout.questions:
            yield f"rollout.starts.share is {starts.share:g}: that leaves none of {rollout.questions} questions"
        if starts.by == "value" and (not estimator.critic or rollout.staleness):
            yield "rollout.starts.by value needs a critic (advantage.estimator gae) and rollout.staleness 0"
        if recipe.log.episodes_every != 1:
            yield "rollout.starts needs log.episodes_every 1: a resumed run reads the prefixes from the episodes"
        if recipe.proposer is not None:
            yield "rollout.starts: a proposer's questions are asked once; leave out one of the two"
    if rollout.partial:
        if not rollout.staleness:
            yield f"rollout.partial is {rollout.partial}: it needs rollout.staleness, 1 or more"
        apart = {"resample": rollout.resample, "starts": rollout.starts, "tree": rollout.tree}
        apart |= {"durable steps": rollout.durable == "steps"}
        yield from (f"rollout.partial and rollout.{name}: choose one" for name, is_set in apart.items() if is_set)
        if recipe.proposer is not None:
            yield "rollout.partial: a proposer learns from the questions of its step; leave out one of the two"


def _controller_problems(recipe: Recipe) -> Iterator[str]:
    """Yields problems with several controllers."""
    if recipe.rollout.controllers == 1:
        return
    rollout, sources = recipe.rollout, {"proposer": recipe.proposer, "curriculum": recipe.curriculum}
    apart = {"rollout.staleness": rollout.staleness > 0, "rollout.partial": rollout.partial > 0}
    apart |= {name: source is not None for name, source in sources.items()}
    yield from (f"rollout.controllers and {name}: choose one" for name, is_set in apart.items() if is_set)
    if recipe.method.demonstrated:
        yield f"rollout.controllers: method {kind_name(recipe.method)} samples nothing"
    elif rollout.questions < rollout.controllers:
        yield (
            f"rollout.controllers is {rollout.controllers}, a step asks {rollout.questions} rollout.questions: some "
            "controllers would have none"
        )
    if recipe.launch.elsewhere:
        yield "rollout.controllers are processes on this machine: leave out launch"


def _tree_problems(recipe: Recipe) -> Iterator[str]:
    """Yields problems with attempts that fork from others."""
    rollout, estimator, tree = recipe.rollout, recipe.advantage.estimator, recipe.rollout.tree
    if tree is None:
        return
    rest, forks = rollout.attempts - tree.roots, tree.rounds * tree.branches
    if rest < 0 or rest % forks:
        yield (
            f"rollout.tree: of {rollout.attempts} rollout.attempts {tree.roots} are roots, and {rest} forks cannot be "
            f"divided into {tree.rounds} rounds of {tree.branches} branches: change one of them"
        )
    if tree.by == "value" and (not estimator.critic or rollout.staleness):
        yield "rollout.tree.by value needs a critic (advantage.estimator gae) and rollout.staleness 0"
    if rollout.starts is not None:
        yield "rollout.tree and rollout.starts: choose one"
    if rest == 0:
        yield f"rollout.tree: all {rollout.attempts} rollout.attempts are roots, so none forks: change one of them"
    if tree.solved and (recipe.log.episodes_every != 1 or not tree.replayed or recipe.proposer is not None):
        yield "rollout.tree.solved needs log.episodes_every 1, rollout.tree.replayed and questions that are asked again"


def _advantage_problems(recipe: Recipe) -> Iterator[str]:
    """Yields problems with the estimator's options and the critic's."""
    estimator, critic, setting = recipe.advantage.estimator, recipe.critic, recipe.setting
    yield from (f"advantage.estimator: {problem}" for problem in check_kind(estimator, setting))
    if not isinstance(estimator, Unloaded) and not estimator.critic and critic != CriticOptions():
        yield f"critic: only an estimator like gae uses one, not {setting.estimator}"
    yield from (f"critic.loss: {problem}" for problem in check_kind(critic.loss, setting))
    clips = isinstance(critic.loss, Unloaded) or critic.loss.clips
    if "value_clip" in changed(critic) and critic.value_clip is not None and not clips:
        yield f"critic.value_clip is {critic.value_clip:g}: critic.loss {kind_name(critic.loss)} clips no values"
    if critic.warmup_steps > recipe.steps:
        yield f"critic.warmup_steps is {critic.warmup_steps} of {recipe.steps} steps"


def _loss_problems(recipe: Recipe) -> Iterator[str]:
    """Yields problems with the options of the policy loss."""
    loss, estimator = recipe.loss, recipe.advantage.estimator
    if loss.dual_clip is not None and loss.dual_clip <= 1 + loss.clip_high:
        bound = f"it bounds ratios beyond the clip, so it must be above 1 + loss.clip_high, {1 + loss.clip_high:g}"
        yield f"loss.dual_clip is {loss.dual_clip}: {bound}"
    if loss.kl_in == "reward" and loss.kl_estimator != "k1":
        why = "the mean of k1 is the KL, which is all that a reward needs; set it to k1"
        yield f"loss.kl_estimator is {loss.kl_estimator} in the reward: {why}"
    elif "kl_cap" in changed(loss) and loss.kl_estimator != "k3":
        yield f"loss.kl_cap is {loss.kl_cap}: it applies to k3 alone, and loss.kl_estimator is {loss.kl_estimator}"
    kl_by_token = estimator.kl_by_token and loss.kl_in == "reward" and loss.kl_coef > 0
    if loss.ratio == "sequence" and (kl_by_token or estimator.critic):
        many = f"{recipe.setting.estimator} has" if estimator.critic else "KL in the reward gives it"
        yield f"loss.ratio sequence needs one advantage per sequence; {many} several"
    if loss.llds_coef and not recipe.optimizer.several:
        why = "with one update per rollout no likelihood can have fallen, so it has no effect"
        raised = "raise optimizer.minibatches or optimizer.epochs, or set optimizer.minibatch_samples"
        yield f"loss.llds_coef is {loss.llds_coef}: {why}; {raised}"


def _credit_problems(recipe: Recipe) -> Iterator[str]:
    """Yields problems with the credit terms that ship, and with the comparison of calls; see `check_credit`."""
    advantage, estimator, chain = recipe.advantage, recipe.advantage.estimator, recipe.advantage.chain
    shipped = {name: term for name, term in recipe.credit.items() if not isinstance(term, Unloaded)}
    if shipped or not recipe.credit:
        yield from term_problems(shipped, recipe.setting)
    asking = any(isinstance(term, Unloaded) or term.asks_judge for term in recipe.credit.values())
    if recipe.judge != default_judge() and not asking:
        judge = getattr(recipe.judge, "asks", None) or kind_name(recipe.judge)
        yield f"judge is {judge}: no credit term of {', '.join(recipe.credit)} uses it"
    in_reward = recipe.loss.kl_coef and recipe.loss.kl_in == "reward"
    if in_reward and (estimator.whole_episodes or (chain != "call" and not estimator.critic)):
        option = f"advantage.estimator {recipe.setting.estimator}"
        what = option if estimator.whole_episodes else f"advantage.chain {chain}"
        yield f"{what} does not pass on the KL penalty: use loss.kl_in loss"
    within_groups = not (estimator.critic or estimator.over_batch or estimator.whitens or estimator.whole_episodes)
    if advantage.normalise == "query" and not within_groups:
        why = "it compares calls within groups of attempts"
        yield f"advantage.normalise query: {why}; use it with grpo, rloo or stratified"
    if advantage.rescale == "batch" and not within_groups:
        yield "advantage.rescale batch: it scales what groups compared; use it with grpo, rloo or stratified"
    if "query_overlap" in changed(advantage) and advantage.normalise != "query":
        yield "advantage.query_overlap is set: only advantage.normalise query reads it"


def _key_problems(recipe: Recipe) -> Iterator[str]:
    """Yields problems with the model keys that do not depend on the agent's roles."""
    models = recipe.models
    if len(rest := [name for name, key in models.items() if key.roles is None]) > 1:
        yield f"models: {' and '.join(rest)} both claim the roles that no other key names; list their roles"
    seen: dict[str, str] = {}
    judging = () if isinstance(recipe.judge, Unloaded) else (recipe.judge.asks,)
    for name, key in models.items():
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
            yield f"models: {name!r} names folders and metrics: use lower-case letters, digits, - and _ only"
        for role in key.roles or ():
            if role in seen:
                yield f"models: role {role} is named by {seen[role]} and by {name}"
            seen[role] = name
        for rate in ("lr", "critic_lr"):
            if key.frozen and getattr(key, rate) is not None:
                yield f"models.{name}.{rate} is {getattr(key, rate)}, but the key is frozen"
        if name in judging and not key.frozen:
            yield f"judge is the key {name}, which is trained; a judge's weights must be frozen"
        if key.roles == [] and name not in judging and not isinstance(recipe.judge, Unloaded):
            yield f"models.{name}: no role uses it; leave it out, or name it as judge"
        if key.critic_lr is not None and not recipe.has_critic:
            yield f"models.{name}.critic_lr: the recipe has no critic"


def _unused(recipe: Recipe) -> Iterator[str]:
    """Yields problems with policy-gradient options that are set although the method is not ``policy``."""
    loss, advantage, method = recipe.loss, recipe.advantage, kind_name(recipe.method)
    if recipe.rollout.staleness:
        yield f"rollout.staleness is {recipe.rollout.staleness}: method {method} alternates sampling and learning"
    if loss.kl_coef or loss.entropy_coef:
        yield f"loss.kl_coef and loss.entropy_coef act in method policy only, not in {method}"
    is_set = {
        "loss.dual_clip": loss.dual_clip is not None,
        "loss.importance_cap": loss.importance_cap is not None,
        "loss.llds_coef": loss.llds_coef > 0,
        "loss.ratio": loss.ratio != "token",
        "advantage.estimator": advantage.estimator != Grpo(),
        "advantage.drop_overlong": advantage.drop_overlong,
        "rollout.resample": recipe.rollout.resample > 0,
        "rollout.starts": recipe.rollout.starts is not None,
        "rollout.partial": recipe.rollout.partial > 0,
        "rollout.tree": recipe.rollout.tree is not None,
        "critic": recipe.critic != CriticOptions(),
        "credit": recipe.credit != {"outcome": Outcome()},
        "advantage.normalise": advantage.normalise != "all",
        "advantage.chain": advantage.chain != "call",
    }
    yield from (f"{name} acts in method policy only, not in {method}" for name, is_given in is_set.items() if is_given)
