"""Tokens, seconds and memory of each turn in an episode of many turns: `asearcher` beside the monolithic agent.

    python studies/long_horizon/long_horizon.py --turns 60 --model tiny-teams \
        --out studies/long_horizon/long_horizon.png

The question follows a chain of pages, one search for each, so that an episode of 60 turns has 59 searches. What both
agents write is dictated by an oracle; the model reads every prompt and writes as many tokens as asked for, which are
thrown away. A turn's tokens are those of its longest prompt, its memory is what the process needed beyond what it held
before the turn's calls (memory that is free goes back to the system first). Neither memory nor seconds are measured
where a prompt leaves no room in the model's window. Linux only: memory is read in /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import gc
import itertools
import json
import math
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from searchgym.agents.teams.oracle import ORACLES, SearcherOracle
from searchgym.envs import Task, find_env, load_task
from searchgym.records import Hop, Passage, Question, SupportingFact, Triple
from searchgym.retrieval import build_in_memory
from searchgym.rollout import TokenFormat
from searchgym.rollout.sampler import Sampled, SampleRequest, Sampling
from searchgym.rollout.transformers.sampler import load_sampler
from searchgym.train.demonstrations.teams import QueuedSampler, play_team

AGENTS: Final = {"asearcher": ORACLES["asearcher"], "search-r1": SearcherOracle}
"""Agents that are compared, with their oracles."""


def chain(hops: int) -> tuple[list[Passage], Question]:
    """Returns pages that name each other in a chain, and the question for the name after so many steps.

    Args:
        hops: Number of pages that the question needs.
    """
    names = [f"{'BDFGKLMNPRSTVZ'[i % 14]}{'aeiou'[i % 5]}r{'aeiou'[i // 5 % 5]}l{i}" for i in range(hops + 1)]
    pages = [
        Passage(f"p{i}", name, f"{name} is a keeper of the seal. {name} was followed as keeper by {following}.")
        for i, (name, following) in enumerate(itertools.pairwise(names))
    ]
    pages += [Passage(f"n{i}", f"Note {i}", f"The seal of note {i} has no keeper.") for i in range(20)]
    steps = tuple(Hop(f"Who followed {names[0] if i == 0 else f'#{i}'} as keeper?", names[i + 1]) for i in range(hops))
    question = Question(
        "chain",
        f"Begin with {names[0]} and go on to the next keeper of the seal {hops} times. Whose name is it?",
        (names[-1],),
        supporting_facts=tuple(SupportingFact(name, 1) for name in names[:-1]),
        evidences=tuple(Triple(a, "followed by", b) for a, b in itertools.pairwise(names)),
        hops=steps,
    )
    return pages, question


def chain_task(hops: int) -> tuple[Task, list[str]]:
    """Returns the task of one such question, with a turn for each page and for the answer, and the supporting quotes.

    Args:
        hops: Number of pages that the question needs.
    """
    pages, question = chain(hops)
    task = load_task(
        find_env("searchgym/World-v0"),
        questions=[question],
        retriever=build_in_memory(pages),
        max_turns=hops + 1,
    )
    return task, [page.text.split(". ")[1] for page in pages[:hops]]


@dataclass(slots=True)
class Cost:
    """Cost of one call of a model."""

    tokens: int
    """Tokens of the prompt."""
    seconds: float
    """Wall-clock seconds; NaN where the model had no room for the prompt, or there is none."""
    mebibytes: float
    """Memory of the process at its peak during the call, beyond what it held before; NaN as for the seconds."""


class Measured(QueuedSampler):
    """Sampler that hands out dictated replies and has a real model read each prompt.

    Args:
        model: Name or folder of the model; None measures prompts only.
        written: Number of tokens that the model writes each time.
    """

    def __init__(self, model: str | None, written: int = 32) -> None:
        super().__init__()
        self._model = None if model is None else load_sampler(model)[0]
        self._written = written
        self.costs: list[Cost] = []

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Returns the dictated replies; measures the model on the same prompts."""
        self.costs += [self._cost(request) for request in requests]
        return super().sample(requests)

    def _cost(self, request: SampleRequest) -> Cost:
        """Has the model read a prompt and returns what that cost."""
        if self._model is None or len(request.ids) >= self._model.max_context:
            return Cost(len(request.ids), math.nan, math.nan)
        _give_back()
        before, began = _memory("VmRSS"), time.perf_counter()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
        self._model.sample([SampleRequest(request.ids, Sampling(self._written, 1.0), request.seed)])
        seconds, most = time.perf_counter() - began, _memory("VmHWM")
        return Cost(len(request.ids), seconds, max(0.0, most - before))


def _give_back() -> None:
    """Gives memory that is free back to the system, so that the next call's need is seen."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _memory(name: str) -> float:
    """Returns a figure of this process's memory in MiB."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    return 0.0 if found is None else int(found[1]) / 1024


def run(agent: str, turns: int, model: str | None, tokenizer: Any) -> tuple[float, list[Cost]]:
    """Returns an episode's exact match and the cost of each of its turns (the largest of its calls, seconds summed).

    Args:
        agent: One of `AGENTS`.
        turns: Number of turns, the answer included.
        model: Model that reads the prompts; None for none.
        tokenizer: Tokenizer of the model.
    """
    task, quotes = chain_task(turns - 1)
    question, sampler = task.questions[0], Measured(model)
    form = TokenFormat(tokenizer, task.rules.protocol, chat=True)
    (episode,) = play_team(agent, task, {question.id: AGENTS[agent](question, quotes)}, form, sampler)
    by_turn: dict[int, list[Cost]] = {}
    calls, turn = [call.role for call in episode.calls], 0
    for role, cost in zip(calls, sampler.costs, strict=True):
        turn += role == "searcher"  # the summariser belongs to the turn whose result it reads
        by_turn.setdefault(turn, []).append(cost)
    costs = [
        Cost(max(c.tokens for c in own), sum(c.seconds for c in own), max(c.mebibytes for c in own))
        for own in by_turn.values()
    ]
    return episode.scores["em"], costs


def draw(found: dict[str, list[Cost]], path: Path) -> None:
    """Draws tokens, memory and seconds by turn.

    Args:
        found: Agent to the costs of its turns.
        path: Image file to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
    for (name, label), axis in zip(
        [("tokens", "tokens of a prompt"), ("mebibytes", "memory of a call, MiB"), ("seconds", "seconds of a turn")],
        axes,
        strict=True,
    ):
        for agent, costs in found.items():
            axis.plot(range(1, len(costs) + 1), [getattr(cost, name) for cost in costs], label=agent)
        axis.set_xlabel("turn")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def shown(found: dict[str, list[Cost]]) -> str:
    """Returns the costs of some turns as a table.

    Args:
        found: Agent to the costs of its turns.
    """
    turns = len(next(iter(found.values())))
    lines = [
        f"{'turn':>5}" + "".join(f"  {agent:>28}" for agent in found),
        "     " + f"  {'tokens':>8} {'MiB':>9} {'seconds':>9}" * len(found),
    ]
    for turn in sorted({1, 2, *range(10, turns, 10), turns}):
        row = (costs[turn - 1] for costs in found.values())
        lines.append(f"{turn:>5}" + "".join(f"  {c.tokens:>8} {c.mebibytes:>9.1f} {c.seconds:>9.2f}" for c in row))
    return "\n".join(lines).replace("nan", "  -") + "\n"


def main() -> None:
    """Measures both agents, prints a table and draws the figure."""
    parser = argparse.ArgumentParser(description="Tokens, seconds and memory by turn of a long episode.")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--model", default="tiny-teams")
    parser.add_argument("--out", type=Path, help="image file of the figure")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.turns < 2:
        parser.error("--turns must be at least 2")
    rows, found = list[dict[str, Any]](), dict[str, list[Cost]]()
    with contextlib.redirect_stdout(sys.stderr):
        tokenizer = load_sampler(given.model)[1]
        for agent in AGENTS:
            sys.stderr.write(f"{agent} ...\n")
            em, costs = run(agent, given.turns, given.model, tokenizer)
            found[agent] = costs
            rows.append({"agent": agent, "em": em, "turns": [_row(cost) for cost in costs]})
    if given.out is not None:
        draw(found, given.out)
    if given.json:
        sys.stdout.write(json.dumps({"results": rows}) + "\n")
        return
    for row in rows:
        sys.stdout.write(f"{row['agent']}: {len(row['turns'])} turns, exact match {row['em']:g}\n")
    sys.stdout.write(shown(found))


def _row(cost: Cost) -> dict[str, float | None]:
    """Returns a cost as plain data; None where nothing was measured."""
    return {name: None if math.isnan(value) else value for name, value in dataclasses.asdict(cost).items()}


if __name__ == "__main__":
    main()
