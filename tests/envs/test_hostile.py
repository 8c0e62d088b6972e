"""No string may make an environment raise, hang or answer differently twice."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import CARD, PASSAGES, QUESTIONS, TitleRetriever

from searchgym.envs.single import SearchEnv
from searchgym.retrieval.index.index import build_in_memory

PIECES = st.sampled_from(
    [
        "<search>", "</search>", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "<think>", "</think>",
        "<information>", "</information>", "<|im_start|>", "<|endoftext|>", '{"name": "search", "arguments": ',
        '{"query": "', '"}}', "\\u0000", "\x00", "\ud800", "\u202e", "\u2028", "Alpha", "1901", "é漢字", "NaN", "[[[[",
    ]
)  # fmt: skip
ACTIONS = st.lists(st.one_of(PIECES, PIECES, st.text(max_size=20)), max_size=12).map("".join)


def play(env, actions):
    """Returns every reply; the episode is reset when it ends."""
    replies = [env.reset(seed=0)]
    for action in actions:
        reply = env.step(action)
        replies.append(reply)
        if reply[2] or reply[3]:
            replies.append(env.reset())
    return replies


@pytest.fixture(scope="module")
def environments():
    retrievers = [TitleRetriever(), build_in_memory(PASSAGES)]
    return [
        SearchEnv(CARD, questions=QUESTIONS, retriever=retriever, protocol=protocol)
        for retriever, protocol in zip(retrievers, ("tags", "tool_calls"), strict=True)
    ]


def check_replies(environments, actions):
    """Plays the actions twice in each environment."""
    for env in environments:
        replies = play(env, actions)
        assert replies == play(env, actions)
        for observation, *rest in replies:
            assert observation in env.observation_space
            if len(rest) == 4:
                reward, terminated, truncated, info = rest
                assert type(reward) is float
                assert type(terminated) is bool
                assert truncated is False
                assert not reward or info["action"] == "answer"


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(actions=st.lists(ACTIONS, min_size=40, max_size=40))
def test_hostile_sequences_get_deterministic_replies(environments, actions):
    check_replies(environments, actions)


@pytest.mark.study
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(actions=st.lists(ACTIONS, min_size=100, max_size=100))
def test_a_thousand_hostile_sequences_get_deterministic_replies(environments, actions):
    """500 sequences of a hundred actions in each of two environments, twice."""
    check_replies(environments, actions)
