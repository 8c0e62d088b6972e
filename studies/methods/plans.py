"""What M-ASK's team did in its training: parts of its plans, searches, and when it ended.

    python studies/methods/plans.py runs/mask/ppo-mask-0/train [RUN ...] [--recorded FILE] [--json]

Each run is cut into thirds of its steps. Questions of several hops only: the share of plans of one part, searches per
episode, EM, legal plans; and the share of turns that ended the episode, by hops and by the score s of the answer that
stood then (0 or above). Runs are named ARM-SEED; between two arms of the same seeds, how much more the share of plans
of one part grew from the first third to the last, with a paired 95 % t-interval. ``--recorded`` keeps the rows;
with it, the folders of earlier runs are not needed.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from recorded import Recorded

from searchgym.agents.mask import read_plan, read_search
from searchgym.cli.output import emit, emit_rows
from searchgym.envs import Task
from searchgym.eval import t_interval
from searchgym.eval.viewing.saved import SavedRun
from searchgym.records import Episode
from searchgym.train.loop.assembly import load_tasks


def ends(episode: Episode, task: Task) -> list[tuple[float, bool]]:
    """Returns (score of the answer that stood, whether the search role ended the episode) of each of its calls."""
    from searchgym.train.credit.credit import Credit
    from searchgym.train.credit.terms.gain import Gain

    gains = Credit.of({"gain": Gain()}, {}, lambda: task).allocate([episode])[0]
    found, score = list[tuple[float, bool]](), 0.0
    for call, gain in zip(episode.calls, gains, strict=True):
        if call.role == "search":
            found.append((score, read_search(call.text).value is None))
        score += gain
    return found


def row_of(name: str, part: str, episodes: Sequence[Episode], task: Task) -> dict[str, Any]:
    """Returns what the team did in some episodes."""
    hops = {episode.id: task.find(episode.question_id).metadata["hops"] for episode in episodes}
    several = [episode for episode in episodes if hops[episode.id] > 1]
    plans = [read_plan(e.calls[0].text, task.find(e.question_id).text) for e in several if e.calls]
    row: dict[str, Any] = {
        "run": name,
        "steps": part,
        "episodes": len(several),
        "one part": np.mean([len(plan.value.slots) == 1 for plan in plans]),
        "legal plans": np.mean([plan.legal for plan in plans]),
        "searches": np.mean([len(episode.searches) for episode in several]),
        "em": np.mean([episode.scores["em"] for episode in several]),
    }
    for number in (1, 2, 3):
        turns = [turn for e in episodes if min(hops[e.id], 3) == number for turn in ends(e, task)]
        for label, above in (("s = 0", False), ("s > 0", True)):
            ended = [end for score, end in turns if (score > 0) == above]
            row[f"{number}{'+' if number == 3 else ''} hops, {label}"] = np.mean(ended) if ended else None
    return {key: None if value is None else value if isinstance(value, (str, int)) else round(float(value), 3)
            for key, value in row.items()}  # fmt: skip


def rows_of(run: Path) -> list[dict[str, Any]]:
    """Returns one row for each third of a run's steps."""
    saved = SavedRun.read(run)
    assert saved.recipe is not None
    task = load_tasks(saved.recipe)[0]
    by_step: dict[int, list[Episode]] = {}
    for episode in saved.episodes.values():
        step = int(re.findall(r"\d+", episode.group_uid or "0")[0])
        by_step.setdefault(step, []).append(episode)
    thirds = np.array_split(sorted(by_step), 3)
    return [
        row_of(run.parent.name, f"{part[0] + 1}-{part[-1] + 1}", [e for step in part for e in by_step[step]], task)
        for part in thirds
        if len(part)
    ]


def growth(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns one row for each pair of arms: the difference in growth of the share of plans of one part."""
    by_run: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        arm, _, seed = row["run"].rpartition("-")
        by_run.setdefault((arm, seed), []).append(row["one part"])
    grown = {key: shares[-1] - shares[0] for key, shares in by_run.items()}
    found = []
    for first, second in itertools.combinations(dict.fromkeys(arm for arm, _ in grown), 2):
        seeds = [seed for arm, seed in grown if arm == first and (second, seed) in grown]
        if len(seeds) > 1:
            own = [np.mean([grown[arm, seed] for seed in seeds]) for arm in (first, second)]
            low, high = t_interval([grown[first, seed] - grown[second, seed] for seed in seeds])
            row = {"arms": f"{first}:{second}", "seeds": len(seeds), "difference": own[0] - own[1], "low": low}
            found.append(row | {"high": high, "growth of the first": own[0], "of the second": own[1]})
    return [{k: v if isinstance(v, (str, int)) else round(float(v), 3) for k, v in row.items()} for row in found]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--recorded", type=Path, help="JSONL file with the rows of runs, extended")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    recorded, found = Recorded(given.recorded, {}), dict[str, list[dict[str, Any]]]()
    for run in given.runs:
        if run.parent.name not in recorded.rows:
            found[run.parent.name] = rows_of(run)
            recorded.add(run.parent.name, {"thirds": found[run.parent.name]})
    known = {name: row["thirds"] for name, row in recorded.rows.items()} | found
    rows = [row for _, thirds in sorted(known.items()) for row in thirds]
    grown = growth(rows)
    if given.json:
        emit({"results": rows, "growth": grown}, True)
    else:
        emit_rows(rows, False, "plans", "questions of several hops; the last six columns: share of turns that ended")
        if grown:
            emit_rows(grown, False, "growth", "growth of the share of plans of one part, first arm less second")


if __name__ == "__main__":
    main()
