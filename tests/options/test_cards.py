import time
from functools import partial
from pathlib import Path

import pytest

from searchgym.envs.cards import EnvCard
from searchgym.errors import CardError, UnknownNameError
from searchgym.options import read
from searchgym.options.cards import AgentCard, CorpusCard, EncoderCard, find_card, list_cards, load_card
from searchgym.options.model_cards import ModelCard, PretrainedCard, load_model_card

GOOD = {
    "id": "a/B-v0",
    "summary": "s",
    "questions": {"kind": "dataset", "dataset": "d", "split": "dev", "size": 3, "file": "f", "get": "g"},
    "corpus": "demo",
}


CARD_KINDS = {
    "envs": EnvCard,
    "agents": AgentCard,
    "corpora": CorpusCard,
    "models": ModelCard,
    "pretrained": PretrainedCard,
    "encoders": EncoderCard,
}


@pytest.mark.parametrize("kind", CARD_KINDS)
def test_every_shipped_card_loads(kind):
    load = load_model_card if kind == "models" else partial(load_card, CARD_KINDS[kind])
    cards = {name: load(path) for name, path in list_cards(kind).items()}
    assert cards
    if kind != "envs":
        assert all(card.name == name for name, card in cards.items())


def test_a_good_card_has_its_defaults():
    card = read(EnvCard, GOOD, "x.yaml")
    assert (card.top_k, card.max_turns, card.reward, card.questions.size) == (3, 5, "em", 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_kk": 3}, r"x\.yaml: top_kk: unknown key; did you mean 'top_k'\?"),
        ({"top_k": "3"}, r"x\.yaml: top_k: expected an integer, got '3'"),
        ({"top_k": True}, r"x\.yaml: top_k: expected an integer, got True"),
        ({"protocol": "tag"}, r"x\.yaml: protocol: got 'tag'; did you mean 'tags'\?"),
        *(
            ({"questions": {"kind": "dataset", "dataset": "d"}}, rf"x\.yaml: questions\.{key}: missing key")
            for key in ("file", "get", "size", "split")
        ),
        (
            {"questions": {"dataset": "d"}},
            r"x\.yaml: questions: missing key kind, one of dataset, documents, generated, masked, open",
        ),
        ({"questions": 3}, r"x\.yaml: questions: expected keys and values, got 3"),
    ],
)
def test_a_bad_card_is_refused_with_the_place(change, message):
    with pytest.raises(CardError, match=message):
        read(EnvCard, GOOD | change, "x.yaml")


def test_numbers_are_not_coerced_except_int_to_float():
    assert read(EnvCard, GOOD | {"retriever_deadline": 3}, "x").retriever_deadline == 3.0


def test_optional_fields_take_none_and_refuse_other_types():
    fields = {"name": "n", "summary": "s", "source": "x", "licence": "l", "file": "f"}
    assert read(CorpusCard, fields | {"sha256": None}, "x").sha256 is None
    with pytest.raises(CardError, match="sha256: expected a string, got 3"):
        read(CorpusCard, fields | {"sha256": 3}, "x")


def test_unreadable_cards(tmp_path: Path):
    path = tmp_path / "bad.yaml"
    path.write_text("a: [1")
    with pytest.raises(CardError, match=r"bad\.yaml: cannot be read as YAML"):
        load_card(EnvCard, path)
    path.write_text("id: a\nsummary: s\nid: b\n")
    with pytest.raises(CardError, match="key 'id' occurs twice"):
        load_card(EnvCard, path)
    path.write_text("")
    with pytest.raises(CardError, match="expected keys and values, got None"):
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
    for name in ("optimizer.decay_of_weights", "optimizer.x"):
        assert str(UnknownNameError("key", name, known)).endswith("Known: optimizer.lr, optimizer.min_lr_ratio"), name
    assert "(44 in all)" in str(UnknownNameError("key", "nothing.lr", known))
    assert str(UnknownNameError("key", "optimize.lr", known)).endswith("did you mean 'optimizer.lr'?")


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


def test_of_many_problems_the_first_are_told_in_a_moment():
    started = time.process_time()
    with pytest.raises(CardError) as caught:
        read(EnvCard, GOOD | {f"k{number}": number for number in range(20_000)}, "x")
    assert time.process_time() - started < 3
    lines = str(caught.value).splitlines()
    assert (len(lines), lines[-1]) == (21, "x: 19980 more problems")
