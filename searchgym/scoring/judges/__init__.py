"""Judges of answers that cannot be compared with a short gold answer, rubrics, and rewards based on verdicts."""

from searchgym.scoring.judges.judge import Checked, Criterion, Judge

__all__ = ["Checked", "Criterion", "Judge"]
