"""Retriever cards: every kind is read strictly, and written out again as it was read."""

import dataclasses
import math
import typing

import pytest

from searchgym.errors import CardError, UnknownNameError
from searchgym.options import find_kind, kinds, plain
from searchgym.options.cards import list_cards
from searchgym.retrieval.cards import RetrieverCard, find_retriever
from searchgym.retrieval.index.index import part_names
from searchgym.retrieval.kinds.bm25 import BM25Card
from searchgym.retrieval.kinds.http import HttpCard
from searchgym.retrieval.kinds.hybrid import HybridCard

ENCODER = {"name": "e", "model": "m", "dimension": 8}
LEAST = {  # what a card of each kind must say
    "bm25": {},
    "lucene": {},
    "dense": {"encoder": ENCODER},
    "hybrid": {"of": ["bm25", "lucene"]},
    "rerank": {"of": "bm25", "encoder": ENCODER},
    "noise": {"of": "bm25"},
    "cache": {"of": "bm25"},
    "recorded": {"episodes": "run"},
    "http": {"url": "http://localhost:8000/retrieve"},
    "tool": {"function": "module:function"},
    "simulated": {"model": "module:function"},
}
KINDS = {name: find_kind(RetrieverCard, name) for name in kinds(RetrieverCard)}
UNBOUNDED = {("noise", "seed"), ("simulated", "seed")}
HINTS = {(kind, field): hint for kind, cls in KINDS.items() for field, hint in typing.get_type_hints(cls).items()}
NUMBERS = [key for key, hint in HINTS.items() if {int, float} & {hint, *typing.get_args(hint)} and key not in UNBOUNDED]
BOUNDS = {  # from the cards of the first versions: least and most of each number
    **{(kind, field): bounds for kind in ("bm25", "lucene") for field, bounds in [
        ("k1", (0, 1e6)), ("b", (0, 1)), ("threads", (0, 4096))
    ]},
    ("dense", "lists"): (1, 1e8), ("dense", "training"): (1, 1e9), ("dense", "nprobe"): (1, 1e8),
    ("dense", "links"): (2, 512), ("dense", "ef_construction"): (1, 1e5), ("dense", "ef_search"): (1, 1e5),
    ("hybrid", "depth"): (1, 1e5), ("hybrid", "constant"): (0, 1e6), ("rerank", "first"): (1, 1e5),
    ("rerank", "listwise"): (0, 100),
    **{(kind, field): bounds for kind in ("noise", "simulated") for field, bounds in [
        ("start", (0, 1)), ("end", (0, 1)), ("base", (1e-6, 1e6)), ("steps", (1, 1e9))
    ]},
    ("noise", "mixed_in"): (0, 1e9), ("cache", "size"): (1, 1e9), ("http", "connections"): (1, 4096),
    ("http", "deadline"): (0, 1e6), ("tool", "calls"): (1, 4096), ("simulated", "pages"): (1, 100),
    ("simulated", "words"): (1, 1000), ("simulated", "temperature"): (0, 100),
}  # fmt: skip


def retriever(kind, **changes) -> typing.Any:
    return find_retriever({"kind": kind, **LEAST[kind], **changes})


def test_every_shipped_retriever_is_valid_and_says_what_is_built():
    parts = {name: list(part_names(find_retriever(name))) for name in list_cards("retrievers")}
    assert parts == {
        "bm25": ["bm25"],
        "bm25-minilm-rerank": ["bm25"],
        "bm25-noise": ["bm25"],
        "e5-flat": ["dense"],
        "e5-hnsw": ["dense"],
        "e5-ivf": ["dense"],
        "hybrid-e5": ["bm25", "dense"],
        "hybrid-minilm": ["bm25", "dense"],
        "lucene": ["lucene"],
        "minilm-flat": ["dense"],
    }


@pytest.mark.parametrize("name", list_cards("retrievers"))
def test_a_shipped_retriever_is_read_again_from_plain_data(name):
    card = find_retriever(name)
    assert (card.name, bool(card.summary)) == (name, True)
    assert find_retriever(plain(card)) == card
    assert find_retriever(str(list_cards("retrievers")[name])) == card
    assert card.needs_corpus


@pytest.mark.parametrize("kind", KINDS)
def test_a_card_of_every_kind_is_read_again_from_plain_data(kind):
    card = retriever(kind)
    assert (type(card), card.kind) == (KINDS[kind], kind)
    assert find_retriever(plain(card)) == find_retriever(card) == card
    assert card.needs_corpus != (kind in ("http", "tool", "recorded", "simulated"))


def test_the_defaults_are_those_of_the_paper_s_bm25():
    assert (retriever("bm25").k1, retriever("bm25").b) == (0.9, 0.4)
    assert find_retriever("http://host/retrieve") == HttpCard(url="http://host/retrieve")


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_key_is_refused_with_the_nearest(kind):
    for field in dataclasses.fields(KINDS[kind]):
        with pytest.raises(CardError, match=rf"retriever: {field.name}x: unknown key; did you mean '{field.name}'\?"):
            retriever(kind, **{f"{field.name}x": 1})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if LEAST[kind]])
def test_a_missing_key_is_named(kind):
    first = next(iter(LEAST[kind]))
    with pytest.raises(CardError, match=f"{first}: missing key"):
        find_retriever({"kind": kind} | {key: value for key, value in LEAST[kind].items() if key != first})


@pytest.mark.parametrize(("kind", "field"), NUMBERS)
def test_a_number_out_of_range_is_refused(kind, field):
    least, most = BOUNDS[kind, field]
    hint = HINTS[kind, field]
    number = float if float in (hint, *typing.get_args(hint)) else int
    for fit in (least, most):
        assert getattr(retriever(kind, **{field: number(fit)}), field) == fit
    for wrong in (number(least) - 1, number(most) + 1):
        with pytest.raises(CardError, match=rf"retriever: {field}: expected at (least|most) .*, got "):
            retriever(kind, **{field: wrong})
    for wrong in (math.nan, math.inf, -math.inf) if number is float else ():
        with pytest.raises(CardError, match=rf"retriever: {field}: expected a finite number"):
            retriever(kind, **{field: wrong})
    for wrong in (True, "1"):
        with pytest.raises(CardError, match=f"{field}: expected {'a number' if number is float else 'an integer'}"):
            retriever(kind, **{field: wrong})


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("bm25", {"b": 1.5}, "b: expected at most 1, got 1.5"),
        ("bm25", {"k1": -0.1}, "k1: expected at least 0, got -0.1"),
        ("noise", {"start": -0.5}, "start: expected at least 0, got -0.5"),
        ("noise", {"base": 0}, "base: expected at least 0.000001, got 0"),
        ("noise", {"base": math.nan}, "base: expected a finite number, got nan"),
        ("dense", {"nprobe": 0}, "nprobe: expected at least 1, got 0"),
        ("dense", {"index": "ivf"}, "index: got 'ivf'"),
        ("dense", {"index": "ivf-sq4"}, "did you mean 'ivf-sq8'"),
        ("dense", {"encoder": "minilmm"}, "did you mean 'minilm'"),
        ("dense", {"encoder": ENCODER | {"poling": "cls"}}, "encoder.poling: unknown key; did you mean 'pooling'"),
        ("dense", {"encoder": {"name": "e", "model": "m"}}, "encoder.dimension: missing key"),
        ("hybrid", {"of": ["bm25"]}, "hybrid needs at least two retrievers, got 1"),
        ("hybrid", {"of": "bm25"}, "of: expected a list"),
        ("hybrid", {"of": ["bm25", {"kind": "lucene", "b": 2}]}, r"of\[1\].b: expected at most 1, got 2"),
        ("hybrid", {"of": ["bm25", {"kind": "bm52"}]}, "did you mean 'bm25'"),
        ("rerank", {"encoder": None}, "either encoder or cross_encoder"),
        ("rerank", {"cross_encoder": "x"}, "either encoder or cross_encoder"),
        ("cache", {"of": "bm-25"}, "did you mean 'bm25'"),
        ("cache", {"of": {"k1": 1}}, "of: missing key kind, one of bm25, cache"),
    ],
)
def test_a_retriever_that_makes_no_sense_is_refused_with_the_place(kind, changes, message):
    with pytest.raises((CardError, UnknownNameError), match=message):
        retriever(kind, **changes)


def test_unreadable_retrievers(tmp_path):
    file = tmp_path / "mine.yaml"
    for text, message in [
        ("kind: [bm25", "mine.yaml: cannot be read as YAML"),
        ("kind: bm25\nkind: lucene\n", "key 'kind' occurs twice"),
        ("- bm25\n", "mine.yaml: a retriever card must be keys and values"),
        ("", "mine.yaml: a retriever card must be keys and values"),
        ("kind: bm25\nk1: '1'\n", "mine.yaml:2: k1: expected a number, got '1'"),
    ]:
        file.write_text(text)
        with pytest.raises(CardError, match=message):
            find_retriever(str(file))
    with pytest.raises(UnknownNameError, match="retriever card 'bm52'; did you mean 'bm25'"):
        find_retriever("bm52")


def test_a_card_that_stands_on_itself_is_refused(tmp_path):
    path = tmp_path / "loop.yaml"
    path.write_text(f"kind: cache\nof: {path}\n")
    with pytest.raises(CardError, match="refers to itself"):
        find_retriever(str(path))


def test_cards_made_in_python_are_checked_as_deep_as_they_go():
    made = HybridCard(of=[BM25Card(b=9.0), BM25Card()])
    with pytest.raises(CardError, match=r"of\[0\].b: expected at most 1, got 9.0"):
        find_retriever(made)


@pytest.mark.parametrize("memory", ["2 gigs", "", "0g", "-1g"])
def test_a_heap_that_is_no_size_is_refused(memory):
    with pytest.raises(CardError, match="memory must be a number of bytes such as 512m or 4g"):
        find_retriever({"kind": "lucene", "memory": memory})


def test_a_kind_that_is_no_name_is_refused():
    with pytest.raises(CardError, match="missing key kind, one of bm25"):
        find_retriever({"kind": ["bm25"]})
