"""Self-play in figures: whose questions are valid, and what a proposer and waypoints would do with recorded trainings.

    python studies/selfplay/selfplay.py [--size 2000] [--proposals 20000] [--json]
    python studies/selfplay/selfplay.py RUN [RUN ...] [--json]

Without runs, three proposers draw logical forms on the train world of ``tiny-grpo``, and look-up says how many have
exactly one answer: *blind* draws an entity and names of relations (a question about an isolated entity), *kinds* knows
which relation fits which kind of entity, *path* walks the graph. Forms per second are those of the path proposer with
its policy, and with its words.

With run folders of ``searchgym train`` on worlds, recorded step by step, two tables. *Replay*: a policy that has seen
the earlier steps picks the better half of each step's questions, from the fifth step on; the share of groups with
signal (neither all right nor all wrong) in it, less that in all of the step, with a 95 % bootstrap interval over all
steps of all runs. *Waypoints*: the share of groups in which rewards differ, by the outcome and with the credit term
``waypoint``, with a 95 % bootstrap interval over groups.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from searchgym.cli.output import emit, emit_rows
from searchgym.eval import bootstrap_ci
from searchgym.eval.viewing.rewards import credit_of
from searchgym.eval.viewing.saved import SavedRun
from searchgym.options import Named
from searchgym.questions.graphs.graph import Form, Graph, evaluate
from searchgym.questions.worlds.schema import LITERALS, RELATIONS, WorldSpec
from searchgym.records import Episode, Question
from searchgym.train.credit.term import Term
from searchgym.train.credit.terms.outcome import Outcome
from searchgym.train.credit.terms.waypoint import Waypoint
from searchgym.train.loop.assembly import load_tasks
from searchgym.train.selfplay.arms import Arm, ArmPolicy, signal
from searchgym.train.selfplay.kinds.path import LearningProposer
from searchgym.train.selfplay.proposer import PathProposer, pass_rates
from searchgym.train.selfplay.worlds import WorldGround

FIRST = 4
"""0-based step from which on a replay chooses."""
LEVELS = ("hops", "shape", "last", "relations")


def blind(graph: Graph, hops: int, rng: random.Random) -> Form:
    """Returns a chain from a random entity over random names of relations."""
    steps = [rng.choice([name for name in RELATIONS if not RELATIONS[name].held_out]) for _ in range(hops)]
    return {"op": "path", "start": rng.choice(list(graph.entities)), "steps": steps}


def by_kinds(graph: Graph, hops: int, rng: random.Random) -> Form:
    """Returns a chain from a random entity over relations that fit the kinds on the way, whatever the facts are."""
    while True:
        start, steps = rng.choice(list(graph.entities)), list[str]()
        kind = graph.entities[start].kind
        while len(steps) < hops:
            last = len(steps) + 1 == hops
            fits = [r for r in RELATIONS.values() if r.subject == kind and not r.held_out]
            fits = [r for r in fits if last or r.object not in LITERALS]
            if not fits:
                break
            chosen = rng.choice(fits)
            steps.append(chosen.name)
            kind = chosen.object
        if len(steps) == hops:
            return {"op": "path", "start": start, "steps": steps}


def validity(size: int, proposals: int) -> list[dict[str, Any]]:
    """Returns one row per proposer and number of hops: the share of forms with exactly one answer."""
    spec, rows = WorldSpec("simple", split="train", size=size, seed=1), []
    for hops in (1, 2, 3):
        ground = WorldGround(spec, [hops], 0)
        rng = random.Random(hops)
        forms: dict[str, Iterator[Form]] = {
            "blind": (blind(ground.graph, hops, rng) for _ in range(proposals)),
            "kinds": (by_kinds(ground.graph, hops, rng) for _ in range(proposals)),
            "path": walked(ground, proposals),
        }
        for name, drawn in forms.items():
            valid = [len(evaluate(ground.graph, form)) == 1 for form in drawn]
            rows.append({"proposer": name, "hops": hops, "forms": len(valid), "valid": float(np.mean(valid))})
    return rows


def walked(ground: WorldGround, count: int) -> Iterator[Form]:
    """Yields up to `count` forms of chains, from each arm in turn."""
    walks = [ground.walks(arm) for arm in ground.arms if arm.op == "path"]
    while walks and count:
        for walk in list(walks):
            form = next(walk, None)
            if form is None:
                walks.remove(walk)
            elif count:
                count -= 1
                yield form


def speed(size: int, forms: int) -> list[dict[str, Any]]:
    """Returns forms per second: walks alone, and proposals that were drawn by the policy, checked and worded."""
    ground = WorldGround(WorldSpec("simple", split="train", size=size, seed=1), [1, 2, 3, 4], 0)
    timed = []
    for _ in range(3):
        started = time.perf_counter()
        count = sum(len(evaluate(ground.graph, form)) == 1 for form in walked(ground, forms))
        timed.append(count / (time.perf_counter() - started))
    proposer = PathProposer(ground, LearningProposer(), 0)
    started = time.perf_counter()
    made = [question for step in range(max(forms // 500, 1)) for question in proposer.draw(step, 500)]
    words = len(made) / (time.perf_counter() - started)
    texts = {str(question.metadata["form"]) for question in made}
    return [
        {"what": "walks with one answer", "per second": float(np.median(timed)), "distinct forms": None},
        {"what": "chosen and worded", "per second": words, "distinct forms": len(texts) / len(made)},
    ]


# -- recorded trainings --------------------------------------------------------------------------------------------

Steps = Mapping[int, Mapping[str, list[Episode]]]
"""Episodes by 0-based step and question id."""


def recorded(run: Path) -> tuple[SavedRun, Steps, dict[str, Question]]:
    """Returns a run with its episodes by step and question, and its questions."""
    saved = SavedRun.read(run)
    assert saved.recipe is not None
    questions = {question.id: question for question in load_tasks(saved.recipe)[0].questions}
    steps: defaultdict[int, defaultdict[str, list[Episode]]] = defaultdict(lambda: defaultdict(list))
    for episode in saved.episodes.values():
        if episode.question_id in questions:
            step = int(re.findall(r"\d+", episode.group_uid or "0")[0])
            steps[step][episode.question_id].append(episode)
    return saved, steps, questions


def arm_of(question: Question) -> Arm:
    """Returns the arm of a world's question."""
    form = question.metadata["form"]
    steps = form["steps"] if form["op"] == "path" else form["paths"][0]["steps"]
    return Arm(question.kind or "", question.metadata["hops"], form["op"], steps[0], steps[-1])


def replay(level: str, steps: Steps, questions: Mapping[str, Question]) -> Iterator[tuple[float, float]]:
    """Yields for each step from the fifth on the shares of groups with signal: in all, and in the half chosen."""
    arms = sorted({arm_of(question) for question in questions.values()})
    policy = ArmPolicy(arms, level, 0.15)  # type: ignore[arg-type]
    for step in sorted(steps):
        asked = [questions[name] for name in steps[step]]
        rates, attempts = pass_rates(asked, [e for group in steps[step].values() for e in group])
        own = [arm_of(question) for question in asked]
        mixed = np.array([0 < rate < 1 for rate in rates])
        if step >= FIRST:
            order = np.argsort(-policy.values(own), kind="stable")[: len(asked) // 2]
            yield float(mixed.mean()), float(mixed[order].mean())
        policy.learn(own, signal(rates, attempts))


def replays(runs: Sequence[Any]) -> list[dict[str, Any]]:
    """Returns one row per level of arms over all runs, and one per level and run."""
    rows = []
    for level in LEVELS:
        pairs = [list(replay(level, steps, questions)) for _, steps, questions in runs]
        for name, some in [("all", [p for run in pairs for p in run]), *((str(n), run) for n, run in enumerate(pairs))]:
            gains = [chosen - every for every, chosen in some]
            low, high = bootstrap_ci(gains)
            rows.append(
                {
                    "arms by": level,
                    "run": name,
                    "steps": len(some),
                    "all questions": float(np.mean([every for every, _ in some])),
                    "chosen half": float(np.mean([chosen for _, chosen in some])),
                    "gain": float(np.mean(gains)),
                    "low": low,
                    "high": high,
                }
            )
    return rows


def with_waypoints(runs: Sequence[Any]) -> list[dict[str, Any]]:
    """Returns one row per shape, and one over all: the share of groups with signal without and with waypoints."""
    found: defaultdict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for saved, steps, questions in runs:
        every = Named[Term](outcome=Outcome()), Named[Term](outcome=Outcome(), waypoint=Waypoint())
        terms = [credit_of(dataclasses.replace(saved.recipe, credit=own)) for own in every]
        for groups in steps.values():
            for name, group in groups.items():
                outcome, both = (len({round(sum(row), 9) for row in credit.allocate(group)}) > 1 for credit in terms)
                found["all"].append((outcome, both))
                found[f"{questions[name].kind} {questions[name].metadata['hops']}"].append((outcome, both))
    rows = []
    for shape, groups in sorted(found.items()):
        gains = [float(both) - float(outcome) for outcome, both in groups]
        low, high = bootstrap_ci(gains)
        shares = np.mean(groups, axis=0)
        rows.append(
            {
                "questions": shape,
                "groups": len(groups),
                "outcome": float(shares[0]),
                "with waypoints": float(shares[1]),
                "gain": float(np.mean(gains)),
                "low": low,
                "high": high,
            }
        )
    return rows


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN")
    parser.add_argument("--size", type=int, default=2000, help="questions of the world, which set its pages")
    parser.add_argument("--proposals", type=int, default=20_000, help="forms per proposer and number of hops")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    if given.runs:
        runs = [recorded(run) for run in given.runs]
        tables = {"replay": replays(runs), "waypoints": with_waypoints(runs)}
    else:
        tables = {"validity": validity(given.size, given.proposals), "speed": speed(given.size, given.proposals)}
    if given.json:
        emit(tables, True)
        return
    for name, rows in tables.items():
        emit_rows(rows, False, name, name)


if __name__ == "__main__":
    main()
