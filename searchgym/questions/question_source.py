"""Where the questions of an environment come from: the interface of question sources, and what a user gives."""

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
    raise UsageError("the questions are made from a corpus: give one")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionContext:
    """Facts and files of an environment that a question source may use."""

    env: str = "an environment"
    """Id of the environment, for messages."""
    corpus: Callable[[], CorpusRetriever] = _no_corpus
    """Returns a retriever over the corpus that the user gave, opened once. Default: an error."""
    corpus_name: str = "a corpus"
    """Path of that corpus, for reports."""
    aliases: str | os.PathLike[str] | None = None
    """File of entity aliases that the user gave."""
    top_k: int = 3
    """Passages retrieved per query."""
    words: int = 500
    """Maximum number of words of retrieved text per turn."""
    searches: int = 4
    """Maximum number of turns of an episode that search."""
    browse: bool = False
    """Whether pages of the corpus can be opened."""
    retrievers: tuple[str, ...] = ()
    """Names of further retrievers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPages:
    """Pages of a corpus of the user's about which a proposer may ask, and how facts are found in them."""

    pack: str = "people-and-works"
    """Pack of patterns and wordings."""
    shapes: Sequence[str] = ()
    """Shapes of questions by which the pages are split; empty: the usual ones."""
    split: str = "train"
    """Split of the pages; ``all`` for every page."""
    hold_out: Sequence[str] = ()
    """Question files whose gold pages and answers are left out: those of an evaluation."""


class QuestionSource(Kind):
    """Where the questions of an environment come from: one class per kind, whose fields are its options."""

    __slots__ = ()
    kinds_in: ClassVar = "searchgym.questions.sources"
    noun: ClassVar = "question source"
    loads_code: ClassVar = True
    of_corpus: ClassVar[str] = ""
    """What it does with a corpus of the user's, such as ``asks about``; empty if it is made from none."""

    def load(self, context: QuestionContext) -> Sequence[Question]:
        """Returns the questions; libraries are imported only here.

        Raises:
            DataMissingError: They are not on this machine; the message tells how to get them.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define load")

    def corpus(self) -> Path | None:
        """Returns the corpus that comes with the questions, a file or a folder. Default: None, there is none."""
        return None

    def around(self, retriever: AnyRetriever, questions: Sequence[Question]) -> AnyRetriever:
        """Returns the retriever through which the questions are searched. Default: the given one."""
        return retriever

    def check_environment(self, context: QuestionContext) -> Iterable[str]:
        """Yields a sentence for each choice of the environment that does not go with these questions."""
        return ()

    # -- what tables, reports and checks show ----------------------------------------------------------------------

    @property
    def title(self) -> str:
        """Name of the data set. Default: the attribute ``dataset``, if there is one, else the name of the kind."""
        return str(getattr(self, "dataset", name_of(self)))

    @property
    def split_name(self) -> str:
        """Name of the split. Default: the attribute ``split``, if there is one, else ``all``."""
        return str(getattr(self, "split", "all"))

    @property
    def count(self) -> int:
        """Number of questions; 0 if it is not known before they are made. Default: the attribute ``size``."""
        return int(getattr(self, "size", 0))

    @property
    def needs_file(self) -> str | None:
        """Name of the file that belongs in the data folder. Default: None, the questions are made or shipped."""
        return None

    def missing(self) -> str | None:
        """Tells which questions are not on this machine and where to get them; None if there is nothing to get."""
        return None

    def is_own(self, questions: object) -> bool:
        """Tells whether a file or data set that the user gave is the very one that this source names."""
        return False

    @property
    def brings_corpus(self) -> bool:
        """Whether a corpus comes with the questions."""
        return type(self).corpus is not QuestionSource.corpus

    @property
    def at_hand(self) -> bool:
        """Whether they are made or shipped, so that loading them needs neither files nor a corpus of the user's."""
        return self.brings_corpus

    @property
    def shares_retriever(self) -> bool:
        """Whether other questions over the same corpus card may search by the same retriever."""
        return not self.brings_corpus and type(self).around is QuestionSource.around

    # -- what proposers walk ---------------------------------------------------------------------------------------

    def world_spec(self) -> WorldSpec | None:
        """Returns the generated world behind the questions, whose graph a proposer may walk. Default: None."""
        return None

    def corpus_pages(self) -> CorpusPages:
        """Returns about which pages of a corpus of the user's a proposer may ask. Default: those of the train split."""
        return CorpusPages()


# -- questions that a user gives -----------------------------------------------------------------------------------

Given = str | os.PathLike[str] | Sequence[Question] | Sequence[str]


def given_questions(env: str, questions: Given, aliases: str | os.PathLike[str] | None = None) -> tuple[Question, ...]:
    """Returns the questions of a file, a data set (``hf:OWNER/NAME:CONFIG/SPLIT``), several of these, or the records.

    Where several sources share ids, each id gets the number of its source.

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
    """Returns what stands for the name of a split in records and reports: the names of the files."""
    several = questions if isinstance(questions, (list, tuple)) else [questions]
    names = [Path(one).name for one in several if isinstance(one, (str, os.PathLike))]
    return f"given ({', '.join(names)})" if names else "given"
