"""Questions from all sources: worlds, facts and links of any corpus, masked spans, tasks with a rubric."""

from typing import TYPE_CHECKING

from searchgym._lazy import lazy

if TYPE_CHECKING:
    from searchgym.questions.question_source import QuestionContext, QuestionSource

__all__ = ["QuestionContext", "QuestionSource"]

__getattr__, __dir__ = lazy(__name__, {"question_source": "QuestionContext QuestionSource"})
