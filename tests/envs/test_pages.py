"""Pages of a corpus: which passages make one, what opens it, and how it is cut into parts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import TitleRetriever

from searchgym.envs.pages.pages import PageIndex, pages_of, part_of, parts_of, snippet
from searchgym.errors import UsageError
from searchgym.records import Hit, Passage
from searchgym.retrieval.index.index import build_in_memory
from searchgym.retrieval.kinds.http import HttpRetriever

MERCURY = [
    Passage("a", "Mercury", "The planet Mercury is the smallest."),
    Passage("b", "Mercury", "It has no moon."),
    Passage("c", "Venus", "Venus is the second planet."),
    Passage("d", "Mercury", "The element Mercury is a liquid."),
    Passage("e", "", "A page without a title."),
    Passage("f", "", "Another page without one."),
    Passage("venus", "R\u0065\u0301union &amp; Co", "An island."),
    Passage("Venus", "MERCURY RISING", "A film."),
]


def pages(passages=MERCURY):
    return PageIndex(build_in_memory(passages))


def test_a_page_is_a_run_of_passages_with_one_title():
    found = pages()
    assert len(found) == 7
    assert found.at(1).text == "The planet Mercury is the smallest.\nIt has no moon."
    assert [found.at(place).position for place in range(8)] == [0, 0, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("target", "places"),
    [
        ("Venus", [2]),  # a title goes before the id of another page
        ("venus", [6]),  # and an id before a title in other letters
        ("VENUS", [2]),
        ("Mercury", [0, 3]),
        ("mercury  ", [0, 3]),
        ("b", [0]),  # the id of a passage opens its page
        ("d", [3]),
        ("e", [4]),
        ("R\u00e9union & Co", [6]),  # titles are compared by their normal form
        ("Mercury rising", [7]),
        ("Pluto", []),
        ("", []),
        ("   ", []),
    ],
)
def test_titles_and_ids(target, places):
    assert pages().find(target) == places


HOSTILE = [
    "../../etc/passwd", "\x00", "\ud800", "a" * 10_000_000, "<open>Venus</open>", "%s%n", "'; DROP TABLE pages; --",
    "\u202eVenus", "{0.__class__}", "Venus\n\nVenus", "\n", "-1", "1e9", "file:///etc/passwd",
]  # fmt: skip


@pytest.mark.parametrize("target", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_ids_open_nothing(target):
    assert pages().find(target) == []


def test_a_passage_whose_hash_is_shared_is_not_taken_for_it(monkeypatch):
    monkeypatch.setattr("searchgym.envs.pages.pages.hash_id", lambda id: 7)
    found = pages()
    assert found.find("Venus") == [2]
    assert found.find("Mercury") == [0, 3]
    assert found.find("d") == [3]
    assert found.find("Pluto") == []


def test_a_hit_is_named_by_what_opens_it():
    found, corpus = pages(), build_in_memory(MERCURY)
    named = [found.name(Hit(corpus.passage(place), 1.0)) for place in range(6)]
    assert named == ["Title: Mercury, id: a", "Title: Mercury, id: b", "Title: Venus", "Title: Mercury, id: d",
                     "Title: , id: e", "Title: , id: f"]  # fmt: skip
    assert found.name(Hit(Passage("elsewhere", "Venus", ""), 1.0)) == "Title: Venus"


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab \n\t", max_size=60), st.integers(1, 7))
def test_parts_hold_every_word_once_and_in_order(text, words):
    parts = [part_of(text, number, words) for number in range(1, parts_of(text, words) + 1)]
    assert [word for part in parts for word in part.split()] == text.split()
    assert all(0 < len(part.split()) <= words for part in parts) or not text.split()
    assert all(part in text for part in parts)
    assert part_of(text, len(parts) + 1, words) == ""


def test_a_page_of_a_megabyte_and_one_of_a_word():
    assert parts_of("word", 5) == parts_of("", 5) == 1
    long = "word " * 200_000
    assert parts_of(long, 150) == -(-200_000 // 150)
    assert part_of(long, 1334, 150).split() == ["word"] * (200_000 - 1333 * 150)
    assert parts_of("w" * 10**6, 150) == 1


def test_a_snippet_is_the_beginning():
    assert snippet(Hit(Passage("p", "T", "one two  three four"), 2.0), 3) == Hit(
        Passage("p", "T", "one two  three"), 2.0
    )


def test_pages_need_the_corpus_on_this_machine():
    with pytest.raises(UsageError, match=r"browse: .* HttpRetriever does not have on this machine"):
        pages_of(HttpRetriever("http://127.0.0.1:9"))
    with pytest.raises(UsageError, match="TitleRetriever"):
        pages_of(TitleRetriever())
