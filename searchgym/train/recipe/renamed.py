"""Names of recipe keys from before the first release, each with its present spelling."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from searchgym.errors import CardError
from searchgym.options import Source

RENAMED: Final = {
    "credit.terms": "credit: {outcome: 1, format: 1}, each term with its weight or its options "
    "(outcome: {share: split} is outcome: {split: true}, search_count is search-count)",
    "credit.judge": "judge, at the top",
    "credit.judge_seconds": "judge: {kind: model, model: ..., seconds: ...}",
    "credit.gate_delta": "credit: {gated: {delta: ...}}",
    "credit.tournament_rounds": "credit: {tournament: {rounds: ...}}",
    "credit.draws": "credit: {candidates: {draws: ...}}",
    "credit.alpha": "credit: {praise: {alpha: ...}}",
    "credit.train_prefixes": "nothing: the term determines whether trial answers are trained on (Term.trains_prefixes)",
    "credit.turn_cost": "credit: {costs: {turn: ...}}",
    "credit.search_cost": "credit: {costs: {search: ...}}",
    "credit.waypoint_lambda": "credit: {waypoint: {share: ...}}",
    "credit.waypoint_rules": "credit: {waypoint: {rules: ...}}",
    "credit.waypoint_names": "credit: {waypoint: {most_names: ...}}",
    "credit.waypoint_answered": "credit: {waypoint: {answered: ...}}",
    "credit.evidence_of": "credit: {evidence: {measure: ...}}",
    "credit.evidence_weight": "credit: {evidence: {share: ...}}",
    "credit.evidence_where": "credit: {evidence: {where: ...}}",
    "credit.evidence_scaled": "credit: {evidence: {scaled: ...}}",
    "credit.length_limit": "credit: {overlong: {limit: ...}}",
    "credit.length_cache": "credit: {overlong: {cache: ...}}",
    "credit.local_first": "credit: {hiersearch: {local_first: ...}}",
    "credit.known_share": "credit: {decision: {known: ...}}",
    "credit.ranking_of": "credit: {ranking: {measure: ...}}",
    "credit.ranking_gate": "credit: {ranking: {gate: ...}}",
    **{
        f"advantage.{name}": f"advantage: {{estimator: {{kind: ..., {name}: ...}}}}"
        for name in ("std", "eps", "std_floor", "alpha", "shared", "gamma", "lam", "whiten", "whiten_over")
    },
    **{
        f"{section}.{name}": f"{section}: {{questions: {{...}}}}, with the same fields"
        for section in ("env_options", "validation.env_options")
        for name in ("world", "generated", "masked", "open_answers")
    },
    "rollout.vllm": "rollout: {sampler: {kind: vllm, ...}}, with its options",
    "rollout.device": "rollout: {sampler: {kind: transformers, device: ...}}",
    **{
        f"learner.{name}": f"learner: {{backend: {{kind: deepspeed, {name}: ...}}}}"
        for name in ("ranks", "gpus", "listen", "zero", "offload_optimizer", "offload_parameters")
    },
    "ray": "launch: {kind: ray, ...}, with its options",
    "curriculum.advance": "curriculum: {kind: steps or pass-rate, stages: [...]}",
    "supervised.demonstrations": "method: {kind: supervised, demonstrations: ...}",
    "supervised.batch": "method: {kind: supervised, batch: ...}",
    "supervised.targets": "method: {kind: supervised, targets: ...}",
    "supervised.min_reward": "method: {kind: rejection, min_reward: ...}",
    "guard.min_entropy": "guard: {bounds: {learner/entropy: {min: ...}}}",
    "guard.max_entropy": "guard: {bounds: {learner/entropy: {max: ...}}}",
    "guard.max_kl": "guard: {bounds: {learner/old_kl: {max: ...}}}",
    "guard.max_ref_kl": "guard: {bounds: {learner/ref_kl: {max: ...}}}",
    "guard.max_response_tokens": "guard: {bounds: {rollout/generated_tokens: {max: ...}}}",
    "guard.max_sampler_difference": "guard: {bounds: {learner/sampler_difference: {max: ...}}}, null for no bound",
    "guard.max_zero_variance": "guard: {bounds: {groups/zero_variance_share: {max: ...}}}",
    "rollout.probe_limit": "nothing: the limit follows from the number type, 0.001 in float32 and 0.02 in bfloat16",
}


def refuse_old(data: Any, overrides: Iterable[str], source: Source) -> None:
    """Raises a CardError that names the new spelling of the first old key in a recipe or its overrides."""
    for override in overrides:
        key, _, _ = override.partition("=")
        if name := next((name for name in RENAMED if key == name or key.startswith(f"{name}.")), None):
            raise CardError(f"override {override!r}: {name} is an old name: write {RENAMED[name]}")
    old = [path for path in (tuple(key.split(".")) for key in RENAMED) if _holds(data, path)]
    old.sort(key=lambda path: int(source.lines.get(path, 0)))
    if lines := [f"{source.at(path)}: {'.'.join(path)}: write {RENAMED['.'.join(path)]}" for path in old]:
        raise CardError("\n".join(["old names of keys:", *lines]))


def _holds(data: Any, path: tuple[str, ...]) -> bool:
    """Returns True if nested plain data have a value at a path of keys."""
    return not path or (isinstance(data, dict) and path[0] in data and _holds(data[path[0]], path[1:]))
