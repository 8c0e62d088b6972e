"""AI-SearchPlanner and MMOA-RAG: parsers rule by rule, and workflows whose roles say what a test tells them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import run_team

from searchgym.agents.base import load_agent
from searchgym.agents.teams.mmoa import MOST_QUERIES, in_turns, read_queries
from searchgym.records import Hit, Passage

Q = "Who leads the town?"
ANSWER = "<answer>Ulm</answer>"


def test_a_planner_searches_to_its_end_and_the_generator_sees_all_pages():
    said = {
        "planner": ["<search>island of Teskel</search>", "the peak", "<end>"],
        "generator": [ANSWER],
    }
    episode, prompts = run_team("ai-searchplanner", said)
    assert [call.role for call in episode.calls] == ["planner"] * 3 + ["generator"]
    assert [call.legal for call in episode.calls] == [True, False, True, True]
    assert [search.query for search in episode.searches] == ["island of Teskel", "the peak"]
    assert episode.notes == {"rounds": 3}
    assert "Earlier queries:\nnone" in prompts[0] and "Earlier queries:\nisland of Teskel\nthe peak" in prompts[2]
    found = {hit.passage.title for search in episode.searches for hit in search.hits}
    assert all(f"(Title: {title})" in prompts[3] for title in found)
    assert prompts[3].count("(Title: ") == len(found)
    assert (episode.answer.text, episode.calls[-1].answer) == ("Ulm", "Ulm")


@pytest.mark.parametrize(
    ("turns", "planner", "searches"),
    [(1, [], 0), (2, ["<search>a</search>"], 1), (9, ["<search>a</search>"] * 5, 5), (9, [""], 0)],
)
def test_a_planner_stops_at_the_last_turn_and_after_five_searches(turns, planner, searches):
    episode, _ = run_team("ai-searchplanner", {"planner": planner, "generator": [ANSWER]}, max_turns=turns)
    assert len(episode.searches) == searches
    assert episode.stop_reason == "answer"
    assert episode.notes == {"rounds": len(planner)}


@pytest.mark.parametrize(
    ("text", "queries", "legal"),
    [
        ("<q1>a</q1><q2>b</q2>", ["a", "b"], True),
        (f"<q1>{Q}</q1>", [Q], True),
        ("".join(f"<q{i}>{i}</q{i}>" for i in range(1, 5)), list("1234"), True),
        ("".join(f"<q{i}>{i}</q{i}>" for i in range(1, 6)), list("1234"), False),
        ("<q1>a</q1><q2>A</q2>", ["a"], False),
        ("<q2>a</q2>", ["a"], False),
        ("<q1></q1>", [Q], False),
        ("a ## b", [Q], False),
        ("", [Q], False),
    ],
)
def test_rewritten_queries(text, queries, legal):
    assert (read_queries(text, Q).value, read_queries(text, Q).legal) == (queries, legal)


@pytest.mark.parametrize(("lengths", "legal"), [([300], True), ([301], False), ([150, 150], True), ([150, 151], False)])
def test_sub_questions_of_more_than_300_characters_cost_the_rewriter(lengths, legal):
    queries = [letter * length for letter, length in zip("ab", lengths, strict=False)]
    parsed = read_queries("".join(f"<q{i}>{query}</q{i}>" for i, query in enumerate(queries, 1)), Q)
    assert (parsed.value, parsed.legal) == (queries, legal)


@pytest.mark.parametrize(("words", "legal"), [(1, True), (30, True), (31, False), (40, False), (41, False)])
def test_an_answer_of_more_than_30_words_costs_the_generator_of_mmoa_alone(words, legal):
    answer = f"<answer>{' '.join(['ja'] * words)}</answer>"
    said = {"rewriter": ["<q1>a</q1>"], "selector": ["<id>Document0</id>"], "generator": [answer]}
    assert run_team("mmoa-rag", said)[0].calls[-1].legal is legal
    assert run_team("rag", {"generator": [answer]})[0].calls[-1].legal is (words <= 40)


def test_the_penalties_of_mmoa_are_the_released_ones():
    roles = load_agent("mmoa-rag").roles
    assert {name: role.penalty for name, role in roles.items()} == {"rewriter": -0.5, "selector": -1, "generator": -1}


PIECES = ["<q1>", "</q1>", "<q2>", "</q2>", "<q9>", "<think>", "</think>", "##", "a", "\x00", "\u0660", " ", "\n"]


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_hostile_rewrites_are_read_within_bounds(text):
    queries = read_queries(text, Q).value
    assert 1 <= len(queries) <= MOST_QUERIES and all(queries)


def test_each_role_of_mmoa_does_its_part():
    said = {
        "rewriter": ["<q1>island of Teskel</q1><q2>mapped the Sarn Islands</q2>"],
        "selector": ["<id>Document1</id>"],
        "generator": [ANSWER],
    }
    episode, prompts = run_team("mmoa-rag", said)
    assert [call.role for call in episode.calls] == ["rewriter", "selector", "generator"]
    assert all(call.legal for call in episode.calls)
    first, second = (search.hits for search in episode.searches)
    shown = in_turns([first, second])
    assert shown[0] == first[0] and shown[1] in (second[0], first[1])
    assert f"Document1(Title: {shown[1].passage.title})" in prompts[1]
    assert prompts[2].count("(Title: ") == 1 and f"Doc1(Title: {shown[1].passage.title})" in prompts[2]
    assert episode.answer.text == "Ulm"


def test_illegal_roles_of_mmoa_fall_back():
    said = {"rewriter": ["no idea"], "selector": ["<id>Document0,Document0</id>"], "generator": ["Ulm, I think"]}
    episode, prompts = run_team("mmoa-rag", said)
    assert [call.legal for call in episode.calls] == [False] * 3
    assert len(episode.searches) == 1 and episode.searches[0].query in prompts[0]
    assert prompts[2].count("(Title: ") == len(episode.searches[0].hits)
    assert episode.answer.text == "Ulm, I think"
    episode, _ = run_team("mmoa-rag", {"rewriter": ["<q1>a</q1><q2>b</q2>"], "generator": [ANSWER]}, max_turns=1)
    assert not episode.searches and episode.answer.text == "Ulm"


def test_pages_are_taken_in_turns_and_once():
    a, b, c, d = (Hit(Passage(name, name, ""), 1.0) for name in "abcd")
    assert in_turns([[a, b, c], [d, a]]) == [a, d, b, c]
    assert in_turns([]) == [] and in_turns([[], [b]]) == [b]
