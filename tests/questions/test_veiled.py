"""Veiled chains: only one page fits a description, no name is left, and an oracle that searches for it answers."""

from __future__ import annotations

import dataclasses
import random

import pytest
from brute_force import day, plain, problems
from made_pages import FIRST, made_pages

from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import CardError
from searchgym.questions.generate import generate
from searchgym.questions.graphs.facts import find_facts
from searchgym.questions.graphs.packs import load_pack
from searchgym.questions.shapes.draw import draw
from searchgym.questions.source import FactBase
from searchgym.questions.spec import USUAL, GeneratedSpec
from searchgym.retrieval.index.index import build_in_memory
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.tokens import TokenFormat
from searchgym.train.demonstrations.oracle import demonstrate_search

PACK = load_pack("people-and-works")
COMPOSERS = [f"{name} Quill" for name in FIRST[:12]]
PAGES = [
    dataclasses.replace(page, text=f"{page.text} The music is by {COMPOSERS[number % 12]}.")
    if "film directed" in page.text
    else page
    for number, page in enumerate(made_pages())
]
"""Pages of films and their directors; each of twelve composers wrote the music of several films."""
FACTS = find_facts(PAGES, PACK)
TRIPLES = [
    (PAGES[f.subject].title, f.relation, f.text if f.target is None else PAGES[f.target].title) for f in FACTS.facts
]
DATES = ("born", "died")


@pytest.fixture(scope="module")
def questions():
    made = generate(PAGES, PACK, GeneratedSpec(n=60, seed=2, shapes=("veiled",)))
    return [question for split in ("train", "validation", "test") for question in made.split(split)]


def fits(title, relation, value):
    """Whether a page states a fact; of dates the years are compared."""
    objects = [c for a, r, c in TRIPLES if (a, r) == (title, relation)]
    if relation in DATES:
        return any(day(one).year == day(value).year for one in objects)
    return any(plain(one) == plain(value) or plain(one.partition(" (")[0]) == plain(value) for one in objects)


def test_only_one_page_fits_a_description_by_trying_every_page(questions):
    assert len(questions) > 20 and {question.metadata["hops"] for question in questions} == {1, 2}
    for question in questions:
        clues = [(fact.relation, fact.object) for fact in question.evidences[:2]]
        fitting = [page.title for page in PAGES if all(fits(page.title, *clue) for clue in clues)]
        assert fitting == [question.gold_titles[0]], question.text
        assert {relation for relation, _ in clues}.isdisjoint(question.metadata["form"]["steps"])


def test_answers_names_and_pages_stand_against_a_brute_force(questions):
    texts = {page.title: page.text for page in PAGES}
    assert [(q.text, found) for q in questions if (found := problems(q, TRIPLES, texts))] == []
    for question in questions:
        assert len(question.metadata["waypoints"]) == question.metadata["hops"]  # the described page's name among them


def test_clues_that_two_pages_share_describe_none():
    """Two films of one director; when the second is given the year of the first, neither is described by the two."""
    films: dict[str, list[int]] = {}
    for fact in FACTS.facts:
        if fact.relation == "director":
            films.setdefault(fact.text, []).append(fact.subject)
    one, other, *_ = next(pages for pages in films.values() if len(pages) > 1)
    year = next(f.text for f in FACTS.facts if (f.subject, f.relation) == (one, "released"))
    alike = [f._replace(text=year) if (f.subject, f.relation) == (other, "released") else f for f in FACTS.facts]

    def described(facts):
        source = FactBase(PAGES, dataclasses.replace(FACTS, facts=tuple(facts)), PACK)
        drafts = draw(source, "veiled", 1, random.Random(0))
        return {draft.pages[0] for draft in drafts if f"film of {year} that" in draft.text}

    assert one in described(FACTS.facts) and not {one, other} & described(alike)


def test_the_description_finds_its_page_and_the_name_finds_it_more_often(questions):
    retriever = build_in_memory(PAGES)
    first = {question.id: question.gold_titles[0] for question in questions}

    def share(queries):
        hits = retriever.search(list(queries.values()), 1)
        return sum(own[0].passage.title == first[id] for id, own in zip(queries, hits, strict=True)) / len(first)

    veiled = share({question.id: question.metadata["queries"][0] for question in questions})
    named = share({question.id: first[question.id] for question in questions})
    assert 0.5 < veiled <= named


def test_an_oracle_searches_for_the_description_and_answers(questions):
    task = load_task(
        find_env("searchgym/World-v0"), questions=questions, retriever=build_in_memory(PAGES), reward="em", max_turns=5
    )
    form = TokenFormat(load_tokenizer("tiny"), task.rules.protocol, chat=True)
    shown = demonstrate_search(task, form, 10)
    assert len(shown.episodes) == 10 and all(episode.reward == 1 for episode in shown.episodes)
    for episode in shown.episodes:
        question = task.find(episode.question_id)
        assert episode.searches[0].query == question.metadata["queries"][0]
        assert plain(episode.searches[0].query) in plain(question.text)


def test_they_are_drawn_only_if_they_are_named():
    assert "veiled" not in USUAL and not any(key[0] == "veiled" for key in GeneratedSpec().mix)
    assert GeneratedSpec(shapes=("veiled",)).mix == {
        ("veiled", 2): pytest.approx(2 / 3),
        ("veiled", 1): pytest.approx(1 / 3),
    }


def test_a_description_with_other_placeholders_is_refused(tmp_path):
    text = open_pack().replace("noun: 'the {kind} of {b} that {a} directed'", "noun: 'the {kind} of {year}'")
    (tmp_path / "pack.yaml").write_text(text)
    with pytest.raises(CardError, match=r"clues\[0\]\.noun: use \{a\} and \{b\}"):
        load_pack(str(tmp_path / "pack.yaml"))


def open_pack():
    from searchgym.options.cards import list_cards

    return list_cards("packs")["people-and-works"].read_text()
