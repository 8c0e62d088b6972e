"""Checks for combinations of options that cannot work; each message gives the reason and what to change."""

from __future__ import annotations

import re
from typing import Any

from searchgym.options import Kind, Unloaded, check_kind, kind_name
from searchgym.scoring.judges.judge import default_judge
from searchgym.train.algorithms.estimators.grpo import Grpo
from searchgym.train.credit.term import term_problems
from searchgym.train.credit.terms.outcome import Outcome
from searchgym.train.recipe.recipe import Recipe


def combination_problems(recipe: Recipe) -> list[str]:
    """Returns one line per combination of values that cannot work."""
    found = []
    if recipe.method.compares:
        found += [*_rollout_problems(recipe), *_advantage_problems(recipe), *_loss_problems(recipe)]
        found += _credit_problems(recipe)
    elif not isinstance(recipe.method, Unloaded):
        if recipe.rollout.staleness:
            method = kind_name(recipe.method)
            found.append(f"rollout.staleness is {recipe.rollout.staleness}: method {method} takes turns")
        found += _unused(recipe)
    found += [
        *_named("rollout.sampler", recipe.rollout.sampler, recipe),
        *_named("learner.backend", recipe.learner.backend, recipe),
        *_named("launch", recipe.launch, recipe),
        *_key_problems(recipe),
        *_source_problems(recipe),
    ]
    loss = recipe.loss
    if loss.reduction == "constant" and loss.constant_length is None:
        found.append("loss.reduction constant needs loss.constant_length, the most tokens a model writes in a sequence")
    one_update = recipe.optimizer.minibatches == 1 and recipe.optimizer.minibatch_samples is None
    if loss.reduction == "episode-mean" and not one_update:
        found.append("loss.reduction episode-mean needs optimizer.minibatches 1: an episode must not be cut")
    for place, own in (("optimizer", recipe.optimizer), ("critic.optimizer", recipe.critic.optimizer)):
        if own.minibatch_samples is not None and own.minibatches > 1:
            found.append(f"{place}.minibatches and {place}.minibatch_samples both say how a step is cut: choose one")
    if loss.reduction != "constant" and loss.constant_length is not None:
        found.append(f"loss.constant_length acts with loss.reduction constant only, not with {loss.reduction}")
    if recipe.method.demonstrated and recipe.models:
        found.append(f"models: method {kind_name(recipe.method)} trains one model, on what demonstrations hold")
    if recipe.optimizer.warmup_steps > recipe.steps:
        found.append(f"optimizer.warmup_steps is {recipe.optimizer.warmup_steps} of {recipe.steps} steps")
    return found


def _named(key: str, kind: Kind, recipe: Recipe) -> list[str]:
    """Returns what a kind says against the rest of the recipe, each with the key that it is at."""
    return [f"{key}: {problem}" for problem in check_kind(kind, recipe.setting)]


def changed(options: Any) -> list[str]:
    """Returns the names of the options that have another value than their default."""
    defaults = type(options)()
    return [name for name in options.__dataclass_fields__ if getattr(options, name) != getattr(defaults, name)]


def _rollout_problems(recipe: Recipe) -> list[str]:
    """Returns problems with the sampling options, given the method."""
    rollout, advantage, found = recipe.rollout, recipe.advantage, []
    estimator = recipe.estimator
    batch = estimator.over_batch or estimator.critic
    if not estimator.critic and rollout.attempts * (rollout.questions if batch else 1) < advantage.min_group:
        group = f"rollout.questions x rollout.attempts is {rollout.questions * rollout.attempts}"
        group = group if batch else f"rollout.attempts is {rollout.attempts}"
        found.append(
            f"{group}: no group reaches advantage.min_group, {advantage.min_group}, and every advantage would be 0"
        )
    if rollout.top_p < 1:
        found.append(f"rollout.top_p is {rollout.top_p}: a ratio needs the whole distribution, set it to 1")
    if rollout.staleness and recipe.loss.importance_cap is None:
        why = "samples of older weights are weighted by how likely the present ones make them"
        found.append(f"rollout.staleness is {rollout.staleness}: {why}; set loss.importance_cap, to 2 say")
    if rollout.resample and batch:
        found.append(f"rollout.resample replaces groups without signal; {recipe.setting.estimator} has none")
    if rollout.resample and not advantage.drop_zero_variance:
        found.append("rollout.resample replaces groups that advantage.drop_zero_variance false keeps: choose one")
    return found


def _source_problems(recipe: Recipe) -> list[str]:
    """Returns problems with what chooses the questions."""
    sources = {name: kind for name in ("proposer", "curriculum") if (kind := getattr(recipe, name)) is not None}
    found = [f"{name}: {problem}" for name, kind in sources.items() for problem in check_kind(kind, recipe.setting)]
    if recipe.method.demonstrated:
        found += [f"{name}: method {kind_name(recipe.method)} asks no questions" for name in sources]
    if len(sources) > 1:
        found.append("curriculum: the proposer chooses the questions; leave out one of the two")
    return found


def _advantage_problems(recipe: Recipe) -> list[str]:
    """Returns problems with the estimator's options."""
    estimator, found = recipe.estimator, _named("advantage.estimator", recipe.estimator, recipe)
    known = not isinstance(estimator, Unloaded)
    if known and not estimator.critic and recipe.critic != type(recipe.critic)():
        found.append(f"critic: only an estimator like gae asks one, not {recipe.setting.estimator}")
    if recipe.critic.warmup_steps >= recipe.steps:
        found.append(f"critic.warmup_steps is {recipe.critic.warmup_steps} of {recipe.steps} steps: nothing is learnt")
    return found


def _loss_problems(recipe: Recipe) -> list[str]:
    """Returns problems with the options of the policy loss."""
    loss, found = recipe.loss, []
    if loss.dual_clip is not None and loss.dual_clip <= 1 + loss.clip_high:
        bound = f"it bounds ratios beyond the clip, so it must be above 1 + loss.clip_high, {1 + loss.clip_high:g}"
        found.append(f"loss.dual_clip is {loss.dual_clip}: {bound}")
    if loss.kl_in == "reward" and loss.kl_estimator != "k1":
        why = "the mean of k1 is the KL, and a reward needs no more; set it to k1"
        found.append(f"loss.kl_estimator is {loss.kl_estimator} in the reward: {why}")
    elif loss.kl_cap != type(loss)().kl_cap and loss.kl_estimator != "k3":
        found.append(f"loss.kl_cap is {loss.kl_cap}: it cuts k3 alone, and loss.kl_estimator is {loss.kl_estimator}")
    estimator = recipe.estimator
    kl_by_token = estimator.kl_by_token and loss.kl_in == "reward" and loss.kl_coef > 0
    if loss.ratio == "sequence" and (kl_by_token or estimator.critic):
        many = f"{recipe.setting.estimator} has" if estimator.critic else "KL in the reward gives it"
        found.append(f"loss.ratio sequence takes one advantage per sequence; {many} many")
    if loss.llds_coef and not recipe.optimizer.several:
        why = "with one update per rollout no likelihood has fallen yet, and it would do nothing"
        raised = "raise optimizer.minibatches or optimizer.epochs, or set optimizer.minibatch_samples"
        found.append(f"loss.llds_coef is {loss.llds_coef}: {why}; {raised}")
    return found


def _credit_problems(recipe: Recipe) -> list[str]:
    """Returns problems with the credit terms that ship, and with the comparison of calls; see `check_credit`."""
    advantage, estimator, chain = recipe.advantage, recipe.estimator, recipe.advantage.chain
    shipped = {name: term for name, term in recipe.credit.items() if not isinstance(term, Unloaded)}
    found = list(term_problems(shipped, recipe.setting)) if shipped or not recipe.credit else []
    asking = any(isinstance(term, Unloaded) or term.asks_judge for term in recipe.credit.values())
    if recipe.judge != default_judge() and not asking:
        judge = getattr(recipe.judge, "asks", None) or kind_name(recipe.judge)
        found.append(f"judge is {judge}: no credit term of {', '.join(recipe.credit)} asks it")
    in_reward = recipe.loss.kl_coef and recipe.loss.kl_in == "reward"
    if in_reward and (estimator.whole_episodes or (chain != "call" and not estimator.critic)):
        named = f"advantage.estimator {recipe.setting.estimator}"
        what = named if estimator.whole_episodes else f"advantage.chain {chain}"
        found.append(f"{what} passes no KL on: put it into the loss (loss.kl_in)")
    within_groups = not (estimator.critic or estimator.over_batch or estimator.whitens or estimator.whole_episodes)
    if advantage.normalise == "query" and not within_groups:
        why = "it compares calls within groups of attempts"
        found.append(f"advantage.normalise query: {why}; use it with grpo, rloo or stratified")
    if "query_overlap" in changed(advantage) and advantage.normalise != "query":
        found.append("advantage.query_overlap is set: only advantage.normalise query reads it")
    return found


def _key_problems(recipe: Recipe) -> list[str]:
    """Returns problems with the model keys that do not depend on the agent's roles."""
    models, found = recipe.models, []
    if len(rest := [name for name, own in models.items() if own.roles is None]) > 1:
        found.append(f"models: {' and '.join(rest)} both take the roles that no other key names; name their roles")
    seen: dict[str, str] = {}
    judging = () if isinstance(recipe.judge, Unloaded) else (recipe.judge.asks,)
    for name, own in models.items():
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
            found.append(f"models: {name!r} is a name of folders and metrics: small letters, digits, - and _ only")
        for role in own.roles or ():
            if role in seen:
                found.append(f"models: role {role} is named by {seen[role]} and by {name}")
            seen[role] = name
        for rate in ("lr", "critic_lr"):
            if own.frozen and getattr(own, rate) is not None:
                found.append(f"models.{name}.{rate} is {getattr(own, rate)}: it is frozen")
        if name in judging and not own.frozen:
            found.append(f"judge is the key {name}, which is trained: a judge must not learn from its verdicts")
        if own.roles == [] and name not in judging and not isinstance(recipe.judge, Unloaded):
            found.append(f"models.{name}: no role asks it; leave it out, or name it as judge")
        if own.critic_lr is not None and not recipe.has_critic:
            found.append(f"models.{name}.critic_lr: the recipe has no critic")
    return found


def _unused(recipe: Recipe) -> list[str]:
    """Returns problems with policy-gradient options that are set although the method is not ``policy``."""
    loss, method, found = recipe.loss, kind_name(recipe.method), []
    if loss.kl_coef or loss.entropy_coef:
        found.append(f"loss.kl_coef and loss.entropy_coef act in method policy only, not in {method}")
    set_though = {
        "loss.dual_clip": loss.dual_clip is not None,
        "loss.importance_cap": loss.importance_cap is not None,
        "loss.llds_coef": loss.llds_coef > 0,
        "loss.ratio": loss.ratio != "token",
        "advantage.estimator": recipe.advantage.estimator != Grpo(),
        "advantage.drop_overlong": recipe.advantage.drop_overlong,
        "rollout.resample": recipe.rollout.resample > 0,
        "critic": recipe.critic != type(recipe.critic)(),
        "credit": recipe.credit != {"outcome": Outcome()},
        "advantage.normalise": recipe.advantage.normalise != "all",
        "advantage.chain": recipe.advantage.chain != "call",
    }
    return found + [
        f"{name} acts in method policy only, not in {method}" for name, there in set_though.items() if there
    ]
