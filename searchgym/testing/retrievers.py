"""Conformance suite for retrievers: `RetrieverTests` checks what environments expect of every retriever."""

from __future__ import annotations

import copy
import math
import pickle
import threading
import time
from collections import Counter
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from searchgym.errors import UsageError
from searchgym.records import Hit, Passage
from searchgym.retrieval.retriever import CorpusRetriever, Retriever, checked, retrieve

THREADS: Final = 4
"""Number of threads that search at the same time."""


def hostile_queries(word: str) -> dict[str, str]:
    """Returns hostile queries, by a short description; a retriever must answer each without an error.

    Args:
        word: A plain word of the corpus, which some of the queries contain among characters to ignore.
    """
    return {
        "empty": "",
        "blank": " \t\n\u2028",
        "control characters": f"\x00\x01\x1b[31m {word} \x7f",
        "lone surrogate": f"\ud800 {word} \udfff",
        "Lucene": f'contents:"{word}" AND ({word}^2 OR {word}~2) NOT [a TO z}} \\ && || ! * ? /x/',
        "unbalanced": '((((" +-',
        "emoji": "🏭" * 300,
        "one word of a megabyte": "a" * 1_000_000,
        "a megabyte of words": " ".join(f"w{n}" for n in range(140_000))[:1_000_000],
    }


def assert_same_hits(
    actual: Sequence[Sequence[Hit]], expected: Sequence[Sequence[Hit]], tolerance: float, k: int, when: str
) -> None:
    """Checks that the same queries got the same hits in two calls, up to a tolerance of scores.

    Args:
        actual: Hits of each query.
        expected: Hits of the same queries from another call.
        tolerance: Maximum difference of two scores of one passage. At 0 the lists must be equal. Above 0, passages with
            scores that close may swap ranks, also across the end of a list that was cut at k.
        k: Maximum number of hits per query in both calls.
        when: Difference between the calls, in words, for the message.

    Raises:
        AssertionError: The hits differ by more than the tolerance.
    """
    assert len(actual) == len(expected), f"{when}: got hits of {len(actual)} queries, expected {len(expected)}"
    for number, (hits, other) in enumerate(zip(actual, expected, strict=True)):
        if hits != other:
            message = f"{when}, query {number} gets other hits: got {hits!r:.300}, before {other!r:.300}"
            assert tolerance > 0 and len(hits) == len(other), message
            score_of = {hit.passage: hit.score for hit in other}
            # a passage that is not in the other list may have been cut off: then its score is near the last one
            last = other[-1].score if len(hits) == k else math.inf
            assert all(abs(hit.score - score_of.get(hit.passage, last)) <= tolerance for hit in hits), message
            assert all(abs(a.score - b.score) <= tolerance for a, b in zip(hits, other, strict=True)), message
        assert_best_first(hits, number)


def assert_best_first(hits: Sequence[Hit], number: int) -> None:
    """Checks that the scores of a query's hits are finite floats in descending order."""
    scores = [hit.score for hit in hits]
    assert all(type(score) is float and math.isfinite(score) for score in scores), (
        f"query {number}: a score is a finite float, got {scores!r:.200}"
    )
    assert scores == sorted(scores, reverse=True), f"query {number}: hits come best first, got scores {scores!r:.200}"


class RetrieverTests:
    """Checks of the contract of `searchgym.retrieval.retriever.Retriever`.

    A subclass defines `make_retriever` and `queries`; the other attributes describe further promises of the retriever.
    """

    queries: Sequence[str] = ()
    """Queries to search, of which some must have hits; ten are enough."""
    passages: Sequence[Passage] | None = None
    """Passages of the corpus, in which hits are looked up. Default: those of a `CorpusRetriever`, otherwise none."""
    tolerance: float = 0.0
    """Maximum difference of a passage's score between batches, to allow for rounding."""
    most: int = 100
    """Largest number of hits to request; if possible, larger than the corpus."""
    many: int = 1000
    """Number of queries in the large batch."""
    lexical: bool = False
    """Whether the retriever is lexical, as BM25: all scores are above 0, and the queries in `nothing` have no hits."""
    nothing: Sequence[str] = ("", " \t\n")
    """Queries of a lexical retriever that share no word with any passage."""
    hostile: Sequence[str] = tuple(hostile_queries("zebra").values())
    """Hostile queries, which must be answered and must not change the hits of other queries."""
    seconds: float = 20.0
    """Maximum wall-clock seconds for one call with all hostile queries."""
    question_id: str = ""
    """Id of the question behind the queries, for a retriever that records queries by question."""
    pickled: bool = False
    """Whether the retriever must survive pickling, as a process pool needs."""

    def make_retriever(self) -> Retriever:
        """Returns the retriever under test; called once per check, so cache a retriever that is slow to build."""
        raise NotImplementedError(f"{type(self).__name__} must define make_retriever(self)")

    def identity(self, passage: Passage) -> Hashable:
        """Returns the fields of a passage to compare with the corpus; override it if hits lack the corpus's ids."""
        return (passage.id, passage.title, passage.text)

    def search(self, retriever: Retriever, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Searches and checks that the result is one list of at most k `Hit` records per query."""
        return checked(retriever.search(queries, k), len(queries), k)

    def checked_queries(self) -> list[str]:
        """Returns a copy of `queries`, after a check that it is not empty."""
        assert self.queries, f"{type(self).__name__} must set queries to a few that have hits"
        return list(self.queries)

    def same(self, actual: Sequence[Sequence[Hit]], expected: Sequence[Sequence[Hit]], when: str) -> None:
        """Checks that the lists of at most `most` hits of two calls agree within `tolerance`."""
        assert_same_hits(actual, expected, self.tolerance, self.most, when)

    # -- hits ------------------------------------------------------------------------------------------------------

    def test_hits_are_passages_of_the_corpus_best_first(self) -> None:
        """Checks that a query gets at most k hits: existing passages, no duplicates, finite descending scores."""
        retriever, queries = self.make_retriever(), self.checked_queries()
        pages = self.passages
        if pages is None and isinstance(retriever, CorpusRetriever):
            pages = list(retriever.passages())
        corpus = None if pages is None else Counter(map(self.identity, pages))
        for k in (1, 3, self.most):
            results = self.search(retriever, queries, k)
            assert any(results), f"none of the {len(queries)} queries has a hit"
            for number, hits in enumerate(results):
                assert_best_first(hits, number)
                assert all(type(hit) is Hit and type(hit.passage) is Passage for hit in hits), f"got {hits!r:.200}"
                seen = Counter(self.identity(hit.passage) for hit in hits)
                foreign = [] if corpus is None else list(seen - corpus)
                assert not foreign, f"query {number}: a hit is a passage of the corpus, once; got {foreign[0]!r:.200}"
                twice = [page for page, count in Counter(hit.passage for hit in hits).items() if count > 1]
                assert corpus is not None or not twice, f"query {number} gets a passage twice: {twice[0]!r:.200}"

    def test_a_lexical_retriever_finds_nothing_without_a_common_word(self) -> None:
        """Checks that a lexical retriever returns only scores above 0, and no hit for the queries in `nothing`."""
        if not self.lexical:
            return
        retriever = self.make_retriever()
        for query, hits in zip(
            self.checked_queries(), self.search(retriever, self.checked_queries(), self.most), strict=True
        ):
            low = [hit.score for hit in hits if hit.score <= 0]
            assert not low, f"query {query!r:.80}: a lexical score is above 0, got {low[:3]}"
        for hits in self.search(retriever, self.hostile, self.most):
            assert all(hit.score > 0 for hit in hits), f"a lexical score is above 0, got {hits!r:.200}"
        for query, hits in zip(self.nothing, self.search(retriever, self.nothing, self.most), strict=True):
            assert not hits, f"query {query!r:.80} has no word of any passage, and gets {hits!r:.200}"

    def test_fewer_hits_are_the_first_of_more(self) -> None:
        """Checks that a smaller k returns the first hits of a larger k."""
        retriever, queries = self.make_retriever(), self.checked_queries()
        every = self.search(retriever, queries, self.most)
        for k in (1, 3, max(1, self.most // 2)):
            for number, (hits, whole) in enumerate(zip(self.search(retriever, queries, k), every, strict=True)):
                scores = ([hit.score for hit in hits], [hit.score for hit in whole[:k]])
                assert len(hits) == len(whole[:k]) and all(
                    abs(a - b) <= self.tolerance for a, b in zip(*scores, strict=True)
                ), f"query {number}, k={k}: the first {k} of k={self.most} score {scores[1]}, got {scores[0]}"

    # -- calls -----------------------------------------------------------------------------------------------------

    def test_what_is_found_does_not_depend_on_the_call(self) -> None:
        """Checks that a query gets the same hits alone, repeated, in reversed order and twice in one batch."""
        retriever, queries = self.make_retriever(), self.checked_queries()
        first = self.search(retriever, queries, self.most)
        self.same(self.search(retriever, queries, self.most), first, "asked again")
        self.same(self.search(retriever, queries[::-1], self.most)[::-1], first, "asked in reversed order")
        alone = [self.search(retriever, [query], self.most)[0] for query in queries]
        self.same(alone, first, "asked one by one")
        self.same(self.search(retriever, queries * 2, self.most), first * 2, "asked twice in one call")
        self.same(self.search(retriever, tuple(queries[:3]), self.most), first[:3], "asked with a tuple of queries")

    def test_queries_are_left_as_they_are(self) -> None:
        """Checks that the retriever does not change the caller's list of queries."""
        queries = self.checked_queries()
        self.search(self.make_retriever(), queries, 3)
        assert queries == self.checked_queries(), (
            f"search changed the list of queries that it was given: {queries!r:.200}"
        )

    def test_no_queries_find_no_lists(self) -> None:
        """Checks that an empty batch gets an empty list."""
        results = self.make_retriever().search([], 3)
        assert results == [], f"no queries are answered by an empty list, got {results!r:.200}"

    def test_wrong_arguments_are_refused(self) -> None:
        """Checks that a string instead of a list, and a k below 1, raise `UsageError`, as `check_request` does."""
        retriever, query = self.make_retriever(), self.checked_queries()[0]
        wrong: list[tuple[Any, int, str]] = [(query, 3, "queries"), ("", 3, "queries")]
        wrong += [([query], 0, "k"), ([query], -1, "k"), ([], 0, "k")]
        for queries, k, name in wrong:
            call = f"search({queries!r:.80}, {k})"
            try:
                results: object = retriever.search(queries, k)
            except UsageError as error:
                assert name in str(error).split(), f"{call}: the error must name {name}, it says {error}"
            except Exception as error:
                raise AssertionError(f"{call} must raise UsageError, got {type(error).__name__}: {error}") from error
            else:
                raise AssertionError(f"{call} must raise UsageError (call check_request first), got {results!r:.200}")

    def test_hostile_queries_are_answered_and_disturb_no_others(self) -> None:
        """Checks that control characters, lone surrogates, query syntax and megabytes are answered in time."""
        retriever, queries = self.make_retriever(), self.checked_queries()
        others = queries[:3]
        expected, started = self.search(retriever, others, self.most), time.monotonic()
        results = self.search(retriever, [*self.hostile, *others], self.most)
        took = time.monotonic() - started
        self.same(results[len(self.hostile) :], expected, "asked beside hostile queries")
        assert took < self.seconds, f"hostile queries took {took:.1f} seconds, at most {self.seconds:g} are allowed"

    def test_many_queries_in_one_call(self) -> None:
        """Checks that a large batch gets the same hits as small ones."""
        retriever, queries = self.make_retriever(), self.checked_queries()
        times = max(1, self.many // len(queries))
        results = self.search(retriever, queries * times, 3)
        expected = self.search(retriever, queries, 3)
        assert_same_hits(results, expected * times, self.tolerance, 3, f"{len(results)} queries in one call")

    def test_threads_find_the_same(self) -> None:
        """Checks that several threads, each with another order of queries, can search at the same time."""
        retriever, queries = self.make_retriever(), self.checked_queries()
        first = self.search(retriever, queries, self.most)
        barrier = threading.Barrier(THREADS)

        def search_from(start: int) -> list[list[Hit]]:
            barrier.wait(30)
            results = self.search(retriever, queries[start:] + queries[:start], self.most)
            return results[len(queries) - start :] + results[: len(queries) - start]

        with ThreadPoolExecutor(THREADS) as pool:
            for results in pool.map(search_from, [number * len(queries) // THREADS for number in range(THREADS)]):
                self.same(results, first, "asked from several threads at once")

    # -- in environments -------------------------------------------------------------------------------------------

    def test_copies_find_the_same_through_retrieve(self) -> None:
        """Checks that a deep copy, and a pickled copy if `pickled`, gets the same hits through `retrieve`."""
        retriever, queries = self.make_retriever(), self.checked_queries()
        expected = self.search(retriever, queries, self.most)
        copies = [copy.deepcopy(retriever)] + ([pickle.loads(pickle.dumps(retriever))] if self.pickled else [])
        for other in copies:
            results = retrieve(other, [self.question_id] * len(queries), queries, self.most, deadline=30)
            self.same(results, expected, "asked of a copy")
