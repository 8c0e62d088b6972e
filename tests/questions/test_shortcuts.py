"""Ways round searching: a planted set for each is flagged, a clean one is not."""

from __future__ import annotations

import pytest

from searchgym.questions.shortcuts import MEASURES, hops_of, measure, names_answer
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Passage, Question, SupportingFact, Triple
from searchgym.retrieval.index.index import build_in_memory

FILLER = "The weather there is mild and the harbour is busy in summer. "


def page(title, text):
    return Passage(title, title, f"{text} {FILLER}")


def clean(number):
    """Two pages and a question that needs both and names one of them."""
    film, maker, town = f"Film Zeta{number} Omega", f"Maker Kappa{number} Rho", f"Townsville{number}"
    pages = [page(film, f"{film} is a film directed by {maker}."), page(maker, f"{maker} grew up in {town}.")]
    triples = (Triple(film, "director", maker), Triple(maker, "home", town))
    form = {"op": "path", "start": film, "steps": ["director", "home"]}
    text = f"In which town did the director of {film} grow up?"
    facts = (SupportingFact(film), SupportingFact(maker))
    return pages, Question(
        f"q{number}",
        text,
        (town,),
        kind="chain",
        supporting_facts=facts,
        evidences=triples,
        metadata={"hops": 2, "form": form},
    )


def changed(question, **fields):
    import dataclasses

    return dataclasses.replace(question, **fields)


def one_search(number):
    pages, question = clean(number)
    return pages, changed(question, text=f"Where did Kappa{number} Rho of Zeta{number} Omega grow up?")


def closed_book(number):
    pages, question = clean(number)
    return pages, changed(
        question, text=f"Did the director of the film Zeta{number} grow up there?", answers=("yes",), kind="chain"
    )


def majority(number):
    pages, question = clean(number)
    return pages, changed(question, answers=("Oslo",))


def first_title(number):
    pages, question = clean(number)
    return pages, changed(question, text=f"Who is Kappa{number}?", answers=(f"Maker Kappa{number} Rho",))


def co_covered(number):
    (film, maker), question = clean(number)
    return [film, page(maker.title, f"{maker.text} {question.gold_titles[0]} is a film of hers.")], question


def single_clue(number):
    pages, question = clean(number)
    triples = (Triple("X", "director", f"D{number}"), Triple("X", "year", "1950"))
    form = {
        "op": "both",
        "paths": [{"start": f"D{number}", "steps": ["~director"]}, {"start": "1950", "steps": ["~year"]}],
    }
    return pages, changed(question, evidences=triples, metadata={"hops": 2, "form": form})


def exposed(number):
    pages, question = clean(number)
    return pages, changed(question, text=question.text[:-1] + f", Maker Kappa{number} Rho?")


def measured(kind, count=30):
    made = [kind(number) for number in range(count)]
    pages = [p for own, _ in made for p in own]
    return measure([question for _, question in made], pages, build_in_memory(pages), 2)


def flagged(found):
    """Measures that more than a few questions of several hops show, of those that do not name their answers."""
    ids = [q.id for q in found.questions if hops_of(q) > 1 and not names_answer(q)]
    means = {name: sum(found.scores[name][id] for id in ids) / len(ids) if ids else 0.0 for name in MEASURES}
    del means["by_names"]  # the way that is wanted
    return {name: mean for name, mean in means.items() if mean > (0.02 if name == "exposed" else 0.05)}


def test_a_clean_set_is_not_flagged():
    found = measured(clean)
    assert flagged(found) == {}
    assert found.rows()[0]["by_names"] == 1.0


@pytest.mark.parametrize("kind", [one_search, majority, first_title, co_covered, single_clue, exposed])
def test_a_planted_way_is_flagged(kind):
    found = measured(kind)
    assert flagged(found).get(kind.__name__, 0) > 0.9


def test_a_gold_without_words_is_not_guessed_by_saying_nothing():
    pages, question = clean(0)
    question = changed(question, answers=("The The",), evidences=None)
    (row,) = measure([question], pages, build_in_memory(pages)).rows()
    assert (row["closed_book"], row["majority"], row["first_title"]) == (0.0, 0.0, 0.0)


def test_a_yes_that_the_wording_gives_away():
    found = measured(closed_book)
    assert sum(found.scores["closed_book"].values()) == 30


def test_worlds_are_clean_but_for_what_they_are_known_for():
    """Comparisons name both pages, so that one search finds them; all other questions of several hops are clean."""
    world = build_world(WorldSpec("simple", 200, 1, "train"))
    found = measure(world.questions, world.passages, build_in_memory(world.passages), 3, world.triples)
    assert flagged(found) == {}
