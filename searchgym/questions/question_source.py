"""Question sources of environments: their interface, and questions passed by the user."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from searchgym.errors import UsageError
from searchgym.options import Kind, name_of
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Question
from searchgym.retrieval.retriever import AnyRetriever, CorpusRetriever


def _no_corpus() -> CorpusRetriever:
    raise UsageError("the questions are generated from a corpus: pass one")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionContext:
    """Settings and files of an environment that a question source may use."""

    env: str = "an environment"
    """Id of the environment, for messages."""
    corpus: Callable[[], CorpusRetriever] = _no_corpus
    """Function that returns a retriever over the user's corpus, opened once. Default: raises an error."""
    corpus_name: str = "a corpus"
    """Path of the user's corpus, for reports."""
    aliases: str | os.PathLike[str] | None = None
    """File of entity aliases that the user passed."""
    top_k: int = 3
    """Passages retrieved per query."""
    words: int = 500
    """Maximum number of words of retrieved text per turn."""
    searches: int = 4
    """Maximum number of search turns per episode."""
    browse: bool = False
    """Whether pages of the corpus can be opened."""
    retrievers: tuple[str, ...] = ()
    """Names of additional retrievers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPages:
    """Options that choose the pages of the user's corpus to ask about, and the pack that extracts facts from them."""

    pack: str = "people-and-works"
    """Pack of patterns and wordings."""
    shapes: Sequence[str] = ()
    """Shapes of questions by which the pages are split; empty: the default shapes."""
    split: str = "train"
    """Split of the pages; ``all`` for every page."""
    hold_out: Sequence[str] = ()
    """Question files of an evaluation, whose gold pages and answers are excluded."""


class QuestionSource(Kind):
    """Source of an environment's questions: one class per kind, whose fields are its options."""

    __slots__ = ()
    kinds_in: ClassVar = "searchgym.questions.sources"
    noun: ClassVar = "question source"
    loads_code: ClassVar = True
    of_corpus: ClassVar[str] = ""
    """Verb phrase for the use of the user's corpus, such as ``asks about``; empty if the source uses none."""

    def load(self, context: QuestionContext) -> Sequence[Question]:
        """Returns the questions; libraries are imported only here.

        Raises:
            DataMissingError: The questions are not on this machine; the message explains how to get them.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define load")

    def corpus(self) -> Path | None:
        """Returns the corpus that comes with the questions, a file or a folder. Default: None (no corpus)."""
        return None

    def around(self, retriever: AnyRetriever, questions: Sequence[Question]) -> AnyRetriever:
        """Returns the retriever to use for these questions. Default: `retriever`, unchanged."""
        return retriever

    def check_environment(self, context: QuestionContext) -> Iterable[str]:
        """Yields an error message for each setting of the environment that is incompatible with these questions."""
        return ()

    # -- for tables, reports and checks ----------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """Name of the data set. Default: the attribute ``dataset`` if it exists, else the name of the kind."""
        return str(getattr(self, "dataset", name_of(self)))

    @property
    def split_name(self) -> str:
        """Name of the split. Default: the attribute ``split`` if it exists, else ``all``."""
        return str(getattr(self, "split", "all"))

    @property
    def count(self) -> int:
        """Number of questions; 0 if it is unknown until they are generated. Default: the attribute ``size``."""
        return int(getattr(self, "size", 0))

    @property
    def needs_file(self) -> str | None:
        """Name of the question file expected in the data folder. Default: None (generated or shipped questions)."""
        return None

    def missing(self) -> str | None:
        """Returns a message that names the missing questions and where to get them; None if nothing is missing."""
        return None

    def is_own(self, questions: object) -> bool:
        """Returns whether a file or data set that the user passed is the one that this source names."""
        return False

    @property
    def brings_corpus(self) -> bool:
        """Whether a corpus comes with the questions."""
        return type(self).corpus is not QuestionSource.corpus

    @property
    def at_hand(self) -> bool:
        """Whether the questions are generated or shipped, so that loading needs no files or corpus from the user."""
        return self.brings_corpus

    @property
    def shares_retriever(self) -> bool:
        """Whether other questions over the same corpus card may share the retriever."""
        return not self.brings_corpus and type(self).around is QuestionSource.around

    # -- graphs for proposers --------------------------------------------------------------------------------------

    def world_spec(self) -> WorldSpec | None:
        """Returns the generated world behind the questions, whose graph a proposer may walk. Default: None."""
        return None

    def corpus_pages(self) -> CorpusPages:
        """Returns the pages of the user's corpus that a proposer may ask about. Default: those of the train split."""
        return CorpusPages()


# -- questions of the user -----------------------------------------------------------------------------------------

Given = str | os.PathLike[str] | Sequence[Question] | Sequence[str]


def given_questions(env: str, questions: Given, aliases: str | os.PathLike[str] | None = None) -> tuple[Question, ...]:
    """Returns the questions of a file, a data set (``hf:OWNER/NAME:CONFIG/SPLIT``), several of these, or records.

    If several sources share ids, each id is prefixed with the number of its source.

    Args:
        env: Id of the environment, for messages.
        questions: The user's questions.
        aliases: 2WikiMultihopQA's ``id_aliases.json``.

    Raises:
        UsageError: `questions` is empty, or neither paths nor `Question` records.
        DataMissingError: A file does not exist.
    """
    if isinstance(questions, (str, os.PathLike)):
        from searchgym.corpora.questions import read_questions

        return tuple(read_questions(questions, aliases=aliases))
    records: list[Any] = list(questions) if isinstance(questions, Sequence) else [questions]
    if not records:
        raise UsageError(f"{env}: questions= is empty")
    if all(isinstance(record, Question) for record in records):
        return tuple(records)
    if not all(isinstance(record, (str, os.PathLike)) for record in records):
        what = "neither paths nor a list of Question records, nor a mapping such as {'seed': 7}"
        raise UsageError(f"{env}: questions= is {what}: {questions!r:.80}")
    parts = [given_questions(env, source, aliases) for source in records]
    ids = [question.id for part in parts for question in part]
    if len(set(ids)) == len(ids):
        return tuple(question for part in parts for question in part)
    return tuple(
        dataclasses.replace(question, id=f"{number}/{question.id}")
        for number, part in enumerate(parts, start=1)
        for question in part
    )


def given_label(questions: Given) -> str:
    """Returns the label used as the split's name in records and reports: the names of the files."""
    several = questions if isinstance(questions, (list, tuple)) else [questions]
    names = [Path(one).name for one in several if isinstance(one, (str, os.PathLike))]
    return f"given ({', '.join(names)})" if names else "given"
