"""Judges of answers that no short gold answer can match, rubrics, and the rewards that are made of verdicts."""

from typing import TYPE_CHECKING

from searchgym._lazy import lazy

if TYPE_CHECKING:
    from searchgym.scoring.judges.judge import Checked, Criterion, Judge

__all__ = ["Checked", "Criterion", "Judge"]

__getattr__, __dir__ = lazy(__name__, {"judge": "Checked Criterion Judge"})
