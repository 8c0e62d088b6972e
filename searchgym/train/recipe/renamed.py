"""Names of recipe keys from before the first release, each with the spelling that took its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from searchgym.errors import CardError
from searchgym.options import Source

RENAMED: Final = {
    "credit.terms": "credit: {outcome: 1, format: 1}, each term with its weight or its options "
    "(outcome: {share: split} is outcome: {split: true}, search_count is search-count)",
    "credit.judge": "judge, at the top",
    "credit.judge_seconds": "nothing: a verdict may take 60 seconds",
    "credit.gate_delta": "credit: {gated: {delta: ...}}",
    "credit.tournament_rounds": "credit: {tournament: {rounds: ...}}",
    "credit.draws": "credit: {candidates: {draws: ...}}",
    "credit.alpha": "credit: {praise: {alpha: ...}}",
    "credit.train_prefixes": "nothing: a term says itself whether trial answers are trained on (Term.trains_prefixes)",
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
    "rollout.vllm": "rollout: {sampler: {kind: vllm, ...}}, with its options",
    "rollout.device": "rollout: {sampler: {kind: transformers, device: ...}}",
    **{
        f"learner.{name}": f"learner: {{backend: {{kind: deepspeed, {name}: ...}}}}"
        for name in ("ranks", "gpus", "listen", "zero", "offload_optimizer", "offload_parameters")
    },
    "ray": "launch: {kind: ray, ...}, with its options",
}


def refuse_old(data: Any, overrides: Iterable[str], source: Source) -> None:
    """Raises a CardError that names the new spelling of the first old key in a recipe or its overrides."""
    for override in overrides:
        key, _, _ = override.partition("=")
        if old := next((old for old in RENAMED if key == old or key.startswith(f"{old}.")), None):
            raise CardError(f"override {override!r}: {old} is an old name: write {RENAMED[old]}")
    lines = [f"{source.at(path)}: {'.'.join(path)}: write {RENAMED['.'.join(path)]}" for path in _old(data)]
    if lines:
        raise CardError("\n".join(["old names of keys:", *lines]))


def _old(data: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the paths of the old keys in a recipe's data."""
    if ".".join(path) in RENAMED:
        yield path
    elif isinstance(data, dict) and len(path) < 2:
        for key, inner in data.items():
            yield from _old(inner, (*path, str(key)))
