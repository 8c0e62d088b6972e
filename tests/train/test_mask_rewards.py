"""M-ASK's table of rewards, through its real workflow: roles that say what a test tells them, scored by the real F1.

The table is that of the released code (``ray_trainer.py``; arXiv 2601.04703), worked out by hand for each episode, but
for two things that are ours: an illegal output costs -1 wherever it is (theirs charges no penalty to ``<end>``), and a
yes or no is scored by the environment's F1, which for one word is the EM that theirs takes.
"""

import pytest
from credit_terms import terms_of
from support import run_team

from searchgym.agents import load_agent
from searchgym.envs import find_env, load_task
from searchgym.train.credit.credit import Credit

GOLD = "Dunmere"  # of the first question of Demo
HALF, THIRD = f"{GOLD} town hall", f"{GOLD} a1 b2 c3 d4"  # F1 2/4 and 2/6
PLAN = "<q1>capital?</q1><a1>unkown</a1><final_answer>{}</final_answer>"
ANSWER = "<final_answer>{}</final_answer>"
SEARCH, EVIDENCE, UPDATE = "<search>island of Teskel</search>", "<evidence>high</evidence>", "<update>t1</update>"


def rewards(said, *terms, agent="m-ask", max_turns=6):
    """Returns (role, reward) of each call of an episode."""
    task = load_task(find_env("searchgym/Demo-v0"), reward="f1", max_turns=max_turns)
    episode, _ = run_team(agent, said, max_turns, "f1")
    credit = Credit.of(terms_of(*(terms or ("difference", "format"))), load_agent(agent).roles, lambda: task)
    (row,) = credit.allocate([episode])
    return [(call.role, round(reward, 6)) for call, reward in zip(episode.calls, row, strict=True)]


def test_two_turns_and_an_end():
    """s_0 = 0, s_1 = 1/2, s_2 = 1/3: planning and answering get s, the others of a turn the difference, the end 0."""
    said = {
        "planning": [PLAN.format("Ulm")],
        "search": [SEARCH, "<search>Sarn Islands</search>", "<end>"],
        "summary": [EVIDENCE] * 2,
        "update": [UPDATE] * 2,
        "answer": [ANSWER.format(HALF), ANSWER.format(THIRD)],
    }
    half, third, fall = 0.5, round(1 / 3, 6), round(1 / 3 - 1 / 2, 6)
    assert rewards(said) == [
        ("planning", 0.0),
        ("search", half), ("summary", half), ("update", half), ("answer", half),
        ("search", fall), ("summary", fall), ("update", fall), ("answer", third),
        ("search", 0.0),
    ]  # fmt: skip


def test_an_answer_that_was_known_before_the_first_search():
    """The plan's own answer is right: nothing is left for the turns, and a wrong answer later takes all of it away."""
    said = {
        "planning": [PLAN.format(GOLD)],
        "search": [SEARCH, "<end>"],
        "summary": ["No useful information"],
        "update": ["<add>t2</add>"],
        "answer": [ANSWER.format("Ulm")],
    }
    row = [("planning", 1.0), ("search", -1.0), ("summary", -1.0), ("update", -1.0), ("answer", 0.0), ("search", 0.0)]
    assert rewards(said) == row
    assert rewards(said | {"search": ["<end>"]}) == [("planning", 1.0), ("search", 0.0)]


def test_each_roles_penalty_is_its_own():
    """Every output is illegal: the fallbacks still make an episode, and each call pays 1 for itself alone."""
    said = {
        "planning": ["capital?"],  # no tag: one slot, and no answer
        "search": ["island of Teskel", "so <end>"],  # a bare query, then tags with words around them
        "summary": ["high", "more"],
        "update": ["nonsense", "nonsense"],
        "answer": [HALF, GOLD],
    }
    assert rewards(said, max_turns=3) == [
        ("planning", -1.0),
        ("search", -0.5), ("summary", -0.5), ("update", -0.5), ("answer", -0.5),
        ("search", -0.5), ("summary", -0.5), ("update", -0.5), ("answer", 0.0),
    ]  # fmt: skip


def test_the_last_action_is_kept_for_the_answer():
    """With three turns there are two searches, and no search role ends them."""
    said = {
        "planning": [PLAN.format("Ulm")],
        "search": [SEARCH, "<search>Sarn Islands</search>", "<end>"],
        "summary": [EVIDENCE] * 2,
        "update": [UPDATE] * 2,
        "answer": [ANSWER.format("Ulm"), ANSWER.format(GOLD)],
    }
    row = rewards(said, max_turns=3)
    assert [reward for _, reward in row] == [0.0, *[0.0] * 4, *[1.0] * 4]
    assert row[-1] == ("answer", 1.0)


def test_without_knowledge_management_the_other_roles_are_rewarded_alike():
    said = {
        "planning": [PLAN.format("Ulm")],
        "search": [SEARCH, "<end>"],
        "answer": [ANSWER.format(HALF)],
    }
    row = [("planning", 0.0), ("search", 0.5), ("answer", 0.5), ("search", 0.0)]
    assert rewards(said, agent="m-ask-no-knowledge") == row


@pytest.mark.parametrize("terms", [("outcome", "format"), ("gain", "format")])
def test_the_other_terms_on_the_same_episode(terms):
    """The outcome for every call; and our gains, which sum to it."""
    said = {
        "planning": [PLAN.format(THIRD)],
        "search": [SEARCH, "<end>"],
        "summary": ["high"],  # illegal
        "update": [UPDATE],
        "answer": [ANSWER.format(HALF)],
    }
    third, gained = round(1 / 3, 6), round(1 / 2 - 1 / 3, 6)
    row = [0.5, 0.5, -0.5, 0.5, 0.5, 0.5] if terms[0] == "outcome" else [third, 0.0, -1.0, 0.0, gained, 0.0]
    assert [reward for _, reward in rewards(said, *terms)] == row
