"""BM25 search against the formula in plain Python and in its corners, and its compressed postings."""

import copy
import functools
import json
import math
import pickle
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core import dispatcher

from searchgym.errors import DataError, UsageError
from searchgym.records import Hit, Passage, title_key
from searchgym.retrieval.bm25 import blocks, build
from searchgym.retrieval.bm25 import kernels as bm25_kernels
from searchgym.retrieval.bm25 import search as bm25
from searchgym.retrieval.bm25.analysis import analyse
from searchgym.retrieval.bm25.blocks import BLOCK, first_bad_block, kernel, measure, open_block, pack, uncounted
from searchgym.retrieval.bm25.build import _arrays, build_model
from searchgym.retrieval.bm25.search import BM25Retriever, contents
from searchgym.retrieval.index.build import build_index
from searchgym.retrieval.index.index import build_in_memory, load_index

WORDS = ["gull", "heron", "puffin", "skua", "tern", "the"]
sentences = st.lists(st.sampled_from(WORDS), max_size=7).map(" ".join)
word_sets = st.lists(st.sampled_from(WORDS), unique=True).map(" ".join)
corpora = st.lists(sentences, min_size=1, max_size=12).map(lambda texts: ["puffin", *texts])
parameters = st.sampled_from([(0.9, 0.4), (1.2, 0.75), (0.0, 0.0), (2.0, 1.0)])


def retriever(texts: Sequence[str], k1: float = 0.9, b: float = 0.4) -> BM25Retriever:
    passages = [Passage(str(i), "", text) for i, text in enumerate(texts)]
    return BM25Retriever(build_model(map(contents, passages), k1, b), passages)


def formula(texts: Sequence[str], query: str, k1: float, b: float) -> list[float]:
    """Lucene's BM25 score of every text, in double precision, straight from the definition."""
    documents = [Counter(analyse(text)) for text in texts]
    lengths = [sum(d.values()) for d in documents]
    mean = sum(lengths) / len(lengths)
    scores = [0.0] * len(texts)
    for term in analyse(query):
        df = sum(term in d for d in documents)
        idf = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
        for i, document in enumerate(documents):
            if tf := document[term]:
                scores[i] += idf * tf / (tf + k1 * (1 - b + b * lengths[i] / mean))
    return scores


@functools.lru_cache(maxsize=10_000)
def counted(text: str) -> Counter[str]:
    return Counter(analyse(text))


def float32_scores(texts: Sequence[str], query: str, k1: float = 0.9, b: float = 0.4) -> npt.NDArray[np.float32]:
    """The score of every text by visiting every posting, rounded as the index rounds: terms in the query's order."""
    documents = [counted(text) for text in texts]
    lengths = np.array([d.total() for d in documents])
    penalties = k1 * (1 - b + b * (lengths / max(lengths.mean(), 1e-9)))
    scores = np.zeros(len(texts), np.float32)
    for term, repeats in Counter(analyse(query)).items():
        counts = np.array([d[term] for d in documents])
        df = np.array([(counts > 0).sum()])
        weight = np.log(1 + (len(texts) - df + 0.5) / (df + 0.5))[0]
        with np.errstate(invalid="ignore"):
            parts = np.where(counts > 0, weight * (counts / (counts + penalties)), 0).astype(np.float32)
        scores += np.float32(repeats) * parts
    return scores


def best(scores: Sequence[float], k: int) -> list[tuple[str, float]]:
    """The k best (id, score): above 0, ties in passage order."""
    ranked = sorted((i for i in range(len(scores)) if scores[i] > 0), key=lambda i: (-scores[i], i))
    return [(str(i), float(scores[i])) for i in ranked[:k]]


def pairs(hits: Sequence[Hit]) -> list[tuple[str, float]]:
    return [(hit.passage.id, hit.score) for hit in hits]


@pytest.mark.slow
@given(corpora, sentences, st.integers(1, 15), parameters)
@settings(max_examples=150, deadline=None)
def test_scores_are_the_formulas(texts: list[str], query: str, k: int, p: tuple[float, float]) -> None:
    expected = formula(texts, query, *p)
    (hits,) = retriever(texts, *p).search([query], k)
    assert len(hits) == min(k, sum(score > 0 for score in expected))
    for hit in hits:
        assert hit.score == pytest.approx(expected[int(hit.passage.id)], rel=1e-6)
    floor = min((hit.score for hit in hits), default=0.0)
    missed = set(range(len(texts))) - {int(hit.passage.id) for hit in hits}
    assert all(expected[i] <= floor * (1 + 1e-6) for i in missed)


@pytest.mark.slow
@given(corpora, st.lists(word_sets, min_size=1, max_size=5), st.integers(1, 15))
@settings(max_examples=150, deadline=None)
def test_ranking_is_that_of_visiting_every_posting(texts: list[str], queries: list[str], k: int) -> None:
    for query, hits in zip(queries, retriever(texts).search(queries, k), strict=True):
        assert pairs(hits) == best(float32_scores(texts, query).tolist(), k)


def words_of_all_frequencies(seed: int, count: int) -> tuple[list[str], list[str]]:
    """Texts and queries of words of very different frequency."""
    rng = np.random.default_rng(seed)
    words = [f"w{n}" for n in range(2000)]
    shares = 1 / np.arange(1, 2001)
    texts = [" ".join(rng.choice(words, rng.integers(1, 60), p=shares / shares.sum())) for _ in range(count)]
    queries = [" ".join(rng.choice(words, rng.integers(1, 14))) for _ in range(150)]
    return texts, queries + [" ".join(rng.choice(texts[rng.integers(count)].split(), 12)) for _ in range(150)]


@pytest.mark.slow
@pytest.mark.parametrize("window", [64, bm25_kernels.WINDOW])
def test_passing_over_postings_changes_no_bit(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    """Most postings of the common words are passed over; blocks end within windows, and windows within blocks."""
    texts, queries = words_of_all_frequencies(5, 3000)
    index = in_windows(retriever(texts), window, monkeypatch)
    expected = [float32_scores(texts, query).tolist() for query in queries[::3]]
    for k in (1, 3, 10, 11, 100, 5000):
        for scores, hits in zip(expected, index.search(queries[::3], k), strict=True):
            assert pairs(hits) == best(scores, k)


def in_windows(index: BM25Retriever, window: int, monkeypatch: pytest.MonkeyPatch) -> BM25Retriever:
    """The retriever with smaller windows, in kernels that are compiled for them."""
    if window != bm25_kernels.WINDOW:
        functions = {name: value for name, value in vars(bm25_kernels).items() if hasattr(value, "py_func")}
        monkeypatch.setattr(bm25_kernels, "WINDOW", window)
        own = {name: function.py_func for name, function in functions.items()}
        for name in own:
            monkeypatch.setattr(bm25_kernels, name, numba.njit(own[name]))
        monkeypatch.setattr(bm25, "search_all", bm25_kernels.search_all)
        monkeypatch.setattr(bm25, "WINDOW", window)
        index._scratch.clear()
    return index


def test_a_few_windows_and_blocks_change_no_bit() -> None:
    """The quick sibling: words in 1 to 1,500 of 1,500 texts, with and without rows."""
    texts, queries = words_of_all_frequencies(0, 1500)
    index = retriever(texts)
    for query, hits in zip(queries[::20], index.search(queries[::20], 10), strict=True):
        assert pairs(hits) == best(float32_scores(texts, query).tolist(), 10)
    assert (index._scorer.row_of >= 0).any() and (index._scorer.row_of < 0).any()
    assert max(np.diff(index.index.postings.starts)) > 3, "several blocks"


# -- compressed postings -------------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_blocks_hold_what_was_packed(data: st.DataObject) -> None:
    """Distances and counts of all widths, and terms of one posting to several blocks."""
    sizes = data.draw(st.lists(st.sampled_from([1, 2, 127, 128, 129, 300]), min_size=1, max_size=4))
    seed, spread = data.draw(st.integers(0, 99)), data.draw(st.sampled_from([1, 3, 200, 4000]))
    most = data.draw(st.integers(1, 900))
    rng = np.random.default_rng(seed)
    passages = [np.cumsum(rng.integers(1, spread + 1, size)).astype(np.int32) - 1 for size in sizes]
    counts = [rng.integers(1, most + 1, size).astype(np.int32) for size in sizes]
    lengths = rng.integers(0, 50, max(each[-1] for each in passages) + 1).astype(np.int32)
    weights, penalties = rng.random(len(sizes)) + 0.1, rng.random(50)
    bounds = np.cumsum([0, *sizes])
    out = _arrays(sum(-(-size // BLOCK) for size in sizes), len(sizes))
    flat = np.concatenate(passages), np.concatenate(counts)
    words = np.zeros(measure(*flat, bounds, weights, lengths, penalties, out), np.uint64)
    pack(*flat, bounds, out.widths, words)
    starts = np.cumsum([0, *(-(-size // BLOCK) for size in sizes)])
    postings = out._replace(
        words=np.append(words, np.uint64(0)),
        starts=starts,
        sizes=np.array(sizes, np.int32),
        weights=weights,
        lengths=lengths,
    )
    assert first_bad_block(postings, penalties) == (-1, -1)
    into, numbers = np.empty(BLOCK, np.int32), np.empty(BLOCK, np.int32)
    for term, (where, often) in enumerate(zip(passages, counts, strict=True)):
        found = list[tuple[int, int]]()
        for block in range(starts[term], starts[term + 1]):
            size = open_block(postings, term, block, into, numbers)
            found += zip(into[:size].tolist(), numbers[:size].tolist(), strict=True)
        assert found == list(zip(where.tolist(), often.tolist(), strict=True))
        scores = np.sort((weights[term] * (often / (often + penalties[lengths[where]]))).astype(np.float32))
        assert postings.floors[term] == (scores[-10] if len(scores) > 9 else 0)
        assert postings.maxima[starts[term] : starts[term + 1]].max() == scores[-1]


@pytest.mark.parametrize("together", [1, 7, 100])
def test_an_index_does_not_depend_on_how_much_is_merged_at_a_time(
    monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    texts, _ = words_of_all_frequencies(1, 60)
    whole = build_model(texts)
    monkeypatch.setattr(build, "TOGETHER", together)
    parts = build_model(texts)
    assert parts.vocabulary == whole.vocabulary
    assert all(np.array_equal(a, b) for a, b in zip(tuple[Any, ...](parts.postings), whole.postings, strict=True))


def test_postings_take_about_a_byte() -> None:
    texts, _ = words_of_all_frequencies(2, 3000)
    postings = build_model(texts).postings
    assert postings.words.nbytes < 1.5 * postings.sizes.sum()


@pytest.mark.slow
@given(corpora, st.data())
@settings(max_examples=150, deadline=None)
def test_a_subset_gives_what_filtering_everything_gives(texts: list[str], data: st.DataObject) -> None:
    queries = data.draw(st.lists(sentences, min_size=1, max_size=4))
    positions = st.lists(st.integers(0, len(texts) - 1), max_size=8)
    subsets = [data.draw(positions) for _ in queries]
    k = data.draw(st.integers(1, 6))
    index = retriever(texts)
    found = index.search_within(queries, k, [np.array(subset, np.int64) for subset in subsets])
    everything = index.search(queries, len(texts))
    for hits, full, subset in zip(found, everything, subsets, strict=True):
        assert pairs(hits) == [p for p in pairs(full) if int(p[0]) in subset][:k]


@given(corpora, st.lists(sentences, min_size=2, max_size=6), st.integers(1, 6))
@settings(max_examples=50, deadline=None)
def test_a_result_does_not_depend_on_the_batch(texts: list[str], queries: list[str], k: int) -> None:
    index = retriever(texts)
    together = index.search(queries, k)
    assert together == [index.search([query], k)[0] for query in queries]
    assert index.search(queries[::-1], k) == together[::-1]


def test_hand_worked_scores() -> None:
    # N = 3; "tern": df 1, idf ln(1 + 2.5 / 1.5); lengths 1, 3, 2, mean 2.
    index = retriever(["gull", "tern tern gull", "heron puffin"])
    (hits,) = index.search(["tern"], 3)
    assert [hit.passage.id for hit in hits] == ["1"]
    assert hits[0].score == pytest.approx(math.log(1 + 2.5 / 1.5) * 2 / (2 + 0.9 * (0.6 + 0.4 * 3 / 2)), rel=1e-6)


def test_ties_keep_passage_order_at_the_boundary_too() -> None:
    index = retriever(["skua", *["gull heron"] * 40, "puffin", *["gull heron"] * 40])
    for k in (1, 2, 7, 39, 41, 79, 80, 81, 500):
        (hits,) = index.search(["heron gull"], k)
        assert [int(hit.passage.id) for hit in hits] == [*range(1, 41), *range(42, 82)][:k]
        (hits,) = index.search_within(["heron gull"], k, [np.arange(81, 9, -1)])
        assert [int(hit.passage.id) for hit in hits] == [*range(10, 41), *range(42, 82)][:k]


@pytest.mark.parametrize("query", ["", " ", "the and of", "albatross", "!?", "\x00", "\ud800", "_"])
def test_a_query_without_known_words_finds_nothing(query: str) -> None:
    assert retriever(["gull", "the heron"]).search([query, "gull"], 5)[0] == []


def test_a_hostile_query_does_no_harm() -> None:
    index = retriever(["gull", "heron"])
    expected = index.search(["gull"], 2)
    assert index.search(["gull " * 200_000], 2)[0][0].passage.id == "0"
    assert index.search(["x" * 1_000_000, "\udfff\x00'\u0301" * 1000], 2) == [[], []]
    assert index.search(["gull"], 2) == expected


def test_repeated_query_terms_count_each_time() -> None:
    index = retriever(["gull heron", "heron", "tern"])
    (once,), (thrice,) = index.search(["gull"], 1)[0], index.search(["gull gulls GULL"], 1)[0]
    assert thrice.score == pytest.approx(3 * once.score, rel=1e-6)


def test_titles_are_searched() -> None:
    passages = [Passage("a", "Skua", "a bird"), Passage("b", "Tern", "a bird")]
    index = BM25Retriever(build_model(map(contents, passages)), passages)
    assert [hit.passage for hit in index.search(["terns"], 5)[0]] == [passages[1]]


def test_no_queries_no_results() -> None:
    index = retriever(["gull"])
    assert index.search([], 3) == []
    assert index.search_within([], 3, []) == []


@pytest.mark.parametrize("k", [0, -1])
def test_k_below_one_is_refused(k: int) -> None:
    with pytest.raises(UsageError, match=f"k must be at least 1, got {k}"):
        retriever(["gull"]).search(["gull"], k)


def test_a_single_string_is_refused() -> None:
    with pytest.raises(UsageError, match="list of strings"):
        retriever(["gull"]).search("gull", 1)


def test_subsets_are_checked() -> None:
    index = retriever(["gull", "heron"])
    with pytest.raises(UsageError, match="1 for 2 queries"):
        index.search_within(["a", "b"], 1, [np.arange(1)])
    for outside in (-1, 2):
        with pytest.raises(UsageError, match=r"in \[0, 2\)"):
            index.search_within(["a"], 1, [np.array([0, outside])])


@pytest.mark.parametrize(("k1", "b"), [(-0.1, 0.4), (0.9, 1.1), (0.9, -0.1), (math.nan, 0.4), (math.inf, 0.4)])
def test_impossible_parameters_are_refused(k1: float, b: float) -> None:
    with pytest.raises(UsageError, match="k1 >= 0 and 0 <= b <= 1"):
        build_model(["gull"], k1, b)


@pytest.mark.parametrize("texts", [[], ["", "the"]])
def test_nothing_to_index_is_refused(texts: list[str]) -> None:
    with pytest.raises(DataError, match=f"{len(texts)} passages and no word"):
        build_model(texts)


@pytest.mark.slow
def test_threads_do_not_disturb_each_other() -> None:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=6)) for _ in range(300)]
    queries = [" ".join(rng.choice(WORDS, size=3)) for _ in range(200)]
    index = retriever(texts)
    expected = index.search(queries, 10)
    with ThreadPoolExecutor(8) as pool:
        assert all(found == expected for found in pool.map(lambda _: index.search(queries, 10), range(32)))


@pytest.mark.parametrize("processors", [1, 2, 3, 64])
def test_a_large_batch_is_shared_among_threads(monkeypatch: pytest.MonkeyPatch, processors: int) -> None:
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(WORDS, size=6)) for _ in range(100)]
    passages = [Passage(str(i), "", text) for i, text in enumerate(texts)]
    index = BM25Retriever(build_model(texts), passages, threads=processors)
    queries = ["", *(" ".join(rng.choice(WORDS, size=3)) for _ in range(40)), "albatross"]
    expected = index.search(queries, 10)
    monkeypatch.setattr(bm25, "QUERIES", 4)
    starts: list[int] = []
    rank = index._rank

    def noted(terms: Any, counts: Any, found: Any, first: int) -> list[list[Hit]]:
        starts.append(first)
        return rank(terms, counts, found, first)

    monkeypatch.setattr(index, "_rank", noted)
    assert index.search(queries, 10) == expected
    assert sorted(starts) == list(range(0, len(queries), 4))


def test_a_copy_is_the_retriever_and_a_pickle_finds_the_same() -> None:
    index = retriever(["gull heron", "heron", "tern"])
    assert copy.deepcopy(index) is index
    assert pickle.loads(pickle.dumps(index)).search(["heron"], 3) == index.search(["heron"], 3)
    assert len(index) == len(list(index.passages())) == 3


def test_everything_is_compiled_once_and_before_the_first_search(tmp_path: Path) -> None:
    kernels: list[Any] = [bm25_kernels.search_all, bm25_kernels.search_within]
    passages = [Passage("g", "", "gull")]
    build_index(passages, tmp_path / "index")
    indexes: list[Any] = [build_in_memory(passages), load_index(tmp_path / "index")]
    for index in indexes:
        assert [len(kernel.signatures) for kernel in kernels] == [1, 1]
        index.search(["gull", "heron"], 5)
        index.search_within(["gull"], 5, [np.array([0])])
        assert [len(kernel.signatures) for kernel in kernels] == [1, 1]


def test_kernels_compile_where_nothing_can_be_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_cache_folder(*args: object, **kwargs: object) -> None:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(dispatcher, "FunctionCache", no_cache_folder)

    def double(x: Any) -> Any:
        return 2 * x

    with pytest.raises(RuntimeError):
        numba.njit(cache=True)(double)
    assert kernel(double)(21) == 42


def test_kernels_compile_where_references_must_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(values: Any) -> Any:
        return 2 * values[0]

    assert uncounted(first)(np.array([21])) == 42
    monkeypatch.setattr(blocks, "DefaultOptions", object)
    assert uncounted(first)(np.array([21])) == 42


def test_recall_on_real_questions(real_data: Path) -> None:
    pages = json.loads((real_data / "hotpotqa" / "corpus.json").read_text(encoding="utf-8"))
    questions = json.loads((real_data / "hotpotqa" / "questions.json").read_text(encoding="utf-8"))
    passages = [Passage(title, title, "".join(sentences)) for title, sentences in pages.items()]
    index = BM25Retriever(build_model(map(contents, passages)), passages)
    found = index.search([question["question"] for question in questions], 20)
    recall = {5: 0.0, 20: 0.0}
    for question, hits in zip(questions, found, strict=True):
        gold = {title_key(title) for title, _ in question["supporting_facts"]}
        for k in recall:
            recall[k] += len(gold & {title_key(hit.passage.title) for hit in hits[:k]}) / len(gold) / len(questions)
    assert len(passages) == 994 and len(questions) == 100
    assert recall[5] == pytest.approx(0.755, abs=0.01)
    assert recall[20] == pytest.approx(0.935, abs=0.01)
