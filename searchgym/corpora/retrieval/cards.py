"""Retriever cards: what searches, in one YAML file or mapping, whatever stands behind it.

A card of kind ``bm25``, ``lucene`` or ``dense`` names a back end that is built from a corpus: a *part* of an index
folder. ``hybrid``, ``rerank``, ``noise`` and ``cache`` stand on other cards (``of``), ``http``, ``tool`` and
``recorded`` on something outside. A card within a card is the name of one, a path to one, or a mapping.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeGuard, TypeVar

import yaml

from searchgym.cards import EncoderCard, build, find_card, load_card, parse_yaml
from searchgym.errors import CardError, UnknownNameError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    name: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BM25Card(_Card):
    """BM25 in this process, over memory-mapped postings."""

    kind: Literal["bm25"] = "bm25"
    k1: float = 0.9
    """How fast repeated terms saturate."""
    b: float = 0.4
    """How much long passages are discounted."""
    threads: int = 0
    """Of one search with many queries; 0 for one per core, 8 at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LuceneCard(_Card):
    """BM25 by Lucene, through pyserini; needs a JDK."""

    kind: Literal["lucene"] = "lucene"
    k1: float = 0.9
    b: float = 0.4
    threads: int = 0
    """Of one search with many queries; 0 for one per core."""
    memory: str = "2g"
    """Heap of the Java machine, at its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseCard(_Card):
    """Vectors of an encoder in a FAISS index."""

    kind: Literal["dense"] = "dense"
    encoder: EncoderCard
    """Or the name of its card."""
    index: Literal["flat", "ivf-sq8", "hnsw"] = "flat"
    """Exact; inverted lists of vectors of one byte a dimension; a graph."""
    lists: int | None = None
    """``ivf-sq8``: inverted lists; by FAISS's guideline where None."""
    training: int | None = None
    """``ivf-sq8``: vectors that the lists are trained on; by FAISS's guideline where None."""
    nprobe: int = 32
    """``ivf-sq8``: lists that a query visits."""
    links: int = 32
    """``hnsw``: links of a vector (M)."""
    ef_construction: int = 80
    """``hnsw``: candidates while building."""
    ef_search: int = 64
    """``hnsw``: candidates of a query; never fewer than the hits asked for."""
    device: str = "cpu"
    """Where FAISS searches: ``cpu``, ``cuda`` (every GPU) or ``cuda:N``."""
    shard: bool = False
    """``cuda``: spread one copy over the GPUs, in the place of a copy on each."""
    float16: bool = False
    """``cuda``: keep vectors of ``flat`` in half precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridCard(_Card):
    """Several retrievers, joined by reciprocal rank fusion."""

    kind: Literal["hybrid"]
    of: list[RetrieverCard]
    depth: int = 100
    """Hits taken from each; never fewer than the hits asked for."""
    constant: int = 60
    """What is added to each rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankCard(_Card):
    """The first hits of another retriever, put in order by a model."""

    kind: Literal["rerank"]
    of: RetrieverCard
    encoder: EncoderCard | None = None
    """By the similarity of vectors ..."""
    cross_encoder: str | None = None
    """... or by a model that reads query and passage together: a hub's name or a folder."""
    first: int = 50
    """Hits that are put in order; never fewer than the hits asked for."""
    device: str | None = None
    """Of the cross-encoder; the best there is where None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseCard(_Card):
    """Another retriever whose hits are now and then passages drawn at random, more often as training goes on."""

    kind: Literal["noise"]
    of: RetrieverCard
    start: float = 0.0
    """Probability, by query, at step 0 of training; outside of training there is none."""
    end: float = 0.5
    """Probability from step `steps` on."""
    base: float = 4.0
    """Steepness: over 1 the probability grows late; 1 is a straight line."""
    steps: int | None = None
    """Where the probability has grown to `end`; the number of the training's steps where None."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCard(_Card):
    """Another retriever, asked once for the same query."""

    kind: Literal["cache"]
    of: RetrieverCard
    size: int = 100_000
    """Queries kept; those not asked for the longest go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCard(_Card):
    """What the episodes of a run found, given again."""

    kind: Literal["recorded"]
    episodes: str
    """``episodes.jsonl`` of the run, or its folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCard(_Card):
    """A retrieval server."""

    kind: Literal["http"]
    url: str
    schema: Literal["retrieve", "search"] | None = None
    """As the URL ends where None."""
    connections: int = 8
    deadline: float = 30.0
    """Seconds for one call, retries included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCard(_Card):
    """A function of the user's: a web search, an MCP tool."""

    kind: Literal["tool"]
    function: str
    """``module:function``, called with one query and k."""
    calls: int = 8
    """Under way at once."""


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
)
PartCard = BM25Card | LuceneCard | DenseCard
"""What is built from a corpus."""

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
}
CARD_CLASSES: Final = tuple(KINDS.values())
OUTSIDE: Final = (RecordedCard, HttpCard, ToolCard)
"""What needs no corpus here."""
DEFAULT: Final = BM25Card()


def find_retriever(given: str | dict[str, Any] | RetrieverCard) -> RetrieverCard:
    """Returns a card: itself, a mapping's, that of a name or path, or of a server's URL.

    Raises:
        CardError: It cannot be read, or holds what does not fit.
        UnknownNameError: No card has this name; no such kind.
    """
    if isinstance(given, str) and given.startswith(("http://", "https://")):
        return HttpCard(kind="http", url=given)
    try:
        if isinstance(given, str):
            return _read(_yaml(find_card("retrievers", given)), given)
        return _read(given if isinstance(given, dict) else plain(given), "retriever")
    except RecursionError:
        raise CardError(f"{given!r:.80}: the card stands on itself") from None


def parts_of(card: RetrieverCard) -> list[PartCard]:
    """Returns what an index folder must hold for a card, in order, each once."""
    found: list[PartCard] = []
    for part in leaves(card):
        if not isinstance(part, PART_CLASSES):
            continue
        if not any(same_part(part, other) for other in found):
            found.append(part)
    return found


def is_card(given: object) -> TypeGuard[RetrieverCard]:
    """Returns whether this is a retriever card."""
    return isinstance(given, CARD_CLASSES)


def stands_outside(card: RetrieverCard) -> bool:
    """Returns whether no corpus is needed: what searches is elsewhere."""
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
"""What a part can be searched with in another way than it was built for."""


def same_part(one: PartCard, other: PartCard) -> bool:
    """Returns whether what is built for one card serves the other."""
    return built_of(one) == built_of(other)


def built_of(card: PartCard) -> dict[str, Any]:
    """Returns what a part's build depends on."""
    plain = dataclasses.asdict(card)
    for name in ("name", "summary", *AT_SEARCH[card.kind]):
        plain.pop(name)
    if isinstance(card, DenseCard):
        plain["encoder"] = card.encoder.vectors()
    return plain


def leaves(card: RetrieverCard) -> Iterator[RetrieverCard]:
    """Yields the cards that a card stands on in the end; itself where it stands on none."""
    if isinstance(card, HybridCard):
        for inner in card.of:
            yield from leaves(inner)
    elif isinstance(card, (RerankCard, NoiseCard, CacheCard)):
        yield from leaves(card.of)
    else:
        yield card


def plain(card: RetrieverCard) -> dict[str, Any]:
    """Returns a card as plain data, which `find_retriever` reads again."""
    return dataclasses.asdict(card)


# -- reading -------------------------------------------------------------------------------------------------------


def _yaml(path: Path) -> Any:
    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CardError(f"{path}: cannot be read as YAML: {error}") from error


def _read(data: Any, where: str) -> RetrieverCard:
    """Reads a card, and the cards within."""
    if not isinstance(data, dict) or "kind" not in data:
        raise CardError(f"{where}: a retriever card names its kind, one of {', '.join(KINDS)}; got {data!r:.80}")
    if not isinstance(data["kind"], str) or data["kind"] not in KINDS:
        raise UnknownNameError(f"kind of retriever in {where}:", str(data["kind"]), KINDS)
    data = dict(data)
    if "of" in data:
        data["of"] = _inner(data["of"], f"{where}: of")
    if data.get("encoder") is not None:
        data["encoder"] = find_encoder(data["encoder"], f"{where}: encoder")
    card: RetrieverCard = build(KINDS[data["kind"]], data, where)
    _check(card, where)
    return card


def _inner(given: Any, where: str) -> Any:
    if isinstance(given, list):
        return [_inner(one, f"{where}[{i}]") for i, one in enumerate(given)]
    if isinstance(given, str):
        return find_retriever(given)
    return _read(given, where)


def find_encoder(given: Any, where: str = "encoder") -> EncoderCard:
    """Returns an encoder card: itself, a mapping's, or that of a name or path."""
    if isinstance(given, EncoderCard):
        return given
    if isinstance(given, str):
        return load_card(EncoderCard, find_card("encoders", given))
    return build(EncoderCard, given, where)


_RANGES: Final[tuple[tuple[type[Any], str, float, float], ...]] = (
    (BM25Card, "k1", 0, 1e6),
    (BM25Card, "b", 0, 1),
    (BM25Card, "threads", 0, 4096),
    (LuceneCard, "k1", 0, 1e6),
    (LuceneCard, "b", 0, 1),
    (LuceneCard, "threads", 0, 4096),
    (DenseCard, "lists", 1, 1e8),
    (DenseCard, "training", 1, 1e9),
    (DenseCard, "nprobe", 1, 1e8),
    (DenseCard, "links", 2, 512),
    (DenseCard, "ef_construction", 1, 1e5),
    (DenseCard, "ef_search", 1, 1e5),
    (HybridCard, "depth", 1, 1e5),
    (HybridCard, "constant", 0, 1e6),
    (RerankCard, "first", 1, 1e5),
    (NoiseCard, "start", 0, 1),
    (NoiseCard, "end", 0, 1),
    (NoiseCard, "steps", 1, 1e9),
    (CacheCard, "size", 1, 1e9),
    (HttpCard, "connections", 1, 4096),
    (HttpCard, "deadline", 0, 1e6),
    (NoiseCard, "base", 1e-6, 1e6),
    (ToolCard, "calls", 1, 4096),
)


def _check(card: RetrieverCard, where: str) -> None:
    """Refuses numbers out of range, and combinations that make no sense."""
    for kind, name, least, most in _RANGES:
        value = getattr(card, name) if isinstance(card, kind) else None
        if value is not None and not least <= value <= most:
            raise CardError(f"{where}: {name} is from {least:g} to {most:g}, got {value!r}")
    if isinstance(card, HybridCard) and len(card.of) < 2:
        raise CardError(f"{where}: hybrid joins two retrievers or more, got {len(card.of)}")
    if isinstance(card, RerankCard) and (card.encoder is None) == (card.cross_encoder is None):
        raise CardError(f"{where}: rerank takes either encoder or cross_encoder")
    if isinstance(card, LuceneCard) and not re.fullmatch(r"[1-9]\d*[kmgtKMGT]?", card.memory):
        raise CardError(f"{where}: memory is a number of bytes such as 512m or 4g, got {card.memory!r}")
