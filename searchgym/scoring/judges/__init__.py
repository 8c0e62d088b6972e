"""Judges of answers that no short gold answer can match, rubrics, and the rewards that are made of verdicts."""

from searchgym.scoring.judges.judge import Checked, Criterion, Judge

__all__ = ["Checked", "Criterion", "Judge"]
