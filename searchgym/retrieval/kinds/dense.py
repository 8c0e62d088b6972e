"""Retriever ``dense``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

from annotated_types import Interval
from typing_extensions import override

from searchgym.errors import UsageError
from searchgym.options.cards import EncoderCard
from searchgym.retrieval.cards import PartCard

SCRATCH: Final = 1536 * 2**20
"""Bytes that FAISS reserves on each GPU of more than 8 GiB for intermediate results (its StandardGpuResources)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseCard(PartCard):
    """Dense retrieval: vectors of an encoder in a FAISS index."""

    back_end: ClassVar = "searchgym.retrieval.dense.backend"
    at_search: ClassVar = ("nprobe", "ef_search", "device", "shard", "float16")
    takes: ClassVar = "vectors"
    extra: ClassVar = "dense"
    slow: ClassVar = True

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

    @override
    def built_of(self) -> dict[str, Any]:
        # Without super(): a dataclass with slots is created twice, and super() would refer to the first class.
        return PartCard.built_of(self) | {"encoder": self.encoder.vectors()}

    def check_device(self) -> None:
        """Raises a UsageError if the device has no valid name, or cannot search this type of index."""
        kind, _, number = self.device.partition(":")
        if self.device == "cpu":
            return
        if kind != "cuda" or not (number.isdecimal() or self.device == "cuda"):
            raise UsageError(f"device of a dense card must be cpu, cuda or cuda:N, got {self.device!r}")
        if self.index == "hnsw":
            raise UsageError("FAISS searches hnsw on the CPU only: set device to cpu, or index to flat or ivf-sq8")

    @override
    def search_memory(self, passages: int, gpus: int) -> dict[str, int]:
        self.check_device()
        size = self.vector_bytes(passages)
        if self.device == "cpu":
            return {"cpu": size}
        numbers = list(range(gpus)) if self.device == "cuda" else [int(self.device.removeprefix("cuda:"))]
        if not numbers or numbers[-1] >= gpus:
            raise UsageError(f"the retriever searches on device {self.device}, there are {gpus} GPUs")
        if self.float16 and self.index == "flat":
            size //= 2
        copies = 1 if self.shard else len(numbers)
        return {f"cuda:{number}": size * copies // len(numbers) + SCRATCH for number in numbers}

    def vector_bytes(self, passages: int) -> int:
        """Returns the bytes of an index of this many vectors, without the centres of ``ivf-sq8``."""
        dimension = self.encoder.dimension
        if self.index == "ivf-sq8":
            return passages * (dimension + 8)
        links = int(1.1 * passages * 2 * self.links * 4) if self.index == "hnsw" else 0
        return 4 * passages * dimension + links
