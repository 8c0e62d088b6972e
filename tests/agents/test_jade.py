"""JADE's parsers, rule by rule, and its workflows with roles that say what a test tells them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import run_team

from searchgym.agents.jade import (
    CHAIN,
    MOST_ANSWER,
    MOST_QUERY,
    PARALLEL,
    PLAN,
    SERIAL,
    SUBPLAN,
    read_answer,
    read_parts,
    read_query,
    read_selection,
    read_workflow,
)
from searchgym.agents.parsing import Parsed

Q = "Who leads the town?"


@pytest.mark.parametrize(
    ("modules", "legal"),
    [
        ("QDS", True), ("QDP", True), ("QR,R,DS,AG", True), ("QR, R, AG", True), ("R,AG", True), ("AG", True),
        ("QR,AG", True), ("R,DS,AG", True),
        ("R", False), ("R,DS", False), ("DS,AG", False), ("AG,R", False), ("R,QR,AG", False), ("DS,R,AG", False),
        ("R,R,AG", False), ("R,AG,AG", False), ("QDS,AG", False), ("QDS,QDP", False), ("R,XX,AG", False),
        ("r,ag", False), ("", False), ("R,,AG", False), ("Verify", False),
    ],
)  # fmt: skip
def test_plans(modules, legal):
    plan = read_workflow(f" <workflow>{modules}</workflow> ", CHAIN, (SERIAL, PARALLEL), PLAN)
    wanted = [name.strip() for name in modules.split(",")] if legal else ["QDS"]
    assert (plan.value, plan.legal) == (wanted, legal)
    assert not read_workflow(f"<workflow>{modules}</workflow> so", CHAIN, (SERIAL, PARALLEL), PLAN).legal


@pytest.mark.parametrize(
    ("modules", "legal"),
    [("R,AG", True), ("R,DS,AG", True), ("AG", True), ("QR,R,AG", False), ("QDS", False), ("DS,AG", False)],
)
def test_subplans(modules, legal):
    plan = read_workflow(f"<workflow>{modules}</workflow>", CHAIN[1:], (), SUBPLAN)
    assert (plan.value, plan.legal) == (modules.split(",") if legal else ["R", "AG"], legal)


@pytest.mark.parametrize(
    ("text", "parts", "legal"),
    [
        ("<q1>a</q1><q2>b</q2>", ["a", "b"], True),
        ("<q1>a</q1>\n", ["a"], True),
        ("".join(f"<q{i}>{i}</q{i}>" for i in range(1, 8)), list("1234567"), True),
        ("".join(f"<q{i}>{i}</q{i}>" for i in range(1, 9)), list("1234567"), False),
        ("<q2>a</q2><q1>b</q1>", ["a", "b"], False),
        ("<q1>a</q1><q1>b</q1>", ["a", "b"], False),
        ("<q1>a</q1><q3>b</q3>", ["a", "b"], False),
        ("<q1>a</q1><q2>A </q2>", ["a"], False),
        (f"<q1>{Q}</q1>", [Q], False),
        (f"<q1>a</q1><q2>{Q.upper()}</q2>", ["a", Q.upper()], False),
        ("<q1></q1><q2>b</q2>", ["b"], False),
        ("first <q1>a</q1>", ["a"], False),
        ("", [Q], False),
    ],
)
def test_decompositions(text, parts, legal):
    found = read_parts(text, Q)
    assert [part.casefold() for part in found.value] == [part.casefold() for part in parts]
    assert found.legal == legal


@pytest.mark.parametrize(
    ("text", "query", "legal"),
    [
        ("<query>town leader</query>", "town leader", True),
        (f"<query>{'w ' * MOST_QUERY}</query>", ("w " * MOST_QUERY).strip(), True),
        (f"<query>{'w ' * (MOST_QUERY + 1)}</query>", Q, False),
        (f"<query>{Q.upper()}</query>", Q, False),
        ("<query></query>", Q, False),
        ("town leader", Q, False),
        ("<query>a</query><query>b</query>", Q, False),
    ],
)
def test_queries(text, query, legal):
    assert (read_query(text, Q, Q).value, read_query(text, Q, Q).legal) == (query, legal)


def test_a_part_may_be_searched_as_it_is_and_the_whole_question_may_not():
    """JADE's released code compares a rewrite with the user's question, not with the part that it rewrites."""
    part = "Which town is it?"
    assert read_query(f"<query>{part}</query>", part, Q) == Parsed(part, True)
    assert read_query(f"<query>{Q.upper()}</query>", part, Q) == Parsed(part, False)


@pytest.mark.parametrize(
    ("text", "numbers", "legal"),
    [
        ("<id>Document0,Document2</id>", [0, 2], True),
        ("<id> Document2 , Document0 </id>", [2, 0], True),
        ("<id>Document0,Document0</id>", [0, 1, 2], False),
        ("<id>Document3</id>", [0, 1, 2], False),
        ("<id>Document-1</id>", [0, 1, 2], False),
        ("<id>0</id>", [0, 1, 2], False),
        ("<id>document0</id>", [0, 1, 2], False),
        ("<id></id>", [0, 1, 2], False),
        ("<id>Document1,</id>", [0, 1, 2], False),
        ("Document1", [0, 1, 2], False),
        ("<id>Document99999999999999999999</id>", [0, 1, 2], False),
    ],
)
def test_selections(text, numbers, legal):
    assert (read_selection(text, 3).value, read_selection(text, 3).legal) == (numbers, legal)


@pytest.mark.parametrize(
    ("text", "answer", "legal"),
    [
        ("<answer>Ulm</answer>", "Ulm", True),
        (f"<answer>{'w ' * MOST_ANSWER}</answer>", ("w " * MOST_ANSWER).strip(), True),
        (f"<answer>{'w ' * (MOST_ANSWER + 1)}</answer>", f"<answer>{'w ' * (MOST_ANSWER + 1)}</answer>", False),
        ("It is Ulm.", "It is Ulm.", False),
        ("<answer>Ulm</answer>.", "<answer>Ulm</answer>.", False),
        ("", "", False),
    ],
)
def test_answers(text, answer, legal):
    assert (read_answer(text).value, read_answer(text).legal) == (answer, legal)


PIECES = [
    "<workflow>", "</workflow>", "QDS", "R", ",", "AG", "<q1>", "</q1>", "<q8>", "<query>", "</query>", "<id>", "</id>",
    "Document0", "<answer>", "</answer>", "<think>", "</think>", "\x00", "\u0660", " ", "\n",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_hostile_text_is_read_within_bounds(text):
    plan = read_workflow(text, CHAIN, (SERIAL, PARALLEL), PLAN).value
    assert set(plan) <= {*CHAIN, SERIAL, PARALLEL} and plan
    parts = read_parts(text, Q).value
    assert 1 <= len(parts) <= 7 and all(parts)
    assert read_query(text, Q, Q).value
    chosen = read_selection(text, 2).value
    assert chosen and set(chosen) <= {0, 1}
    read_answer(text)


ANSWER = "<answer>Ulm</answer>"
SERIAL_SAID = {
    "planner": ["<workflow>QDS</workflow>"],
    "serial": ["<q1>one?</q1><q2>two of #1?</q2>"],
    "rewriter": ["<query>island of Teskel</query>", "two"],
    "subplanner": ["<workflow>R,DS,AG</workflow>", "<workflow>AG</workflow>"],
    "selector": ["<id>Document1</id>"],
    "generator": ["<answer>first</answer>", "second"],
    "summariser": [ANSWER],
}


def test_a_serial_decomposition():
    episode, prompts = run_team("jade", SERIAL_SAID, max_turns=8)
    assert [call.role for call in episode.calls] == [
        "planner", "serial", "rewriter", "subplanner", "selector", "generator", "rewriter", "subplanner", "generator",
        "summariser",
    ]  # fmt: skip
    assert [call.legal for call in episode.calls] == [True] * 6 + [False, True, False, True]
    assert episode.notes == {"rounds": 3}
    assert [search.query for search in episode.searches] == ["island of Teskel"]
    assert "Document1(Title: " in prompts[4]
    kept = episode.searches[0].hits[1].passage.title
    assert prompts[5].count("(Title: ") == 1 and f"Doc1(Title: {kept})" in prompts[5]
    assert "Q: island of Teskel | A: first" in prompts[6] and "Question: two of #1?" in prompts[6]
    assert "(Title: " not in prompts[8] and "none" in prompts[8]
    assert "Q: island of Teskel | A: first\nQ: two of #1? | A: second" in prompts[9]
    assert (episode.answer.text, episode.calls[-1].answer) == ("Ulm", "Ulm")


def test_a_parallel_decomposition_shows_no_answer_to_another_part():
    said = SERIAL_SAID | {
        "planner": ["<workflow>QDP</workflow>"],
        "parallel": ["<q1>one?</q1><q2>two?</q2>"],
        "subplanner": ["<workflow>R,AG</workflow>"] * 2,
    }
    episode, prompts = run_team("jade", said, max_turns=8)
    roles = [call.role for call in episode.calls]
    assert roles == ["planner", "parallel", "subplanner", "generator", "subplanner", "generator", "summariser"]
    assert episode.notes == {"rounds": 2}
    assert not any("first" in prompt for prompt in prompts[:6])
    assert "A: first\nQ: two? | A: second" in prompts[6]


def test_a_chain_and_an_unknown_module():
    said = {"planner": ["<workflow>QR,R,AG</workflow>"], "rewriter": ["<query>peak</query>"], "generator": [ANSWER]}
    episode, prompts = run_team("jade", said)
    assert [call.role for call in episode.calls] == ["planner", "rewriter", "generator"]
    assert episode.notes == {"rounds": 1}
    assert "Question: peak" in prompts[2]
    episode, _ = run_team("jade", SERIAL_SAID | {"planner": ["<workflow>R,Verify,AG</workflow>"]}, max_turns=8)
    assert not episode.calls[0].legal
    assert episode.calls[1].role == "serial"


def test_searches_end_before_the_answer_does():
    said = SERIAL_SAID | {
        "serial": ["<q1>a</q1><q2>b</q2><q3>c</q3>"],
        "rewriter": [f"<query>{x} x</query>" for x in "abc"],
        "subplanner": ["<workflow>R,AG</workflow>"] * 3,
        "generator": [ANSWER] * 3,
    }
    episode, _ = run_team("jade", said, max_turns=3)
    assert (len(episode.searches), episode.stop_reason) == (2, "answer")


@pytest.mark.parametrize("agent", ["rag", "ircot"])
def test_baselines(agent):
    said = {"generator": [ANSWER], "reasoner": ["The peak is near Teskel.", "So the answer is: Ulm"]}
    episode, prompts = run_team(agent, said)
    assert episode.answer.text == "Ulm"
    if agent == "ircot":
        assert [search.query for search in episode.searches][1:] == ["The peak is near Teskel."]
        assert len(episode.searches) == 2 and "Thoughts so far: The peak is near Teskel." in prompts[1]
    else:
        assert len(episode.searches) == 1
