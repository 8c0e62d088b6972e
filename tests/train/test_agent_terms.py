"""Credit terms of single kinds of agents, each number worked by hand from the papers' rules."""

import dataclasses
import itertools

import pytest
from credit_terms import terms_of
from test_credit import team

from searchgym.errors import CardError, DataError
from searchgym.records import Answer, Hit, Passage, Question, Searched
from searchgym.train.credit.credit import Credit
from searchgym.train.credit.term import CreditContext
from searchgym.train.credit.terms.hiersearch import order_penalty
from searchgym.train.recipe.load import load_recipe


def search(turn, query="x", pages="", source=""):
    return Searched(turn, query, tuple(Hit(Passage(p, p, ""), 1.0) for p in pages), source)


def rows(name, *episodes, kind=None, score=lambda episode, text: float(text or 0), **options):
    context = CreditContext({}, score, lambda episode: Question("q", "Q?", ("a",), kind=kind))
    return Credit(terms_of(**{name: options}), context).allocate(list(episodes))


ONE = [{"role": "searcher"}]


@pytest.mark.parametrize(
    ("searches", "share"),
    [
        ([], 0),
        ([search(1, "a", "pq")], 1),
        ([search(1, "a", "pq"), search(2, " A ", "r")], 1 / 2),  # asked before
        ([search(1, "a", "pq"), search(2, "b", "qp")], 1 / 2),  # nothing new
        ([search(1, "a"), search(2, "b", "p"), search(3, "c", "pq"), search(4, "c", "r")], 2 / 4),
    ],
)
def test_process_is_the_share_of_searches_that_were_of_use(searches, share):
    assert rows("process", team(ONE, searches=searches)) == [[share]]
    planner = [{"role": "planner"}, {"role": "planner"}, {"role": "generator"}]
    assert rows("process", team(planner, searches=searches)) == [[share] * 3]


@pytest.mark.parametrize(
    ("kind", "turns", "value"),
    [
        ("comparison", [1, 1], 0.45), ("comparison", [1, 1, 1, 2], 0.45), ("comparison", [1, 2, 2], 0.0),
        ("comparison", [], 0.0), ("bridge", [1, 1], 0.0), ("bridge", [1, 2, 2], 0.15), ("bridge", [], 0.15),
        (None, [2], 0.15), (None, [3, 3], 0.0),
    ],
)  # fmt: skip
def test_decomposition_looks_at_the_first_search(kind, turns, value):
    assert rows("decomposition", team(ONE, searches=[search(t) for t in turns]), kind=kind) == [[value]]


@pytest.mark.parametrize(
    ("kinds", "by_actions"),
    [
        (["comparison"], [0.0, 0.35, 0.0, -0.35, -0.7]),
        ([None, "", "na", "single"], [0.0, 0.35, 0.0, -0.35, -0.7]),
        (["bridge", "compositional", "inference", "bridge-comparison", "2hop"], [-0.35, 0.0, 0.35, 0.35, 0.35]),
    ],
)
def test_search_count_by_hand_for_the_three_classes(kinds, by_actions):
    """The release counts the tag in the prompt too, where it stands twice, and takes a question without a type apart.

    Its ``is_comp`` is 1 for a comparison, -1 for type ``na`` and 0 for others; what is not 0 is paid for one search.
    """
    for kind, (actions, wanted) in itertools.product(kinds, enumerate(by_actions)):
        is_comp = 1 if kind == "comparison" else -1 if kind in (None, "", "na", "single") else 0
        tags = actions + 2
        released = 0.35 - 0.35 * (abs(tags - 3) if is_comp != 0 else abs(min(tags, 4) - 4))
        assert wanted == pytest.approx(released)
        searches = [search(turn) for turn in range(1, actions + 1) for _ in range(2)]
        assert rows("search-count", team(ONE, searches=searches), kind=kind) == [[pytest.approx(wanted)]]


def test_a_reward_of_an_episode_goes_to_the_last_call_of_each_sequence():
    episode = team([{"role": "a"}, {"role": "b", "prefix": True}, {"role": "c"}], searches=[search(1, "a", "p")])
    for name in ("process", "decomposition"):
        ((first, trial, last),) = rows(name, episode)
        assert first == last > 0 and trial == 0


@pytest.mark.parametrize(
    ("sources", "penalty"),
    [
        ("", 0), ("lll", 0), ("w", -1), ("lw", -1), ("llw", -1), ("lllw", -0.2), ("llllw", -0.15), ("lllllw", -0.1),
        ("llllllw", -0.045), ("lllllllw", -0.03), ("llllllllw", -0.01), ("l" * 30 + "w", -0.01), ("lllww", -0.2),
    ],
)  # fmt: skip
def test_the_order_of_sources_costs_what_hiersearch_says(sources, penalty):
    assert order_penalty(["" if source == "l" else "web" for source in sources]) == pytest.approx(penalty)


def level(reward, tools, searches=(), legal=True, answer="x"):
    calls = [{"role": "planner", "legal": legal}, {"role": "web"}, {"role": "planner"}]
    return team(
        calls, reward=reward, searches=list(searches), notes={"tools": tools}, stop_reason="answer",
        answer=None if answer is None else Answer(answer),
    )  # fmt: skip


def test_hiersearch_by_hand():
    web, own = search(1, source="web"), search(1)
    assert rows("hiersearch", level(0.4, 1.0)) == [[0.4] * 3]
    assert rows("hiersearch", level(0.0, 2 / 3)) == [pytest.approx([0.1 * 2 / 3] * 3)]
    assert rows("hiersearch", level(0.0, 0.0)) == [[0.0] * 3]
    assert rows("hiersearch", level(0.4, 1.0, legal=False)) == [[0.0, 0.4, 0.0]]  # of the planner alone
    assert rows("hiersearch", level(0.4, 1.0, answer=None)) == [[0.0] * 3]
    assert rows("hiersearch", level(0.0, 1.0, answer="")) == [[0.0] * 3]  # who never answers earns nothing by tools
    assert rows("hiersearch", level(0.4, 0.5, [own, web]), local_first=True) == [pytest.approx([0.05] * 3)]
    assert rows("hiersearch", level(0.4, 0.5, [own] * 3 + [web]), local_first=True) == [pytest.approx([0.2] * 3)]
    assert rows("hiersearch", level(0.4, 0.5, [own, web])) == [[0.4] * 3]


@pytest.mark.parametrize(
    ("em", "actions", "legal", "reward"),
    [
        (1, 0, True, 1.6), (1, 1, True, 1.4), (1, 2, True, 1.2), (1, 3, True, 1.0), (1, 9, True, 1.0),
        (0, 0, True, 0.0), (0, 1, True, 0.05), (0, 4, True, 0.05), (1, 0, False, -1.0), (0, 2, False, -1.0),
    ],
)  # fmt: skip
def test_ikea_by_hand(em, actions, legal, reward):
    calls = [{"role": "knower", "prefix": True, "legal": False}, {"role": "searcher", "legal": legal}]
    searches = [search(turn) for turn in range(1, actions + 1) for _ in range(2)]
    episode = team(calls, scores={"em": float(em)}, searches=searches)
    assert rows("ikea", episode) == [[0.0, pytest.approx(reward)]]


def decided(answer, searches, legal=True):
    decider = {"role": "decider", "legal": legal}
    calls = [{"role": "knower", "prefix": True, "answer": answer}, decider, {"role": "searcher"}]
    return team(calls, searches=[search(1)] * searches)


def test_a_decision_is_right_if_what_is_known_is_not_searched_for():
    """Three of four trial answers are right: the question is known, and not to search is right."""
    group = [decided("1", 0), decided("1", 2), decided("0", 0), decided("1", 1)]
    assert rows("decision", *group) == [[1, 1, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0]]
    unknown = [decided("0", 0), decided("0", 1), decided("1", 1), decided("0", 0)]
    assert rows("decision", *unknown) == [[0, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert rows("decision", *unknown, known=0.25)[1] == [0, 0, 0]
    assert rows("decision", decided("0", 1, legal=False), *unknown[1:])[0] == [0, 0, 0], (
        "that it searched is the fallback"
    )
    assert Credit(terms_of("decision")).trains_prefixes and not Credit(terms_of("process")).trains_prefixes


def test_a_decision_needs_a_trial_answer():
    with pytest.raises(DataError, match="agent adasearch"):
        rows("decision", team(ONE))


@pytest.mark.parametrize(
    "name", ["process", "decomposition", "search-count", "hiersearch", "ikea", "decision", "ranking", "ssrl-form"]
)
def test_no_term_falls_over_an_episode_of_which_little_is_known(name):
    """An episode without calls, one without searches and one cut off: the row fits, or the term says what it needs."""
    for episode in (team([]), team(ONE), dataclasses.replace(team(ONE), stop_reason="context", error="full")):
        if name == "decision":
            with pytest.raises(DataError):
                rows(name, episode)
        else:
            assert [len(row) for row in rows(name, episode)] == [len(episode.calls)]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["credit={decision: 1}"], "set it to role or role-turn"),
        (["credit={outcome: 1, hiersearch: 1}"], "credit.hiersearch: it replaces outcome"),
        (["credit={outcome: 1, ikea: 1}"], "replaces outcome"),
        (["credit={process: 1}", "advantage.chain=episode", "advantage.normalise=role"], "process gives many"),
        (["credit={decision: {known: 0}}", "advantage.normalise=role"], "decision.known: expected above 0, got 0"),
        (
            ["credit={decision: {known: 1.1}}", "advantage.normalise=role"],
            "decision.known: expected at most 1, got 1.1",
        ),
        (["credit={outcome: {known: 0.4}}"], "outcome.known: unknown key"),
        (["credit={proces: 1}"], "did you mean 'process'"),
    ],
)
def test_terms_that_do_not_fit_are_refused(overrides, said):
    with pytest.raises(CardError, match=said):
        load_recipe("tiny-grpo", overrides)
