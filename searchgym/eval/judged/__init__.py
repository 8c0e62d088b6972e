"""Judged evaluation: a judge's verdicts on the answers of a run and on a calibration sample, and how judges differ."""

from typing import TYPE_CHECKING

from searchgym._lazy import lazy

if TYPE_CHECKING:
    from searchgym.eval.judged.drift import Drift, compare_judges
    from searchgym.eval.judged.identity import JudgeIdentity, find_judge
    from searchgym.eval.judged.judging import judge_run
    from searchgym.eval.judged.sample import CalibrationItem, read_sample
    from searchgym.eval.judged.verdicts import Judgement, Verdict, read_judgement

__all__ = [
    "CalibrationItem",
    "Drift",
    "JudgeIdentity",
    "Judgement",
    "Verdict",
    "compare_judges",
    "find_judge",
    "judge_run",
    "read_judgement",
    "read_sample",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "drift": "Drift compare_judges",
        "identity": "JudgeIdentity find_judge",
        "judging": "judge_run",
        "sample": "CalibrationItem read_sample",
        "verdicts": "Judgement Verdict read_judgement",
    },
)
