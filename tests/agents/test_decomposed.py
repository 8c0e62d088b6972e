"""UnityMAS-O's question decomposition: the list of sub-questions, the workflow, its rewards, and its oracle."""

import dataclasses
import json

import pytest
from credit_terms import read_terms
from hypothesis import given
from hypothesis import strategies as st
from support import run_team

from searchgym.agents.base import load_agent
from searchgym.agents.teams.decomposed import MOST_QUERIES, read_list
from searchgym.agents.teams.mmoa import in_turns
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.retrieval.kinds.hybrid import fuse
from searchgym.train import load_recipe
from searchgym.train.credit.credit import Credit
from searchgym.train.credit.evidence import gold_ranks
from searchgym.train.credit.terms.ranks import rank_value

Q = "Who leads the town?"
ANSWER = "<answer>Ulm</answer>"


@pytest.mark.parametrize(
    ("text", "queries", "legal"),
    [
        ('["a", " b "]', ["a", "b"], True),
        ("[]", [], True),
        ('<think>["x"]</think>\n["a"]', ["a"], True),
        ('["a", "b", "c", "d"]', [Q], False),
        ('["a", "A "]', [Q], False),
        ('["a", ""]', [Q], False),
        ('["a", 1]', [Q], False),
        ('{"q": "a"}', [Q], False),
        ('"a"', [Q], False),
        ('Sure: ["a"]', [Q], False),
        ("[" * 50_000, [Q], False),
        ("", [Q], False),
    ],
)
def test_lists_of_sub_questions(text, queries, legal):
    assert read_list(text, Q) == (parsed := read_list(text, Q)) and (parsed.value, parsed.legal) == (queries, legal)


@given(
    st.lists(st.sampled_from(["[", "]", '"', ",", "a", "\\u0000", "<think>", "\n", "1e999"]), max_size=30).map("".join)
)
def test_hostile_lists_are_read_within_bounds(text):
    queries = read_list(text, Q).value
    assert len(queries) <= MOST_QUERIES and all(queries)


def test_each_sub_question_is_searched_for_and_the_generator_sees_all_pages():
    said = {"decomposer": ['["island of Teskel", "mapped the Sarn Islands"]'], "generator": [ANSWER]}
    episode, prompts = run_team("qd-answer", said)
    assert [(call.role, call.legal) for call in episode.calls] == [("decomposer", True), ("generator", True)]
    assert [search.query for search in episode.searches] == ["island of Teskel", "mapped the Sarn Islands"]
    pages = in_turns([search.hits for search in episode.searches])
    assert [f"Doc{n}(Title: {hit.passage.title})" in prompts[1] for n, hit in enumerate(pages, 1)] == [True] * len(
        pages
    )
    assert episode.answer.text == "Ulm"


@pytest.mark.parametrize(("turns", "searches"), [(1, 0), (2, 1), (5, 2)])
def test_the_last_turn_is_left_to_the_answer(turns, searches):
    episode, _ = run_team("qd-answer", {"decomposer": ['["a", "b"]'], "generator": [ANSWER]}, max_turns=turns)
    assert (len(episode.searches), episode.stop_reason) == (searches, "answer")


def test_an_empty_list_skips_the_search_and_an_illegal_one_searches_for_the_question():
    episode, prompts = run_team("qd-answer", {"decomposer": ["[]"], "generator": [ANSWER]})
    assert not episode.searches and "(Title: " not in prompts[1]
    episode, prompts = run_team("qd-answer", {"decomposer": ["no"], "generator": [ANSWER]})
    assert episode.searches[0].query in prompts[0] and not episode.calls[0].legal


def test_acqo_shows_the_first_pages_of_the_fused_list():
    said = {"decomposer": ['["island of Teskel", "mapped the Sarn Islands"]'], "generator": [ANSWER]}
    episode, prompts = run_team("acqo", said, top_k=4)
    fused = fuse([search.hits for search in episode.searches], 3, constant=0, ties="score")
    assert len(fused) == 3 < len(in_turns([search.hits for search in episode.searches]))
    assert [f"Doc{n}(Title: {hit.passage.title})" in prompts[1] for n, hit in enumerate(fused, 1)] == [True] * 3
    assert "Doc4" not in prompts[1]


def test_acqo_rewards_its_decomposer_by_ranks_and_its_generator_by_the_answer():
    said = {"decomposer": ['["mapped the Sarn Islands"]'], "generator": [ANSWER]}
    episode, _ = run_team("acqo", said, reward="f1")
    recipe = load_recipe("tiny-acqo")
    task = load_task(find_env("searchgym/Demo-v0"))
    credit = Credit.of(recipe.credit, load_agent("acqo").roles, lambda: task)
    (rewards,) = credit.allocate([dataclasses.replace(episode, reward=0.25)])
    question = task.find(episode.question_id)
    ranks = gold_ranks(question, [hit.passage for hit in episode.searches[0].hits])
    assert rewards == pytest.approx([sum(map(rank_value, ranks)), 0.25]) and ranks


def test_every_role_gets_the_score_and_an_illegal_one_loses_one():
    episode, _ = run_team("qd-answer", {"decomposer": ["no"], "generator": [ANSWER]}, reward="f1")
    task = load_task(find_env("searchgym/Demo-v0"))
    credit = Credit.of(read_terms({"outcome": 1, "format": 1}), load_agent("qd-answer").roles, lambda: task)
    (rewards,) = credit.allocate([dataclasses.replace(episode, reward=0.25)])
    assert rewards == pytest.approx([0.25 - 1, 0.25])


def test_its_oracle_answers_questions_whose_parts_do_not_depend_on_each_other():
    from searchgym.rollout.loading import load_tokenizer
    from searchgym.rollout.tokens import TokenFormat
    from searchgym.train.demonstrations.oracle import demonstrate_search

    world = {"split": "train", "size": 60, "seed": 1}
    task = load_task(find_env("searchgym/World-v0"), questions=world, reward="em", max_turns=5)
    task = dataclasses.replace(task, questions=[q for q in task.questions if q.kind == "comparison"])
    form = TokenFormat(load_tokenizer("tiny"), task.rules.protocol, chat=True)
    episodes = demonstrate_search(task, form, 5, agent="qd-answer").episodes
    assert len(episodes) == 5 and all(episode.reward == 1 for episode in episodes)
    assert all(1 <= len(json.loads(episode.calls[0].text)) <= MOST_QUERIES for episode in episodes)
