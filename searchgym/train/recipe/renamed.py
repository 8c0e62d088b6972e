"""Names of recipe keys from before the first release, each with the spelling that took its place."""

from __future__ import annotations

from collections.abc import Iterable
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
    "credit.candidates": "credit: {candidates: {most: ...}}",
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
}


def refuse_old(data: Any, overrides: Iterable[str], source: Source) -> None:
    """Raises a CardError that names the new spelling of the first old key in a recipe or its overrides."""
    for override in overrides:
        key, _, _ = override.partition("=")
        if key in RENAMED:
            raise CardError(f"override {override!r}: {key} is an old name: write {RENAMED[key]}")
    credit = data.get("credit") if isinstance(data, dict) else None
    shared = ["candidates"]  # an option then, a term now as then
    if isinstance(credit, dict) and any(f"credit.{name}" in RENAMED and name not in shared for name in credit):
        old = [name for name in credit if f"credit.{name}" in RENAMED and ("terms" in credit or name not in shared)]
        lines = [f"{source.at(('credit', name))}: credit.{name}: write {RENAMED[f'credit.{name}']}" for name in old]
        raise CardError("\n".join(["credit has an old spelling:", *lines]))
