"""FAISS on a GPU: the hits of the CPU (marker ``gpu``); without one, what is asked of FAISS and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faiss
import numpy as np
import pytest
from test_dense import FLAT, IVF, made_vectors

from searchgym.errors import UsageError
from searchgym.retrieval.cards import quiet
from searchgym.retrieval.dense import gpu, vectors
from searchgym.retrieval.kinds.dense import DenseCard

_FAISS: Any = faiss
K = 10


def written(card: DenseCard, folder: Path, number: int = 20_000) -> tuple[Any, np.ndarray]:
    """The index of a card over made vectors, as it is opened, and its vectors."""
    table, source = made_vectors(number), folder / "vectors"
    vectors.write_vectors(source, 0, table)
    vectors.finish_vectors(source, *table.shape)
    vectors.write_index(card, source, folder / "index", quiet)
    index: Any = vectors.open_index(folder / "index")
    if card.index == "ivf-sq8":
        index.nprobe = min(card.nprobe, index.nlist)
    return index, table


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda:0", "cuda"])
@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize(
    ("card", "least"), [(FLAT, 0.999), (replace(FLAT, float16=True), 0.98), (IVF, 0.99)], ids=["flat", "float16", "ivf"]
)
def test_a_gpu_finds_what_the_cpu_finds(
    tmp_path: Path, card: DenseCard, least: float, device: str, shard: bool
) -> None:
    """Scores to the type's rounding; of the hits only those that nearly tie may differ."""
    card = replace(card, device=device, shard=shard)
    gpu.check_gpu(card)
    index, table = written(card, tmp_path)
    queries = np.ascontiguousarray(table[::200])
    on_gpu = gpu.copy_to_gpus(index, card)
    scores, hits = index.search(queries, K, params=None)
    scores_of_gpu, hits_of_gpu = on_gpu.search(queries, K, params=None)
    np.testing.assert_allclose(scores_of_gpu, scores, atol=2e-3 if card.float16 else 1e-5)
    shared = [len(set(a) & set(b)) / K for a, b in zip(hits.tolist(), hits_of_gpu.tolist(), strict=True)]
    assert float(np.mean(shared)) >= least
    assert on_gpu.search(queries[:2], gpu.MOST_HITS, params=None)[1].shape == (2, gpu.MOST_HITS)


# -- without a GPU -------------------------------------------------------------------------------------------------


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The names that FAISS has only where it is built for GPUs: two of them, and a copy that records its options."""
    asked = SimpleNamespace(failure=None)

    def copy(index: Any, options: Any, gpus: Any) -> Any:
        asked.options, asked.gpus = options, gpus
        if asked.failure:
            raise asked.failure
        return "on a GPU"

    monkeypatch.setattr(_FAISS, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(_FAISS, "get_num_gpus", lambda: 2, raising=False)
    monkeypatch.setattr(_FAISS, "GpuMultipleClonerOptions", lambda: SimpleNamespace(use_cuvs=True), raising=False)
    monkeypatch.setattr(_FAISS, "index_cpu_to_gpus_list", copy, raising=False)
    return asked


@pytest.mark.parametrize(
    ("changes", "gpus", "options"),
    [
        ({"device": "cuda"}, None, {"shard": False, "useFloat16": False}),
        ({"device": "cuda:1", "float16": True}, [1], {"shard": False, "useFloat16": True}),
        ({"device": "cuda", "shard": True}, None, {"shard": True, "useFloat16": False}),
        ({"device": "cuda", "index": "ivf-sq8", "float16": True}, None, {"shard": False, "useFloat16": False}),
    ],
)
def test_what_faiss_is_asked_for(fake: SimpleNamespace, changes: Any, gpus: Any, options: dict[str, bool]) -> None:
    card = replace(FLAT, **changes)
    gpu.check_gpu(card)
    assert gpu.copy_to_gpus(SimpleNamespace(ntotal=9, nprobe=32), card) == "on a GPU"
    assert fake.gpus == gpus
    assert vars(fake.options) == options | {"use_cuvs": False}  # which has no ivf-sq8


def test_what_does_not_fit_a_gpu_is_told_with_faisss_reason(fake: SimpleNamespace) -> None:
    card, index = replace(FLAT, device="cuda:0"), SimpleNamespace(ntotal=2**30 // 24, nprobe=1)
    fake.failure = RuntimeError("Error: cudaMalloc error out of memory\nmore")
    with pytest.raises(UsageError, match=r"cannot put 44739242 vectors there \(4.0 GiB\): Error: cudaMalloc.*; set fl"):
        gpu.copy_to_gpus(index, card)
    with pytest.raises(UsageError, match=r"\(2.0 GiB\)"):
        gpu.copy_to_gpus(index, replace(card, float16=True))


def test_a_gpu_that_is_not_there_and_too_many_lists_are_refused(fake: SimpleNamespace) -> None:
    with pytest.raises(UsageError, match=r"device cuda:2: FAISS finds 2 GPUs here; see nvidia-smi"):
        gpu.check_gpu(replace(FLAT, device="cuda:2"))
    with pytest.raises(UsageError, match="nprobe is 2049: FAISS searches at most 2048 lists on a GPU"):
        gpu.copy_to_gpus(SimpleNamespace(ntotal=9, nprobe=2049), replace(IVF, device="cuda"))
