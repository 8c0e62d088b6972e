"""The first hits of a retriever, put in order by a model: of vectors, or of query and passage read together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from searchgym.corpora.hub import hub_answers
from searchgym.corpora.retrieval.cards import RerankCard
from searchgym.corpora.retrieval.retriever import Retriever, check_request, checked
from searchgym.corpora.retrieval.wrappers.wrapper import Wrapper
from searchgym.errors import DataMissingError, ModelError, UsageError
from searchgym.records import Hit, Passage

if TYPE_CHECKING:
    from searchgym.corpora.retrieval.dense.encoders import Encoder

EXTRA: Final = "pip install 'searchgym[dense]'"
Floats = npt.NDArray[np.floating[Any]]
Scorer = Callable[[Sequence[str], Sequence[Sequence[Passage]]], Sequence[Floats]]
"""Called with Q queries and the passages of each: returns, for each, a score per passage, larger is better."""


class RerankRetriever(Wrapper):
    """Takes more hits than are asked for and keeps those that a model scores best, with its scores.

    Ties keep the order of the retriever below. Threads may share it: the model scores one batch at a time.

    Args:
        inner: Finds the hits.
        scorer: See `Scorer`.
        first: Hits that are put in order; never fewer than the hits asked for.
    """

    def __init__(self, inner: Retriever, scorer: Scorer, first: int = 50) -> None:
        super().__init__(inner)
        self.scorer, self.first = scorer, first
        self._lock = threading.Lock()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits per query, best first by the model.

        Raises:
            ModelError: A score is not finite, or there is not one for each passage.
            UsageError: `queries` is a single string, or `k` is below 1.
        """
        check_request(queries, k)
        most = max(self.first, k)
        lists = checked(self.inner[0].search(queries, most), len(queries), most)
        passages = [[hit.passage for hit in hits] for hits in lists]
        if not any(passages):
            return lists
        with self._lock:
            scores = self.scorer(queries, passages)
        return [_best(own, _floats(given, own), k) for own, given in zip(passages, scores, strict=True)]

    def identity(self) -> dict[str, Any]:
        """Returns what its hits depend on, beside the corpus."""
        said: dict[str, Any] = getattr(self.scorer, "identity", dict)()
        return {"kind": "rerank", "first": self.first} | said | super().identity()


def _best(passages: Sequence[Passage], scores: Floats, k: int) -> list[Hit]:
    order = np.argsort(-scores, kind="stable")[:k]
    return [Hit(passages[i], float(scores[i])) for i in order]


def _floats(scores: Floats, passages: Sequence[Passage]) -> Floats:
    """Returns the scores of one query's passages if they are."""
    scores = np.asarray(scores)
    if scores.shape != (len(passages),) or not np.isfinite(scores).all():
        raise ModelError(f"expected a finite score for each of {len(passages)} passages, got {scores!r:.200}")
    return scores


# -- scorers -------------------------------------------------------------------------------------------------------


def scorer_of(card: RerankCard) -> Scorer:
    """Returns what a card scores with.

    Raises:
        UsageError: The libraries are not installed, or the model is of another kind.
        DataMissingError: The model is not to be had.
    """
    if card.encoder is not None:
        from searchgym.corpora.retrieval.dense.encoders import load_encoder

        return ByVectors(load_encoder(card.encoder))
    if card.cross_encoder is None:
        raise UsageError("rerank takes either encoder or cross_encoder")
    return ByPairs(card.cross_encoder, card.device)


class ByVectors:
    """Scores by inner product; a text that a batch holds several times is encoded once.

    Args:
        encoder: Of queries and passages.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder

    def __call__(self, queries: Sequence[str], passages: Sequence[Sequence[Passage]]) -> list[Floats]:
        """Scores; see `Scorer`."""
        texts = {text: row for row, text in enumerate(dict.fromkeys(queries))}
        pages = {page: row for row, page in enumerate(dict.fromkeys(page for own in passages for page in own))}
        of_texts, of_pages = self.encoder.encode_queries(list(texts)), self.encoder.encode_passages(list(pages))
        return [
            of_pages[[pages[page] for page in own]] @ of_texts[texts[text]] if own else np.zeros(0, np.float32)
            for text, own in zip(queries, passages, strict=True)
        ]

    def identity(self) -> dict[str, Any]:
        """Returns what the scores depend on."""
        card = self.encoder.card
        return {"encoder": card.vectors() | {"query": card.query, "dtype": card.dtype}}


class ByPairs:
    r"""Scores by a cross-encoder, which reads pairs of query and ``"title\ntext"``; each pair of a batch once.

    Scores are logits: their sigmoid, which some models put behind them, is 1.0 for all of the best in float32.

    Args:
        model: Name on the Hugging Face hub, or a folder.
        device: ``cpu``, ``cuda``; the best there is where None.

    Raises:
        UsageError: sentence-transformers is not installed, or the model has not one output for a pair.
        DataMissingError: The model is not to be had.
    """

    def __init__(self, model: str, device: str | None = None) -> None:
        try:
            from sentence_transformers import CrossEncoder
            from torch.nn import Identity
        except ImportError as error:
            raise UsageError(f"a cross-encoder needs sentence-transformers ({error}): {EXTRA}") from error
        try:
            self.loaded = CrossEncoder(
                model, device=device, local_files_only=not Path(model).exists() and not hub_answers()
            )
        except Exception as error:  # transformers, torch and the hub's client raise many types
            raise DataMissingError(
                f"the cross-encoder cannot be loaded ({type(error).__name__}: {error!s:.300}): fetch it where there is "
                f"a network with `hf download {model}`, or name a folder",
                model,
            ) from error
        if self.loaded.num_labels != 1:
            raise UsageError(f"{model} gives {self.loaded.num_labels} numbers for a pair; a model that ranks gives one")
        self.model, self._logits = model, Identity()

    def __call__(self, queries: Sequence[str], passages: Sequence[Sequence[Passage]]) -> list[Floats]:
        """Scores; see `Scorer`."""
        owners = zip(queries, passages, strict=True)
        pairs = [(_valid(text), _valid(f"{page.title}\n{page.text}")) for text, own in owners for page in own]
        rows = {pair: row for row, pair in enumerate(dict.fromkeys(pairs))}
        scores = self.loaded.predict(list(rows), activation_fn=self._logits, show_progress_bar=False)
        laid = np.asarray(scores, np.float32)[[rows[pair] for pair in pairs]]
        return np.split(laid, np.cumsum([len(own) for own in passages])[:-1])

    def identity(self) -> dict[str, Any]:
        """Returns what the scores depend on."""
        return {"cross_encoder": self.model}


def _valid(text: str) -> str:
    """Returns a text that every tokenizer takes: lone surrogates become U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
