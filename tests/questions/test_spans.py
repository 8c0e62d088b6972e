"""Spans: what is hidden, all of its places, and which other pages state it."""

import itertools
import random
import time

import pytest
from linked_pages import linked_pages

from searchgym.questions.graphs.facts import find_facts
from searchgym.questions.graphs.packs import load_pack
from searchgym.questions.masked.draw import drafted, draw, masked, worded
from searchgym.questions.masked.spans import (
    CHARACTERS,
    WORDS,
    HiddenSpan,
    SpanFinder,
    kind_of,
    occurrences_of,
    windows_by_triples,
    windows_of,
)
from searchgym.records import Passage, Triple
from searchgym.text import count_words, holds

PACK = load_pack("people-and-works")


def reader(pages, words=500):
    return SpanFinder(pages, find_facts(pages, PACK), PACK, words)


def page(text, title="Zor", id="1"):
    return Passage(id, title, text)


def found(*pages, number=0):
    """Returns {text: (kind, number of places)} of a page's spans."""
    text = pages[number].text
    return {
        text[slice(*span.occurrences[0])]: (span.kind, len(span.occurrences))
        for window in reader(pages).windows(number)
        for span in window.spans
    }


def test_kinds_of_spans_by_hand():
    text = (
        'The book appeared on 5 May 1931 and was written by Mara Vint about the town. She had called it "The Long '
        'Stair" in 1928 before it was printed by Holm & Sons with 412 pages.'
    )
    spans = found(page(text, "Forty Lamps"))
    assert spans["5 May 1931"] == ("date", 1)
    assert spans["The Long Stair"] == ("title", 1)
    assert spans["Mara Vint"] == ("name", 1)
    assert spans["1928"] == ("year", 1)
    assert [kind_of(text) for text in ("1931", "12,400", "May 5, 1931", "Ada")] == ["year", "number", "date", "name"]


def test_a_link_is_the_surest_kind():
    pages = linked_pages(2)
    kinds = {kind for kind, _ in found(*pages).values()}
    assert "link" in kinds


def test_a_name_that_stands_again_is_hidden_everywhere():
    text = "The film was directed by Mara Vint in the north. Critics said that Mara Vint had never made a better one."
    source = page(text)
    (window,) = reader([source]).windows(0)
    (span,) = (span for span in window.spans if span.kind == "name")
    assert [text[slice(*place)] for place in span.occurrences] == ["Mara Vint", "Mara Vint"]
    draft = drafted(source, window, (span,))
    assert draft.text.count("[mask1]") == 3 and not holds(draft.text, "Mara Vint")  # the instruction names it once
    assert draft.answers == ("Mara Vint",)


@pytest.mark.parametrize(
    ("text", "title", "rule"),
    [
        ("It was made in 1931 by nobody whom we know of, and it was lost in 1931 when the house burnt.", "Zor",
         "a number that stands twice"),
        ("The film was directed by Vint in the north. Critics said that Mara Vint had never made a better one.", "Zor",
         "inside a longer name"),
        ('It was printed as "Zor; or, The Stair" by a small press in the north, which was soon closed again.', "Lamps",
         "holds a semicolon"),
        ('It was followed by "The Zor Stair" from a small press in the north, which was soon closed again.', "Zor",
         "shares a word with the title"),
    ],
)  # fmt: skip
def test_what_is_not_hidden(text, title, rule):
    read = reader([page(text, title)])
    read.windows(0)
    assert read.refused[f"spans: {rule}"] >= 1


def test_places_are_those_of_whole_words_whatever_their_case():
    assert occurrences_of("Ada, ADA ada-b Adab éda", "ada") == [(0, 3), (5, 8), (9, 12)]
    assert occurrences_of("x y x y x", "x y x") == [(0, 5), (4, 9)]
    assert occurrences_of("", "x") == []


def test_windows_are_whole_sentences_that_fit():
    rng = random.Random(0)
    for _ in range(50):
        sentences = [" ".join(["Word", *["word"] * rng.randrange(1, 160)]) + "." for _ in range(rng.randrange(0, 9))]
        text = " ".join(sentences)
        places = list(windows_of(text))
        assert all(count_words(text[slice(*p)]) <= WORDS and p[1] - p[0] <= CHARACTERS for p in places)
        shown = [text[slice(*place)] for place in places]
        kept = [s for s in sentences if count_words(s) <= WORDS and len(s) <= CHARACTERS]
        assert sum(own.count(".") for own in shown) == len(kept)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(places))


@pytest.mark.parametrize(
    "text", ["", "word", "Word.", "   ", "\n\n", "[", "\x00", "é漢字", "1931", "\ud800", "[mask1]"]
)
def test_pages_without_spans_give_no_window(text):
    read = reader([page(text), page("Ada.", "Ada", "2")])
    assert read.windows(0) == [] and read.refused["passages without a span"] == 1


@pytest.mark.slow
def test_a_page_of_a_megabyte_is_read_as_far_as_it_is_shown():
    text = "It was directed by Mara Vint in the north of the land where the lamps are lit. " * 13_300
    assert len(text) > 2**20
    for long in (page(text), page("x" * 2**20), page("Mara " * 200_000)):
        read = reader([long])
        started = time.perf_counter()
        windows = read.windows(0)
        assert time.perf_counter() - started < 2
        assert all(window.end <= len(text) and count_words(text[: window.end]) <= 500 for window in windows)


def test_only_pages_that_link_to_each_other_state_a_link_strictly():
    pages = linked_pages(6, seed=3)
    by_title = {p.title: n for n, p in enumerate(pages)}
    read = reader(pages)
    couples = critics = 0
    for number, own in enumerate(pages):
        for window in read.windows(number):
            for span in window.spans:
                said = own.text[slice(*span.occurrences[0])]
                if "painter" in own.text and said in by_title:
                    assert span.supports == (by_title[said],)
                    couples += 1
                elif "critic" in own.text:
                    assert span.supports == ()
                    critics += 1
    assert couples == 12 and critics >= 6


def test_a_quoted_title_is_stated_by_a_page_that_links_back():
    film = page('Mara Vint was a director who is best known for "The Long Stair" and a few quiet films of later years.',
                "Mara Vint")  # fmt: skip
    other = page('Forty Lamps is a film of 1931 by Mara Vint that came soon after "The Long Stair" had been lost.',
                 "Forty Lamps", "2")  # fmt: skip
    apart = page('"The Long Stair" is a chapter of a book that nobody has read for a hundred years or even more.',
                 "A Chapter", "3")  # fmt: skip
    supports = [s.supports for w in reader([film, other, apart]).windows(0) for s in w.spans if s.kind == "title"]
    assert supports == [(1,)]
    many = [page('A note on "The Long Stair" which says nothing else of it.', f"Note {n}", f"n{n}") for n in range(9)]
    supports = [s.supports for w in reader([film, other, *many]).windows(0) for s in w.spans if s.kind == "title"]
    assert supports == [()]


def test_copies_and_parts_of_the_page_state_nothing():
    pages = linked_pages(1, seed=1)
    one, two = (p for p in pages if "painter" in p.text)
    assert any(span.supports for window in reader([one, two]).windows(0) for span in window.spans)
    part = Passage("part", two.title, two.text)  # a title that two passages have is no link
    assert all(span.kind != "link" for window in reader([one, two, part]).windows(0) for span in window.spans)
    copy = Passage("copy", "Elsewhere", one.text)
    spans = [span for window in reader([one, two, copy]).windows(0) for span in window.spans]
    assert all(support == 1 for span in spans for support in span.supports)


# -- known facts ---------------------------------------------------------------------------------------------------


def test_spans_of_known_facts_by_hand():
    pages = [
        page("Zor is a woman. Zor is married to Ulo. Zor was born in 1931. Zor works for Fetec.", "Zor", "1"),
        page("Ulo is a man. Ulo is married to Zor.", "Ulo", "2"),
    ]
    facts = [Triple("Zor", "spouse", "Ulo"), Triple("Ulo", "spouse", "Zor"), Triple("Zor", "born", "1931"),
             Triple("Zor", "employer", "Fetec"), Triple("Else", "born", "1")]  # fmt: skip
    first, second = windows_by_triples(pages, facts)
    assert first.spans == (
        HiddenSpan(((34, 37),), "link", (1,)), HiddenSpan(((55, 59),), "year"), HiddenSpan(((75, 80),), "name"),
    )  # fmt: skip
    assert [span.supports for span in second.spans] == [(0,)]


# -- wording -------------------------------------------------------------------------------------------------------


def test_masks_are_numbered_in_their_order_and_markdown_links_go():
    text = "See [Ada Bel](people/ada.md) of 1931, and John( 1 May) ."
    spans = [HiddenSpan(((36 - 4, 36),), "year"), HiddenSpan(((5, 12),), "link")]
    assert text[32:36] == "1931"
    assert masked(text, (0, len(text)), spans) == "See [mask2] of [mask1], and John (1 May)."
    assert worded("x", 1) == "Fill in what is hidden behind [mask1]: x"
    assert worded("x", 3) == (
        "Fill in what is hidden behind [mask1], [mask2] and [mask3], in this order and separated by semicolons: x"
    )


def test_a_draft_names_its_page_and_says_no_answer():
    pages = linked_pages(8, seed=2)
    read = reader(pages)
    windows = [window for number in range(len(pages)) for window in read.windows(number)]
    for masks in (1, 2, 3, 4):
        drafts = list(draw(pages, windows, masks, random.Random(0)))
        assert len(drafts) == len({draft.window for draft in drafts})
        for draft in drafts:
            assert len(draft.answers) == masks and f"[mask{masks}]" in draft.text
            assert holds(draft.text, pages[draft.window.page].title)
            assert not any(holds(draft.text, answer) for answer in draft.answers)
    assert list(draw(pages, windows, 4, random.Random(1))) == list(draw(pages, windows, 4, random.Random(1)))
