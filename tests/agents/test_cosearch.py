"""CoSearch: what a ranker may write, what the reasoner sees of it, and the ranker's reward and comparison by hand."""

import dataclasses
import math
import random

import numpy as np
import pytest
from advantage_options import advantage_options
from credit_terms import terms_of
from hypothesis import given
from hypothesis import strategies as st
from support import run_team

from searchgym.agents.base import load_agent
from searchgym.agents.teams.cosearch import PASSAGES, fetched, fetched_for, read_order
from searchgym.agents.teams.oracle import CoSearchOracle
from searchgym.envs import find_env, load_task
from searchgym.errors import CardError, DataError
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Call, Episode, Hit, Passage, Question, Searched, SupportingFact
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.storage import EpisodeWriter, read_episodes
from searchgym.rollout.tokens import TokenFormat
from searchgym.scoring.ranking import alike, mean_hit, ndcg
from searchgym.testing.reference import advantages as formulas
from searchgym.train.algorithms.advantages import assign_advantages
from searchgym.train.algorithms.samples import Sample, SampleCall, samples_from
from searchgym.train.credit.credit import Credit
from searchgym.train.credit.term import CreditContext
from searchgym.train.credit.terms.ranking import ranking_quality
from searchgym.train.demonstrations.oracle import demonstrate_search
from searchgym.train.demonstrations.teams import play_team
from searchgym.train.recipe.load import load_recipe

ANSWER = "<answer>Ulm</answer>"

# -- what a ranker may write ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "order", "legal"),
    [
        ("<id>Document4,Document0</id>", (4, 0, 1), True),
        ("<id>Document2</id>", (2, 0, 1), True),
        ("<think>the fourth</think><id> Document3, Document2, Document1 </id>", (3, 2, 1), True),
        ("<id>Document3,Document2,Document1,Document0</id>", (0, 1, 2), False),  # more than are shown
        ("<id>Document5</id>", (0, 1, 2), False),  # there are five, from 0 on
        ("<id>Document1,Document1</id>", (0, 1, 2), False),
        ("<id>Document1,Document01</id>", (0, 1, 2), False),
        ("<id>Document-1</id>", (0, 1, 2), False),
        ("<id>Document\u0661</id>", (0, 1, 2), False),  # a digit one, but not ASCII's
        ("<id></id>", (0, 1, 2), False),
        ("<id>Document1</id> is best", (0, 1, 2), False),
        ("<id>Document1</id><id>Document2</id>", (0, 1, 2), False),
        ("<search>Document1</search>", (0, 1, 2), False),
        ("[2] > [1] > [0]", (0, 1, 2), False),
        ("", (0, 1, 2), False),
    ],
)
def test_an_order_is_read_exactly_or_the_retrievers_is_kept(text, order, legal):
    parsed = read_order(text, 5, 3)
    assert (parsed.value, parsed.legal) == (order, legal)


PIECES = ["<id>", "</id>", "Document0", "Document1", "Document9", ",", "<think>", "</think>", "<answer>", "1", "\x00",
          "\u0660", "[2] > [1]", " ", "\n", "Document" + "9" * 5000]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join), st.integers(2, 12), st.integers(1, 5))
def test_hostile_text_gives_an_order_of_pages_that_are_there(text, count, keep):
    parsed = read_order(text, count, keep)
    assert len(parsed.value) == len(set(parsed.value)) == min(count, keep)
    assert all(0 <= number < count for number in parsed.value)
    assert parsed.legal or parsed.value == tuple(range(min(count, keep)))


def test_a_page_is_ranked_once_and_only_those_of_the_turn_before():
    a, b, c = (Hit(Passage(name, name, ""), 1.0) for name in "abc")
    assert fetched([a, b, a, c]) == (a, b, c)
    searches = [Searched(1, "x", (c,)), Searched(2, "y", (a, b)), Searched(2, "z", (b, c))]
    assert fetched_for(Call(0, 0, 1, "ranker", "m", 3), searches) == (a, b, c)
    assert fetched_for(Call(0, 0, 1, "ranker", "m", 2), searches) == (c,)
    assert fetched_for(Call(0, 0, 1, "ranker", "m", 1), searches) == ()


# -- the workflow --------------------------------------------------------------------------------------------------


def played(ranker, search="<search>island of Teskel</search>", **options):
    """Returns the episode of a reasoner that searches once, and the text that it saw of the search."""
    episode, prompts = run_team("cosearch", {"reasoner": [search, ANSWER], "ranker": [ranker]}, **options)
    form = TokenFormat(load_tokenizer("tiny"), load_task(find_env("searchgym/Demo-v0")).rules.protocol, chat=True)
    seen = "".join(form.decode(span.ids) for span in episode.tokens(0) if span.kind == "observation")
    return episode, prompts, seen


def test_the_reasoner_sees_what_the_ranker_chose_in_its_order():
    episode, prompts, seen = played("<id>Document2,Document0</id>")
    hits = episode.searches[0].hits
    assert len(hits) == 3 and [call.role for call in episode.calls] == ["reasoner", "ranker", "reasoner"]
    assert [call.ranked for call in episode.calls] == [None, (2, 0, 1), None]
    assert all(call.legal for call in episode.calls)
    titles = [hits[place].passage.title for place in (2, 0, 1)]
    places = [seen.index(f"Doc {n}(Title: {title})") for n, title in enumerate(titles, start=1)]
    assert places == sorted(places) and seen.count("(Title: ") == 3
    assert all(f"Document{n}(Title: {hit.passage.title})" in prompts[1] for n, hit in enumerate(hits))
    assert "Question: island of Teskel" in prompts[1] and "Main question: " in prompts[1]
    assert episode.answer.text == "Ulm" and episode.turns == 2


@pytest.mark.slow_cases
@pytest.mark.parametrize("text", ["<id>Document7</id>", "<answer>Document1</answer>", "<search>more</search>", "Ulm"])
def test_an_illegal_ranker_keeps_the_retrievers_order_and_acts_in_nothing(text):
    episode, _, seen = played(text)
    hits = episode.searches[0].hits
    assert [call.legal for call in episode.calls] == [True, False, True]
    assert episode.calls[1].ranked == (0, 1, 2) and episode.calls[1].answer is None
    assert [seen.count(f"Doc {n}(Title: {hit.passage.title})") for n, hit in enumerate(hits, start=1)] == [1, 1, 1]
    assert (episode.turns, episode.invalid, len(episode.searches)) == (2, 0, 1)
    assert episode.answer.text == "Ulm"


def test_no_ranker_is_asked_where_nothing_is_to_rank():
    episode, _ = run_team("cosearch", {"reasoner": ["<search>zzzz</search>", "no action", ANSWER]})
    assert [call.role for call in episode.calls] == ["reasoner"] * 3
    assert [call.legal for call in episode.calls] == [True, False, True]
    episode, _ = run_team("cosearch", {"reasoner": ["<search>island of Teskel</search>"]}, max_turns=1)
    assert episode.stop_reason == "turns" and len(episode.calls) == 1


def test_orders_are_stored_and_other_episodes_keep_their_bytes(tmp_path):
    episode, _, _ = played("<id>Document1</id>")
    with EpisodeWriter(tmp_path / "episodes.jsonl") as writer:
        writer.write(episode)
    text = (tmp_path / "episodes.jsonl").read_text()
    assert text.count('"ranked"') == 1
    (read,) = read_episodes(tmp_path / "episodes.jsonl")
    assert read == episode and read.calls[1].ranked == (1, 0, 2)
    (tmp_path / "episodes.jsonl").write_text(text.replace('"ranked": [1, 0, 2]', '"ranked": [1, "0"]'))
    with pytest.raises(DataError, match="ranked"):
        list(read_episodes(tmp_path / "episodes.jsonl"))


# -- the oracle ----------------------------------------------------------------------------------------------------

MIXED = {"kind": "noise", "of": "bm25", "start": 0, "end": 0, "mixed_in": 3}


def test_the_oracle_shows_every_gold_page_that_was_fetched():
    world = build_world(WorldSpec("simple", size=30, seed=3, split="validation"))
    task = load_task(
        find_env("searchgym/World-v0"),
        questions={"size": 30, "seed": 3, "split": "validation"},
        top_k=6,
        retriever=MIXED,
    )
    form = TokenFormat(load_tokenizer("tiny"), task.rules.protocol, chat=True)
    assert [q.id for q in world.questions] == [q.id for q in task.questions]
    episodes = play_team("cosearch", task, {q.id: CoSearchOracle(q) for q in task.questions}, form)
    assert all(call.legal for episode in episodes for call in episode.calls)
    quality = [ranking_quality(task.find(e.question_id), e, c) for e in episodes for c in e.calls if c.ranked]
    assert set(quality) - {None} == {1.0}
    flawed = {q.id: CoSearchOracle(q, None, random.Random(q.id), 1.0) for q in task.questions}
    kept = [e for e in play_team("cosearch", task, flawed, form) for c in e.calls if c.ranked]
    worse = [ranking_quality(task.find(e.question_id), e, c) for e in kept for c in e.calls if c.ranked]
    assert np.mean([own for own in worse if own is not None]) < 0.8  # random pages stand before the gold ones


def test_the_oracle_names_gold_pages_and_the_first_without():
    question = Question(
        "q", "Q?", ("a",), supporting_facts=tuple(SupportingFact(t, 0) for t in ("Beta", "Caf\u00e9 (x)"))
    )
    oracle = CoSearchOracle(question)
    pages = (
        "Document0(Title: Alpha) a\nDocument1(Title: Cafe\u0301 (x)) b\nDocument2(Title: Beta) Document3(Title: Beta) c"
    )
    assert oracle.reply("ranker", {"documents": pages}) == "<id>Document1,Document2</id>"
    assert oracle.reply("ranker", {"documents": "Document0(Title: Alpha) a"}) == "<id>Document0</id>"
    many = "\n".join(f"Document{n}(Title: Beta) part" for n in range(5))
    assert oracle.reply("ranker", {"documents": many}) == "<id>Document0,Document1,Document2</id>"


def test_demonstrations_of_the_roles_are_written_for_any_task():
    task = load_task(find_env("searchgym/World-v0"), questions={"size": 12, "seed": 4}, top_k=6, retriever=MIXED)
    form = TokenFormat(load_tokenizer("tiny"), task.rules.protocol, chat=True)
    shown = demonstrate_search(task, form, 4, agent="cosearch")
    assert len(shown.episodes) == 4
    assert {call.role for e in shown.episodes for call in e.calls} == set(load_agent("cosearch").roles)


# -- quality and groups of queries ---------------------------------------------------------------------------------


def test_measures_of_an_order_by_hand():
    assert ndcg([0, 1, 0], [1], 3) == pytest.approx(1 / math.log2(3))
    assert ndcg([1, 0, 1], [1, 1], 3) == pytest.approx((1 + 1 / 2) / (1 + 1 / math.log2(3)))
    assert [mean_hit(gains) for gains in ([1], [0, 1], [0, 0, 0, 1], [0, 0, 0, 0, 0, 1], [])] == pytest.approx(
        [1, 2 / 3, 1 / 3, 0, 0]
    )


def test_queries_are_alike_by_words():
    queries = ["the mayor of Ulm", "Mayor of Ulm?", "mayor of Ulm today", "who is mayor", "mayor of Ulm today now", ""]
    # of "mayor of ulm": F1 1, then 6/7, then 2/6, then 6/8
    assert alike(queries, 0.8) == [0, 0, 0, 1, 2, 3]
    assert alike(queries, 0.75) == [0, 0, 0, 1, 0, 2]
    assert alike(queries, 1.0) == [0, 0, 1, 2, 3, 4]
    assert alike(["", "the", "a b"], 0.8) == [0, 0, 1]  # nothing is left of the first two
    assert alike(["yes", "yes it is"], 0.5) == [0, 0]  # yes is a word like others
    assert alike(["b c d x y", "b c d x z"], 0.8) == [0, 0]  # just 0.8
    assert alike([], 0.8) == []


# -- credit --------------------------------------------------------------------------------------------------------

GOLD = Question("q", "Q?", ("Ulm",), supporting_facts=(SupportingFact("B", 0), SupportingFact("D", 0)))


def ranked(*orders, reward=0.0, pages="ABCDE", legal=True, question=GOLD, **options):
    """Returns the rewards of ranker calls, one per turn, over a search that fetched some pages."""
    hits = tuple(Hit(Passage(page, page, f"text of {page} in Ulm" if page == "C" else "text"), 1.0) for page in pages)
    calls = [Call(0, 0, 1, "reasoner", "m", 1)]
    calls += [Call(0, 0, 1, "ranker", "m", turn + 2, legal=legal, ranked=order) for turn, order in enumerate(orders)]
    searches = [Searched(turn + 1, "x", hits) for turn in range(len(orders))]
    episode = Episode("q#0", "q", "cosearch", "env", calls=calls, searches=searches, group_uid="g", reward=reward)
    credit = Credit(terms_of(ranking=options), CreditContext(question=lambda episode: question))
    (row,) = credit.allocate([episode])
    assert row[0] == 0  # the reasoner's
    return row[1:]


IDEAL = 1 + 1 / math.log2(3)


def test_the_ranking_reward_by_hand():
    """B and D of A to E are gold. The outcome counts only where the order is good enough."""
    assert ranked((1, 3, 0), (0, 1, 3), (0, 2, 4), (0, 1, 2)) == pytest.approx(
        [1, (1 / math.log2(3) + 1 / 2) / IDEAL, 0, (1 / math.log2(3)) / IDEAL]
    )
    got = ranked((1, 3, 0), (0, 1, 3), (0, 2, 4), (0, 1, 2), reward=0.6)
    assert got == pytest.approx([1.6, (1 / math.log2(3) + 1 / 2) / IDEAL + 0.6, 0, (1 / math.log2(3)) / IDEAL])
    assert got[3] < 0.5 < got[1] - 0.6  # the gate
    assert ranked((0, 1, 2), reward=0.6, gate=0.3) == pytest.approx([(1 / math.log2(3)) / IDEAL + 0.6])
    assert ranked((0, 1, 2), reward=0.6, measure="hits") == pytest.approx([2 / 3 + 0.6])


def test_a_quality_that_is_just_the_gate_does_not_pass_it():
    """As the paper's r_rel <= gamma: only what lies above the gate gets the outcome, too."""
    assert ranked((1, 3, 0), reward=0.6, gate=1.0) == [1.0]  # the best order there is
    assert ranked((0, 2, 4), reward=0.6, gate=0.0) == [0.0]  # the worst
    hits = ranked((0, 1, 2), reward=0.0, measure="hits")
    assert ranked((0, 1, 2), reward=0.6, measure="hits", gate=hits[0]) == hits
    assert ranked((0, 1, 2), reward=0.6, measure="hits", gate=hits[0] - 1e-9) == [hits[0] + 0.6]


def test_gold_pages_that_cannot_be_shown_cost_nothing():
    many = dataclasses.replace(GOLD, supporting_facts=tuple(SupportingFact(page, 0) for page in "ABCD"))
    assert ranked((3, 1, 0), question=many) == [1]


def test_the_outcome_alone_counts_where_no_gold_page_was_fetched():
    assert ranked((0, 1), pages="AC", reward=0.6) == [0.6]
    assert ranked((0, 1), pages="AC", legal=False, reward=0.6) == [0]


def test_pages_that_hold_an_answer_are_relevant_where_no_page_is_named():
    unnamed = dataclasses.replace(GOLD, supporting_facts=None)
    assert ranked((2, 0, 1), (0, 2, 1), question=unnamed) == pytest.approx([1, 1 / math.log2(3)])


def test_ranking_as_a_recipe_has_it():
    recipe = load_recipe("tiny-cosearch")
    assert recipe.credit["outcome"].roles == ["reasoner"]
    assert (recipe.advantage.normalise, recipe.advantage.min_group, recipe.advantage.query_overlap) == ("query", 3, 0.8)
    assert {role.penalty for role in load_agent("cosearch").roles.values()} == {-0.2}
    assert load_recipe("tiny-cosearch-shown").agent == "cosearch"
    for change, said in (
        ("advantage.normalise=all", "ranking rewards calls; set it to query"),
        ("advantage.estimator=gae", "use it with grpo, rloo or stratified"),
        ("credit={ranking: {gate: 1.5}}", "ranking.gate: expected at most 1, got 1.5"),
        ("credit={ranking: {gate: -0.1}}", "ranking.gate: expected at least 0, got -0.1"),
        ("advantage.query_overlap=0", "query_overlap: expected above 0, got 0"),
    ):
        with pytest.raises(CardError, match=said):
            load_recipe("tiny-cosearch", [change])
    with pytest.raises(CardError, match=r"only advantage\.normalise query reads it"):
        load_recipe("tiny-mask", ["advantage.query_overlap=0.5"])


# -- comparison by query -------------------------------------------------------------------------------------------


def sample(reward, query=None, role="ranker", episode="e", group="g", turn=1):
    """Returns a sample of one call of one token."""
    return Sample(
        ids=np.arange(2, dtype=np.int32),
        mask=np.array([False, True]),
        reward=np.array([0, reward], np.float32),
        advantage=np.zeros(2, np.float32),
        sampler_logp=np.zeros(2, np.float32),
        calls=(SampleCall(0, 1, 2, role, turn, query=query),),
        model_key="policy",
        episode_id=episode,
        question_id=group,
        attempt=0,
        group_uid=group,
        policy_version=0,
    )


def by_query(samples, **options):
    made = advantage_options(normalise="query", std="none", drop_zero_variance=False, **options)
    got, counts = assign_advantages(samples, made)
    again = formulas.group_advantages(samples, made, 0.0)
    assert [float(one.advantage[1]) for one in got] == pytest.approx([float(own[0]) for own in again])
    return [float(one.advantage[1]) for one in got], counts


def test_rankers_are_compared_by_query_and_reasoners_by_role():
    samples = [
        sample(1.0, "mayor of Ulm", episode="a"),
        sample(0.4, "the mayor of Ulm?", episode="b", turn=4),
        sample(0.1, "mayor of ulm", episode="c"),
        sample(0.9, "river at Ulm", episode="a", turn=2),
        sample(0.3, "river at Ulm", episode="b"),
        sample(0.0, role="reasoner", episode="a"),
        sample(0.6, role="reasoner", episode="b", turn=2),
        sample(0.5, "mayor of Ulm", episode="d", group="h"),
    ]
    got, counts = by_query(samples)
    assert got == pytest.approx([0.5, -0.1, -0.4, 0.3, -0.3, -0.3, 0.3, 0.0])
    assert (counts.groups, counts.small) == (4, 1)
    got, counts = by_query(samples, min_group=3)  # two queries about the river are too few
    assert got == pytest.approx([0.5, -0.1, -0.4, 0, 0, 0, 0, 0])
    assert counts.small == 3
    loose, _ = by_query(samples, query_overlap=0.3)  # "mayor of ulm", "river at ulm": F1 1/3
    assert loose[:5] == pytest.approx([own - 2.7 / 5 for own in (1.0, 0.4, 0.1, 0.9, 0.3)])


def test_the_query_of_a_ranker_is_that_of_the_turn_before():
    episode, _, _ = played("<id>Document1</id>")
    calls = [call for one in samples_from(episode, "demonstration") for call in one.calls]
    assert {(call.role, call.query) for call in calls} == {("reasoner", None), ("ranker", "island of Teskel")}


def test_the_number_of_pages_shown_is_the_cards():
    assert load_agent("cosearch").workflow.keep == PASSAGES == 3
