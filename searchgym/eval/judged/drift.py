"""How two judges differ on the calibration sample, and differences of runs corrected for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from searchgym.errors import UsageError
from searchgym.eval.compare import PairedDifference, difference
from searchgym.eval.judged.verdicts import Judgement, check_rows, read_judgement, read_record
from searchgym.eval.run_folder import FinishedRun
from searchgym.eval.scores import bootstrap_ci, resampled_means, wilson_ci

METRIC: Final = "judged"
"""Key of the score in the rows of questions."""


@dataclass(frozen=True)
class Drift:
    """Difference of two judges, measured on one calibration sample."""

    by: tuple[str, ...]
    """By what they differ: ``name``, ``prompt``, ``weights``, ``verdicts``; empty if they agree in all."""
    items: int
    """Number of items of the sample."""
    unlike: int
    """Number of items with another verdict."""
    signed: tuple[int, ...]
    """First less second judge for each item: 1 where only the first says right, -1 where only the second does."""

    @property
    def disagreement(self) -> tuple[float, float, float]:
        """Share of items with another verdict, and its 95 % interval (Wilson)."""
        low, high = wilson_ci(self.unlike, self.items)
        return self.unlike / self.items, low, high

    @property
    def bias(self) -> tuple[float, float, float]:
        """Mean of the signed differences, and its 95 % interval (paired bootstrap over items)."""
        low, high = bootstrap_ci(self.signed)
        return float(np.mean(self.signed)), low, high

    def as_dict(self) -> dict[str, Any]:
        """Returns the measured difference as plain data."""
        numbers = {"disagreement": list(self.disagreement), "bias": list(self.bias)}
        return {"by": list(self.by), "items": self.items, "unlike": self.unlike} | numbers

    def __str__(self) -> str:
        """Describes the difference in one line."""
        share, low, high = self.disagreement
        text = f"the judges disagree on {self.unlike} of {self.items} items of the calibration sample"
        text += f" ({share:.3f}, 95 % interval {low:.3f} to {high:.3f})"
        if self.by:
            text = f"the judges differ by {', '.join(self.by)}; {text.replace('the judges', 'they', 1)}"
        if self.unlike:
            text += "; bias {:+.3f} ({:+.3f} to {:+.3f})".format(*self.bias)
        return text


def compare_judges(first: Judgement, second: Judgement) -> Drift:
    """Compares the judges of two runs on the calibration sample that both judged.

    Raises:
        UsageError: They judged other samples, so that nothing tells how the judges differ.
    """
    one, two = first.record, second.record
    if one.sample != two.sample:
        samples = f"{one.sample[:12]} ({one.items} items) and {two.sample[:12]} ({two.items} items)"
        reason = f"{first.name} and {second.name} were judged with other calibration samples, {samples}"
        raise UsageError(f"{reason}: judge one of them again with the --calibration of the other")
    others = {verdict.id: verdict.verdict for verdict in two.verdicts}
    if {verdict.id for verdict in one.verdicts} != others.keys():
        raise UsageError(f"{first.name} and {second.name} have verdicts on other items of one sample: judge them again")
    pairs = [(verdict.verdict, others[verdict.id]) for verdict in one.verdicts]
    unlike = sum(a is not b for a, b in pairs)
    by = [*one.judge.differences(two.judge), *(["verdicts"] if unlike else [])]
    return Drift(tuple(by), len(pairs), unlike, tuple((a is True) - (b is True) for a, b in pairs))


def compare_all(judgements: Sequence[Judgement]) -> list[Drift]:
    """Compares the judge of each run but the first with that of the first; see `compare_judges`."""
    return [compare_judges(judgement, judgements[0]) for judgement in judgements[1:]]


def corrected_difference(first: FinishedRun, second: FinishedRun, drift: Drift) -> PairedDifference:
    """Returns the difference of two runs in ``judged``, less the bias of their judges where these disagree.

    The interval combines both: questions and items of the sample are resampled independently, and the bias is taken
    from the difference in each resample. The correction assumes that the judges differ on the answers of the runs as
    they do on the sample.

    Args:
        first: One run.
        second: Another run on the same questions.
        drift: Difference of the first run's judge to that of the second run.
    """
    plain = difference(first.rows, second.rows, METRIC)
    if not drift.unlike:
        return plain
    ids = sorted(id for id, row in first.rows.items() if METRIC in row and METRIC in second.rows[id])
    gaps = [first.rows[id][METRIC] - second.rows[id][METRIC] for id in ids]
    bias = drift.bias[0]
    means = resampled_means(gaps, seed=0) - resampled_means(drift.signed, seed=1)
    low, high = map(float, np.quantile(means, (0.025, 0.975)))
    return PairedDifference(plain.mean - bias, low, high, plain.wins, plain.losses, plain.ties)


def read_judgements(folders: Sequence[Path], runs: Sequence[FinishedRun]) -> list[Judgement]:
    """Reads the verdicts of runs that are compared by ``judged``.

    Raises:
        UsageError: A run was not judged.
        DataError: Verdicts are damaged, incomplete, or not those of the run's scores.
    """
    judgements = []
    for folder, run in zip(folders, runs, strict=True):
        if read_record(folder) is None:
            reason = f"{run.name} has no verdicts on a calibration sample, so its judge cannot be compared"
            raise UsageError(f"{reason}: judge it with `searchgym judge {folder} --judge JUDGE`")
        judgement = read_judgement(folder, run.name)
        check_rows(judgement, run.rows, folder)
        judgements.append(judgement)
    return judgements


def judge_notes(folders: Sequence[Path]) -> list[str]:
    """Returns a sentence for each run whose judge is another one than that of the first judged run."""
    records = [(folder, record) for folder in folders if (record := read_record(folder)) is not None]
    notes = []
    for folder, record in records[1:]:
        if differing := record.judge.differences(records[0][1].judge):
            notes.append(
                f"{folder} was judged by {record.judge.name}, {records[0][0]} by {records[0][1].judge.name} (another "
                f"{' and '.join(differing)}): --metric judged tells how the judges differ"
            )
    return notes
