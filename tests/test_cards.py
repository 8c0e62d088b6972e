import dataclasses
import math
import typing
from functools import partial
from pathlib import Path

import pytest

from searchgym.cards import (
    CARD_KINDS,
    CorpusCard,
    EncoderCard,
    EnvCard,
    build,
    find_card,
    list_cards,
    load_card,
    load_model_card,
)
from searchgym.corpora.retrieval import cards as retrievers
from searchgym.corpora.retrieval.cards import (
    KINDS,
    BM25Card,
    HttpCard,
    HybridCard,
    find_retriever,
    plain,
    stands_outside,
)
from searchgym.corpora.retrieval.index.index import part_names
from searchgym.errors import CardError, UnknownNameError

GOOD = {
    "id": "a/B-v0",
    "summary": "s",
    "questions": {"dataset": "d", "split": "dev", "size": 3, "file": "f", "get": "g"},
    "corpus": "demo",
}


@pytest.mark.parametrize("kind", CARD_KINDS)
def test_every_shipped_card_loads(kind):
    read = load_model_card if kind == "models" else partial(load_card, CARD_KINDS[kind])
    cards = {name: read(path) for name, path in list_cards(kind).items()}
    assert cards
    if kind != "envs":
        assert all(card.name == name for name, card in cards.items())


def test_a_good_card_has_its_defaults():
    card = build(EnvCard, GOOD, "x.yaml")
    assert (card.top_k, card.max_turns, card.reward, card.questions.size) == (3, 5, "em", 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_kk": 3}, r"x\.yaml: unknown key 'top_kk'; did you mean 'top_k'\?"),
        ({"top_k": "3"}, r"x\.yaml: top_k: expected int, got '3'"),
        ({"top_k": True}, r"x\.yaml: top_k: expected int, got True"),
        ({"protocol": "tag"}, r"x\.yaml: protocol: got 'tag'; did you mean 'tags'\?"),
        ({"questions": {"dataset": "d"}}, r"x\.yaml: questions: missing key file, get, size, split"),
        ({"questions": 3}, r"x\.yaml: questions: expected keys and values, got int"),
    ],
)
def test_a_bad_card_is_refused_with_the_place(change, message):
    with pytest.raises(CardError, match=message):
        build(EnvCard, GOOD | change, "x.yaml")


def test_numbers_are_not_coerced_except_int_to_float():
    assert build(EnvCard, GOOD | {"retriever_deadline": 3}, "x").retriever_deadline == 3.0


def test_optional_fields_take_none_and_refuse_other_types():
    fields = {"name": "n", "summary": "s", "source": "x", "licence": "l", "file": "f"}
    assert build(CorpusCard, fields | {"sha256": None}, "x").sha256 is None
    with pytest.raises(CardError, match="sha256: expected str, got 3"):
        build(CorpusCard, fields | {"sha256": 3}, "x")


def test_unreadable_cards(tmp_path: Path):
    path = tmp_path / "bad.yaml"
    path.write_text("a: [1")
    with pytest.raises(CardError, match=r"bad\.yaml: cannot be read as YAML"):
        load_card(EnvCard, path)
    path.write_text("id: a\nsummary: s\nid: b\n")
    with pytest.raises(CardError, match="key 'id' stands twice"):
        load_card(EnvCard, path)
    path.write_text("")
    with pytest.raises(CardError, match="expected keys and values, got NoneType"):
        load_card(EnvCard, path)


def test_unknown_card_names_suggest_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'hotpotqa'"):
        find_card("envs", "hotpotqq")


def test_long_lists_of_known_names_are_cut():
    error = UnknownNameError("question id", "x", [f"id{i:04}" for i in range(7405)])
    assert "(7405 in all)" in str(error)
    assert len(str(error)) < 500


def test_of_dotted_names_those_of_the_same_section_are_listed():
    known = ["agent", *(f"credit.c{i:02}" for i in range(40)), "optimizer.lr", "optimizer.min_lr_ratio", "steps"]
    for name in ("optimizer.learning_rate", "optimizer", "optimizer.lr.x"):
        assert str(UnknownNameError("key", name, known)).endswith("Known: optimizer.lr, optimizer.min_lr_ratio"), name
    assert "(44 in all)" in str(UnknownNameError("key", "nothing.lr", known))
    assert "did you mean 'optimizer.lr'? Known: agent, credit.c00" in str(UnknownNameError("key", "optimize.lr", known))


# -- retrievers ----------------------------------------------------------------------------------------------------

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
UNBOUNDED = {("noise", "seed"), ("simulated", "seed")}
NUMBERS = [
    (kind, field)
    for kind, cls in KINDS.items()
    for field, hint in typing.get_type_hints(cls).items()
    if {int, float} & {hint, *typing.get_args(hint)} and (kind, field) not in UNBOUNDED
]


def retriever(kind, **changes):
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
    assert not stands_outside(card)


@pytest.mark.parametrize("kind", KINDS)
def test_a_card_of_every_kind_is_read_again_from_plain_data(kind):
    card = retriever(kind)
    assert (type(card), card.kind) == (KINDS[kind], kind)
    assert find_retriever(plain(card)) == find_retriever(card) == card
    assert stands_outside(card) == (kind in ("http", "tool", "recorded", "simulated"))


def test_the_defaults_are_those_of_the_paper_s_bm25():
    assert (retriever("bm25").k1, retriever("bm25").b) == (0.9, 0.4)
    assert find_retriever("http://host/retrieve") == HttpCard(kind="http", url="http://host/retrieve")


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_key_is_refused_with_the_nearest(kind):
    for field in dataclasses.fields(KINDS[kind]):
        with pytest.raises(CardError, match=rf"retriever: unknown key '{field.name}x'; did you mean '{field.name}'\?"):
            retriever(kind, **{f"{field.name}x": 1})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if LEAST[kind]])
def test_a_missing_key_is_named(kind):
    first = next(iter(LEAST[kind]))
    with pytest.raises(CardError, match=f"missing key {first}"):
        find_retriever({"kind": kind} | {key: value for key, value in LEAST[kind].items() if key != first})


@pytest.mark.parametrize(("kind", "field"), NUMBERS)
def test_a_number_out_of_range_is_refused(kind, field):
    ((least, most),) = [own[2:] for own in retrievers._RANGES if own[:2] == (KINDS[kind], field)]
    number = float if float in (hint := typing.get_type_hints(KINDS[kind])[field], *typing.get_args(hint)) else int
    for fit in (least, most):
        assert getattr(retriever(kind, **{field: number(fit)}), field) == fit
    off = [number(least) - 1, number(most) + 1] + ([math.nan, math.inf, -math.inf] if number is float else [])
    for wrong in off:
        with pytest.raises(CardError, match=rf"retriever: {field} is from .* to .*, got "):
            retriever(kind, **{field: wrong})
    for wrong in (True, "1"):
        with pytest.raises(CardError, match=f"{field}: expected {number.__name__}"):
            retriever(kind, **{field: wrong})


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("bm25", {"b": 1.5}, "b is from 0 to 1, got 1.5"),
        ("bm25", {"k1": -0.1}, "k1 is from 0 to 1e\\+06, got -0.1"),
        ("noise", {"start": -0.5}, "start is from 0 to 1, got -0.5"),
        ("noise", {"base": 0}, "base is from 1e-06 to 1e\\+06, got 0"),
        ("noise", {"base": math.nan}, "base is from 1e-06 to 1e\\+06, got nan"),
        ("dense", {"nprobe": 0}, "nprobe is from 1 to 1e\\+08, got 0"),
        ("dense", {"index": "ivf"}, "index: got 'ivf'"),
        ("dense", {"index": "ivf-sq4"}, "did you mean 'ivf-sq8'"),
        ("dense", {"encoder": "minilmm"}, "did you mean 'minilm'"),
        ("dense", {"encoder": ENCODER | {"poling": "cls"}}, "encoder: unknown key 'poling'; did you mean 'pooling'"),
        ("dense", {"encoder": {"name": "e", "model": "m"}}, "encoder: missing key dimension"),
        ("hybrid", {"of": ["bm25"]}, "hybrid joins two retrievers or more, got 1"),
        ("hybrid", {"of": "bm25"}, "of: expected list"),
        ("hybrid", {"of": ["bm25", {"kind": "lucene", "b": 2}]}, r"of\[1\]: b is from 0 to 1, got 2"),
        ("hybrid", {"of": ["bm25", {"kind": "bm52"}]}, "did you mean 'bm25'"),
        ("rerank", {"encoder": None}, "either encoder or cross_encoder"),
        ("rerank", {"cross_encoder": "x"}, "either encoder or cross_encoder"),
        ("cache", {"of": "bm-25"}, "did you mean 'bm25'"),
        ("cache", {"of": {"k1": 1}}, "of: a retriever card names its kind, one of bm25, lucene"),
    ],
)
def test_a_retriever_that_makes_no_sense_is_refused_with_the_place(kind, changes, message):
    with pytest.raises((CardError, UnknownNameError), match=message):
        retriever(kind, **changes)


def test_unreadable_retrievers(tmp_path):
    file = tmp_path / "mine.yaml"
    for text, message in [
        ("kind: [bm25", "mine.yaml: cannot be read as YAML"),
        ("kind: bm25\nkind: lucene\n", "key 'kind' stands twice"),
        ("- bm25\n", "mine.yaml: a retriever card names its kind"),
        ("", "mine.yaml: a retriever card names its kind"),
        ("kind: bm25\nk1: '1'\n", "mine.yaml: k1: expected float, got '1'"),
    ]:
        file.write_text(text)
        with pytest.raises(CardError, match=message):
            find_retriever(str(file))
    with pytest.raises(UnknownNameError, match="retriever card 'bm52'; did you mean 'bm25'"):
        find_retriever("bm52")


# -- encoders ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list_cards("encoders"))
def test_a_shipped_encoder_can_be_loaded_by_its_numbers_and_templates(name):
    card = load_card(EncoderCard, list_cards("encoders")[name])
    assert card.query.count("{text}") == card.passage.count("{text}") == card.passage.count("{title}") == 1
    assert "{title}" not in card.query
    assert card.summary and card.licence
    assert (card.dimension >= 384, 256 <= card.max_tokens <= 1024, card.batch >= 1) == (True, True, True)


@pytest.mark.parametrize(
    ("name", "query", "passage", "pooling", "normalise", "dimension"),
    [  # as the models' own pages have it; E5's passages as Search-R1's corpus file
        ("e5-base-v2", "query: Q", 'passage: "T"\nP', "mean", True, 768),
        (
            "bge-base-en-v1.5",
            "Represent this sentence for searching relevant passages: Q",
            "T\nP",
            "cls",
            True,
            768,
        ),
        ("contriever-msmarco", "Q", "T\nP", "mean", False, 768),
        ("minilm", "Q", "T\nP", "mean", True, 384),
        ("minilm-package", "Q", "T\nP", "mean", True, 384),
        (
            "qwen3-embedding-0.6b",
            "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:Q",
            "T\nP",
            "lasttoken",
            True,
            1024,
        ),
    ],
)
def test_a_shipped_encoder_has_its_model_s_prefixes(name, query, passage, pooling, normalise, dimension):
    card = load_card(EncoderCard, list_cards("encoders")[name])
    assert (card.query.format(text="Q"), card.passage.format(title="T", text="P")) == (query, passage)
    assert (card.pooling, card.normalise, card.dimension) == (pooling, normalise, dimension)


def test_a_card_that_stands_on_itself_is_refused(tmp_path):
    path = tmp_path / "loop.yaml"
    path.write_text(f"kind: cache\nof: {path}\n")
    with pytest.raises(CardError, match="stands on itself"):
        find_retriever(str(path))


def test_cards_made_in_python_are_checked_as_deep_as_they_go():
    made = HybridCard(kind="hybrid", of=[BM25Card(b=9.0), BM25Card()])
    with pytest.raises(CardError, match=r"of\[0\]: b is from 0 to 1, got 9.0"):
        find_retriever(made)


@pytest.mark.parametrize("memory", ["2 gigs", "", "0g", "-1g"])
def test_a_heap_that_is_no_size_is_refused(memory):
    with pytest.raises(CardError, match="memory is a number of bytes such as 512m or 4g"):
        find_retriever({"kind": "lucene", "memory": memory})


def test_a_kind_that_is_no_name_is_refused():
    with pytest.raises(UnknownNameError, match="bm25"):
        find_retriever({"kind": ["bm25"]})
