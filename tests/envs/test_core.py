import dataclasses

import pytest
from support import CARD, PASSAGES, QUESTIONS

from searchgym.envs.core import Rules, State, begin, fail, finish
from searchgym.errors import EpisodeError
from searchgym.records import Answer, Hit, Invalid, Search

RULES = Rules.from_card(dataclasses.replace(CARD, max_turns=3))
HITS = [[Hit(PASSAGES[0], 2.5)]]


def test_a_search_then_an_answer():
    state, queries = begin(State(QUESTIONS[0]), Search(("Beta",)), RULES)
    assert (queries, state.turn, state.done) == (("Beta",), 1, False)
    state, observation = finish(state, HITS, RULES)
    assert "Doc 1(Title: Alpha) Alpha is the capital of Beta." in observation
    assert state.searches[0].turn == 1
    assert state.searches[0].query == "Beta"
    state, queries = begin(state, Answer("Gamma"), RULES)
    assert (queries, state.stop_reason, state.answer_text, state.turn) == ((), "answer", "Gamma", 2)
    assert finish(state, [], RULES) == (state, "")


def test_an_unread_action_costs_a_turn_and_is_told_why():
    state, queries = begin(State(QUESTIONS[0]), Invalid("the query is empty"), RULES)
    assert (queries, state.turn, state.invalid) == ((), 1, 1)
    state, observation = finish(state, [], RULES)
    assert "the query is empty" in observation
    assert state.searches == ()


def test_the_last_turn_ends_the_episode_without_retrieval():
    state = State(QUESTIONS[0], turn=2)
    for action in (Search(("Beta",)), Invalid("x")):
        after, queries = begin(state, action, RULES)
        assert (queries, after.stop_reason, after.turn) == ((), "turns", 3)
        assert finish(after, [], RULES)[1] == ""
    after, _ = begin(state, Answer("x"), RULES)
    assert after.stop_reason == "answer"


def test_too_many_queries_at_once_are_unread():
    state, queries = begin(State(QUESTIONS[0]), Search(("a", "b")), RULES)
    assert queries == ()
    assert state.invalid == 1
    wide = dataclasses.replace(RULES, max_queries=2)
    state, queries = begin(State(QUESTIONS[0]), Search(("a", "b")), wide)
    state, observation = finish(state, [HITS[0], []], wide)
    assert [s.query for s in state.searches] == ["a", "b"]
    assert observation.count("Doc 1") == 1


def test_states_are_never_changed_in_place():
    start = State(QUESTIONS[0])
    state, _ = begin(start, Search(("Beta",)), RULES)
    finish(state, HITS, RULES)
    assert start == State(QUESTIONS[0])
    assert state.searches == ()


def test_nothing_follows_the_end():
    ended, _ = begin(State(QUESTIONS[0]), Answer("x"), RULES)
    failed = fail(State(QUESTIONS[0]), "gone")
    assert (failed.stop_reason, failed.error, failed.done) == ("retriever_error", "gone", True)
    for state in (ended, failed):
        with pytest.raises(EpisodeError, match="has ended"):
            begin(state, Answer("y"), RULES)
