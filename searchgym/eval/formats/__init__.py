"""Reading, writing and scoring of predictions in the official formats of other projects."""

from typing import TYPE_CHECKING

from searchgym._lazy import lazy

if TYPE_CHECKING:
    from searchgym.eval.formats.files import read_predictions, write_predictions
    from searchgym.eval.formats.predictions import PREDICTION_FORMATS, Prediction, reduced_to_format
    from searchgym.eval.formats.run import predictions_of, with_pages_as_support
    from searchgym.eval.formats.score import score_answers, write_scored

__all__ = [
    "PREDICTION_FORMATS",
    "Prediction",
    "predictions_of",
    "read_predictions",
    "reduced_to_format",
    "score_answers",
    "with_pages_as_support",
    "write_predictions",
    "write_scored",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "files": "read_predictions write_predictions",
        "predictions": "PREDICTION_FORMATS Prediction reduced_to_format",
        "run": "predictions_of with_pages_as_support",
        "score": "score_answers write_scored",
    },
)
