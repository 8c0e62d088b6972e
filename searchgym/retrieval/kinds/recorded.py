"""Retriever ``recorded``: replays the hits recorded in the episodes of a run, without corpus or network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from typing_extensions import override

from searchgym.corpora.files import FilePath, iter_jsonl, read_json, sha256_file
from searchgym.corpora.folders import EPISODES, RUN
from searchgym.errors import DataError, RetrieverError
from searchgym.records import Hit, Passage
from searchgym.retrieval.cards import RetrieverCard, Sources
from searchgym.retrieval.retriever import check_request


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCard(RetrieverCard):
    """A replay of the hits that the episodes of a run recorded."""

    episodes: str
    """Path of the run's ``episodes.jsonl``, or of its folder."""

    @override
    def open(self, sources: Sources) -> RecordedRetriever:
        return RecordedRetriever.of_run(self.episodes)


SHOWN: Final = 120
"""Maximum number of characters of a query in an error message."""
Hits = tuple[Hit, ...]


class RecordedSearch(NamedTuple):
    """One search of a recorded episode."""

    question_id: str
    """Id of the episode's question."""
    query: str
    """Text of the query."""
    hits: Hits
    """Hits that the search returned, best first."""


class RecordedRetriever:
    """Retriever that returns the recorded hits of a question's query, with their scores; an unknown query is an error.

    A search without a question returns the hits of the query if they were the same for all questions. A query recorded
    with different hits, as in a training run with noise, raises an error.

    Each call has only one query, so that an unknown query fails only its own episode.

    If `top_k` is known, a larger k is refused, because the corpus might hold more hits than the record. If it is not
    known, as for training runs, the recorded hits are returned, which may be fewer than k.

    Args:
        searches: Recorded searches in any order; all are kept in memory, each passage once.
        top_k: Number of hits per query that the recorded run requested.
        corpus_sha256: sha256 of the corpus that the run searched.
        source: Name of the record for error messages.
        sha256: sha256 of the record's file.
    """

    in_process = True
    queries_at_once = 1  # an unknown query must not fail other episodes
    tries_again = True  # in fact it never retries, but this keeps `retrieve` from doing so: the record will not change

    def __init__(
        self,
        searches: Iterable[RecordedSearch],
        top_k: int | None = None,
        corpus_sha256: str | None = None,
        source: object = "the record",
        sha256: str | None = None,
    ) -> None:
        self.top_k, self.corpus_sha256, self.source, self.sha256 = top_k, corpus_sha256, source, sha256
        self._hits: dict[tuple[str | None, str], Hits | None] = {}  # by (question or None, query); None if they differ
        passages: dict[Passage, Passage] = {}
        for search in searches:
            hits = tuple(Hit(passages.setdefault(hit.passage, hit.passage), hit.score) for hit in search.hits)
            for key in ((search.question_id, search.query), (None, search.query)):
                first = self._hits.setdefault(key, hits)
                self._hits[key] = hits if first == hits else None

    @classmethod
    def of_run(cls, path: FilePath) -> Self:
        """Returns the retriever for the record of an evaluation or training run.

        Args:
            path: ``episodes.jsonl``, or its folder. ``run.json`` in the same folder gives `top_k` and `corpus_sha256`.

        Raises:
            DataMissingError: The file does not exist.
            DataError: The file does not hold episodes, or ``run.json`` is damaged.
        """
        path = Path(path)
        path = path / EPISODES if path.is_dir() else path
        record = path.with_name(RUN)
        run = read_json(record) if record.exists() else {}
        if not isinstance(run, dict):
            raise DataError(f"expected an object, got {type(run).__name__}", record)
        return cls(read_searches(path), run.get("top_k"), run.get("corpus_sha256"), path, sha256_file(path))

    def search_for(self, question_ids: Sequence[str], queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns the hits recorded for each query of a question, at most k.

        Raises:
            RetrieverError: A query was not recorded, or with different hits; or `k` is larger than in the recorded run.
            UsageError: `queries` is a single string, or `k` is below 1.
        """
        self._check(queries, k)
        return [self._found(id, query, k) for id, query in zip(question_ids, queries, strict=True)]

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns the hits recorded for each query with any question, at most k.

        Raises:
            RetrieverError, UsageError: See `search_for`.
        """
        self._check(queries, k)
        return [self._found(None, query, k) for query in queries]

    def identity(self) -> dict[str, Any]:
        """Returns the settings that the hits depend on: the sha256 of the record."""
        return {"kind": "recorded", "episodes_sha256": self.sha256}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def _check(self, queries: Sequence[str], k: int) -> None:
        check_request(queries, k)
        if self.top_k is not None and k > self.top_k:
            raise RetrieverError(
                f"{self.source} holds the first {self.top_k} hits of each query, not {k}: ask for at most {self.top_k}"
            )

    def _found(self, question_id: str | None, query: str, k: int) -> list[Hit]:
        whose = "for any question" if question_id is None else f"for question {question_id!r}"
        if (question_id, query) not in self._hits:
            raise RetrieverError(f"{self.source} has no search for {query[:SHOWN]!r} {whose}")
        if (hits := self._hits[question_id, query]) is None:
            raise RetrieverError(f"{self.source} has several searches for {query[:SHOWN]!r} {whose}, which differ")
        return list(hits[:k])


def read_searches(path: Path) -> Iterator[RecordedSearch]:
    """Yields the searches of an episode file that the environment's own retriever answered, in order.

    Raises:
        DataMissingError: The file does not exist.
        DataError: A line is not an episode.
    """
    for number, row in iter_jsonl(path):
        try:
            for search in row["searches"]:
                if search.get("source"):
                    continue  # of a further retriever, which is not the one that is replayed
                hits = tuple(Hit(Passage(**hit["passage"]), float(hit["score"])) for hit in search["hits"])
                yield RecordedSearch(row["question_id"], search["query"], hits)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"not an episode: {type(error).__name__}: {error}", path, number) from error
