"""Checks for combinations of options that cannot work; each message gives the reason and what to change."""

from __future__ import annotations

import re
from typing import Any

from searchgym.errors import did_you_mean
from searchgym.rollout.sampler import VllmOptions
from searchgym.train.recipe.launch_checks import launch_problems
from searchgym.train.recipe.options import WAYPOINT_RULES, CreditOptions
from searchgym.train.recipe.recipe import Recipe

SAME_AGAIN = {
    *("outcome", "waypoint", "evidence", "difference", "costs", "process", "decomposition", "search_count"),
    *("hiersearch", "ikea", "rubric", "gated", "tournament", "candidates"),
}
"""Credit terms that give many calls of an episode the same: ``advantage.chain: episode`` would add it up."""
USED = {
    "gae": {"std", "eps", "std_floor", "gamma", "lam", "whiten", "whiten_over"},
    "grpo": {"std", "eps", "std_floor"},
    "rloo": set[str](),
    "reinforce++": {"std", "eps", "std_floor"},
    "reinforce++-baseline": {"std", "eps", "std_floor"},
    "stratified": {"std", "eps", "std_floor", "alpha"},
    "tree": {"shared"},
}
"""Estimator-specific options, by estimator."""
CREDIT: dict[str, set[str]] = {
    "outcome": set(),
    "waypoint": {"waypoint_lambda", "waypoint_rules", "waypoint_names", "waypoint_answered"},
    "evidence": {"evidence_of", "evidence_weight", "evidence_where", "evidence_scaled"},
    "vpr": set(),
    "difference": set(),
    "gain": set(),
    "overlong": {"length_limit", "length_cache"},
    "praise": {"alpha", "train_prefixes"},
    "format": set(),
    "costs": {"turn_cost", "search_cost"},
    "process": set(),
    "decomposition": set(),
    "search_count": set(),
    "hiersearch": {"local_first"},
    "ikea": set(),
    "decision": {"known_share", "train_prefixes"},
    "ranking": {"ranking_of", "ranking_gate"},
    "ssrl_form": set(),
    "rubric": {"judge", "judge_seconds"},
    "gated": {"judge", "judge_seconds", "gate_delta"},
    "tournament": {"judge", "judge_seconds", "tournament_rounds"},
    "candidates": {"judge", "judge_seconds", "candidates", "draws"},
}
"""Credit-specific options, by credit term."""


def combination_problems(recipe: Recipe) -> list[str]:
    """Returns one line per combination of values that cannot work."""
    found = []
    if recipe.method == "policy":
        found += [*_rollout_problems(recipe), *_advantage_problems(recipe), *_loss_problems(recipe)]
        found += [*_credit_problems(recipe), *_agent_term_problems(recipe)]
    else:
        if recipe.rollout.staleness:
            found.append(f"rollout.staleness is {recipe.rollout.staleness}: method {recipe.method} takes turns")
        found += _unused(recipe)
    found += [
        *_learner_problems(recipe),
        *_engine_problems(recipe),
        *_key_problems(recipe),
        *_proposer_problems(recipe),
        *_curriculum_problems(recipe),
        *launch_problems(recipe),
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
    if recipe.method == "supervised" and recipe.models:
        found.append("models: method supervised trains one model, on what demonstrations hold")
    if recipe.method == "supervised" and recipe.supervised.demonstrations is None:
        found.append("method supervised needs supervised.demonstrations")
    if recipe.optimizer.warmup_steps > recipe.steps:
        found.append(f"optimizer.warmup_steps is {recipe.optimizer.warmup_steps} of {recipe.steps} steps")
    return found


def changed(options: Any) -> list[str]:
    """Returns the names of the options that have another value than their default."""
    defaults = type(options)()
    return [name for name in options.__dataclass_fields__ if getattr(options, name) != getattr(defaults, name)]


def _rollout_problems(recipe: Recipe) -> list[str]:
    """Returns problems with the sampling options, given the method."""
    rollout, advantage, found = recipe.rollout, recipe.advantage, []
    batch = advantage.estimator in ("reinforce++", "gae")
    if advantage.estimator != "gae" and rollout.attempts * (rollout.questions if batch else 1) < advantage.min_group:
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
        found.append(f"rollout.resample replaces groups without signal; {advantage.estimator} has none")
    if rollout.resample and not advantage.drop_zero_variance:
        found.append("rollout.resample replaces groups that advantage.drop_zero_variance false keeps: choose one")
    return found


def _proposer_problems(recipe: Recipe) -> list[str]:
    """Returns problems with the proposer's options."""
    proposer, found = recipe.proposer, []
    if proposer.kind == "none":
        why = "and proposer.kind is none: set it to path or uniform"
        return [f"proposer.{name} is set, {why}" for name in changed(proposer)]
    if recipe.method == "supervised":
        found.append("proposer: method supervised asks no questions")
    if recipe.rollout.attempts < 2:
        found.append(
            f"rollout.attempts is {recipe.rollout.attempts}: a proposer needs pass rates of at least 2 attempts"
        )
    if not proposer.hops or len(set(proposer.hops)) < len(proposer.hops) or min(proposer.hops) < 1:
        found.append(f"proposer.hops is {proposer.hops}: expected numbers from 1 on, each once")
    if recipe.env_options.get("distractors"):
        found.append("proposer: its questions bring no paragraphs, leave env_options.distractors out")
    return found


def _curriculum_problems(recipe: Recipe) -> list[str]:
    """Returns problems with the curriculum's options."""
    curriculum, found = recipe.curriculum, []
    if not curriculum.stages:
        return [f"curriculum.{name} is set, and there are no stages" for name in changed(curriculum)]
    if curriculum.advance == "steps":
        unread = [name for name in changed(curriculum) if name in ("up", "down", "window")]
        found += [f"curriculum.{name} is set, and advance is steps" for name in unread]
    if recipe.method == "supervised":
        found.append("curriculum: method supervised asks no questions")
    if recipe.proposer.kind != "none":
        found.append("curriculum: the proposer chooses the questions; leave out one of the two")
    for number, stage in enumerate(curriculum.stages):
        if stage.mix and not any(stage.mix.values()):
            found.append(f"curriculum.stages[{number}].mix is {stage.mix}: expected a weight above 0")
    return found


def _advantage_problems(recipe: Recipe) -> list[str]:
    """Returns problems with the estimator's options."""
    advantage, found = recipe.advantage, []
    for name in sorted((set.union(*USED.values()) - USED[advantage.estimator]) & set(changed(advantage))):
        found.append(f"advantage.{name} is {getattr(advantage, name)}: {advantage.estimator} does not read it")
    if advantage.whiten_over == "valued" and not (advantage.whiten and advantage.normalise == "all"):
        found.append("advantage.whiten_over valued needs advantage.whiten and advantage.normalise all")
    if advantage.whiten_over == "valued" and recipe.critic.tokens != "response":
        found.append("advantage.whiten_over valued needs critic.tokens response: else only trained tokens have values")
    if advantage.estimator != "gae" and recipe.critic != type(recipe.critic)():
        found.append(f"critic: only advantage.estimator gae asks one, not {advantage.estimator}")
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
    kl_by_token = recipe.advantage.estimator == "reinforce++" and loss.kl_in == "reward" and loss.kl_coef > 0
    if loss.ratio == "sequence" and (kl_by_token or recipe.advantage.estimator == "gae"):
        many = "gae has" if recipe.advantage.estimator == "gae" else "reinforce++ with KL in the reward has"
        found.append(f"loss.ratio sequence takes one advantage per sequence; {many} many")
    if loss.llds_coef and not recipe.optimizer.several:
        why = "with one update per rollout no likelihood has fallen yet, and it would do nothing"
        raised = "raise optimizer.minibatches or optimizer.epochs, or set optimizer.minibatch_samples"
        found.append(f"loss.llds_coef is {loss.llds_coef}: {why}; {raised}")
    return found


def _engine_problems(recipe: Recipe) -> list[str]:
    """Returns problems with the sampling-engine options."""
    vllm, sampler, found = recipe.rollout.vllm, recipe.rollout.sampler, []
    if sampler == "transformers":
        found += [
            f"rollout.vllm.{name} is set, and rollout.sampler is transformers: set it to vllm" for name in changed(vllm)
        ]
    if vllm.sleep and recipe.rollout.staleness:
        found.append("rollout.vllm.sleep takes turns with the learner, rollout.staleness does not: choose one")
    if vllm.sleep == 2 and recipe.lora.rank:
        found.append("rollout.vllm.sleep 2 drops the base that adapters stand on: set it to 1")
    if vllm.servers is not None and (vllm.replicas > 1 or vllm.gpus is not None or not vllm.servers):
        found.append(
            "rollout.vllm.servers: one address per replica, at least one; their GPUs are named where they start"
        )
    found += _server_problems(vllm, recipe.launch == "ray", recipe.lora.rank > 0)
    if vllm.gpus is not None and len(vllm.gpus) != vllm.replicas * vllm.tensor_parallel:
        want = f"{vllm.replicas} replicas on {vllm.tensor_parallel} each"
        found.append(f"rollout.vllm.gpus names {len(vllm.gpus)} GPUs, for {want}")
    gpus = recipe.learner.gpus
    if gpus is not None and len(gpus) != recipe.learner.ranks:
        found.append(f"learner.gpus names {len(gpus)} GPUs for {recipe.learner.ranks} ranks")
    if gpus is not None and recipe.learner.listen is not None:
        found.append("learner.gpus: ranks of learner.listen choose where they are started")
    if recipe.lora.rank and recipe.learner.backend == "deepspeed":
        found.append("lora.rank needs learner.backend torch: adapters are not trained over ranks yet")
    return found


def _server_problems(vllm: VllmOptions, ray: bool, lora: bool) -> list[str]:
    """Returns problems with the addresses of sampling servers and the way of weights to them.

    Args:
        vllm: Options of the engines.
        ray: Whether a launcher starts the servers.
        lora: Whether adapters are trained.
    """
    servers, found = vllm.servers or [], []
    for address in servers:
        if not re.fullmatch(r"https?://[^/\s]+(:\d{1,5})?/?", address):
            found.append(f"rollout.vllm.servers: {address!r}: expected http://HOST:PORT")
    if len({address.rstrip("/") for address in servers}) < len(servers):
        found.append("rollout.vllm.servers names a server twice")
    if vllm.shared is not None and not servers and not ray:
        found.append("rollout.vllm.shared is for weights on their way to rollout.vllm.servers, which names none")
    if vllm.transfer != "folder":
        name = f"rollout.vllm.transfer {vllm.transfer}"
        if not servers and not ray:
            found.append(f"{name} is for weights on their way to rollout.vllm.servers, which names none")
        if vllm.shared is not None:
            found.append(f"{name} needs no folder: leave out rollout.vllm.shared")
        if lora and vllm.adapters != "merged":
            found.append(f"{name} sends whole models: set rollout.vllm.adapters to merged")
    return found


def _learner_problems(recipe: Recipe) -> list[str]:
    """Returns problems with the learner's options: backend, ranks, devices."""
    learner, found = recipe.learner, []
    if learner.backend == "torch":
        asked = {"ranks": learner.ranks > 1, "zero": learner.zero > 0}
        asked |= {"listen": learner.listen is not None}
        asked |= {"offload_optimizer": learner.offload_optimizer, "offload_parameters": learner.offload_parameters}
        found += [f"learner.{name} needs learner.backend deepspeed" for name, there in asked.items() if there]
        if learner.dtype == "bfloat16" and not recipe.lora.rank:
            why = "small updates are lost in bfloat16; keep float32 and set optimizer.autocast to bfloat16"
            found.append(
                f"learner.dtype bfloat16 needs learner.backend deepspeed, which keeps a copy in float32, or lora: {why}"
            )
        if learner.dtype == "bfloat16" and recipe.lora.rank and recipe.rollout.sampler == "transformers":
            found.append(
                "learner.dtype bfloat16 with lora needs rollout.sampler vllm: transformers samples from the adapter "
                "merged into the rounded weights, in which small updates are lost; keep float32 and set "
                "optimizer.autocast to bfloat16"
            )
        return found
    if learner.listen is not None and not re.fullmatch(r".+:\d{1,5}", learner.listen):
        found.append(f"learner.listen is {learner.listen!r}: expected HOST:PORT, like 10.0.0.1:29400")
    if learner.zero > 3:
        found.append(f"learner.zero is {learner.zero}: expected 0 to 3")
    if learner.offload_optimizer and learner.zero == 0:
        found.append("learner.offload_optimizer needs learner.zero from 1 on")
    if learner.offload_parameters and learner.zero != 3:
        found.append("learner.offload_parameters needs learner.zero 3")
    if learner.dtype == "bfloat16" and learner.zero == 0:
        found.append("learner.dtype bfloat16 needs learner.zero from 1 on, which keeps a copy in float32")
    return found


def _credit_problems(recipe: Recipe) -> list[str]:
    """Returns problems with the credit terms and with the comparison of calls."""
    credit, found = recipe.credit, _term_problems(recipe)
    if not credit.terms or len(set(credit.terms)) < len(credit.terms):
        found.append(f"credit.terms is {credit.terms}: expected at least one, none twice")
    for name in credit.terms:
        if name not in CREDIT and ":" not in name:
            found.append(f"credit.terms: unknown {name!r}{did_you_mean(name, [*CREDIT, 'module:function'])}")
    read = set().union(*(CREDIT.get(name, set()) for name in credit.terms))
    own = any(":" in name for name in credit.terms)  # a user's function may read all
    for name in () if own else sorted((set().union(*CREDIT.values()) - read) & set(changed(credit))):
        found.append(f"credit.{name} is {getattr(credit, name)}: no term of {credit.terms} reads it")
    by_call = {"difference", "gain", "vpr"} & set(credit.terms) or ("praise" in credit.terms and credit.train_prefixes)
    estimator, chain = recipe.advantage.estimator, recipe.advantage.chain
    chained = chain == "episode"
    if estimator == "tree" and (by_call or chain != "call" or recipe.advantage.normalise != "all"):
        why = "it makes rewards of calls from those of whole episodes"
        found.append(f"advantage.estimator tree: {why}; use it with normalise all, chain call and terms like outcome")
    elif (by_call or chain != "call") and recipe.advantage.normalise == "all" and estimator != "gae":
        why = f"{estimator} compares episodes as wholes, and this credit rewards calls"
        found.append(f"advantage.normalise is all: {why}; set it to role or role-turn")
    if chain == "none" and estimator == "gae":
        found.append("advantage.chain none: gae passes rewards back by advantage.lam; choose another estimator")
    for name in sorted(SAME_AGAIN & set(credit.terms)) if chained else ():
        found.append(
            f"advantage.chain episode adds up what later calls earn, and {name} gives many the same again: use gain"
        )
    in_reward = recipe.loss.kl_coef and recipe.loss.kl_in == "reward"
    if in_reward and (estimator == "tree" or (chain != "call" and estimator != "gae")):
        what = "advantage.estimator tree" if estimator == "tree" else f"advantage.chain {chain}"
        found.append(f"{what} passes no KL on: put it into the loss (loss.kl_in)")
    return found


def _term_problems(recipe: Recipe) -> list[str]:
    """Returns problems with the options of single credit terms."""
    credit, found = recipe.credit, []
    for name, how in credit.by_name().items():
        if how.weight == 0:
            found.append(f"credit.terms.{name}: weight is {how.weight}: expected a finite number other than 0")
        if how.roles is not None and (not how.roles or len(set(how.roles)) < len(how.roles)):
            found.append(f"credit.terms.{name}: roles is {how.roles}: expected at least one, none twice")
        if how.share == "split" and name != "outcome":
            found.append(f"credit.terms.{name}: share split divides the outcome, not {name}")
    if "waypoint" in credit.terms:
        found += _waypoint_problems(credit)
    if "evidence" in credit.terms:
        if not 0 < credit.evidence_weight < 1:
            found.append(f"credit.evidence_weight is {credit.evidence_weight}: expected above 0 and below 1")
        if credit.evidence_scaled and credit.evidence_where == "right":
            found.append("credit.evidence_scaled acts where evidence_where is wrong or all, as in CaRR's code")
    if "overlong" in credit.terms:
        limit, cache = credit.length_limit, credit.length_cache
        if limit is None or cache is None:
            found.append("credit.terms: overlong needs credit.length_limit and credit.length_cache, in tokens")
        elif cache > limit:
            found.append(f"credit.length_cache is {cache}: more than credit.length_limit, {limit}")
    return found


def _agent_term_problems(recipe: Recipe) -> list[str]:
    """Returns problems with the credit terms that belong to one kind of agent."""
    credit, advantage, found = recipe.credit, recipe.advantage, []
    if "decision" in credit.terms and advantage.normalise == "all" and advantage.estimator != "gae":
        why = f"{advantage.estimator} compares episodes as wholes, and decision rewards one call of each"
        found.append(f"advantage.normalise is all: {why}; set it to role or role-turn")
    if "ranking" in credit.terms and advantage.normalise == "all" and advantage.estimator != "gae":
        why = f"{advantage.estimator} compares episodes as wholes, and ranking rewards single calls"
        found.append(f"advantage.normalise is all: {why}; set it to query")
    if "ranking" in credit.terms and not 0 <= credit.ranking_gate <= 1:
        found.append(f"credit.ranking_gate is {credit.ranking_gate}: expected from 0 to 1")
    if advantage.normalise == "query" and advantage.estimator not in ("grpo", "rloo", "stratified"):
        why = "it compares calls within groups of attempts"
        found.append(f"advantage.normalise query: {why}; use it with grpo, rloo or stratified")
    if "query_overlap" in changed(advantage) and advantage.normalise != "query":
        found.append("advantage.query_overlap is set: only advantage.normalise query reads it")
    for name in sorted({"hiersearch", "ikea"} & set(credit.terms)) if "outcome" in credit.terms else ():
        found.append(f"credit.terms: {name} takes the place of outcome; name one of them")
    return found


def _waypoint_problems(credit: CreditOptions) -> list[str]:
    """Returns problems with the options of the credit term ``waypoint``."""
    found = []
    if not 0 < credit.waypoint_lambda < 1:
        why = "from 1 on a wrong answer would earn as much as a right one"
        found.append(f"credit.waypoint_lambda is {credit.waypoint_lambda}: expected above 0 and below 1, {why}")
    for rule in credit.waypoint_rules:
        if rule not in WAYPOINT_RULES:
            found.append(f"credit.waypoint_rules: unknown {rule!r}{did_you_mean(rule, WAYPOINT_RULES)}")
    if not {"query", "page"} & set(credit.waypoint_rules):
        found.append("credit.waypoint_rules needs query or page: else any search would reach every waypoint")
    return found


def _key_problems(recipe: Recipe) -> list[str]:
    """Returns problems with the model keys that do not depend on the agent's roles."""
    models, found = recipe.models, []
    if len(rest := [name for name, own in models.items() if own.roles is None]) > 1:
        found.append(f"models: {' and '.join(rest)} both take the roles that no other key names; name their roles")
    seen: dict[str, str] = {}
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
        if name == recipe.credit.judge and not own.frozen:
            found.append(f"credit.judge is the key {name}, which is trained: a judge must not learn from its verdicts")
        if own.roles == [] and name != recipe.credit.judge:
            found.append(f"models.{name}: no role asks it; leave it out, or name it as credit.judge")
        if own.critic_lr is not None and not recipe.has_critic:
            found.append(f"models.{name}.critic_lr: the recipe has no critic")
    elsewhere = recipe.learner.listen is not None or (recipe.launch == "ray" and recipe.learner.backend == "deepspeed")
    if sum(not own.frozen for own in models.values()) > 1 and elsewhere:
        found.append("learner.listen, launch ray: ranks that are started elsewhere train one model key, not several")
    return found


def _unused(recipe: Recipe) -> list[str]:
    """Returns problems with policy-gradient options that are set although the method is not ``policy``."""
    loss, method, found = recipe.loss, recipe.method, []
    if loss.kl_coef or loss.entropy_coef:
        found.append(f"loss.kl_coef and loss.entropy_coef act in method policy only, not in {method}")
    set_though = {
        "loss.dual_clip": loss.dual_clip is not None,
        "loss.importance_cap": loss.importance_cap is not None,
        "loss.llds_coef": loss.llds_coef > 0,
        "loss.ratio": loss.ratio != "token",
        "advantage.estimator": recipe.advantage.estimator != "grpo",
        "advantage.drop_overlong": recipe.advantage.drop_overlong,
        "rollout.resample": recipe.rollout.resample > 0,
        "critic": recipe.critic != type(recipe.critic)(),
        "credit": recipe.credit != type(recipe.credit)(),
        "advantage.normalise": recipe.advantage.normalise != "all",
        "advantage.chain": recipe.advantage.chain != "call",
        "advantage.whiten_over": recipe.advantage.whiten_over != "trained",
    }
    return found + [
        f"{name} acts in method policy only, not in {method}" for name, there in set_though.items() if there
    ]
