"""Search for the shares in which data should be mixed, by merging models that were trained on each kind alone."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from searchgym.agents.base import LoadedAgent
from searchgym.corpora.files import iter_jsonl
from searchgym.envs.task import Task
from searchgym.errors import UsageError
from searchgym.eval.run_folder import QUESTIONS
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.rollout.foreign.merging import merge_checkpoints
from searchgym.rollout.models import Loading, opened_models

Floats = npt.NDArray[np.float64]
RIDGE: Final = 1e-6
"""Weight of the squared coefficients in a fit."""
GRID: Final = 20
"""Number of steps of a share from 0 to 1 in the search for the best mixture."""


def mixtures(experts: int, points: int, seed: int) -> Floats:
    """Returns mixtures to measure, (points, experts) shares with sum 1: each expert alone, the mean, then random ones.

    Raises:
        UsageError: There is one expert, or there are too few points to fit a surface of second degree.
    """
    least = experts * (experts + 1) // 2
    if experts < 2:
        raise UsageError("a mixture needs two experts or more: models trained from one base, each on one kind of data")
    if points < least + 1:
        raise UsageError(f"points is {points}: {experts} experts need {least + 1} or more")
    fixed = np.vstack([np.eye(experts), np.full((1, experts), 1 / experts)])
    others = np.random.default_rng(seed).dirichlet(np.ones(experts), points - len(fixed))
    return np.vstack([fixed, others])


def best_mixture(shares: Floats, scores: Floats) -> tuple[Floats, Floats]:
    """Returns the mixture with the highest mean score by a fitted surface of second degree, and the scores there.

    Source: MergeMix, arXiv 2601.17858: experts from one base are merged in many ratios, a regression predicts each
    capability from the ratio, and the ratio with the best mean is that of the data. Deviations: a surface of second
    degree (theirs: LightGBM on about 40 points), searched on a grid.

    Args:
        shares: (points, experts) measured mixtures.
        scores: (points, capabilities) their scores.

    Returns:
        (experts,) shares with sum 1, and (capabilities,) predicted scores.
    """
    inputs = _second_degree(shares)
    fitted = np.linalg.solve(inputs.T @ inputs + RIDGE * np.eye(inputs.shape[1]), inputs.T @ scores)
    steps = itertools.product(range(GRID + 1), repeat=shares.shape[1] - 1)
    grid = np.array([(*row, GRID - sum(row)) for row in steps if sum(row) <= GRID]) / GRID
    predicted = _second_degree(grid) @ fitted
    best = int(np.argmax(predicted.mean(axis=1)))
    return grid[best], predicted[best]


def _second_degree(shares: Floats) -> Floats:
    """Returns the products of each two shares, (points, experts (experts + 1) / 2).

    Since shares add up to 1, these also span what is constant and linear.
    """
    pairs = list(itertools.combinations_with_replacement(range(shares.shape[1]), 2))
    return np.stack([shares[:, i] * shares[:, j] for i, j in pairs], axis=1)


def measure(
    experts: Sequence[str],
    shares: Floats,
    task: Task,
    agent: LoadedAgent,
    report: Callable[[int, int], None],
) -> tuple[list[str], Floats]:
    """Merges the experts in each mixture, and evaluates the merged models greedily.

    Args:
        experts: Folders or names of models.
        shares: (points, experts) mixtures.
        task: Questions, whose kinds are the capabilities.
        agent: Agent of one model.
        report: Called with (points done, points in total).

    Returns:
        Names of the kinds, and (points, kinds) EM.
    """
    rows = list[Mapping[str, float]]()
    for number, mixture in enumerate(shares):
        used = [(expert, float(share)) for expert, share in zip(experts, mixture, strict=True) if share]
        with tempfile.TemporaryDirectory() as temporary:
            folder: str | Path = used[0][0]
            if len(used) > 1:
                merged = Path(temporary) / "model"
                folder = merge_checkpoints([name for name, _ in used], [share for _, share in used], merged)
            rows.append(_by_kind(task, agent, str(folder), Path(temporary) / "run"))
        report(number + 1, len(shares))
    kinds = sorted(rows[0])
    return kinds, np.array([[row[kind] for kind in kinds] for row in rows])


def _by_kind(task: Task, agent: LoadedAgent, model: str, out: Path) -> dict[str, float]:
    """Returns the EM of a model on each kind of question."""
    named: dict[str, str | Path] = dict.fromkeys(agent.roles, model)
    with opened_models(named, task.rules.protocol, Loading()) as models:
        evaluate(task, agent, out, models, EvalOptions())
    em: dict[str, list[float]] = {}
    for _, row in iter_jsonl(out / QUESTIONS):
        em.setdefault(task.by_id[row["id"]].kind or "all", []).append(row["em"])
    return {kind: float(np.mean(values)) for kind, values in em.items()}
