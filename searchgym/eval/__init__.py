"""Evaluation of agents on questions and of retrievers on relevance judgements."""

from typing import TYPE_CHECKING

from searchgym._lazy import lazy

if TYPE_CHECKING:
    from searchgym.eval.intervals import bootstrap_ci, t_interval
    from searchgym.eval.retrieval import evaluate_run, qrels_from_titles, read_qrels, read_run, retrieve_run
    from searchgym.eval.runner import EvalOptions, evaluate
    from searchgym.eval.scores import Scores, score_episodes

__all__ = [
    "EvalOptions",
    "Scores",
    "bootstrap_ci",
    "evaluate",
    "evaluate_run",
    "qrels_from_titles",
    "read_qrels",
    "read_run",
    "retrieve_run",
    "score_episodes",
    "t_interval",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "intervals": "bootstrap_ci t_interval",
        "retrieval": "evaluate_run qrels_from_titles read_qrels read_run retrieve_run",
        "runner": "EvalOptions evaluate",
        "scores": "Scores score_episodes",
    },
)
