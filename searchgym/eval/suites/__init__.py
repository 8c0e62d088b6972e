"""Suites: fixed lists of environments, splits and questions that are scored together."""

from typing import TYPE_CHECKING

from searchgym._lazy import lazy

if TYPE_CHECKING:
    from searchgym.eval.suites.cards import load_suite
    from searchgym.eval.suites.run import evaluate_suite
    from searchgym.eval.suites.tasks import load_suite_tasks, subset

__all__ = ["evaluate_suite", "load_suite", "load_suite_tasks", "subset"]

__getattr__, __dir__ = lazy(
    __name__,
    {"cards": "load_suite", "run": "evaluate_suite", "tasks": "load_suite_tasks subset"},
)
