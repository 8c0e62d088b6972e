import itertools
import re
from collections import Counter

import pytest

from searchgym.questions.worlds import WorldSpec, build_world
from searchgym.questions.worlds.language import language_of
from searchgym.questions.worlds.report import card_of, report_of, stratum
from searchgym.questions.worlds.schema import RELATIONS
from searchgym.retrieval.bm25.analysis import analyse
from searchgym.retrieval.index.index import build_in_memory

FULL = language_of("full")
PAGES_OF_TWO = ("compositional", "inference", "comparison")
FUNCTION_WORDS = {
    word
    for text in ("Who Whom Whose Which What When Where How In From By With Of On did does is are was were has have had",
                 "who that one person city company book film river mountain man woman place name year its his her",
                 "he she both same first first-page his him them than more less m km both only once up out off many")
    for word in analyse(text)
}  # fmt: skip
"""Stems that name no relation: function words and kinds of things."""


@pytest.fixture(scope="module", params=["train", "test"])
def world(request):
    return build_world(WorldSpec("full", 500, 0, request.param))


def stems(templates):
    return {stem for text in templates for stem in analyse(re.sub(r"\{\w+\}", " ", text))} - FUNCTION_WORDS


@pytest.mark.parametrize("relation", [name for name in FULL.phrases if name != "~member"])
def test_every_relation_has_thirty_phrasings_and_questions_use_other_words(relation):
    said = FULL.phrases[relation]
    asked = FULL.phrases["~member" if relation == "member" else relation]
    for half in (0, 1):
        framed = {c for c in said.state[half] if "|" not in c}
        split = set(said.state[half]) - framed
        assert len(framed) * (len(FULL.frames[half]) + 1) + len(split) >= 30
        for clause in said.state[half]:
            assert clause.count("{o}") == 1
            assert re.search(r"\{(s|him|his)\}", clause)
        for text in (*asked.ask[half], *asked.noun[half]):
            assert text.count("{s}") == 1
        for text in (*asked.least[half], *asked.greatest[half], *asked.same[half]):
            assert re.fullmatch(r".*\{a\}(, | )(or|and) \{b\}.*\?", text)
    pages = stems([*said.state[0], *said.state[1]])
    questions = stems(itertools.chain.from_iterable(half for pair in asked[1:] for half in pair))
    assert not pages & questions


def test_frames_and_fillers_are_disjoint_across_halves():
    for train, test in (FULL.frames, FULL.intro, FULL.alias, FULL.mention_person, FULL.mention_thing):
        assert not set(train) & set(test)
        assert len(train) == len(set(train))


@pytest.mark.slow
def test_sentences_are_well_formed(world):
    for passage in world.passages:
        assert re.fullmatch(r"([A-Z0-9][^{}|]*\.)( [A-Z0-9][^{}|]*\.)*", passage.text), passage.text
        assert "  " not in passage.text
        assert not re.search(r"\b(a [aeiou]|an [^aeiou])", passage.text)
    for question in world.questions:
        assert re.fullmatch(r"[A-Z][^{}|]*\?", question.text)


def test_passages_are_as_long_as_real_ones(world):
    lengths = [len(passage.text.split()) for passage in world.passages]
    assert sum(lengths) / len(lengths) == pytest.approx(71, abs=5)
    assert min(lengths) < 50 < 90 < max(lengths)


def test_retrieval_is_as_hard_as_on_hotpotqa(world):
    retrieval = report_of(world)["retrieval"]
    assert retrieval["recall@5"] == pytest.approx(0.755, abs=0.10)
    assert retrieval["recall@5_of_two_pages"] == pytest.approx(0.755, abs=0.10)
    assert retrieval["both_gold@5"] == pytest.approx(0.51, abs=0.10)
    assert retrieval["title_finds_gold@3"] == 1.0
    assert min(retrieval["strata"].values()) > 40


def test_ranks_and_strata_are_those_of_a_search(world):
    index = build_in_memory(world.passages)
    for question in world.questions[:100]:
        titles = [hit.passage.title for hit in index.search([question.text], 20)[0]]
        ranks = [titles.index(title) + 1 if title in titles else None for title in question.gold_titles]
        assert question.metadata["ranks"] == ranks
        assert question.metadata["stratum"] == stratum(ranks)
    assert [stratum(ranks) for ranks in ([1], [2], [5], [6], [20], [None])] == [
        "1", "2-5", "2-5", "6-20", "6-20", "reformulation",
    ]  # fmt: skip
    assert [stratum(ranks) for ranks in ([2, 1], [1, 3], [1, 9], [1, None])] == ["1", "2-5", "6-20", "reformulation"]


def test_a_stratum_can_be_asked_for():
    world = build_world(WorldSpec("full", 40, 1, hops=(2,), strata=("6-20", "reformulation")))
    assert {question.metadata["stratum"] for question in world.questions} == {"6-20", "reformulation"}
    assert card_of(world)["spec"]["strata"] == ["6-20", "reformulation"]


def test_namesakes_are_near_copies_and_some_leave_out_a_fact(world):
    texts = {passage.title: passage.text for passage in world.passages}
    facts = Counter(triple.subject for triple in world.triples if triple.relation != "alias")
    names = Counter(title.split(" (")[0] for title in texts)
    pairs = [[title for title in texts if title.split(" (")[0] == name] for name, count in names.items() if count == 2]
    assert len(pairs) > 15
    overlap = []
    for one, other in pairs:
        assert one.endswith(")")
        first, second = (set(analyse(texts[title])) for title in (one, other))
        overlap.append(len(first & second) / len(first | second))
    unlike = [set(analyse(texts[title])) for pair in pairs for title in pair[:1]]
    others = [len(a & b) / len(a | b) for a, b in itertools.pairwise(unlike)]
    assert sum(overlap) / len(overlap) > 2 * sum(others) / len(others)
    assert any(facts[one] != facts[other] for one, other in pairs)
    mentioned = [re.findall(rf"the ([a-z' ]+?) {re.escape(name)}", " ".join(texts.values())) for name in names]
    assert any(mentioned)


def test_lists_aliases_dates_and_shared_surnames(world):
    relations = Counter(triple.relation for triple in world.triples)
    bands = {triple.subject for triple in world.triples if triple.relation == "member"}
    assert relations["member"] >= 2 * len(bands)
    assert relations["alias"] > 10
    by_title = {passage.title: passage.text for passage in world.passages}
    for triple in world.triples:
        if triple.relation == "alias":
            assert triple.object in by_title[triple.subject]
        elif triple.relation in RELATIONS and RELATIONS[triple.relation].object == "date":
            assert re.fullmatch(r"\d{1,2} [A-Z][a-z]+ \d{4}", triple.object)
    people = {triple.subject for triple in world.triples if triple.relation == "born"}
    surnames = Counter(title.split(" (")[0].split()[-1] for title in people)
    assert sum(count for count in surnames.values() if count > 1) > len(people) / 2
    aliased = [t for t in world.triples if t.relation == "alias"]
    elsewhere = [t for t in aliased if any(t.object in text for title, text in by_title.items() if title != t.subject)]
    assert elsewhere


def test_questions_from_a_player_to_the_band(world):
    backwards = [q for q in world.questions if q.metadata["form"].get("steps", [""])[0] == "~member"]
    assert backwards
    for question in backwards:
        first = question.evidences[0]
        assert (first.relation, first.object) == ("member", question.metadata["form"]["start"].split(" (")[0])
        assert question.hops[0].answer == first.subject
