"""Ids that come again are found, few as many, and where they came first."""

import pytest

from searchgym.corpora import ids
from searchgym.corpora.ids import FirstPositions, hash_id


@pytest.mark.parametrize("exact", [0, 7, 10_000])
def test_an_id_that_comes_again_names_its_first_place(monkeypatch: pytest.MonkeyPatch, exact: int) -> None:
    monkeypatch.setattr(ids, "EXACT", exact)
    places = FirstPositions()
    assert [places.first(f"id {i}", i) for i in range(3000)] == [None] * 3000  # the table grows on the way
    assert len(places) == 3000
    assert [places.first(f"id {i}", 3000 + i) for i in range(3000)] == list(range(3000))
    assert len(places) == 3000
    assert places.first("another", 9) is None


def test_an_id_has_one_hash_that_is_never_the_mark_of_a_free_place() -> None:
    assert hash_id("a") == hash_id("a") != hash_id("b")
    assert 0 < hash_id("\ud800") < 1 << 64
