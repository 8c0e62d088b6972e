"""ParallelSearch: how a search is split, and what the environment makes of several queries."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchgym.agents.base import load_agent
from searchgym.agents.teams.parallel import split_queries
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.protocol import get_protocol
from searchgym.records import Answer, Invalid, Search
from searchgym.rollout.api.sampler import MessageFormat
from searchgym.rollout.engine import Engine
from searchgym.rollout.models import Model
from searchgym.testing.fakes import Replies


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<search>a ## b</search>", Search(("a", "b"))),
        ("<search>a##b ## a ##  </search>", Search(("a", "b"))),
        ("<search>a # b</search>", Search(("a # b",))),
        ("<search> ## </search>", Invalid("every query is empty")),
        ("<answer>a ## b</answer>", Answer("a ## b")),
        ("a ## b", Invalid("no complete action was found")),
    ],
)
def test_a_search_is_split_at_its_separators(text, action):
    assert split_queries(get_protocol("tags").parse(text)) == action


def test_queries_of_a_tool_call_are_split_too():
    call = '<tool_call>{"name": "search", "arguments": {"query": ["a ## b", "c"]}}</tool_call>'
    assert split_queries(get_protocol("tool_calls").parse(call)) == Search(("a", "b", "c"))


@given(st.lists(st.sampled_from(["<search>", "</search>", "##", "#", "a", " ", "\x00", "<answer>"])).map("".join))
def test_hostile_text_gives_an_action(text):
    action = split_queries(get_protocol("tags").parse(text))
    assert not isinstance(action, Search) or (all(action.queries) and len(set(action.queries)) == len(action.queries))


def test_a_megabyte_of_separators_is_read_at_once():
    began = time.process_time()
    for text in ("#" * 2**20, "## " * 2**18, "".join(f"{i} ## " for i in range(2**16))):
        split_queries(get_protocol("tags").parse(f"<search>{text[: 2**20 - 30]}</search>"))
    assert time.process_time() - began < 2


def episode_of(replies, **options):
    """Returns the episode of one demonstration question in which a model says the same again and again."""
    task = load_task(find_env("searchgym/Demo-v0"), **options)
    agent, found = load_agent("parallel-search"), []
    model = Model.over("scripted", Replies(replies), MessageFormat(task.rules.protocol))
    asyncio.run(Engine(task, agent, {"searcher": model}).run(task.questions[:1], found.append))
    return found[0]


def test_all_queries_of_a_turn_are_searched_for_in_that_turn():
    episode = episode_of(["<search>Teskel ## Sarn Islands</search>"], max_queries=2, max_turns=3)
    assert [(search.turn, search.query) for search in episode.searches] == [
        (1, "Teskel"), (1, "Sarn Islands"), (2, "Teskel"), (2, "Sarn Islands"),
    ]  # fmt: skip
    assert (episode.turns, episode.invalid) == (3, 0)


def test_more_queries_than_the_environment_allows_are_an_invalid_action():
    episode = episode_of(["<search>Teskel ## Sarn Islands</search>"], max_turns=3)
    assert not episode.searches and episode.invalid == 3
