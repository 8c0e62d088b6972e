"""Retriever cards, which describe a retriever in a YAML file or mapping.

A card of kind ``bm25``, ``lucene`` or ``dense`` names a back end that is built from a corpus into a *part*, its folder
inside an index folder. Cards of kind ``hybrid``, ``rerank``, ``noise`` and ``cache`` wrap other cards (``of``). Those
of kind ``http``, ``tool``, ``recorded`` and ``simulated`` need no corpus: they ask a server, call a function, replay a
run, or let a language model write the pages. A card within a card is given by name, by path or as a mapping.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeGuard, TypeVar

from annotated_types import Interval

from searchgym.cards import EncoderCard, find_card, load_card
from searchgym.errors import CardError, UnknownNameError
from searchgym.options import Options, Source, read
from searchgym.options.problems import refuse_logins
from searchgym.options.yaml import read_yaml

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card(Options):
    """The fields of every retriever card."""

    name: str = ""
    """Name of the card."""
    summary: str = ""
    """One line about the retriever, for lists of cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BM25Card(_Card):
    """BM25 in this process, over memory-mapped postings."""

    kind: Literal["bm25"] = "bm25"
    k1: Annotated[float, Interval(ge=0, le=1e6)] = 0.9
    """Saturation of term frequency: the smaller, the less repeats of a term count."""
    b: Annotated[float, Interval(ge=0, le=1)] = 0.4
    """Strength of length normalisation, from 0 (none) to 1 (full)."""
    threads: Annotated[int, Interval(ge=0, le=4096)] = 0
    """Number of threads of one search with many queries; 0 means one per core, at most 8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LuceneCard(_Card):
    """BM25 by Lucene, through pyserini; needs a JDK."""

    kind: Literal["lucene"] = "lucene"
    k1: Annotated[float, Interval(ge=0, le=1e6)] = 0.9
    """Saturation of term frequency: the smaller, the less repeats of a term count."""
    b: Annotated[float, Interval(ge=0, le=1)] = 0.4
    """Strength of length normalisation, from 0 (none) to 1 (full)."""
    threads: Annotated[int, Interval(ge=0, le=4096)] = 0
    """Number of threads of one search with many queries; 0 means one per core."""
    memory: str = "2g"
    """Maximum heap of the Java virtual machine, such as ``512m``; fixed when the machine starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseCard(_Card):
    """Dense retrieval: vectors of an encoder in a FAISS index."""

    kind: Literal["dense"] = "dense"
    encoder: EncoderCard
    """Encoder of queries and passages: a card, or the name of one."""
    index: Literal["flat", "ivf-sq8", "hnsw"] = "flat"
    """Type of the index: exact search, inverted lists with one byte per dimension, or a graph."""
    lists: Annotated[int, Interval(ge=1, le=1e8)] | None = None
    """Number of inverted lists (``ivf-sq8``). Default: FAISS's guideline."""
    training: Annotated[int, Interval(ge=1, le=1e9)] | None = None
    """Number of vectors that the lists are trained on (``ivf-sq8``). Default: FAISS's guideline."""
    nprobe: Annotated[int, Interval(ge=1, le=1e8)] = 32
    """Number of inverted lists that are searched for each query (``ivf-sq8``)."""
    links: Annotated[int, Interval(ge=2, le=512)] = 32
    """Number of links per vector, FAISS's M (``hnsw``)."""
    ef_construction: Annotated[int, Interval(ge=1, le=1e5)] = 80
    """Number of candidates examined for each vector while building the graph (``hnsw``)."""
    ef_search: Annotated[int, Interval(ge=1, le=1e5)] = 64
    """Number of candidates examined for each query, raised to k if that is larger (``hnsw``)."""
    device: str = "cpu"
    """Device that FAISS searches on: ``cpu``, ``cuda`` (every GPU) or ``cuda:N``."""
    shard: bool = False
    """Whether to spread one copy of the index over the GPUs instead of a copy on each (``cuda``)."""
    float16: bool = False
    """Whether to keep the vectors of ``flat`` in half precision (``cuda``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridCard(_Card):
    """Several retrievers whose hits are merged by reciprocal rank fusion."""

    kind: Literal["hybrid"]
    of: list[RetrieverCard]
    """Cards of the retrievers whose hits are merged, two or more."""
    depth: Annotated[int, Interval(ge=1, le=1e5)] = 100
    """Number of hits taken from each retriever, raised to k if that is larger."""
    constant: Annotated[int, Interval(ge=0, le=1e6)] = 60
    """Constant added to each rank before its reciprocal is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankCard(_Card):
    """The first hits of another retriever, reordered by a model."""

    kind: Literal["rerank"]
    of: RetrieverCard
    """Card of the retriever whose hits are reordered."""
    encoder: EncoderCard | None = None
    """Encoder whose vectors score the hits. Give this or `cross_encoder`."""
    cross_encoder: str | None = None
    """Cross-encoder that scores query and passage together: a name on the Hugging Face hub, or a folder."""
    first: Annotated[int, Interval(ge=1, le=1e5)] = 50
    """Number of hits that are reordered, raised to k if that is larger."""
    device: str | None = None
    """Device of the cross-encoder, such as ``cpu`` or ``cuda``. Default: the best one available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseCard(_Card):
    """Another retriever whose hits are sometimes replaced by random passages, more often as training goes on."""

    kind: Literal["noise"]
    of: RetrieverCard
    """Card of the retriever whose hits are replaced."""
    start: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Probability at step 0 that a query's hits are replaced by random passages. Outside of training it is always 0."""
    end: Annotated[float, Interval(ge=0, le=1)] = 0.5
    """Probability, from step `steps` on, that the hits of a query are replaced by random passages."""
    base: Annotated[float, Interval(ge=1e-6, le=1e6)] = 4.0
    """Base of the probability's exponential growth: above 1 it grows mostly late in training; 1 means linear growth."""
    steps: Annotated[int, Interval(ge=1, le=1e9)] | None = None
    """Step at which the probability reaches `end`. Default: the number of training steps."""
    seed: int = 0
    """Seed of the random draws."""
    mixed_in: Annotated[int, Interval(ge=0, le=1e9)] = 0
    """Number of random passages that stand at random ranks among the hits of every query, in evaluations too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCard(_Card):
    """Another retriever whose hits are cached, so that it is asked only once for the same query."""

    kind: Literal["cache"]
    of: RetrieverCard
    """Card of the retriever whose hits are cached."""
    size: Annotated[int, Interval(ge=1, le=1e9)] = 100_000
    """Maximum number of queries in the cache; the least recently used one is removed first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCard(_Card):
    """A replay of the hits that the episodes of a run recorded."""

    kind: Literal["recorded"]
    episodes: str
    """Path of the run's ``episodes.jsonl``, or of its folder."""


TOKEN: Final = "SEARCHGYM_TOKEN"
"""Environment variable with the token of a retrieval server, on the server and on its clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCard(_Card):
    """A retrieval server, reached over HTTP."""

    kind: Literal["http"]
    url: str
    """URL of the server or of its end point."""
    schema: Literal["retrieve", "search"] | None = None
    """Schema of requests and replies. Default: that of the end point in the URL, else ``retrieve``."""
    connections: Annotated[int, Interval(ge=1, le=4096)] = 8
    """Maximum number of simultaneous calls."""
    deadline: Annotated[float, Interval(ge=0, le=1e6)] = 30.0
    """Seconds for one call, retries included."""
    token_env: str = TOKEN
    """Environment variable with the server's token, ``SEARCHGYM_TOKEN`` or a name that begins so and an underscore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCard(_Card):
    """A Python function of the user, such as a web search or an MCP tool."""

    kind: Literal["tool"]
    function: str
    """Name of the function, ``module:function``; it is called with one query and k."""
    calls: Annotated[int, Interval(ge=1, le=4096)] = 8
    """Maximum number of simultaneous calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCard(_Card):
    """A language model that writes the pages, useful ones or, more often as training goes on, noisy ones."""

    kind: Literal["simulated"]
    model: str
    """Model that writes: a folder, a name, ``URL#NAME`` behind an OpenAI-compatible server, or ``module:function``,
    which returns a writer of your own."""
    pages: Annotated[int, Interval(ge=1, le=100)] = 5
    """Number of pages per query, lowered to k if that is smaller."""
    words: Annotated[int, Interval(ge=1, le=1000)] = 30
    """Number of words that the model is asked for in each page; a page of more than twice as many is cut."""
    answers: bool = True
    """Whether the model sees the question and its gold answer, besides the query."""
    temperature: Annotated[float, Interval(ge=0, le=100)] = 0.8
    """Sampling temperature of the model."""
    start: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Probability at step 0 that the pages of a query are noisy. Outside of training it is always 0."""
    end: Annotated[float, Interval(ge=0, le=1)] = 0.5
    """Probability, from step `steps` on, that the pages of a query are noisy."""
    base: Annotated[float, Interval(ge=1e-6, le=1e6)] = 4.0
    """Base of the probability's exponential growth; 1 means linear growth."""
    steps: Annotated[int, Interval(ge=1, le=1e9)] | None = None
    """Step at which the probability reaches `end`. Default: the number of training steps."""
    seed: int = 0
    """Seed of the draws and of the model's sampling."""


RetrieverCard = (
    BM25Card
    | LuceneCard
    | DenseCard
    | HybridCard
    | RerankCard
    | NoiseCard
    | CacheCard
    | RecordedCard
    | HttpCard
    | ToolCard
    | SimulatedCard
)
PartCard = BM25Card | LuceneCard | DenseCard
"""Cards of back ends, which are built from a corpus."""

PART_CLASSES: Final = (BM25Card, LuceneCard, DenseCard)

KINDS: Final[dict[str, type[Any]]] = {
    "bm25": BM25Card,
    "lucene": LuceneCard,
    "dense": DenseCard,
    "hybrid": HybridCard,
    "rerank": RerankCard,
    "noise": NoiseCard,
    "cache": CacheCard,
    "recorded": RecordedCard,
    "http": HttpCard,
    "tool": ToolCard,
    "simulated": SimulatedCard,
}
CARD_CLASSES: Final = tuple(KINDS.values())
OUTSIDE: Final = (RecordedCard, HttpCard, ToolCard, SimulatedCard)
"""Cards of retrievers that need no corpus here: they ask a server, call a function, replay a run or write the pages."""
DEFAULT: Final = BM25Card()
"""The card that builds an index if none is given."""


def find_retriever(given: str | dict[str, Any] | RetrieverCard) -> RetrieverCard:
    """Returns the retriever card for a name, a path, a server's URL, a mapping or a card itself.

    Raises:
        CardError: The card cannot be read, or one of its fields is not valid.
        UnknownNameError: No card has this name, or the card's kind is unknown.
    """
    if isinstance(given, str) and given.startswith(("http://", "https://")):
        return HttpCard(kind="http", url=given)
    try:
        if isinstance(given, str):
            return _read(read_yaml(find_card("retrievers", given)), given)
        return _read(given if isinstance(given, dict) else plain(given), "retriever")
    except RecursionError:
        raise CardError(f"{given!r:.80}: the card stands on itself") from None


def parts_of(card: RetrieverCard) -> list[PartCard]:
    """Returns the cards of the parts that an index folder needs for a card, in order, without repeats."""
    parts: list[PartCard] = []
    for leaf in leaves(card):
        if not isinstance(leaf, PART_CLASSES):
            continue
        if not any(same_part(leaf, other) for other in parts):
            parts.append(leaf)
    return parts


def vector_bytes(card: DenseCard, passages: int) -> int:
    """Returns the bytes of an index of so many vectors, without the centres of ``ivf-sq8``."""
    dimension = card.encoder.dimension
    if card.index == "ivf-sq8":
        return passages * (dimension + 8)
    links = int(1.1 * passages * 2 * card.links * 4) if card.index == "hnsw" else 0
    return 4 * passages * dimension + links


def is_card(given: object) -> TypeGuard[RetrieverCard]:
    """Returns whether an object is a retriever card."""
    return isinstance(given, CARD_CLASSES)


def stands_outside(card: RetrieverCard) -> bool:
    """Returns whether a card's retriever needs no corpus here; see `OUTSIDE`."""
    if isinstance(card, HybridCard):
        return all(map(stands_outside, card.of))
    if isinstance(card, (RerankCard, CacheCard)):
        return stands_outside(card.of)
    return isinstance(card, OUTSIDE)


AT_SEARCH: Final[dict[str, tuple[str, ...]]] = {
    "bm25": ("threads",),
    "lucene": ("k1", "b", "threads", "memory"),
    "dense": ("nprobe", "ef_search", "device", "shard", "float16"),
}
"""Fields that affect searching only, by kind: two cards that differ only in these share a part."""


def same_part(one: PartCard, other: PartCard) -> bool:
    """Returns whether a part built for one card can be searched by the other."""
    return built_of(one) == built_of(other)


def built_of(card: PartCard) -> dict[str, Any]:
    """Returns the fields of a card that the build of its part depends on, as plain data."""
    plain = dataclasses.asdict(card)
    for name in ("name", "summary", *AT_SEARCH[card.kind]):
        plain.pop(name)
    if isinstance(card, DenseCard):
        plain["encoder"] = card.encoder.vectors()
    return plain


def leaves(card: RetrieverCard) -> Iterator[RetrieverCard]:
    """Yields the innermost cards that a card wraps; the card itself if it wraps none."""
    if isinstance(card, HybridCard):
        for inner in card.of:
            yield from leaves(inner)
    elif isinstance(card, (RerankCard, NoiseCard, CacheCard)):
        yield from leaves(card.of)
    else:
        yield card


def plain(card: RetrieverCard) -> dict[str, Any]:
    """Returns a card as plain data, which `find_retriever` can read."""
    return dataclasses.asdict(card)


# -- reading -------------------------------------------------------------------------------------------------------


def _read(data: Any, where: str) -> RetrieverCard:
    """Returns the card that plain data describes, inner cards included; `where` names it in error messages."""
    if not isinstance(data, dict) or "kind" not in data:
        raise CardError(f"{where}: a retriever card names its kind, one of {', '.join(KINDS)}; got {data!r:.80}")
    if not isinstance(data["kind"], str) or data["kind"] not in KINDS:
        raise UnknownNameError(f"kind of retriever in {where}:", str(data["kind"]), KINDS)
    refuse_logins(data, Source(where))  # before texts become cards
    data = dict(data)
    if "of" in data:
        data["of"] = _inner(data["of"], f"{where}: of")
    if data.get("encoder") is not None:
        data["encoder"] = find_encoder(data["encoder"], f"{where}: encoder")
    card: RetrieverCard = read(KINDS[data["kind"]], data, where)
    _check(card, where)
    return card


def _inner(given: Any, where: str) -> Any:
    if isinstance(given, list):
        return [_inner(item, f"{where}[{i}]") for i, item in enumerate(given)]
    if isinstance(given, str):
        return find_retriever(given)
    return _read(given, where)


def find_encoder(given: Any, where: str = "encoder") -> EncoderCard:
    """Returns the encoder card for a name, a path, a mapping or a card itself."""
    if isinstance(given, EncoderCard):
        return given
    if isinstance(given, str):
        return load_card(EncoderCard, find_card("encoders", given))
    return read(EncoderCard, given, where)


def _check(card: RetrieverCard, where: str) -> None:
    """Raises a CardError if fields contradict each other."""
    if isinstance(card, HybridCard) and len(card.of) < 2:
        raise CardError(f"{where}: hybrid joins two retrievers or more, got {len(card.of)}")
    if isinstance(card, RerankCard) and (card.encoder is None) == (card.cross_encoder is None):
        raise CardError(f"{where}: rerank takes either encoder or cross_encoder")
    if isinstance(card, LuceneCard) and not re.fullmatch(r"[1-9]\d*[kmgtKMGT]?", card.memory):
        raise CardError(f"{where}: memory is a number of bytes such as 512m or 4g, got {card.memory!r}")
    # A card from elsewhere must not make the client send another secret of this machine to its server.
    if isinstance(card, HttpCard) and card.token_env != TOKEN and not card.token_env.startswith(f"{TOKEN}_"):
        raise CardError(f"{where}: token_env is {TOKEN} or begins with {TOKEN}_, got {card.token_env!r}")
