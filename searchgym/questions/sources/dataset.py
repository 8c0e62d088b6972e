"""Question source ``dataset``: a published file of questions."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from searchgym.corpora.folders import bundled_file, home
from searchgym.errors import DataMissingError
from searchgym.options.cards import data_file
from searchgym.packages import install_command
from searchgym.questions.question_source import QuestionContext, QuestionSource
from searchgym.records import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetQuestions(QuestionSource):
    """A published file of questions: in the package, in the data folder, or on the Hugging Face hub."""

    dataset: str
    """Name of the data set given by its authors."""
    split: str
    """Name of the split, for example ``validation``."""
    size: int
    """Number of questions in the split; a file of another size is reported but accepted."""
    file: str
    """Name of the file in the data folder."""
    get: str
    """Where to download the file; quoted in error messages."""
    hub: str | None = None
    """Hugging Face data set to read if the file is missing: ``hf:OWNER/NAME:CONFIG/SPLIT``."""
    bundled: str | None = None
    """Path inside the package of a question file that ships with it (the demonstration data)."""

    @override
    def load(self, context: QuestionContext) -> Sequence[Question]:
        from searchgym.corpora.questions import read_questions

        path = bundled_file(self.bundled) if self.bundled else self._local
        if self.bundled or path.exists():
            return tuple(read_questions(path, aliases=context.aliases))
        return self._from_hub(context.env)

    def _from_hub(self, env: str) -> Sequence[Question]:
        """Returns the questions from the hub; if that fails, the error names the source and place of the file."""
        reason = ""
        if self.hub is not None:
            reason = f" (from the hub: {install_command('train')})"
            if importlib.util.find_spec("datasets") is not None:
                from searchgym.corpora.questions import read_questions

                try:
                    return tuple(read_questions(self.hub))
                except DataMissingError as error:
                    reason = f" (the hub: {error.reason.partition(' (')[0]})"
        folder = self.dataset.lower()
        raise DataMissingError(
            f"{env} has no questions: {self.file} is not here ({self.dataset}, {self.size:,} questions)\n"
            f"get it from {self.get}{reason}\n"
            f"put it at {self._local}, or pass questions=PATH; "
            f"to evaluate: or SEARCHGYM_DATA=DIR with {folder}/questions.json"
        )

    @property
    def _local(self) -> Path:
        return data_file(home() / "data", self.file)

    @property
    @override
    def needs_file(self) -> str | None:
        return None if self.bundled else self.file

    @override
    def missing(self) -> str | None:
        if self.bundled or (home() / "data" / self.file).exists():
            return None
        return f"questions {self.file}: get them from {self.get}, and put them into {home() / 'data'}"

    @override
    def is_own(self, questions: object) -> bool:
        # A source that names no file accepts any.
        one = questions[0] if isinstance(questions, (list, tuple)) and len(questions) == 1 else questions
        named = isinstance(one, (str, os.PathLike)) and Path(one).name == self.file
        return not self.file or named or questions == self.hub

    @property
    @override
    def at_hand(self) -> bool:
        return bool(self.bundled)
