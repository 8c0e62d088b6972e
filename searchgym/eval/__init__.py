"""Evaluation of agents on questions and suites, of retrievers on relevance judgements, and comparisons of runs."""

from typing import TYPE_CHECKING

from searchgym._lazy import lazy

if TYPE_CHECKING:
    from searchgym.eval.ceilings import add_ceilings
    from searchgym.eval.compare import check_comparable, difference, t_interval, two_way_ci
    from searchgym.eval.contamination import find_copies, measure_contamination
    from searchgym.eval.decomposition import Decomposition, decompose
    from searchgym.eval.retrieval import evaluate_run, qrels_from_questions, read_qrels, read_run, retrieve_run
    from searchgym.eval.runner import EvalOptions, evaluate
    from searchgym.eval.scores import Scores, bootstrap_ci, score_episodes

__all__ = [
    "Decomposition",
    "EvalOptions",
    "Scores",
    "add_ceilings",
    "bootstrap_ci",
    "check_comparable",
    "decompose",
    "difference",
    "evaluate",
    "evaluate_run",
    "find_copies",
    "measure_contamination",
    "qrels_from_questions",
    "read_qrels",
    "read_run",
    "retrieve_run",
    "score_episodes",
    "t_interval",
    "two_way_ci",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "ceilings": "add_ceilings",
        "compare": "check_comparable difference t_interval two_way_ci",
        "contamination": "find_copies measure_contamination",
        "decomposition": "Decomposition decompose",
        "retrieval": "evaluate_run qrels_from_questions read_qrels read_run retrieve_run",
        "runner": "EvalOptions evaluate",
        "scores": "Scores bootstrap_ci score_episodes",
    },
)
