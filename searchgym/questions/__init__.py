"""Questions of environments: where they come from, and those that nobody wrote, generated from any corpus."""

from typing import TYPE_CHECKING

from searchgym._lazy import lazy

if TYPE_CHECKING:
    from searchgym.questions.question_source import QuestionContext, QuestionSource

__all__ = ["QuestionContext", "QuestionSource"]

__getattr__, __dir__ = lazy(__name__, {"question_source": "QuestionContext QuestionSource"})
