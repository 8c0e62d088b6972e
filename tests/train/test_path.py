"""The path proposer: what it proposes by look-up, on worlds and on a corpus; going on after a stop; running dry."""

import dataclasses
import json

import numpy as np
import pytest
from made_pages import PAGES, made_pages

from searchgym.errors import CardError, TrainingError, UsageError
from searchgym.questions.graphs.facts import find_facts
from searchgym.questions.graphs.graph import evaluate
from searchgym.questions.graphs.packs import load_pack
from searchgym.questions.source import FactBase
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.build import world_graph
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Episode, Question
from searchgym.retrieval.index.index import build_in_memory
from searchgym.train.credit.waypoints import waypoints_of
from searchgym.train.recipe.load import load_recipe
from searchgym.train.selfplay.arms import Arm
from searchgym.train.selfplay.corpora import CorpusGround
from searchgym.train.selfplay.kinds.path import LearningProposer
from searchgym.train.selfplay.kinds.uniform import UniformProposer
from searchgym.train.selfplay.proposer import PathProposer, pass_rates
from searchgym.train.selfplay.worlds import WorldGround

SPEC = WorldSpec("simple", split="train", size=200, seed=1)
FULL = WorldSpec("full", split="train", size=60, seed=1)
TRANSFER = WorldSpec("simple", split="transfer", size=60, seed=1)


def path_proposer(ground=None, seed=0, **options):
    made = LearningProposer(**options)
    return PathProposer(ground or WorldGround(SPEC, made.hops, seed), made, seed)


def answered(questions, rates, attempts=4):
    """Returns attempts at questions of which a share is right."""
    return [
        Episode(f"{q.id}#{n}", q.id, "a", "e", n, scores={"em": float(n < rate * attempts)}, stop_reason="answer")
        for q, rate in zip(questions, rates, strict=True)
        for n in range(attempts)
    ]


def played(proposer, steps, count=8, first=0):
    """Draws and learns for some steps, with pass rates that depend on the question; returns ids and metrics."""
    seen = []
    for step in range(first, first + steps):
        questions = proposer.draw(step, count)
        questions += proposer.more(step, 1, 2, questions)
        rates = [(len(question.id) % 5) / 4 for question in questions]
        row = proposer.learn(step, questions, answered(questions, rates))
        seen.append(([question.id for question in questions], row))
    return seen


@pytest.mark.parametrize("spec", [SPEC, FULL, TRANSFER], ids=["simple", "full", "transfer"])
def test_what_is_proposed_has_one_answer_by_look_up(spec):
    graph, proposer = world_graph(spec), path_proposer(WorldGround(spec, [1, 2, 3, 4], 0))
    proposed = proposer.draw(0, 300)
    arms = [Arm(*made.metadata["arm"]) for made in proposed]
    for made, arm in zip(proposed, arms, strict=True):
        (answer,) = evaluate(graph, made.metadata["form"])
        assert made.answers == (graph.display(answer),)
        assert len(made.gold_titles) == arm.hops == made.metadata["hops"]
        assert all(title in graph.entities for title in made.gold_titles)
        between = {graph.display(title) for title in made.gold_titles} - {graph.display(answer)}
        assert {point.name for point in waypoints_of(made)} <= between
        assert arm.named or made.answers[0] not in made.text.replace("?", "").split()
    assert len({str(made.metadata["form"]) for made in proposed}) == 300
    assert sum(arm.named for arm in arms) <= 0.15 * 300


def test_worlds_are_worded_as_their_own_questions():
    """Of a world's own single facts, those that are proposed too have one of the same wordings and the same answer."""
    world, proposer = build_world(SPEC), path_proposer(hops=[1])
    own = {str(q.metadata["form"]): q for q in world.questions}
    proposed = {str(q.metadata["form"]): q for q in proposer.draw(0, 500)}
    both = own.keys() & proposed.keys()
    assert len(both) > 10
    assert all(own[form].answers == proposed[form].answers for form in both)
    assert sum(own[form].text == proposed[form].text for form in both) > len(both) / 4


def test_the_same_seed_proposes_the_same():
    assert played(path_proposer(), 3) == played(path_proposer(), 3) != played(path_proposer(seed=1), 3)


def test_a_proposer_goes_on_where_another_stopped():
    whole = played(path_proposer(), 6)
    first = path_proposer()
    assert played(first, 3) == whole[:3]
    state = json.loads(json.dumps(first.state()))
    second = path_proposer()
    second.restore(state)
    assert played(second, 3, first=3) == whole[3:]


def test_a_proposer_that_has_used_up_its_arms_goes_on_too():
    def small():
        return path_proposer(WorldGround(dataclasses.replace(SPEC, size=30), [1], 0), hops=[1], pool=32, tries=3)

    whole = played(small(), 20, count=24)
    assert whole[-1][1]["from_pool"] > 0
    first = small()
    played(first, 18, count=24)
    second = small()
    second.restore(json.loads(json.dumps(first.state())))
    assert played(second, 2, count=24, first=18) == whole[18:]


def test_the_pool_fills_up_and_never_asks_a_question_twice_in_a_step():
    proposer = path_proposer(WorldGround(dataclasses.replace(SPEC, size=30), [1], 0), hops=[1], pool=10, tries=2)
    steps = played(proposer, 40, count=12)
    assert all(len(set(ids)) == len(ids) for ids, _ in steps)
    assert len(steps[-1][0]) == 10  # no new question is left, and the pool holds ten
    assert steps[-1][1]["from_pool"] == 10
    empty = path_proposer(WorldGround(dataclasses.replace(SPEC, size=30), [1], 0), hops=[1], pool=0, tries=2)
    with pytest.raises(TrainingError, match=r"pool of earlier ones is empty .*larger world"):
        played(empty, 60, count=12)


def test_questions_that_teach_are_proposed_more():
    """A solver that is right half the time on single facts and never else: single facts take over."""
    proposer, share = path_proposer(max_named=0.0), []
    for step in range(25):
        questions = proposer.draw(step, 16)
        rates = [0.5 if q.metadata["hops"] == 1 else 0.0 for q in questions]
        row = proposer.learn(step, questions, answered(questions, rates))
        share.append(np.mean([q.metadata["hops"] == 1 for q in questions]))
        assert row["entropy"] >= 0.69 and row["valid"] == 1
    assert share[0] < 0.5 < np.mean(share[-8:])


@pytest.mark.parametrize("rate", [0.0, 1.0, float("nan")])
def test_a_solver_that_tells_nothing_apart_leaves_the_policy_even(rate):
    proposer = path_proposer()
    before = proposer.policy.probabilities()
    for step in range(3):
        questions = proposer.draw(step, 8)
        episodes = answered(questions, [0.0 if np.isnan(rate) else rate] * 8)
        for episode in episodes if np.isnan(rate) else ():
            episode.stop_reason = "retriever_error"
        row = proposer.learn(step, questions, episodes)
        assert ("signal" in row) == (not np.isnan(rate))
    assert np.array_equal(proposer.policy.probabilities(), before)


def test_failed_retrievals_do_not_count():
    (question,) = path_proposer().draw(0, 1)
    episodes = answered([question], [0.5])
    assert pass_rates([question], episodes) == ([0.5], [4])
    episodes[0].stop_reason = "retriever_error"
    assert pass_rates([question], episodes) == ([pytest.approx(1 / 3)], [3])
    episodes[1].stop_reason = episodes[2].stop_reason = "retriever_error"
    (rate,), (count,) = pass_rates([question], episodes)
    assert np.isnan(rate) and count == 1


def test_even_draws_do_not_learn():
    made = UniformProposer()
    proposer = PathProposer(WorldGround(SPEC, made.hops, 0), made, 0)
    before = proposer.policy.probabilities()
    played(proposer, 3)
    assert np.array_equal(proposer.policy.probabilities(), before)


# -- corpora -------------------------------------------------------------------------------------------------------


def corpus_ground(pages, allowed=None, forbidden=()):
    pack = load_pack("people-and-works")
    source = FactBase(pages, find_facts(pages, pack), pack)
    source = source.within(range(len(pages)) if allowed is None else allowed, forbidden)
    return source, CorpusGround(source, build_in_memory(pages), 3, [1, 2, 3, 4], 0)


def test_a_corpus_is_walked_with_the_filters_of_generated_questions():
    source, ground = corpus_ground(PAGES)
    assert {arm.shape for arm in ground.arms} >= {"chain", "comparison", "bridge-comparison"}
    proposed = path_proposer(ground).draw(0, 60)
    retriever = build_in_memory(PAGES)
    for made in proposed:
        arm = Arm(*made.metadata["arm"])
        assert len(evaluate(source.graph, made.metadata["form"])) == 1
        assert made.id.startswith(arm.name)
        if arm.hops > 1:
            (hits,) = retriever.search([made.text], 3)
            assert not set(made.gold_titles) <= {hit.passage.title for hit in hits}
    assert len({made.id for made in proposed}) == len(proposed)


def test_pages_and_names_that_are_held_out_are_in_no_proposal():
    director = next(page for page in PAGES if "film director" in page.text)
    kept = [number for number, page in enumerate(PAGES) if page is not director]
    _, ground = corpus_ground(PAGES, kept, [director.title])
    for arm in ground.arms:
        for number, walk in zip(range(40), ground.walks(arm), strict=False):
            made = ground.question(arm, walk, number)
            if isinstance(made, Question):
                between = [point.name for point in waypoints_of(made)]
                assert director.title not in " ".join([made.text, *made.golds, *made.gold_titles, *between])


def test_a_corpus_without_paths_of_the_asked_length_says_what_to_do():
    pages = [page for page in made_pages(6, 1) if "film director" in page.text]
    _, ground = corpus_ground(pages)
    assert Arm("chain", 2, "path", "director", "born") not in ground.arms
    with pytest.raises(UsageError, match=r"no path of 3 hops.*proposer.hops"):
        ground.arms = [arm for arm in ground.arms if arm.hops == 3]
        path_proposer(ground, hops=[3])


def test_a_graph_of_named_answers_alone_says_what_to_do():
    _, ground = corpus_ground(made_pages(40, 1))
    ground.arms = [arm for arm in ground.arms if arm.named]
    with pytest.raises(UsageError, match=r"name their answer .* at most 0.15 .*proposer.max_named=1"):
        path_proposer(ground)
    assert path_proposer(ground, max_named=1.0).draw(0, 4)


# -- recipes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("proposer.kind=none", "unknown proposer 'none'"),
        ("rollout.attempts=1", "at least 2 attempts"),
        ("proposer.decay=1.5", "at most 1"),
        ("proposer.temperature=0", "above 0"),
        ("proposer.hops=[]", "numbers from 1 on"),
        ("proposer.hops=[0]", "at least 1"),
        ("proposer.decay=.nan", "finite"),
        ("proposer.decay=much", "a number"),
        ("proposer.decays=1", "did you mean 'decay'"),
        ("proposer.kind=uniform proposer.decay=0.5", "decay: unknown key"),
        ("proposer.kind=walk", "path"),
        ("env_options={distractors: true}", "leave env_options.distractors out"),
    ],
)
def test_options_that_cannot_work_are_refused(value, said):
    with pytest.raises(CardError, match=said):
        load_recipe(
            "tiny-grpo", ["proposer.kind=path", "proposer.pool=9", *(value.split() if "kind" in value else [value])]
        )
