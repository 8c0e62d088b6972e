"""M-ASK's parsers, rule by rule, and its workflow with roles that say what a test tells them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import run_team

from searchgym.agents.mask import (
    MOST_EVIDENCE,
    NOTHING,
    UNKNOWN,
    Knowledge,
    read_answer,
    read_plan,
    read_search,
    read_summary,
    read_update,
)

Q = "Who leads the town that Ada founded?"
FINAL = "<final_answer>x</final_answer>"


def pair(number, question=None, answer="a"):
    return f"<q{number}>{question or f'question {number}'}</q{number}><a{number}>{answer}</a{number}>"


@pytest.mark.parametrize(
    ("text", "legal", "slots", "answer"),
    [
        (pair(1) + FINAL, True, [("question 1", "a")], "x"),
        (f" {pair(1)}\n {pair(2)} \n{FINAL}\n", True, [("question 1", "a"), ("question 2", "a")], "x"),
        ("<q1>only asked</q1>" + FINAL, True, [("only asked", UNKNOWN)], "x"),
        (pair(1, answer="") + FINAL, True, [("question 1", UNKNOWN)], "x"),
        (f"<think>hm <q1>no</q1></think>{pair(1)}{FINAL}", True, [("question 1", "a")], "x"),
        ("".join(map(pair, range(1, 6))) + FINAL, True, [(f"question {i}", "a") for i in range(1, 6)], "x"),
        # not legal
        ("".join(map(pair, range(1, 7))) + FINAL, False, [(f"question {i}", "a") for i in range(1, 6)], "x"),
        (pair(1) + "so " + FINAL, False, [("question 1", "a")], "x"),
        (pair(1), False, [("question 1", "a")], "a"),
        (pair(1) + "<q2>b</q2>", False, [("question 1", "a"), ("b", UNKNOWN)], "a"),
        (FINAL, False, [(Q, UNKNOWN)], "x"),
        (pair(1) + pair(2, "Question  1") + FINAL, False, [("question 1", "a"), ("Question  1", "a")], "x"),
        (pair(2) + FINAL, False, [("question 2", "a")], "x"),
        (pair(2) + pair(1) + FINAL, False, [("question 1", "a"), ("question 2", "a")], "x"),
        ("<a1>a</a1><q1>b</q1>" + FINAL, False, [("b", "a")], "x"),
        (pair(1, " ") + FINAL, False, [(Q, UNKNOWN)], "x"),
        (pair(1) + FINAL + FINAL, False, [("question 1", "a")], "x"),
        ("<q1>open <q2>b</q2><a1>c</a1>" + FINAL, False, [("b", UNKNOWN)], "x"),
        ("", False, [(Q, UNKNOWN)], UNKNOWN),
        ("the town is Ulm", False, [(Q, UNKNOWN)], UNKNOWN),
    ],
)
def test_plans(text, legal, slots, answer):
    plan = read_plan(text, Q)
    assert (plan.legal, plan.value.slots, plan.value.answer) == (legal, slots, answer)


@pytest.mark.parametrize(
    ("text", "legal", "query"),
    [
        ("<search>towns of Ada</search>", True, "towns of Ada"),
        (" <think>so</think> <search> towns </search> ", True, "towns"),
        ("<end>", True, None),
        ("<end/>", True, None),
        ("<end />\n", True, None),
        ("<search>a</search><search>b</search>", False, "a  b"),
        ("<search>a</search> then", False, "a  then"),
        ("<search>a", False, "a"),
        ("so: towns of Ada?!\nmore", False, "so: towns of Ada"),
        ("<end> or not", False, "or not"),
        ("x" * 500, False, "x" * 200),
        ("<search></search>", False, None),
        ("<search> </search>", False, None),
        ("", False, None),
        ("?!", False, None),
    ],
)
def test_searches(text, legal, query):
    assert (read_search(text).value, read_search(text).legal) == (query, legal)


@pytest.mark.parametrize(
    ("text", "legal", "evidence"),
    [
        ("<evidence>Ada founded Ulm.</evidence>", True, "Ada founded Ulm."),
        (NOTHING, True, NOTHING),
        (f"{NOTHING}.", True, NOTHING),
        (f"<evidence>{'w ' * MOST_EVIDENCE}</evidence>", True, ("w " * MOST_EVIDENCE).strip()),
        (
            f"<evidence>{'w ' * (MOST_EVIDENCE + 1)}</evidence>",
            False,
            ("w " * (MOST_EVIDENCE + 1)).strip()[:200].strip(),
        ),
        ("<evidence>a</evidence> b", False, "a  b"),
        ("<evidence>a<evidence>b</evidence></evidence>", False, "a b"),
        ("<evidence></evidence>", False, NOTHING),
        ("Ada founded Ulm.\nAnd more", False, "Ada founded Ulm."),
        ("", False, NOTHING),
    ],
)
def test_summaries(text, legal, evidence):
    found = read_summary(text)
    assert (" ".join(found.value.split()), found.legal) == (" ".join(evidence.split()), legal)


@pytest.mark.parametrize(
    ("text", "slots", "target", "legal"),
    [
        ("<update>t1</update>", 2, 1, True),
        ("<update> t2 </update>", 2, 2, True),
        ("<add>t3</add>", 2, 3, True),
        ("<add>t1</add>", 0, 1, True),
        ("<update>t3</update>", 2, 3, False),
        ("<update>t0</update>", 2, 3, False),
        ("<add>t2</add>", 2, 3, False),
        ("<add>t4</add>", 2, 3, False),
        ("<update>1</update>", 2, 3, False),
        ("<update>t01</update>", 2, 3, False),
        ("<update>t1</update><add>t3</add>", 2, 3, False),
        ("<update>t1</update> because", 2, 3, False),
        ("<Update>t1</Update>", 2, 3, False),
        ("", 2, 3, False),
    ],
)
def test_updates(text, slots, target, legal):
    assert (read_update(text, slots).value, read_update(text, slots).legal) == (target, legal)


@pytest.mark.parametrize(
    ("text", "legal", "answer"),
    [
        ("<final_answer>Ulm</final_answer>", True, "Ulm"),
        ("<final_answer></final_answer>", True, ""),
        ("<final_answer>Ulm</final_answer>.", False, "Ulm ."),
        ("<answer>Ulm</answer>", False, "Ulm"),
        ("It is Ulm\nsurely", False, "It is Ulm"),
        ("", False, ""),
    ],
)
def test_answers(text, legal, answer):
    assert (read_answer(text).value, read_answer(text).legal) == (answer, legal)


PIECES = [
    "<q1>", "</q1>", "<a1>", "</a1>", "<q99>", "<search>", "</search>", "<end", "/>", "<evidence>", "</evidence>",
    "<add>", "t1", "</add>", "<final_answer>", "</final_answer>", "<think>", "</think>", "\x00", "\u202e", "é", " ",
    "\n", "x" * 300,
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_hostile_text_is_read_within_bounds(text):
    plan = read_plan(text, Q).value
    assert 1 <= len(plan.slots) <= 5 and all(asked for asked, _ in plan.slots)
    query = read_search(text)
    assert query.value is None or query.value.strip()
    assert read_summary(text).value
    assert 1 <= read_update(text, 2).value <= 3
    read_answer(text)


def test_long_hostile_text_is_read_at_once():
    for piece in ("<q1>", "<q1></q1>", "<final_answer>", "<think>", "<", "</search>"):
        text = piece * (2**20 // len(piece) + 1)
        read_plan(text, Q), read_search(text), read_summary(text), read_update(text, 1), read_answer(text)


def test_knowledge_is_written_where_update_says():
    known = Knowledge(Q, [("a", UNKNOWN), ("b", UNKNOWN)], UNKNOWN)
    known.take(1, "query", "evidence")
    known.take(3, "new", "found")
    assert known.slots == [("query", "evidence"), ("b", UNKNOWN), ("new", "found")]
    assert known.trajectory.splitlines()[2] == "t3: Q: new | A: found"
    assert Knowledge(Q, [], "").trajectory == "none"


SAID = {
    "planning": ["<q1>capital?</q1><a1>unkown</a1><final_answer>Bern</final_answer>"],
    "search": ["<search>island of Teskel</search>", "Sarn Islands!", "<end>"],
    "summary": ["<evidence>It is high.</evidence>", "No useful information"],
    "update": ["<update>t1</update>", "nonsense"],
    "answer": ["<final_answer>Ulm</final_answer>", "Tome"],
}


def test_the_team_shares_its_knowledge_and_nothing_else():
    episode, prompts = run_team("m-ask", SAID, max_turns=6)
    roles = [call.role for call in episode.calls]
    turn = ["search", "summary", "update", "answer"]
    assert roles == ["planning", *turn, *turn, "search"]
    assert [call.legal for call in episode.calls] == [True, True, True, True, True, False, True, False, False, True]
    assert [call.answer for call in episode.calls if call.answer is not None] == ["Bern", "Ulm", "Tome"]
    assert (episode.answer.text, episode.stop_reason, episode.turns) == ("Tome", "answer", 3)
    assert [search.query for search in episode.searches] == ["island of Teskel", "Sarn Islands"]
    question = prompts[0].rpartition("Question: ")[2]
    assert question.strip()
    assert (
        question not in prompts[2] and "Query: island of Teskel" in prompts[2]
    )  # summary sees the query, not the question
    assert "Doc1(Title: " in prompts[2]
    assert "t1: Q: island of Teskel | A: It is high.\n" in prompts[4]
    assert "t2: Q: Sarn Islands | A: No useful information" in prompts[8]
    assert "island of Teskel\nSarn Islands" in prompts[9]
    assert not any("(Title: " in prompt for role, prompt in zip(roles, prompts, strict=True) if role != "summary")


def test_an_end_without_a_search_answers_what_was_planned():
    episode, _ = run_team("m-ask", SAID | {"search": ["<end>"]})
    assert [call.role for call in episode.calls] == ["planning", "search"]
    assert episode.answer.text == "Bern"


def test_the_team_keeps_its_last_action_for_the_answer():
    said = SAID | {
        "search": ["<search>a b</search>"] * 9,
        "summary": [NOTHING] * 9,
        "update": ["x"] * 9,
        "answer": ["Ulm"] * 9,
    }
    episode, _ = run_team("m-ask", said, max_turns=3)
    assert (len(episode.searches), episode.turns, episode.stop_reason) == (2, 3, "answer")
    episode, _ = run_team("m-ask", said, max_turns=9)
    assert len(episode.searches) == 5  # the team's own limit


def test_without_knowledge_management_pages_are_what_is_known():
    episode, prompts = run_team("m-ask-no-knowledge", SAID, max_turns=6)
    assert {call.role for call in episode.calls} == {"planning", "search", "answer"}
    assert "(Title: " in prompts[2]
