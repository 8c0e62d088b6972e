"""A shard of postings against counting the terms of each whole passage."""

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from searchgym.retrieval.bm25.analysis import analyse, terms_since
from searchgym.retrieval.bm25.shards import Analyser, Shard

AWKWARD = "ab1 \n\t.,:;'’_-ßİΣσÉe\u0301\u0308\u200d\u00a0\u202f\u2028\u3000\u0e01ア漢가☃\U0001f600\ud800"
"""Letters, digits, spaces of every kind, and what joins, extends, composes or is lowered oddly."""
texts = st.one_of(st.text(st.sampled_from(AWKWARD), max_size=40), st.text(st.characters(exclude_categories=[])))


def counted(shard: Shard) -> list[Counter[str]]:
    """The terms of each passage, read from the postings; passages of a term must ascend."""
    found: list[Counter[str]] = [Counter() for _ in shard.lengths]
    for id, term in enumerate(shard.terms):
        mine = slice(shard.starts[id], shard.starts[id + 1])
        passages = shard.passages[mine].tolist()
        assert passages == sorted(set(passages)) and passages
        for passage, count in zip(passages, shard.counts[mine].tolist(), strict=True):
            found[passage][term] = count
    return found


@given(st.lists(texts, max_size=6))
@example(["the gulls\nthe gull's, gull. Gull", "", "É e\u0301 \u0301_a", "Σ\u202f_b 1,5 a.b"])
@settings(max_examples=200, deadline=None)
def test_a_shard_holds_what_analysing_whole_passages_gives(corpus: list[str]) -> None:
    shard = Analyser().shard(corpus)
    analysed = [analyse(text) for text in corpus]
    assert counted(shard) == [Counter(terms) for terms in analysed]
    assert shard.lengths.tolist() == [len(terms) for terms in analysed]
    assert shard.since.tolist() == [terms_since(text) for text in corpus]
    assert list(shard.terms) == list(dict.fromkeys(term for terms in analysed for term in terms))


@pytest.mark.parametrize("most", [0, 3, 1000])
def test_terms_get_the_same_ids_whatever_an_analyser_remembers(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """The merge numbers terms as it meets them, so an index does not depend on where a build was resumed."""
    monkeypatch.setattr("searchgym.retrieval.bm25.shards.MOST_PIECES", most)
    analyser, corpora = Analyser(), [["skua tern", "gull"], ["heron tern", "auk skua"], ["auk gull ibis", "wren heron"]]
    met = dict.fromkeys(term for corpus in corpora for term in analyser.shard(corpus).terms)
    assert list(met) == ["skua", "tern", "gull", "heron", "auk", "ibi", "wren"]
    for corpus in corpora:
        shard = analyser.shard(corpus)
        assert counted(shard) == [Counter(analyse(text)) for text in corpus]


@pytest.mark.slow
@given(st.text(st.sampled_from(AWKWARD)), st.text(st.sampled_from(AWKWARD)), st.sampled_from(" \n"))
@settings(max_examples=20_000, deadline=None)
def test_no_word_goes_across_a_space(left: str, right: str, space: str) -> None:
    assert analyse(left + space + right) == analyse(left) + analyse(right)
