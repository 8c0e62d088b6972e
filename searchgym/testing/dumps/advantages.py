"""Checks of groups, rewards and advantages, by formulas written here from their definitions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from searchgym.errors import UnknownNameError
from searchgym.testing.dumps.finding import Report
from searchgym.testing.dumps.sample import DumpedSample, Floats

ALLOWED: Final = 0.01
"""Maximum difference of an advantage from its formula, as a share of the largest advantage of the batch."""
CHANCE: Final = -25.0
"""Log-probability of a response below which a group has it twice by no chance."""
Groups = list[list[int]]
"""Indices of the samples of each group."""
Formula = Callable[[Floats, Groups, Floats, float], Floats]
"""Function from rewards, groups, numbers of trained tokens and an epsilon to the advantage of each sample."""


def _centred(rewards: Floats, groups: Groups) -> Floats:
    centred = np.zeros(len(rewards))
    for group in groups:
        centred[group] = rewards[group] - np.mean(rewards[group])
    return centred


def _grpo(rewards: Floats, groups: Groups, counts: Floats, epsilon: float) -> Floats:
    advantages = _centred(rewards, groups)
    for group in groups:
        advantages[group] /= (np.std(rewards[group], ddof=1) if len(group) > 1 else 1.0) + epsilon
    return advantages


def _grpo_batch(rewards: Floats, groups: Groups, counts: Floats, epsilon: float) -> Floats:
    return _centred(rewards, groups) / (np.std(rewards, ddof=1) + epsilon)


def _rloo(rewards: Floats, groups: Groups, counts: Floats, epsilon: float) -> Floats:
    advantages = np.zeros(len(rewards))
    for group in groups:
        for index in group:
            others = [rewards[other] for other in group if other != index]
            advantages[index] = rewards[index] - np.mean(others) if others else 0.0
    return advantages


def _white(values: Floats, counts: Floats) -> Floats:
    """Centres and scales values as one number for each trained token."""
    mean = float((values * counts).sum() / counts.sum())
    spread = np.sqrt(((values - mean) ** 2 * counts).sum() / counts.sum())
    white: Floats = (values - mean) / max(float(spread), 1e-4)
    return white


ESTIMATORS: Final[dict[str, Formula]] = {
    "grpo": _grpo,
    "grpo-no-std": lambda rewards, groups, counts, epsilon: _centred(rewards, groups),
    "grpo-batch-std": _grpo_batch,
    "rloo": _rloo,
    "reinforce++": lambda rewards, groups, counts, epsilon: _white(rewards, counts),
    "reinforce++-baseline": lambda rewards, groups, counts, epsilon: _white(_centred(rewards, groups), counts),
}
"""Estimators of advantages, each of one number for a sequence."""


def estimator_name(name: str, aliases: dict[str, str]) -> str:
    """Returns the name in `ESTIMATORS` of an estimator, which may be named as in a framework's configuration.

    Raises:
        UnknownNameError: There is no such estimator.
    """
    if name in aliases or name in ESTIMATORS:
        return aliases.get(name, name)
    raise UnknownNameError("estimator", name, [*ESTIMATORS, *aliases])


def check_groups(samples: Sequence[DumpedSample], report: Report) -> None:
    """Checks that each group has several attempts, all at one prompt."""
    members: dict[str, list[DumpedSample]] = defaultdict(list)
    for sample in samples:
        if sample.group is not None:
            members[sample.group].append(sample)
    if not members:
        report.unchecked["groups"] = "the dump names no groups"
        return
    report.checked["groups"] = f"{len(members)} groups of {min(map(len, members.values()))} or more"
    for group, rows in members.items():
        if len(rows) == 1 and len(samples) > 1:
            report.add("group-of-one", rows[0].name, f"group {group} has one sample")
        length = None if all(row.prompt for row in rows) else min(len(row.prompt_ids) for row in rows)
        prompts = Counter(row.prompt_ids[:length].tobytes() for row in rows)
        usual = prompts.most_common(1)[0][0]
        for row in rows:
            if row.prompt_ids[:length].tobytes() != usual:
                detail = f"group {group} has {len(prompts)} prompts; most of it is not at this one"
                report.add("group-mixed", row.name, detail)


def check_repeats(samples: Sequence[DumpedSample], report: Report) -> None:
    """Checks that no response stands twice in a group that is too unlikely for it; the log-probs must be sound."""
    if any(finding.kind.startswith("logp") for finding in report.findings):
        return
    first: dict[tuple[str | None, bytes], str] = {}
    for sample in samples:
        logp = sample.sampled_logp
        name = first.setdefault((sample.group, sample.ids[sample.mask].tobytes()), sample.name)
        total = 0.0 if logp is None else float(np.nansum(logp[sample.mask]))
        if name != sample.name and sample.group is not None and total < CHANCE:
            detail = f"group {sample.group}: the response of {name} again, of probability exp({total:.0f})"
            report.add("sample-twice", sample.name, detail)


def check_rewards(samples: Sequence[DumpedSample], report: Report) -> None:
    """Checks that rewards of single tokens are at the ends of turns."""
    rows = [sample for sample in samples if sample.token_reward is not None]
    for sample in rows:
        assert sample.token_reward is not None
        ends = {end - 1 for _, end in sample.spans} | {len(sample.ids) - 1}
        wrong = [int(n) for n in np.flatnonzero(np.nan_to_num(sample.token_reward)) if n not in ends]
        if wrong:
            detail = f"reward {sample.token_reward[wrong[0]]:g} at token {wrong[0]}, which ends no turn"
            report.add("reward-misplaced", sample.name, detail, wrong)
        elif sample.padding_reward:
            report.add("reward-misplaced", sample.name, f"reward {sample.padding_reward:g} at padding")
    if rows:
        report.checked["places of rewards"] = f"{len(rows)} samples"


def check_advantages(samples: Sequence[DumpedSample], estimator: str | None, epsilon: float, report: Report) -> None:
    """Checks that advantages follow from rewards.

    Args:
        samples: All samples of the batch.
        estimator: Name in `ESTIMATORS`; None if the user named none.
        epsilon: Number that the framework adds to deviations.
        report: Receives the findings.
    """
    rows = [sample for sample in samples if sample.advantage is not None]
    trained = np.array([sample.mask.any() for sample in rows], bool)  # others still count in their groups
    if not trained.any():
        report.unchecked["advantages"] = "the dump has none"
        return
    values = np.array([_one_value(sample, report) if sample.mask.any() else 0.0 for sample in rows])
    if any(sample.reward is None or not np.isfinite(sample.reward) for sample in rows) or not np.isfinite(values).all():
        report.unchecked["advantages"] = "not compared with rewards: the dump lacks rewards, or numbers are not finite"
        return
    keys = [sample.group if sample.group is not None else sample.prompt_ids.tobytes().hex() for sample in rows]
    groups = [[n for n, key in enumerate(keys) if key == group] for group in dict.fromkeys(keys)]
    rewards = np.array([sample.reward for sample in rows], np.float64)
    counts = np.array([sample.mask.sum() for sample in rows], np.float64)
    expected = {name: formula(rewards, groups, counts, epsilon) for name, formula in ESTIMATORS.items()}
    scale = max(float(np.abs(values).max()), 1e-6)
    fits = [name for name, right in expected.items() if np.abs(values - right)[trained].max() <= ALLOWED * scale]
    if estimator is None:
        names = f"they follow {' or '.join(fits)}" if fits else "they follow none of " + ", ".join(ESTIMATORS)
        report.unchecked["advantages"] = f"no --estimator to compare with; {names}"
        return
    report.checked["advantages"] = f"{len(rows)} samples in {len(groups)} groups, by {estimator}"
    right = expected[estimator]
    wrong = np.flatnonzero(trained & (np.abs(values - right) > ALLOWED * scale))
    if not len(wrong):
        return
    others = f"; all follow {' or '.join(fits)}" if fits else ""
    moved = not fits and np.allclose(np.sort(values), np.sort(right), atol=ALLOWED * scale)
    for n in wrong:
        detail = f"advantage {values[n]:.4g}, by {estimator} of reward {rewards[n]:g} it is {right[n]:.4g}{others}"
        report.add("advantage-order" if moved else "advantage-mismatch", rows[n].name, detail)


def _one_value(sample: DumpedSample, report: Report) -> float:
    """Returns the advantage of a sample's first trained token, after checking that all tokens have the same."""
    assert sample.advantage is not None
    trained = np.flatnonzero(sample.mask & np.isfinite(sample.advantage))
    values = sample.advantage[trained]
    if not len(values):
        return float("nan")
    usual = float(np.median(values))
    off = trained[np.abs(values - usual) > 1e-4 * max(1.0, abs(usual))]
    if len(off):
        detail = f"{usual:.4g} at most tokens, {sample.advantage[off[0]]:.4g} at token {off[0]}"
        report.add("advantage-varies", sample.name, detail, off)
    return usual
