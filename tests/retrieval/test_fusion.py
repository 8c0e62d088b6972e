"""Reciprocal rank fusion, worked by hand; and what every retriever does that stands on others."""

import copy
import functools
import math
import operator

import pytest
from support import PASSAGES

from searchgym.errors import RetrieverError, UsageError
from searchgym.records import Hit, Paragraph, Passage, Question
from searchgym.retrieval.cards import Sources, find_retriever
from searchgym.retrieval.index.build import build_index
from searchgym.retrieval.index.distractors import DistractorRetriever
from searchgym.retrieval.index.index import build_in_memory, load_index
from searchgym.retrieval.kinds.http import HttpRetriever
from searchgym.retrieval.kinds.hybrid import HybridRetriever, fuse
from searchgym.retrieval.retriever import CorpusRetriever, NullRetriever, at_step, identify
from searchgym.retrieval.wrapper import Wrapper

BY_ID = {p.id: p for p in PASSAGES}


class Listed:
    """Finds the same passages whatever is asked, and notes the k."""

    def __init__(self, ids, **attributes):
        self.ids, self.asked = ids, []
        self.__dict__ |= attributes

    def search(self, queries, k):
        self.asked.append(k)
        return [[Hit(Passage(i, "", i), 9.0 - n) for n, i in enumerate(self.ids)][:k] for _ in queries]


def ids(hits):
    return "".join(hit.passage.id for hit in hits)


def test_scores_are_sums_of_reciprocal_ranks():
    first, second = HybridRetriever([Listed("abc"), Listed("cad")]).search(["x", "y"], 3)
    assert first == second
    assert ids(first) == "acb"
    expected = [1 / 61 + 1 / 62, 1 / 63 + 1 / 61, 1 / 62]
    assert [hit.score for hit in first] == pytest.approx(expected, rel=1e-15)
    (flat,) = HybridRetriever([Listed("abc"), Listed("cad")], constant=0).search(["x"], 9)
    assert [(hit.passage.id, hit.score) for hit in flat] == [("a", 1.5), ("c", 1 / 3 + 1), ("b", 0.5), ("d", 1 / 3)]


def test_ties_go_to_the_best_single_rank_then_to_the_earlier_retriever():
    lists = [[Hit(Passage(i, "", i), 1.0) for i in own] for own in ("ab", "ba")]
    assert ids(fuse(lists, 2)) == "ab"
    assert ids(fuse(lists[::-1], 2)) == "ba"
    assert ids(fuse([lists[0], []], 2)) == "ab"
    # with constant 0: 1/2 + 1/2 = 1/1, and the one that is first somewhere goes first
    paired = [[Hit(Passage(i, "", i), 1.0) for i in own] for own in ("xb", "yb", "a")]
    assert [(h.passage.id, h.score) for h in fuse(paired, 4, 0)] == [("x", 1), ("y", 1), ("a", 1), ("b", 1)]


def test_rank_score_fusion_decides_ties_by_score():
    """First in one list ties with second in two (1 = 1/2 + 1/2); the better score wins. A single list stays."""

    def hits(*pairs):
        return [Hit(Passage(id, "", id), score) for id, score in pairs]

    lists = [hits(("x", 9.0), ("b", 5.0)), hits(("y", 3.0), ("b", 7.0)), hits(("a", 6.0))]
    assert ids(fuse(lists, 4, 0, "score")) == "xbay"
    assert ids(fuse(lists, 4, 0)) == "xyab"
    assert ids(fuse([lists[0]], 2, 0, "score")) == "xb"
    hybrid = HybridRetriever([Listed("ab"), Listed("ba")], constant=0, ties="score")
    assert hybrid.identity()["ties"] == "score" and "ties" not in HybridRetriever([Listed("ab")]).identity()


def test_the_same_ranks_in_another_order_are_a_tie_to_the_bit():
    ranks = {"a": (1, 2, 3), "b": (2, 3, 1), "c": (3, 1, 2)}
    sums = {functools.reduce(operator.add, (1 / (2 + rank) for rank in own)) for own in ranks.values()}
    assert len(sums) > 1  # what adding up as it comes would make of them
    lists = [sorted(ranks, key=lambda i, n=n: ranks[i][n]) for n in range(3)]
    found = fuse([[Hit(Passage(i, "", i), 1.0) for i in own] for own in lists], 3, 2)
    assert [hit.score for hit in found] == [math.fsum((1 / 3, 1 / 4, 1 / 5))] * 3
    assert ids(found) == "acb"  # a is first in the first list, c in the second, b in the third


def test_a_passage_twice_in_a_list_counts_where_it_is_first():
    (hits,) = HybridRetriever([Listed("aab")], constant=0).search(["x"], 5)
    assert [(hit.passage.id, hit.score) for hit in hits] == [("a", 1.0), ("b", 1 / 3)]


def test_each_is_asked_for_the_depth_or_for_what_is_wanted():
    inner = [Listed("abcdef"), Listed("fedcba")]
    hybrid = HybridRetriever(inner, depth=4)
    assert len(hybrid.search(["x"], 2)[0]) == 2
    assert len(hybrid.search(["x"], 6)[0]) == 6
    assert [one.asked for one in inner] == [[4, 6], [4, 6]]
    deep, shallow = (HybridRetriever([Listed("abcd"), Listed("dx")], d).search(["x"], 1)[0] for d in (100, 1))
    assert (ids(deep), ids(shallow)) == ("d", "a")  # below the depth nothing counts


def test_a_reply_of_the_wrong_length_is_a_fault():
    class Short(Listed):
        def search(self, queries, k):
            return super().search(queries, k)[1:]

    with pytest.raises(RetrieverError, match="expected a list of 2 lists"):
        HybridRetriever([Listed("a"), Short("a")]).search(["x", "y"], 1)


def test_what_cannot_be_joined_is_refused():
    with pytest.raises(UsageError, match="got none"):
        HybridRetriever([])
    one, other = build_in_memory(PASSAGES), build_in_memory(PASSAGES[:2])
    one.corpus_sha256, other.corpus_sha256 = "aa", "bb"
    with pytest.raises(UsageError, match="over one corpus, got aa, bb"):
        HybridRetriever([one, other])
    own = (Paragraph("Alpha", ("Alpha is here.",)),)
    with pytest.raises(UsageError, match="got DistractorRetriever"):
        Wrapper(DistractorRetriever([Question("q", "?", ("a",), paragraphs=own)]))


# -- standing on others --------------------------------------------------------------------------------------------


def test_a_hybrid_of_an_index_folder_is_a_retriever_over_its_corpus(tmp_path):
    card = {"kind": "hybrid", "of": [{"kind": "bm25"}, {"kind": "bm25", "k1": 1.5}], "depth": 3}
    manifest = build_index(PASSAGES, tmp_path / "index", card)
    found = load_index(tmp_path / "index")
    assert isinstance(found, HybridRetriever)
    assert isinstance(found, CorpusRetriever)
    assert (len(found), found.corpus_sha256) == (5, manifest.corpus_sha256)
    assert list(found.passages()) == PASSAGES
    assert found.passage(3) == PASSAGES[3]
    assert (found.in_process, found.tries_again, found.calls_at_once) == (True, False, 1)
    assert copy.deepcopy({"retriever": found})["retriever"] is found
    one, other = (inner.search(["Gamma Beta"], 3)[0] for inner in found.inner)
    assert found.search(["Gamma Beta"], 3)[0] == fuse([one, other], 3)
    said = identify(found)
    assert (said["kind"], said["depth"], said["corpus"]) == ("hybrid", 3, manifest.corpus_sha256)
    assert [inner["k1"] for inner in said["of"]] == [0.9, 1.5]


def test_without_a_corpus_nothing_is_pretended():
    server = HttpRetriever("http://127.0.0.1:9", connections=5)
    cached = Sources().open(find_retriever({"kind": "cache", "of": "http://127.0.0.1:9"}))
    for found in (Wrapper(server), cached, Wrapper(cached)):
        assert not hasattr(found, "passages")
        assert not isinstance(found, CorpusRetriever)
        assert found  # and no TypeError
        with pytest.raises(TypeError, match="no corpus on this machine"):
            len(found)
    assert (Wrapper(server).in_process, Wrapper(server).tries_again, Wrapper(server).calls_at_once) == (False, True, 5)


def test_a_hybrid_says_of_itself_what_is_true_of_all():
    here, server, tool = build_in_memory(PASSAGES), HttpRetriever("http://127.0.0.1:9"), Listed("a", calls_at_once=3)
    mixed = HybridRetriever([server, here])
    assert (mixed.in_process, mixed.tries_again, mixed.calls_at_once, len(mixed)) == (False, True, 1, 5)
    both = HybridRetriever([server, tool])
    assert (both.in_process, both.tries_again, both.calls_at_once) == (False, False, 3)
    named = [Listed("a", corpus_sha256=name) for name in ("aa", "aa", "bb")]
    assert (HybridRetriever(named[:2]).corpus_sha256, HybridRetriever(named).corpus_sha256) == ("aa", None)


def test_steps_reach_the_bottom_and_those_who_do_not_mind():
    told = []
    bottom = Listed("a", at_step=lambda step, steps: told.append((step, steps)))
    at_step(Wrapper(HybridRetriever([NullRetriever(), bottom])), 3, 9)
    at_step(NullRetriever(), 3, 9)
    assert told == [(3, 9)]
