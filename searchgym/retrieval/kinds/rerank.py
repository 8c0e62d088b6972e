"""Retriever ``rerank``: the first hits of another retriever, reordered by an encoder or a cross-encoder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Interval
from typing_extensions import override

from searchgym.corpora.hub import hub_answers, named_folder
from searchgym.errors import DataMissingError, ModelError, UsageError
from searchgym.options.cards import EncoderCard
from searchgym.packages import install_command
from searchgym.records import Hit, Passage
from searchgym.retrieval.cards import RetrieverCard, Sources
from searchgym.retrieval.encoders import Encoder, load_encoder, valid_text
from searchgym.retrieval.retriever import Retriever, check_request, checked
from searchgym.retrieval.wrapper import Wrapper

Floats = npt.NDArray[np.floating[Any]]
Scorer = Callable[[Sequence[str], Sequence[Sequence[Passage]]], Sequence[Floats]]
"""Function of Q queries and the passages of each that returns, per query, one score per passage; larger is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankCard(RetrieverCard):
    """The first hits of another retriever, reordered by a model."""

    of: RetrieverCard
    """Card of the retriever whose hits are reordered."""
    encoder: EncoderCard | None = None
    """Encoder whose vectors score the hits. Set either this or `cross_encoder`."""
    cross_encoder: str | None = None
    """Cross-encoder that scores query and passage together: a name on the Hugging Face hub, or a folder."""
    first: Annotated[int, Interval(ge=1, le=1e5)] = 50
    """Number of hits that are reordered, raised to k if that is larger."""
    device: str | None = None
    """Device of the cross-encoder, such as ``cpu`` or ``cuda``. Default: the best one available."""
    listwise: Annotated[int, Interval(ge=0, le=100)] = 0
    """Number of first hits that the encoder reads after the query; see `ByVectors`. Default: none."""

    @property
    @override
    def models(self) -> list[EncoderCard | str]:
        return [model for model in (self.encoder, self.cross_encoder) if model is not None]

    @override
    def problems(self) -> Iterable[str]:
        if len(self.models) != 1:
            yield "rerank needs either encoder or cross_encoder"
        if self.listwise and self.encoder is None:
            yield f"listwise is {self.listwise}: a cross-encoder reads each hit alone; give an encoder"

    @override
    def open(self, sources: Sources) -> RerankRetriever:
        return RerankRetriever(sources.open(self.of), scorer_of(self), self.first)


class RerankRetriever(Wrapper):
    """Retriever that takes extra hits from another one and keeps those that a model scores best, with its scores.

    Ties keep the order of the wrapped retriever. Threads may share it; the model scores one batch at a time.

    Args:
        inner: Wrapped retriever, which finds the hits.
        scorer: Model that scores passages for queries; see `Scorer`.
        first: Number of hits that are reordered, raised to k if that is larger.
    """

    def __init__(self, inner: Retriever, scorer: Scorer, first: int = 50) -> None:
        super().__init__(inner)
        self.scorer, self.first = scorer, first
        self._lock = threading.Lock()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits per query, best first by the model's scores.

        Raises:
            ModelError: A score is not finite, or the numbers of scores and passages differ.
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
        results = []
        for candidates, row in zip(passages, scores, strict=True):
            each = np.asarray(row)
            if each.shape != (len(candidates),) or not np.isfinite(each).all():
                raise ModelError(f"expected a finite score for each of {len(candidates)} passages, got {each!r:.200}")
            order = np.argsort(-each, kind="stable")[:k]
            results.append([Hit(candidates[i], float(each[i])) for i in order])
        return results

    @override
    def identity(self) -> dict[str, Any]:
        model: dict[str, Any] = getattr(self.scorer, "identity", dict)()
        return {"kind": "rerank", "first": self.first} | model | super().identity()


# -- scorers -------------------------------------------------------------------------------------------------------


def scorer_of(card: RerankCard) -> Scorer:
    """Returns the scorer that a card names: an encoder or a cross-encoder.

    Raises:
        UsageError: The libraries are not installed, or the model is neither an encoder nor a cross-encoder.
        DataMissingError: The model cannot be loaded.
    """
    if card.encoder is not None:
        return ByVectors(load_encoder(card.encoder), card.listwise)
    if card.cross_encoder is None:
        raise UsageError("rerank needs either encoder or cross_encoder")
    return ByPairs(card.cross_encoder, card.device)


class ByVectors:
    """Scorer by the inner product of vectors; a text that occurs several times in a batch is encoded once.

    Listwise, the query's vector is that of the query followed by its first hits in order, so that one more encoding per
    query ranks the hits in the light of each other. What does not fit the encoder is cut, the last hits first.

    Source: E2Rank, arXiv 2510.22733, and its released code. Deviations: there the hits come before the query, 20 of
    them, and the encoder is trained for it (InfoNCE and RankNet); with a plain encoder it is pseudo-relevance feedback.

    Args:
        encoder: Encoder of queries and passages.
        listwise: Number of first hits that are read together with the query.
    """

    def __init__(self, encoder: Encoder, listwise: int = 0) -> None:
        self.encoder, self.listwise = encoder, listwise

    def __call__(self, queries: Sequence[str], passages: Sequence[Sequence[Passage]]) -> list[Floats]:
        """Returns one score per passage for each query; see `Scorer`."""
        queries = [self._with_hits(query, hits) for query, hits in zip(queries, passages, strict=True)]
        texts = {text: row for row, text in enumerate(dict.fromkeys(queries))}
        pages = {page: row for row, page in enumerate(dict.fromkeys(page for pages in passages for page in pages))}
        of_texts, of_pages = self.encoder.encode_queries(list(texts)), self.encoder.encode_passages(list(pages))
        return [
            of_pages[[pages[page] for page in hits]] @ of_texts[texts[text]] if hits else np.zeros(0, np.float32)
            for text, hits in zip(queries, passages, strict=True)
        ]

    def identity(self) -> dict[str, Any]:
        """Returns the settings that the scores depend on."""
        card = self.encoder.card
        listwise = {"listwise": self.listwise} if self.listwise else {}
        return {"encoder": card.vectors() | {"query": card.query, "dtype": card.dtype}} | listwise

    def _with_hits(self, query: str, hits: Sequence[Passage]) -> str:
        """Returns a query followed by its first hits."""
        read = enumerate(hits[: self.listwise], start=1)
        return "\n".join([query, *(f"[{number}] {hit.title} {hit.text}" for number, hit in read)])


class ByPairs:
    r"""Scorer by a cross-encoder, which reads pairs of query and ``"title\ntext"``; each pair of a batch only once.

    Scores are logits. Their sigmoid, which some models apply, would round to 1.0 in float32 for all good passages.

    Args:
        model: Name on the Hugging Face hub, or a folder.
        device: Device such as ``cpu`` or ``cuda``. Default: the best one available.

    Raises:
        UsageError: sentence-transformers is not installed, or the model does not give one score per pair.
        DataMissingError: The model cannot be loaded.
    """

    def __init__(self, model: str, device: str | None = None) -> None:
        folder = named_folder(model)
        try:
            from sentence_transformers import CrossEncoder
            from torch.nn import Identity
        except ImportError as error:
            raise UsageError(
                f"a cross-encoder needs sentence-transformers ({error}): {install_command('dense')}"
            ) from error
        try:
            self.loaded = CrossEncoder(
                model if folder is None else str(folder),
                device=device,
                local_files_only=folder is None and not hub_answers(),
                trust_remote_code=False,
            )
        except Exception as error:  # transformers, torch and the hub's client raise exceptions of many types
            raise DataMissingError(
                f"the cross-encoder cannot be loaded ({type(error).__name__}: {error!s:.300}): download it "
                f"on a machine with a network with `hf download {model}`, or name a folder",
                model,
            ) from error
        if self.loaded.num_labels != 1:
            raise UsageError(
                f"{model} gives {self.loaded.num_labels} numbers for a pair; a model for ranking gives one"
            )
        self.model, self._logits = model, Identity()

    def __call__(self, queries: Sequence[str], passages: Sequence[Sequence[Passage]]) -> list[Floats]:
        """Returns one score per passage for each query; see `Scorer`."""
        queried = zip(queries, passages, strict=True)
        pairs = [
            (valid_text(text), valid_text(f"{page.title}\n{page.text}")) for text, pages in queried for page in pages
        ]
        rows = {pair: row for row, pair in enumerate(dict.fromkeys(pairs))}
        scores = self.loaded.predict(list(rows), activation_fn=self._logits, show_progress_bar=False)
        of_pairs = np.asarray(scores, np.float32)[[rows[pair] for pair in pairs]]
        return np.split(of_pairs, np.cumsum([len(pages) for pages in passages])[:-1])

    def identity(self) -> dict[str, Any]:
        """Returns the settings that the scores depend on."""
        return {"cross_encoder": self.model}
