"""Questions made of sentences: their texts by hand, and what is refused."""

import dataclasses
import random

import pytest
from test_generation import PACK

from searchgym.errors import CardError, UnknownNameError
from searchgym.questions.generate import generate
from searchgym.questions.graphs.facts import find_facts
from searchgym.questions.graphs.packs import SpanRule, load_pack
from searchgym.questions.sentences import draw_sentences
from searchgym.questions.source import FactBase
from searchgym.questions.spec import SHAPES, USUAL, GeneratedSpec
from searchgym.records import Passage

PAGES = [
    Passage(
        "1",
        "Tides (film)",
        "Tides is a 1931 British drama film directed by Ann Bell. It was filmed in Malta with one camera.",
    ),
    Passage(
        "2",
        "Ann Bell",
        "Ann Bell (4 May 1899 – 1980) was a British director. She was born in Leeds, in a house of her family. She "
        "studied at the Royal Bell Academy. Her brother played with Abbott and Costello. It rained.",
    ),
]


def drawn(pages=PAGES, hops=1, pack=PACK, forbidden=(), seeds=1):
    source = FactBase(pages, find_facts(pages, pack), pack)
    source = source.within(source.allowed, forbidden)
    return {(d.text, d.answer) for seed in range(seeds) for d in draw_sentences(source, hops, random.Random(seed))}


def test_one_page_by_hand():
    assert drawn(seeds=20) == {
        ("Tides is a 1931 British drama film directed by which director?", "Ann Bell"),
        ("Tides was filmed in what place with one camera?", "Malta"),
        ("Ann Bell was born in what place, in a house of her family?", "Leeds"),
    }  # her own name is in the Academy's; Abbott goes on; "It rained" names nothing


def test_two_pages_name_the_second_by_the_first():
    (draft,) = [
        d
        for d in draw_sentences(FactBase(PAGES, find_facts(PAGES, PACK), PACK), 2, random.Random(0))
        if d.answer == "Leeds"
    ]
    assert draft.text == "The director of the film Tides was born in what place, in a house of her family?"
    assert (draft.pages, draft.waypoints, draft.relations) == ((0, 1), ("Ann Bell",), ("director",))
    assert [(hop.question, hop.answer) for hop in draft.steps] == [
        ("Who directed the film Tides?", "Ann Bell"),
        ("#1 was born in what place, in a house of her family?", "Leeds"),
    ]


def test_names_that_are_held_out_are_no_answers():
    assert not [answer for _, answer in drawn(forbidden=("leeds",), seeds=5) if answer == "Leeds"]
    assert not drawn(pack=dataclasses.replace(PACK, spans=[]))


def test_a_set_of_sentences_is_made_where_it_is_asked_for():
    assert (
        "sentence" in SHAPES and "sentence" not in USUAL and {shape for shape, _ in GeneratedSpec().mix} == set(USUAL)
    )
    made = generate(PAGES, PACK, GeneratedSpec(n=4, shapes=("sentence",), shares=(1.0, 0.0, 0.0)))
    questions = made.split("train")
    assert {q.kind for q in questions} == {"sentence"} and len(questions) >= 2
    with pytest.raises(UnknownNameError, match="sentence"):
        GeneratedSpec(shapes=("sentense",))


def test_a_pattern_that_tells_nothing_is_refused(tmp_path):
    text = "name: own\nsummary: mine\nkinds: {}\nrelations: {}\nspans:\n  - {pattern: 'in \\d+', ask: what year}\n"
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(CardError, match=r"own.yaml: spans\[0\]: needs a group"):
        load_pack(str(tmp_path / "own.yaml"))
    assert SpanRule(pattern="x", ask="what").ask == "what"
