"""What the episodes of a run found, given again: a replay that needs neither corpus nor network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from searchgym.corpora.files import FilePath, iter_jsonl, read_json, sha256_file
from searchgym.corpora.retrieval.retriever import check_request
from searchgym.errors import DataError, RetrieverError
from searchgym.records import Hit, Passage

EPISODES: Final = "episodes.jsonl"
RUN: Final = "run.json"
SHOWN: Final = 120
"""Characters of a query in a message."""
Hits = tuple[Hit, ...]


class Search(NamedTuple):
    """One query of a recorded episode."""

    question_id: str
    query: str
    hits: Hits


class RecordedRetriever:
    """Gives the hits that were recorded for a query of a question, with their scores; anything else is an error.

    Without a question it gives what was recorded for the query, if that is the same for all questions. Two records
    that differ, as those of a training with noise do, are refused when they are asked for.

    Queries of several episodes share no call, so that one that is not in the record fails its own episode only.

    Fewer hits than `k` may mean that no more were found. Where `top_k` is known, a larger k is refused, since more
    could have been found; where it is not, as in training runs, what was recorded is given.

    Args:
        searches: What was recorded, in any order; all of it is kept in memory, each passage once.
        top_k: Hits that the recorded run asked for.
        corpus_sha256: Identity of the corpus that it searched.
        source: What holds the record, for messages.
        sha256: Of that.
    """

    in_process = True
    queries_at_once = 1  # a query that is not in the record is not the others' fault
    tries_again = True  # it does not, and need not be asked again: the record stays the same

    def __init__(
        self,
        searches: Iterable[Search],
        top_k: int | None = None,
        corpus_sha256: str | None = None,
        source: object = "the record",
        sha256: str | None = None,
    ) -> None:
        self.top_k, self.corpus_sha256, self.source, self.sha256 = top_k, corpus_sha256, source, sha256
        self._of_question: dict[tuple[str, str], Hits | None] = {}
        self._of_query: dict[str, Hits | None] = {}  # None where records differ
        passages: dict[Passage, Passage] = {}
        for one in searches:
            hits = tuple(Hit(passages.setdefault(hit.passage, hit.passage), hit.score) for hit in one.hits)
            key = (one.question_id, one.query)
            same = self._of_question.setdefault(key, hits)
            self._of_question[key] = hits if same == hits else None
            same = self._of_query.setdefault(one.query, hits)
            self._of_query[one.query] = hits if same == hits else None

    @classmethod
    def of_run(cls, path: FilePath) -> Self:
        """Reads the record of an evaluation or a training.

        Args:
            path: ``episodes.jsonl``, or its folder. ``run.json`` beside it tells `top_k` and `corpus_sha256`.

        Raises:
            DataMissingError: There is no such file.
            DataError: It does not hold episodes, or ``run.json`` is damaged.
        """
        path = Path(path)
        path = path / EPISODES if path.is_dir() else path
        record = path.with_name(RUN)
        run = read_json(record) if record.exists() else {}
        if not isinstance(run, dict):
            raise DataError(f"expected an object, got {type(run).__name__}", record)
        return cls(read_searches(path), run.get("top_k"), run.get("corpus_sha256"), path, sha256_file(path))

    def search_for(self, question_ids: Sequence[str], queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns what was recorded for each question's query.

        Raises:
            RetrieverError: Nothing was, or not the same each time, or `k` is larger than in the recorded run.
            UsageError: `queries` is a single string, or `k` is below 1.
        """
        self._check(queries, k)
        return [
            self._found(self._of_question, (id, query), query, f"for question {id!r}", k)
            for id, query in zip(question_ids, queries, strict=True)
        ]

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns what was recorded for each query, whatever the question.

        Raises:
            RetrieverError, UsageError: As `search_for`.
        """
        self._check(queries, k)
        return [self._found(self._of_query, query, query, "for any question", k) for query in queries]

    def identity(self) -> dict[str, Any]:
        """Returns what its hits depend on."""
        return {"kind": "recorded", "episodes_sha256": self.sha256}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def _check(self, queries: Sequence[str], k: int) -> None:
        check_request(queries, k)
        if self.top_k is not None and k > self.top_k:
            raise RetrieverError(
                f"{self.source} holds the first {self.top_k} hits of each query, not {k}: ask for at most {self.top_k}"
            )

    def _found(self, record: dict[Any, Hits | None], key: object, query: str, whose: str, k: int) -> list[Hit]:
        if key not in record:
            raise RetrieverError(f"{self.source} has no search for {query[:SHOWN]!r} {whose}")
        if (hits := record[key]) is None:
            raise RetrieverError(f"{self.source} has several searches for {query[:SHOWN]!r} {whose}, which differ")
        return list(hits[:k])


def read_searches(path: Path) -> Iterator[Search]:
    """Yields the searches of an episode file, in their order.

    Raises:
        DataMissingError: There is no such file.
        DataError: A line is not an episode.
    """
    for number, row in iter_jsonl(path):
        try:
            for one in row["searches"]:
                hits = tuple(Hit(Passage(**hit["passage"]), float(hit["score"])) for hit in one["hits"])
                yield Search(row["question_id"], one["query"], hits)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"not an episode: {type(error).__name__}: {error}", path, number) from error
