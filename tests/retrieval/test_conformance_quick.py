"""The retrievers' contract over every back end that needs neither Java nor an encoder; test_conformance.py has all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from back_ends import ABOVE, ODD_QUERIES, PASSAGES, QUERIES, TITLES

from searchgym.retrieval.index.build import build_index
from searchgym.retrieval.index.index import load_index
from searchgym.retrieval.retriever import Retriever, at_step
from searchgym.testing import RetrieverTests

BM25 = {"kind": "bm25", "threads": 2}
CARDS: dict[str, dict[str, Any]] = {
    "bm25": BM25,
    "hybrid": {"kind": "hybrid", "of": [BM25, BM25 | {"b": 0.75}], "depth": 20},
    "no noise": {"kind": "noise", "of": BM25, "start": 0.0, "seed": 3},
    "all noise": {"kind": "noise", "of": BM25, "start": 1.0, "end": 1.0, "seed": 3},
    "cache": {"kind": "cache", "of": BM25, "size": 64},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index folder with both BM25 parts."""
    folder = tmp_path_factory.mktemp("conformance") / "index"
    build_index(PASSAGES, folder, CARDS["hybrid"])
    return folder


@pytest.mark.slow_cases
class TestBackEndsInProcess(RetrieverTests):
    """The contract of retrievers over cards that stand on BM25."""

    queries = (*QUERIES, *TITLES)
    passages = PASSAGES
    most = ABOVE
    many = 2_000
    hostile = tuple(ODD_QUERIES.values())

    @pytest.fixture(autouse=True, params=CARDS)
    def take(self, request: pytest.FixtureRequest, folder: Path) -> None:
        """Opens each back end in turn."""
        self.retriever = load_index(folder, card=CARDS[request.param])
        at_step(self.retriever, 0, 10)  # noise acts in training alone

    def make_retriever(self) -> Retriever:
        return self.retriever
