"""The field run: ideas about credit on one bench, with paired seeds, equal tokens read by the learner, and controls.

    python studies/field/field.py [ARM ...] [--seeds 0 1 ...] [--search] [--table] [--read 250000] [--questions 500]
                               [--out runs/field] [--recorded FILE] [--set KEY=VALUE ...] [--json]

Every arm of ARMS starts from the same warm model and ends with the step in which its learner has read ``--read``
tokens. First an arm's learning rate is chosen on seed 100: that of its three rates with the highest EM on questions of
a validation world; of the arm that is meant to collapse, the lowest rate at which it does. Then it trains with each
seed, arm by arm within a seed, and answers the held-out questions of World-v0 greedily.

The contrasts of methods are t-tests over paired seeds with Holm's correction, and their 95 % interval must exclude 0,
too; controls are judged by that interval: the oracle's credit must win, permuted rewards must not. An intervention is
judged likewise, and nothing is demanded of it. Intervals are over seeds and questions (`two_way_ci`), but over seeds
alone, for these questions only, if a row was recorded without the EM of each question. A training that ends with
numbers that are not finite counts as EM 0. While seeds are missing there is no verdict, and the table says how many
there are. ``--table`` prints what there is and trains nothing; ``--search`` ends after the rates.

What is finished is never repeated, a training that was stopped goes on from its last checkpoint, and ``--recorded``
keeps the rows (beside this script), so that a run survives any stop. Two processes may share the work by seeds,
once the rates are chosen. ``curves.png`` shows EM in training against tokens read.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from searchgym.cli.demo.run import ENV
from searchgym.cli.output import emit, emit_rows
from searchgym.corpora.files import iter_jsonl, write_atomic
from searchgym.envs import Task, find_env, load_task
from searchgym.errors import EngineLostError, ModelError, TrainingError, UsageError
from searchgym.train import load_recipe

sys.path.append(str(Path(__file__).parents[1] / "methods"))
from methods import (
    BY_QUESTION,
    ROW,
    TEAM,
    by_hops,
    curve_of,
    draw,
    ems_of,
    excludes_0,
    holm,
    known,
    means,
    tested_differences,
    trained_as,
    warm_scores,
)
from recorded import Recorded

SEEDS: Final = tuple(range(10))
SEARCHED: Final = 100
"""Seed on which learning rates are chosen."""
SEARCH: Final = "search"
"""Folder of these trainings."""
RATES: Final = (1e-4, 3e-4, 1e-3)
HIGH: Final = (1e-3, 3e-3, 1e-2)
"""Rates of the arm that is meant to collapse."""
VALIDATION: Final = {"split": "validation", "size": 200, "seed": 1}
"""World of the questions by which rates are chosen; no other step uses it."""
SHARED: Final = ("validation.every=0", "checkpoint.every=2", "optimizer.autocast=bfloat16", "steps=30")
"""Recipe values of all arms. Steps are bounded because a training whose groups all agree reads nothing."""
TURNS: Final = ("advantage.chain=none", "advantage.normalise=role-turn")
MIXED: Final = "credit={outcome: 1, evidence: {where: all, scaled: true}}"
"""CaRR's mixing into all rewards: into right ones alone it changes next to nothing here (``bites.py``)."""
MASK: Final = (*TEAM, "agent=m-ask")
COLLAPSING: Final = ("tiny-grpo", "optimizer.minibatches=4", "advantage.drop_zero_variance=false")
"""Updates on old samples; groups without signal stay, as in LLDS's code, whose gate protects them too."""
CONTROLS: Final = "searchgym.cli.pipeline.controls"
ORACLE: Final = ("tiny-grpo", f"credit={{{CONTROLS}:OracleCredit: 1}}", *TURNS)
HALVES: Final = f"{{{CONTROLS}:OracleSearches: 0.333, {CONTROLS}:OracleAnswers: 1}}"
THIRD: Final = ("tiny-grpo", f"credit={HALVES}", *TURNS)
UNDIVIDED: Final = "advantage.estimator.std=none"
"""Advantages are not divided by the deviation, so that turns at which few attempts differ count less."""
BALANCED: Final = (*THIRD, UNDIVIDED)
VERIFIED: Final = ("tiny-grpo", "credit={outcome: 1, vpr: 0.333}", *TURNS, UNDIVIDED)


@dataclass(frozen=True)
class Arm:
    """A training of the field run, and what it is compared with."""

    values: tuple[str, ...]
    """Recipe and its values."""
    against: str | None = None
    """Arm that it is compared with; None: it is a baseline, or stands beside the others."""
    role: Literal["baseline", "method", "control", "intervention", "beside"] = "method"
    seeds: tuple[int, ...] = SEEDS
    rates: tuple[float, ...] = RATES
    """Learning rates that are tried."""
    reads: int = 1
    """Multiple of ``--read`` that its learner reads."""
    rate_of: str | None = None
    """Arm whose learning rate it takes instead."""
    collapses: bool = False
    """Whether the lowest rate at which it collapses is chosen."""
    must_win: bool = False
    """Of a control: whether it must win, or must not."""
    also: tuple[str, ...] = ()
    """Other arms with which it is compared, too, as interventions are."""
    steps_of: str | None = None
    """Arm whose number of steps it takes with the same seed, however many tokens its learner reads."""


ARMS: Final[dict[str, Arm]] = {
    "grpo": Arm(("tiny-grpo",), role="baseline"),
    "stratified": Arm(("tiny-grpo", "advantage.estimator=stratified"), "grpo"),
    "vpr": Arm(("tiny-grpo", "credit={outcome: 1, vpr: 1}", *TURNS), "grpo"),
    "evidence": Arm(("tiny-grpo", MIXED), "grpo"),
    "tree": Arm(("tiny-grpo", "advantage.estimator=tree"), "grpo", also=("grpo-undivided", "undivided-first-twice")),
    "grpo-4": Arm(COLLAPSING, role="baseline", rates=HIGH, collapses=True, reads=2),
    "llds": Arm((*COLLAPSING, "loss.llds_coef=0.2"), "grpo-4", rate_of="grpo-4", reads=2),
    "team": Arm((*MASK, "credit={outcome: 1, format: 1}"), role="baseline"),
    "chain": Arm((*MASK, "credit={gain: 1, format: 1}", "advantage.chain=episode"), "team"),
    "oracle": Arm(ORACLE, "grpo", "control", must_win=True),
    "permuted": Arm(("tiny-grpo", f"credit={{{CONTROLS}:Permuted: 1}}"), "grpo", "control"),
    "oracle-balanced": Arm(BALANCED, "grpo", "intervention", rate_of="oracle", also=("oracle", "grpo-undivided")),
    "oracle-steps": Arm(ORACLE, "grpo", "intervention", rate_of="oracle", also=("oracle",), steps_of="grpo"),
    "oracle-both": Arm(
        BALANCED,
        "grpo",
        "intervention",
        rate_of="oracle",
        also=("oracle-balanced", "grpo-undivided"),
        steps_of="grpo",
    ),
    "oracle-third": Arm(THIRD, "grpo", "intervention", rate_of="oracle", also=("oracle",)),
    "oracle-undivided": Arm((*ORACLE, UNDIVIDED), "grpo", "intervention", rate_of="oracle", also=("oracle",)),
    "vpr-balanced": Arm(VERIFIED, "grpo", "intervention", rate_of="vpr", also=("vpr", "grpo-undivided")),
    "grpo-undivided": Arm(("tiny-grpo", UNDIVIDED), "grpo", "intervention", rate_of="grpo"),
    # what tree is where no call is shared: branches are credited only if tree wins against it
    "undivided-first-twice": Arm(
        ("tiny-grpo", "advantage.estimator=tree", "advantage.estimator.shared=false"),
        "grpo",
        "intervention",
        rate_of="tree",
    ),
    "ppo": Arm(("tiny-ppo", "critic.optimizer.autocast=bfloat16"), role="beside", seeds=SEEDS[:5]),
    "rejection": Arm(("tiny-rejection",), role="beside", seeds=SEEDS[:5]),
}
PANELS: Final = {
    "methods": ("grpo", *(arm for arm, plan in ARMS.items() if plan.role == "method" and plan.against == "grpo")),
    "controls": ("grpo", *(arm for arm, plan in ARMS.items() if plan.role == "control")),
    "interventions": ("grpo", "oracle", *(arm for arm, plan in ARMS.items() if plan.role == "intervention")),
    "where the baseline collapses": ("grpo-4", "llds"),
    "a team": ("team", "chain"),
    "beside": ("grpo", *(arm for arm, plan in ARMS.items() if plan.role == "beside")),
}
"""Arms of each panel of the picture."""
Rows = Mapping[tuple[str, int], dict[str, Any]]
"""Row of each finished training by arm and seed."""


def main() -> None:
    """Chooses rates, trains what is missing, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arms", nargs="*", default=list(ARMS), metavar="ARM", help="default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--search", action="store_true", help="choose learning rates and train no seed")
    parser.add_argument("--table", action="store_true", help="train nothing")
    parser.add_argument("--read", type=int, default=250_000, help="tokens that the learner of each training reads")
    parser.add_argument("--questions", type=int, default=500, help="number of held-out questions")
    parser.add_argument("--out", type=Path, default=Path("runs/field"))
    parser.add_argument("--recorded", type=Path, help="JSONL file with the rows of finished trainings, extended")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="recipe values for all arms")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if unknown := sorted(set(args.arms) - ARMS.keys()):
        parser.error(f"no such arm: {', '.join(unknown)}; there are {', '.join(ARMS)}")
    if others := sorted(set(args.seeds) - set(SEEDS)):
        parser.error(f"--seeds: planned are {SEEDS[0]} to {SEEDS[-1]}, got {', '.join(map(str, others))}")
    recorded = Recorded(args.recorded, {key: getattr(args, key) for key in ("read", "questions", "set")})
    if not args.table:
        with contextlib.redirect_stdout(sys.stderr):  # libraries that print when they are imported
            run(args, recorded)
    rows = finished(args.out, recorded)
    if rows:
        draw(rows, args.out, "read", PANELS)
    tables = {"arms": table(rows), "contrasts": contrasts(rows)}
    if args.json:
        emit(tables | {"notes": notes(rows)}, True)
        return
    emit_rows(tables["arms"], False, "arms", f"greedy EM on {args.questions} held-out questions of {ENV}")
    emit_rows(tables["contrasts"], False, "contrasts", "arm less its baseline, over paired seeds")
    for line in notes(rows):
        print(line)


# -- trainings -----------------------------------------------------------------------------------------------------


def run(args: argparse.Namespace, recorded: Recorded) -> None:
    """Chooses the learning rates of some arms, and trains these with some seeds unless only rates are asked for."""
    exam = load_task(find_env(ENV), questions=VALIDATION)
    exam = exam.asking(exam.questions[: args.questions])
    for arm in dict.fromkeys(ARMS[arm].rate_of or arm for arm in args.arms):
        for rate in ARMS[arm].rates:
            values = values_of(arm, rate, SEARCHED, args.read, args.set)
            trained(exam, f"{arm}@{rate:g}-{SEARCHED}", values, args.out / SEARCH, recorded)
    if args.search:
        return
    task = load_task(find_env(ENV))
    task = task.asking(task.questions[: args.questions])
    for seed, arm in itertools.product(args.seeds, args.arms):
        if seed in ARMS[arm].seeds:
            chosen = rate_of(arm, args.out, recorded)
            assert chosen is not None
            values = values_of(arm, chosen, seed, args.read, args.set, steps_of(arm, seed, args.out, recorded))
            trained(task, f"{arm}-{seed}", values, args.out, recorded)


def values_of(arm: str, rate: float, seed: int, read: int, given: Sequence[str], steps: int | None = None) -> list[str]:
    """Returns the recipe and the values of one training of an arm, which ends after `steps` if they are given."""
    budget = f"max_read_tokens={read * ARMS[arm].reads}" if steps is None else f"steps={steps}"
    return [*ARMS[arm].values, *SHARED, budget, *given, f"optimizer.lr={rate}", f"seed={seed}"]


def steps_of(arm: str, seed: int, out: Path, recorded: Recorded) -> int | None:
    """Returns the steps of the training whose number of steps an arm takes; None if it has a budget of tokens.

    Raises:
        UsageError: That training has not been made.
    """
    other = ARMS[arm].steps_of
    if other is None:
        return None
    row = known(f"{other}-{seed}", out, recorded)
    if row is None:
        raise UsageError(f"{arm} takes as many steps as {other}, which has not trained with seed {seed}: name it, too")
    return int(row["steps"])


def trained(task: Task, name: str, values: list[str], out: Path, recorded: Recorded) -> None:
    """Trains and evaluates a recipe unless that was done; one that ends with numbers that are not finite counts 0."""
    try:
        trained_as(task, name, values, out, recorded)
    except EngineLostError:
        raise  # what is wrong with the machine says nothing of the method
    except (TrainingError, ModelError) as error:
        row = lost(task, name, values, out, str(error))
        with write_atomic(out / name / ROW) as file:
            file.write(json.dumps(row).encode())
        recorded.add(name, row | {"curve": curve_of(out / name / "train")})


def lost(task: Task, name: str, values: list[str], out: Path, why: str) -> dict[str, Any]:
    """Returns the row of a training that could not go on: as of a model that answers nothing."""
    recipe = load_recipe(values[0], values[1:])
    before = means(warm_scores(task, recipe, out))
    nothing = {question.id: 0.0 for question in task.questions}
    steps = [row for _, row in iter_jsonl(out / name / "train" / "metrics.jsonl")]
    seconds = sum(row.get("time/draw", 0.0) + row.get("time/learn", 0.0) for row in steps)
    return {
        "em": 0.0,
        "searches": 0.0,
        "before": before,
        "steps": steps[-1]["step"],
        "tokens": steps[-1]["generated_tokens"],
        "read": steps[-1]["read_tokens"],
        "lr": recipe.optimizer.lr,
        BY_QUESTION: nothing,
        "by_hops": by_hops(task, nothing),
        "collapsed": True,
        "minutes": round(seconds / 60, 1),
        "ended": why,
    }


def rate_of(arm: str, out: Path, recorded: Recorded) -> float | None:
    """Returns the learning rate that the search chose for an arm; None while trainings of it are missing."""
    arm = ARMS[arm].rate_of or arm
    found = {rate: known(f"{arm}@{rate:g}-{SEARCHED}", out / SEARCH, recorded) for rate in ARMS[arm].rates}
    rows = {rate: row for rate, row in found.items() if row is not None}
    if len(rows) < len(found):
        return None
    if ARMS[arm].collapses:
        return next((rate for rate in sorted(rows) if fell(rows[rate])), max(rows))
    return max(sorted(rows), key=lambda rate: float(rows[rate]["em"]))


def fell(row: Mapping[str, Any]) -> bool:
    """Returns whether a training collapsed: in its curve, or to less than half of the EM that it began with."""
    return bool(row["collapsed"]) or float(row["em"]) < float(row["before"]["em"]) / 2


def finished(out: Path, recorded: Recorded) -> dict[tuple[str, int], dict[str, Any]]:
    """Returns the rows of all finished trainings."""
    rows = {(arm, seed): known(f"{arm}-{seed}", out, recorded) for arm in ARMS for seed in ARMS[arm].seeds}
    return {key: row for key, row in rows.items() if row is not None}


# -- tables --------------------------------------------------------------------------------------------------------


def table(rows: Rows) -> list[dict[str, Any]]:
    """Returns a row for each arm with at least one finished training: means over its seeds."""
    made = []
    for arm, plan in ARMS.items():
        own = [rows[arm, seed] for seed in plan.seeds if (arm, seed) in rows]
        if not own:
            continue

        def mean(key: str, own: Sequence[Mapping[str, Any]] = own) -> float:
            return float(np.mean([row[key] for row in own]))

        hops = sorted(own[0]["by_hops"])
        made.append(
            {"arm": arm, "seeds": f"{len(own)} of {len(plan.seeds)}", "lr": own[0]["lr"]}
            | {"em before": float(np.mean([row["before"]["em"] for row in own])), "em": mean("em")}
            | {f"{hop} hops": float(np.mean([row["by_hops"][hop] for row in own])) for hop in hops}
            | {"searches": mean("searches"), "read": round(mean("read")), "generated": round(mean("tokens"))}
            | {"minutes": mean("minutes"), "collapsed": sum(map(fell, own))}
        )
    return made


def contrasts(rows: Rows) -> list[dict[str, Any]]:
    """Returns a row for each comparison of two arms that have a seed in common.

    Holm's correction is over all planned contrasts of methods with their baselines, and made once each has all of its
    seeds.
    """
    found = list[dict[str, Any]]()
    compared = [(arm, other) for arm, plan in ARMS.items() for other in (plan.against, *plan.also) if other]
    for arm, other in compared:
        plan = ARMS[arm]
        role = plan.role if other == plan.against else "intervention"
        pairs = [seed for seed in plan.seeds if (arm, seed) in rows and (other, seed) in rows]
        if not pairs:
            continue
        own, others = ems_of([[rows[name, seed] for seed in pairs] for name in (arm, other)])
        found.append(
            {"contrast": f"{arm}:{other}", "role": role, "seeds": f"{len(pairs)} of {len(plan.seeds)}"}
            | tested_differences(own - others)
            | {"p_holm": None, "verdict": f"no verdict: {len(pairs)} of {len(plan.seeds)} seeds"}
        )
    whole = [row for row in found if row["seeds"] == f"{len(SEEDS)} of {len(SEEDS)}"]
    methods = [row for row in whole if row["role"] == "method"]
    planned = sum(plan.role == "method" for plan in ARMS.values())
    if len(methods) == planned:
        for row, p in zip(methods, holm([row["p"] for row in methods]), strict=True):
            row["p_holm"] = p
            resolved = p < 0.05 and excludes_0(row)
            row["verdict"] = "not resolved" if not resolved else "higher" if row["difference"] > 0 else "lower"
    else:
        for row in methods:
            row["verdict"] = f"no verdict: {len(methods)} of {planned} contrasts have all seeds"
    for row in whole:
        if row["role"] in ("control", "intervention"):
            wins, must = row["low"] > 0, ARMS[row["contrast"].partition(":")[0]].must_win
            row["verdict"] = "wins" if wins else "does not win"
            if row["role"] == "control":
                row["verdict"] += ", as it must" if wins == must else ", WRONG"
    return found


def notes(rows: Rows) -> list[str]:
    """Returns what must be known to read the tables: missing seeds, and whether the bench is as it was planned."""
    planned = sum(len(plan.seeds) for plan in ARMS.values())
    lines = []
    if len(rows) < planned:
        lines.append(f"{len(rows)} of {planned} planned trainings: a table of fewer seeds than planned")
    if ended := [f"{arm}-{seed}" for (arm, seed), row in rows.items() if "ended" in row]:
        lines.append(f"ended with an error, counted as EM 0: {', '.join(ended)}")
    base = [row["em"] for (arm, _), row in rows.items() if arm == "grpo"]
    if base and not 0.3 <= np.mean(base) <= 0.6:
        lines.append(f"the baseline ends at EM {np.mean(base):.3f}, not between 0.3 and 0.6: too little room")
    fallen = [fell(row) for (arm, _), row in rows.items() if arm == "grpo-4"]
    if fallen and sum(fallen) < len(fallen) / 2:
        lines.append(f"grpo-4 collapsed in {sum(fallen)} of {len(fallen)} trainings: LLDS had little to prevent")
    return lines


if __name__ == "__main__":
    main()
