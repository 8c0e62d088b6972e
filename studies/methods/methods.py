"""Comparison of training methods on the tiny model: greedy EM on held-out questions, at equal generated tokens.

    python studies/methods/methods.py [CONTRAST ...] [--seeds 0 1 2 3 4] [--steps N | --tokens N] [--questions 500]
                                 [--out runs/methods] [--recorded FILE] [--json] [--set KEY=VALUE ...]

A contrast is two arms, ``A:B`` (see ARMS). For each seed A trains for its recipe's steps, or ``--steps``; then B trains
until it has generated at least as many tokens: it ends with the step in which it does, up to a step's tokens later.
With ``--tokens``, each arm ends with the step in which it reaches that number of generated tokens. Seeds are paired:
both ask the same questions. One method beats the other if the 95 % interval of the paired differences of EM excludes 0;
else the contrast is not resolved. The interval is over seeds and questions (`two_way_ci`); rows that were recorded
without the EM of each question have one over seeds alone, which holds for these questions only. A training has
collapsed if the EM of its episodes over the last fifth of its steps is under half of the best mean of three steps.

With the folder of an earlier run, finished trainings are not repeated; nor are those in ``--recorded``, a file that
keeps their rows (beside this script). ``curves.png`` shows the trainings' EM.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from recorded import Recorded

from searchgym.agents import load_agent
from searchgym.cli.demo.run import ENV, evaluate_model
from searchgym.cli.demo.summary import em_by_question
from searchgym.cli.output import emit, emit_rows
from searchgym.corpora.files import iter_jsonl
from searchgym.corpora.folders import lock_folder
from searchgym.envs import Task, find_env, load_task
from searchgym.eval import bootstrap_ci, t_interval, two_way_ci
from searchgym.rollout import in_checkpoints, read_episodes
from searchgym.train import Recipe, load_recipe, train
from searchgym.train.recipe.keys import keys_of

OUTCOME = "credit={outcome: 1}"
TEAM = [
    "tiny-grpo",
    "model=tiny-teams",
    "env_options={questions: {split: train, size: 2000, seed: 1}, reward: f1}",
    "advantage.normalise=role-turn",
    "rollout.questions=8",
    "rollout.attempts=6",
]
"""Recipe values shared by all arms with teams (the monolithic agent counts as a team of one)."""
PPO_MASK = ["tiny-mask", "rollout.questions=8", "rollout.attempts=6", "critic.optimizer.autocast=bfloat16"]
"""M-ASK by PPO with a shared critic, as in its paper; `--set optimizer.autocast=bfloat16` goes with it."""
SELF_PLAY = ["tiny-selfplay", "steps=20", OUTCOME]
"""Self-play with the outcome alone, by the same advantages (``std: none``) as with waypoints."""
WAYPOINT = "credit={outcome: 1, waypoint: 1}"
DECOUPLED = "models={planners: {roles: [planner, subplanner]}, executors: {frozen: true}}"
PARALLEL = [
    "tiny-grpo",
    "model=tiny-teams",
    "env_options={questions: {split: train, size: 2000, seed: 1}, max_queries: 4}",
    "agent=parallel-search",
    "steps=8",
    "rollout.questions=8",
    "rollout.attempts=4",
    "optimizer.lr=2e-4",
    "optimizer.warmup_steps=2",
]
"""Values of recipe ``tiny-parallel`` for GRPO on the outcome alone: that recipe has a critic, which GRPO has not."""
FORKS = "rollout.tree={roots: 4, rounds: 2}"
REFINED = ["tiny-grpo", "model=runs/trees/warm/checkpoints/last", "credit={outcome: 1, density: 1}"]
"""Values of both arms of the refiner: the model that learnt its role, see `trees.md`."""
ARMS: dict[str, list[str]] = {
    "grpo": ["tiny-grpo"],
    "rejection": ["tiny-rejection"],
    "ppo": ["tiny-ppo"],
    "stratified": ["tiny-grpo", "advantage.estimator=stratified"],
    "grpo-4": ["tiny-grpo", "optimizer.minibatches=4"],
    "llds": ["tiny-grpo", "optimizer.minibatches=4", "loss.llds_coef=0.2"],
    "mask": [*TEAM, "agent=m-ask", "credit={difference: 1, format: 1}"],
    "mask-final": [*TEAM, "agent=m-ask", "credit={outcome: 1, format: 1}"],
    "mask-chain": [*TEAM, "agent=m-ask", "credit={gain: 1, format: 1}", "advantage.chain=episode"],
    "ppo-mask": PPO_MASK,
    "ppo-mask-final": [*PPO_MASK, "credit={outcome: 1, format: 1}"],
    "ppo-mask-frozen-plan": [*PPO_MASK, "models={planners: {roles: [planning], frozen: true}, others: {}}"],
    "ppo-mask-plan-final": [
        *PPO_MASK,
        "credit={outcome: {roles: [planning]}, format: 1, difference: {roles: [search, summary, update, answer]}}",
    ],
    "ppo-mask-chain": [*PPO_MASK, "credit={gain: 1, format: 1}", "advantage.chain=episode"],
    "curriculum": ["tiny-curriculum"],
    "jade": [*TEAM, "agent=jade", "credit={outcome: 1, format: 1, costs: 1}"],
    "jade-frozen": [*TEAM, "agent=jade", "credit={outcome: 1, format: 1, costs: 1}", DECOUPLED],
    "praise": [*TEAM, "agent=praise", "credit={outcome: 1, praise: 1}"],
    "monolithic": [*TEAM, OUTCOME],
    "sp-neither": [*SELF_PLAY, "proposer.kind=uniform"],
    "sp-proposer": SELF_PLAY,
    "sp-waypoint": [*SELF_PLAY, "proposer.kind=uniform", WAYPOINT],
    "sp-both": [*SELF_PLAY, WAYPOINT],
    "searchplanner": ["tiny-searchplanner"],
    "searchplanner-outcome": ["tiny-searchplanner", OUTCOME],
    "parallel": ["tiny-parallel"],
    "parallel-outcome": PARALLEL,
    "cosearch": ["tiny-cosearch"],
    "cosearch-outcome": ["tiny-cosearch", OUTCOME, "advantage.normalise=role"],
    "density": ["tiny-grpo", "credit={outcome: 1, density: 1}"],
    "pages": ["tiny-grpo", "credit={outcome: 1, pages: 1}"],
    "siblings": ["tiny-grpo", "advantage.estimator=siblings"],
    "states": ["tiny-grpo", "advantage.estimator=gigpo"],
    "batch": ["tiny-grpo", "advantage.rescale=batch"],
    "ppo-bins": ["tiny-ppo", "critic.loss=hl-gauss"],
    "reread-outcome": ["tiny-grpo", "agent=search-r1-reread"],
    "reread": ["tiny-grpo", "agent=search-r1-reread", "credit={outcome: 1, completeness: 1}"],
    "saas-outcome": ["tiny-grpo", "agent=saas"],
    "saas": ["tiny-grpo", "agent=saas", "credit={outcome: 1, boundary: 1}"],
    "mask-plan": [*TEAM, "agent=m-ask", "credit={outcome: 1, format: 1, plan: {roles: [planning]}}"],
    "mask-stages": [
        *TEAM,
        "agent=m-ask",
        "credit={gain: 1, format: 1}",
        "advantage.chain=none",
        "advantage.normalise=role",
        "advantage.estimator={kind: stages, stages: {plan: [planning], research: [search, summary, update],"
        " answer: [answer]}, weights: [[1, 0.4, 0.8], [0, 1, 0.8], [0, 0, 1]]}",
    ],
    "mask-gain": [*TEAM, "agent=m-ask", "credit={gain: 1, format: 1}", "advantage.normalise=role"],
    "tree": ["tiny-grpo", FORKS, "advantage.estimator=tree"],
    "tree-unshared": ["tiny-grpo", FORKS, "advantage.estimator={kind: tree, shared: false}"],
    "leaves": ["tiny-grpo", FORKS],
    "refiner": [*REFINED, "agent=search-r2"],
    "refiner-off": REFINED,
    "deepsearch": [
        "tiny-grpo",
        "rollout.tree={roots: 4, rounds: 2, by: frontier, solved: true}",
        "advantage.estimator=deepsearch",
    ],
    "rest": ["tiny-grpo", "rollout.starts={share: 0.25, by: best}"],
    "mars2": ["tiny-grpo", FORKS, "advantage.estimator=shaped"],
    "sp-sample": [*SELF_PLAY, "proposer.kind=uniform", "advantage.estimator.std=sample"],
}
"""Name of an arm to its recipe and values; LLDS acts only if a rollout is trained on in several minibatches."""
CONTRASTS = ["grpo:rejection", "grpo:stratified", "grpo-4:llds", "grpo:ppo"]
TEAM_CONTRASTS = ["mask:mask-final", "jade:jade-frozen", "praise:monolithic"]
"""Contrasts that ``python studies/methods/methods.py teams`` runs."""
MASK_CONTRASTS = [
    "ppo-mask:ppo-mask-frozen-plan", "ppo-mask:ppo-mask-plan-final", "ppo-mask:ppo-mask-final",
    "ppo-mask-chain:ppo-mask", "ppo-mask-chain:ppo-mask-final",
    "mask:mask-final", "mask-chain:mask-final", "mask-chain:mask",
]  # fmt: skip
"""Contrasts that ``python studies/methods/methods.py mask`` runs; ``plans.py`` shows what the teams did."""
SELF_PLAY_CONTRASTS = [
    "sp-proposer:sp-neither", "sp-waypoint:sp-neither", "sp-both:sp-neither", "sp-sample:sp-neither",
]  # fmt: skip
"""Contrasts that ``python studies/methods/methods.py selfplay`` runs; it prints main effects too."""
CURRICULUM_CONTRASTS = ["curriculum:grpo"]
"""Contrasts that ``python studies/methods/methods.py curriculum`` runs."""
AGENT_CONTRASTS = ["searchplanner:searchplanner-outcome", "parallel:parallel-outcome", "cosearch:cosearch-outcome"]
"""Contrasts that ``python studies/methods/methods.py agents`` runs; `cosearch.py show` makes the model of the third."""
CALL_CONTRASTS = [
    "density:grpo", "pages:grpo", "siblings:grpo", "states:grpo", "batch:grpo", "ppo-bins:ppo",
    "reread:reread-outcome", "saas:saas-outcome", "mask-plan:mask-final", "mask-stages:mask-gain",
]  # fmt: skip
"""Contrasts that ``python studies/methods/methods.py calls`` runs."""
TREE_CONTRASTS = ["tree:grpo", "tree:tree-unshared", "leaves:grpo", "refiner:refiner-off"]
"""Contrasts that ``python studies/methods/methods.py trees`` runs."""
NAMED = {
    "agents": AGENT_CONTRASTS,
    "calls": CALL_CONTRASTS,
    "curriculum": CURRICULUM_CONTRASTS,
    "mask": MASK_CONTRASTS,
    "selfplay": SELF_PLAY_CONTRASTS,
    "teams": TEAM_CONTRASTS,
    "trees": TREE_CONTRASTS,
}
BY_QUESTION = "em_by_question"
"""Field of a training's row with the EM of each held-out question by its id."""
ROW = "row.json"
"""File in a training's folder with its row of the table."""
AXES = {"tokens": "generated tokens", "read": "tokens that the learner read"}
"""Labels of the axis that EM is plotted against, by the name in a curve."""
MOST_IN_ONE = 4
"""Number of contrasts up to which one panel shows all arms; with more, each contrast has a panel."""
MANY_STEPS = 100_000
"""Number of steps for an arm that ends by its token budget instead."""


def main() -> None:
    """Trains what is missing and prints a row per training and one per contrast."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "contrasts",
        nargs="*",
        default=CONTRASTS,
        metavar="A:B",
        help=f"pairs of arms, or one of {', '.join(NAMED)}",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--steps", type=int, help="steps of the first arm of a contrast; default: its recipe's")
    budget.add_argument("--tokens", type=int, help="number of tokens that every arm generates")
    parser.add_argument("--questions", type=int, default=500, help="number of held-out questions")
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    parser.add_argument("--recorded", type=Path, help="JSONL file with the rows of finished trainings, extended")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="recipe values for all arms")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    named = NAMED[args.contrasts[0]] if len(args.contrasts) == 1 and args.contrasts[0] in NAMED else args.contrasts
    pairs = [tuple(contrast.split(":")) for contrast in named]
    if any(len(pair) != 2 or not set(pair) <= ARMS.keys() for pair in pairs):
        parser.error(f"a contrast is two of {', '.join(ARMS)}, like grpo:ppo; got {' '.join(args.contrasts)}")
    task = load_task(find_env(ENV))
    task = dataclasses.replace(task, questions=task.questions[: args.questions])
    settings = {key: getattr(args, key) for key in ("questions", "steps", "tokens", "set")}
    recorded = Recorded(args.recorded, settings)
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    steps = [] if args.steps is None else [f"steps={args.steps}"]
    steps = steps if args.tokens is None else tokens_budget(args.tokens)
    with contextlib.redirect_stdout(sys.stderr):  # libraries that print when they are imported
        for seed, (first, second) in itertools.product(args.seeds, pairs):
            rows[first, seed] = row = trained(task, first, seed, [*args.set, *steps], args.out, recorded)
            same = tokens_budget(args.tokens or row["tokens"])
            rows[second, seed] = trained(task, second, seed, [*args.set, *same], args.out, recorded)
    contrasts = [contrast(rows, first, second, args.seeds) for first, second in pairs]
    for row, corrected in zip(contrasts, holm([row["p"] for row in contrasts]), strict=True):
        row["p_holm"] = corrected
    together = len(pairs) <= MOST_IN_ONE
    draw(rows, args.out, panels=None if together else {f"{a} and {b}": (a, b) for a, b in pairs})
    effects = main_effects(rows, args.seeds) if {"sp-both", "sp-neither"} <= {arm for arm, _ in rows} else []
    listed: list[dict[str, Any]] = [{"arm": arm, "seed": seed} | row for (arm, seed), row in sorted(rows.items())]
    shared = [key for key in listed[0] if key not in ("curve", BY_QUESTION) and all(key in row for row in listed)]
    for row in listed:  # seconds per hundredth of EM gained
        row["seconds_per_point"] = round(row["seconds"] / (100 * row["gain"]), 1) if row["gain"] > 0 else None
    shared.append("seconds_per_point")
    listed = [{key: row[key] for key in shared} for row in listed]  # rows recorded earlier may lack what came later
    if args.json:
        emit({"trainings": listed, "contrasts": contrasts, "effects": effects}, True)
        return
    emit_rows(listed, False, "trainings", f"greedy episodes on {len(task.questions)} held-out questions of {ENV}")
    emit_rows(contrasts, False, "contrasts", f"differences over {len(args.seeds)} paired seeds, first arm - second")
    if effects:
        emit_rows(effects, False, "effects", "proposer and waypoints, two by two; p by t, Holm's correction over three")


def tokens_budget(tokens: int) -> list[str]:
    """Returns the recipe values for an arm that ends once it has generated `tokens` tokens."""
    return [f"steps={MANY_STEPS}", f"max_generated_tokens={tokens}"]


def trained(task: Task, arm: str, seed: int, overrides: list[str], out: Path, recorded: Recorded) -> dict[str, Any]:
    """Trains and evaluates an arm, unless an earlier run did; returns its row of the table."""
    return trained_as(task, f"{arm}-{seed}", [*ARMS[arm], *overrides, f"seed={seed}"], out, recorded)


def trained_as(task: Task, name: str, values: list[str], out: Path, recorded: Recorded) -> dict[str, Any]:
    """Trains and evaluates a recipe, given by its name and values, unless a run of that name did; returns its row."""
    row = known(name, out, recorded)
    if row is None:
        print(f"{name} ...", file=sys.stderr, flush=True)
        made = json.dumps(new_row(task, name, values, out))
        building = out / name / ".row.json"
        building.write_text(made, encoding="utf-8")
        building.replace(out / name / ROW)
        row = known(name, out, recorded)
        assert row is not None
    recorded.add(name, row)
    return row


def known(name: str, out: Path, recorded: Recorded) -> dict[str, Any] | None:
    """Returns the row of a training that is finished; None if it is not."""
    if name in recorded.rows:
        return dict(recorded.rows[name])
    record = out / name / ROW
    if not record.is_file():
        return None
    return dict(json.loads(record.read_text(encoding="utf-8"))) | {"curve": curve_of(out / name / "train")}


def new_row(task: Task, name: str, values: list[str], out: Path) -> dict[str, Any]:
    """Trains and evaluates a recipe; returns its row of the table, less the curve."""
    folder = out / name
    recipe = load_recipe(values[0], values[1:])
    task = under(recipe, task)
    before = warm_scores(task, recipe, out)
    started = time.perf_counter()
    result = train(recipe, folder / "train", resume=(folder / "train").exists())
    seconds = time.perf_counter() - started
    after = scores_of(task, recipe, result.checkpoint, folder / "after")
    low, high = bootstrap_ci([after["em"][i] - before["em"][i] for i in sorted(before["em"])])
    scores, reference = means(after), means(before)
    return scores | {
        "gain": scores["em"] - reference["em"],
        "gain_low": low,
        "gain_high": high,
        "before": reference,
        "steps": result.progress.step,
        "tokens": result.progress.generated_tokens,
        "read": result.progress.read_tokens,
        "lr": recipe.optimizer.lr,
        BY_QUESTION: after["em"],
        "by_hops": by_hops(task, after["em"]),
        "collapsed": collapsed([row["rollout/em"] for row in result.rows if "rollout/em" in row]),
        "seconds": round(seconds),
        "minutes": round(sum(row.get("time/draw", 0.0) + row.get("time/learn", 0.0) for row in result.rows) / 60, 1),
    }


def under(recipe: Recipe, task: Task) -> Task:
    """Returns a task with the budgets and the retriever that a recipe trains with, on the task's own questions."""
    options = {name: value for name, value in recipe.env_options.items() if name not in {"questions", "reward"}}
    return load_task(find_env(ENV), questions=task.questions, **options) if options else task


def curve_of(run: Path) -> dict[str, list[float]]:
    """Returns the EM of a training's episodes by step, and the tokens generated and read until then."""
    steps = [row for _, row in iter_jsonl(run / "metrics.jsonl") if "rollout/em" in row]
    names = {"tokens": "generated_tokens", "read": "read_tokens", "em": "rollout/em"}
    return {name: [row[key] for row in steps] for name, key in names.items() if all(key in row for row in steps)}


def warm_scores(task: Task, recipe: Recipe, out: Path) -> dict[str, Any]:
    """Returns the scores of a recipe's agent with its initial models; a second process waits until they are there."""
    name = f"before-{recipe.agent}-{str(recipe.model).replace('/', '-')}"
    with lock_folder(out / f".{name}", wait=3600.0):
        return scores_of(task, recipe, None, out / name)


def scores_of(task: Task, recipe: Recipe, checkpoint: Path | None, out: Path) -> dict[str, Any]:
    """Returns the scores of a recipe's agent, with its initial models or those of a checkpoint.

    EM is given by question id instead of as a mean.
    """
    agent = load_agent(recipe.agent)
    if checkpoint is None:
        keys = keys_of(recipe, agent.roles, agent.name)
        models = {role: key.recipe.model for key in keys for role in key.roles}
    else:
        models = in_checkpoints(dict.fromkeys(agent.roles, str(checkpoint)), agent)
    scores = evaluate_model(task, agent, models, out)
    prompts = [call.start for episode in read_episodes(out / "episodes.jsonl") for call in episode.calls]
    return scores | {"em": em_by_question(out), "longest_prompt": max(prompts)}


def by_hops(task: Task, em: Mapping[str, float]) -> dict[str, float]:
    """Returns EM by the number of pages that a question needs."""
    groups: dict[str, list[float]] = {}
    for question in task.questions:
        groups.setdefault(str(question.metadata["hops"]), []).append(em[question.id])
    return {hops: float(np.mean(values)) for hops, values in sorted(groups.items())}


def main_effects(rows: dict[tuple[str, int], dict[str, Any]], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Returns the effects of proposer, waypoints and both on EM, paired by seed, with Holm's correction over the three.

    A main effect is the mean of its two differences: with and without the other factor.
    """
    arms = ("neither", "proposer", "waypoint", "both")
    neither, proposer, waypoint, both = ems_of([[rows[f"sp-{arm}", seed] for seed in seeds] for arm in arms])
    effects = {
        "proposer": (proposer - neither + both - waypoint) / 2,
        "waypoints": (waypoint - neither + both - proposer) / 2,
        "both against neither": both - neither,
    }
    found, tested = list[dict[str, Any]](), []
    for name, values in effects.items():
        found.append({"effect": name} | tested_differences(values))
        tested.append(found[-1]["p"])
    corrected = holm(tested)
    for row, value in zip(found, corrected, strict=True):
        row["p_holm"] = value
        sign = "wins" if row["difference"] > 0 else "loses"
        row["verdict"] = f"{row['effect']} {sign}" if value < 0.05 and excludes_0(row) else "not resolved"
    return found


def ems_of(arms: Sequence[Sequence[Mapping[str, Any]]]) -> list[npt.NDArray[np.float64]]:
    """Returns the EM of some arms, given by the rows of their seeds, one (seeds, questions) array each.

    Questions are in the order of their ids. If a row lacks them, the arrays are (seeds, 1), of the means.
    """
    if all(BY_QUESTION in row for rows in arms for row in rows):
        return [np.array([[row[BY_QUESTION][id] for id in sorted(row[BY_QUESTION])] for row in rows]) for rows in arms]
    return [np.array([[row["em"]] for row in rows]) for rows in arms]


def excludes_0(row: Mapping[str, Any]) -> bool:
    """Returns whether the interval of a contrast excludes 0; with one seed there is none, and it does not."""
    return row["low"] is not None and not row["low"] <= 0 <= row["high"]


def tested_differences(differences: npt.NDArray[np.float64]) -> dict[str, Any]:
    """Returns the mean of paired differences, its 95 % interval, and the p-value over seeds that it is 0 (t-test).

    Args:
        differences: (seeds, questions); (seeds, 1) if only their means are known, and the interval is Student's then.
    """
    from scipy.stats import t

    by_seed = differences.mean(axis=1)
    alone, several = differences.shape[1] == 1, len(by_seed) > 1
    low, high = (t_interval(by_seed) if alone else two_way_ci(differences)) if several else (None, None)
    error = by_seed.std(ddof=1) / np.sqrt(len(by_seed)) if several else 0.0
    p = 2 * float(t.sf(abs(by_seed.mean()) / error, len(by_seed) - 1)) if error else 1.0
    over = "seeds" if alone else "seeds and questions"
    return {"difference": float(by_seed.mean()), "low": low, "high": high, "over": over, "p": p}


def holm(values: Sequence[float]) -> list[float]:
    """Returns p-values corrected for as many tests (Holm 1979): the smallest times n, the next times n - 1, ..."""
    order, highest, corrected = np.argsort(values), 0.0, [0.0] * len(values)
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, values[place] * (len(values) - rank)))
        corrected[place] = highest
    return corrected


def means(scores: dict[str, Any]) -> dict[str, float]:
    """Returns a row's scores, with EM averaged over questions."""
    return {
        "em": float(np.mean(list(scores["em"].values()))),
        "f1": scores["f1"],
        "title_recall": scores["title_recall"][-1],
        "searches": scores["searches"],
        "longest_prompt": scores["longest_prompt"],
    }


def collapsed(em: list[float]) -> bool:
    """Returns whether a training collapsed: its final EM is below half of its best (see the module docstring)."""
    if len(em) < 5:
        return False
    best = max(np.convolve(em, np.ones(3) / 3, mode="valid"))
    return bool(np.mean(em[-(len(em) // 5) :]) < best / 2)


def contrast(rows: dict[tuple[str, int], dict[str, Any]], first: str, second: str, seeds: list[int]) -> dict[str, Any]:
    """Returns the paired difference in EM between two arms, its interval and the verdict."""
    own = [[rows[arm, seed] for seed in seeds] for arm in (first, second)]
    ems = ems_of(own)
    tested = tested_differences(ems[0] - ems[1])
    wins = (first if tested["difference"] > 0 else second) if excludes_0(tested) else None
    return {
        "contrast": f"{first}:{second}",
        "gain": [float(np.mean([row["gain"] for row in side])) for side in own],
        **{key: tested[key] for key in ("difference", "low", "high", "over", "p")},
        "by seed": (ems[0] - ems[1]).mean(axis=1).tolist(),
        "tokens": [float(np.mean([row["tokens"] for row in side])) for side in own],
        "collapsed": [sum(row["collapsed"] for row in side) for side in own],
        "verdict": f"{wins} wins" if wins else "not resolved",
    }


def draw(
    rows: Mapping[tuple[str, int], Mapping[str, Any]],
    out: Path,
    by: str = "tokens",
    panels: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Plots EM in training against tokens: thin lines for seeds, a thick one for the mean over them.

    Args:
        rows: Rows of trainings by arm and seed.
        out: Folder for ``curves.png``.
        by: What the horizontal axis counts: generated ``tokens``, or those ``read`` by the learner.
        panels: Arms of each panel by its title; one panel of all arms if None. Panels without a training are left out.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    arms = dict.fromkeys(arm for arm, _ in rows)
    shown = {title: [arm for arm in own if arm in arms] for title, own in (panels or {"": list(arms)}).items()}
    shown = {title: own for title, own in shown.items() if own}
    lines = math.ceil(len(shown) / 2)
    size = (8, 5) if len(shown) == 1 else (11, 3.4 * lines)
    figure = Figure(figsize=size, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    for place, (title, own) in enumerate(shown.items(), 1):
        axes = figure.add_subplot(lines, min(2, len(shown)), place, title=title, xlabel=AXES[by])
        axes.set_ylabel("EM of training episodes, mean of three steps", fontsize="small")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        for number, arm in enumerate(own):
            _draw_arm(axes, f"C{number}", arm, [row["curve"] for (name, _), row in rows.items() if name == arm], by)
        axes.legend(fontsize="small" if len(own) < 7 else "x-small", ncols=math.ceil(len(own) / 6))
        axes.grid(alpha=0.3)
    out.mkdir(parents=True, exist_ok=True)
    canvas.print_png(out / "curves.png")  # type: ignore[no-untyped-call]


def _draw_arm(axes: Any, colour: str, arm: str, curves: Sequence[Mapping[str, Any]], by: str) -> None:
    """Draws an arm's curves, and their mean over the range that every one of them covers."""
    smooth = [
        (curve[by][2:], np.convolve(curve["em"], np.ones(3) / 3, mode="valid"))
        for curve in curves
        if len(curve["em"]) >= 3
    ]
    for tokens, em in smooth:
        axes.plot(tokens, em, color=colour, alpha=0.25, linewidth=0.8)
    if smooth:
        grid = np.linspace(max(tokens[0] for tokens, _ in smooth), min(tokens[-1] for tokens, _ in smooth), 50)
        mean = np.mean([np.interp(grid, tokens, em) for tokens, em in smooth], axis=0)
        axes.plot(grid, mean, color=colour, linewidth=2.2, label=f"{arm} ({len(smooth)})")


if __name__ == "__main__":
    main()
