"""What the credit of the field run's arms would change: advantages of a recorded training's calls, arm by arm.

    python studies/field/bites.py RUN [--steps 1 4 7] [--json]

For a run folder of ``tiny-grpo`` (or another training of one agent by its outcome) and some of its steps, each arm that
is compared with ``grpo`` gives the same episodes its own credit: the share of calls whose advantage is another one, how
far it moves on average, and its correlation with the baseline's. An arm that changes next to nothing cannot win.
The balance is the sum of the advantages of all searches that find a gold page over that of all right answers that rest
on all of them: where it is high, a policy learns to search more than to answer.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from field import ARMS

from searchgym.agents import load_agent
from searchgym.cli.output import emit_rows
from searchgym.cli.pipeline.controls import OracleAnswers, OracleSearches
from searchgym.envs import Task
from searchgym.eval.viewing.saved import SavedRun
from searchgym.records import Episode
from searchgym.train import Recipe, load_recipe
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.credit.credit import Credit
from searchgym.train.credit.term import CreditContext
from searchgym.train.loop.assembly import load_tasks


def main() -> None:
    """Prints a row for each step and arm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 4, 7], help="numbers of steps, from 1 on")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    saved = SavedRun.read(args.run)
    if saved.recipe is None:
        parser.error(f"{args.run} is no run folder of searchgym train: it has no recipe")
    task = load_tasks(saved.recipe)[0]
    rows = []
    for step in args.steps:
        episodes = [e for e in saved.episodes.values() if (e.group_uid or "").startswith(f"{step - 1}/")]
        if not episodes:
            parser.error(f"{args.run} has no episodes of step {step}")
        rows += changes(episodes, task, step)
    emit_rows(rows, args.json, "results", "advantages that each arm would change, of those by the outcome")


def changes(episodes: Sequence[Episode], task: Task, step: int) -> list[dict[str, Any]]:
    """Returns a row for ``grpo`` and for each arm that is compared with it and has credit of its own."""
    plain = advantages(episodes, task, load_recipe(ARMS["grpo"].values[0]))
    context = CreditContext(question=lambda episode: task.find(episode.question_id))
    rows = []
    for arm, plan in ARMS.items():
        if "grpo" in (arm, plan.against) and plan.steps_of is None:
            own = advantages(episodes, task, load_recipe(plan.values[0], list(plan.values[1:])))
            pairs = np.array([(own[call], plain[call]) for call in plain])
            moved = np.abs(pairs[:, 0] - pairs[:, 1])
            alike = float(np.corrcoef(pairs.T)[0, 1]) if (np.ptp(pairs, axis=0) > 0).all() else None
            rows.append(
                {"step": step, "arm": arm, "calls": len(moved), "changed": float((moved > 1e-3).mean())}
                | {"by": float(moved.mean()), "correlation": alike, "balance": balance(episodes, own, context)}
            )
    return rows


def balance(episodes: Sequence[Episode], advantage: Mapping[str, float], context: CreditContext) -> float | None:
    """Returns what searches that find a gold page are paid in all, over what right answers from all of them are."""
    paid = []
    for approved in (term.rewards(episodes, context) for term in (OracleSearches(), OracleAnswers())):
        paid.append(
            sum(
                advantage[f"{episode.id}/{place}"]
                for episode, row in zip(episodes, approved, strict=True)
                for place in np.flatnonzero(row)
            )
        )
    return paid[0] / paid[1] if paid[1] > 0 else None


def advantages(episodes: Sequence[Episode], task: Task, recipe: Recipe) -> dict[str, float]:
    """Returns the advantage that a recipe gives each call, by the call's id; groups without signal have 0."""
    credit = Credit.of(recipe.credit.loaded(), load_agent(recipe.agent).roles, lambda: task)
    samples = [
        sample
        for episode, given in zip(episodes, credit.rewards(episodes), strict=True)
        if given is not None
        for sample in samples_from(episode, rewards=given.total, local_rewards=given.local_rewards)
    ]
    options = dataclasses.replace(recipe.advantage, drop_zero_variance=False)
    return {
        name: float(sample.advantage[call.start])
        for sample in options.estimator.assign(samples, options)[0]
        for call, name in zip(sample.calls, sample.call_ids, strict=True)
    }


if __name__ == "__main__":
    main()
