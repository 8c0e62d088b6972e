"""ASearcher: its parser, its workflow, and an episode of many turns whose prompts do not grow."""

import dataclasses
import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import run_team

from searchgym.agents.teams.horizon import read_memory
from searchgym.retrieval.index.index import build_in_memory
from searchgym.rollout.loading import load_tokenizer

MOST = 5


@pytest.fixture
def made(monkeypatch):
    path = Path(__file__).parents[2] / "benchmarks" / "long_horizon.py"
    spec = importlib.util.spec_from_file_location("long_horizon", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "long_horizon", module)  # its dataclass looks itself up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "memory", "legal"),
    [
        ("<memory> a b </memory>", "a b", True),
        ("<think>so</think>\n<memory>a b c d e</memory>", "a b c d e", True),
        ("<memory>a b c d e f</memory>", "old", False),
        (f"<memory>{'x' * 101}</memory>", "old", False),
        ("<memory></memory>", "old", False),
        ("<memory>a</memory> so", "old", False),
        ("<memory>a</memory><memory>b</memory>", "old", False),
        ("a b", "old", False),
        ("", "old", False),
    ],
)
def test_memories(text, memory, legal):
    assert (read_memory(text, "old", MOST).value, read_memory(text, "old", MOST).legal) == (memory, legal)


@given(st.lists(st.sampled_from(["<memory>", "</memory>", "<think>", "</think>", "a", " ", "\x00", "\n"])).map("".join))
def test_no_text_makes_the_memory_grow(text):
    memory = read_memory(text, "old", MOST).value
    assert memory and len(memory.split()) <= MOST and len(memory) <= 20 * MOST


def test_the_searcher_sees_its_notes_and_last_actions_and_no_page():
    said = {
        "searcher": ["<search> island of Teskel</search>", "what now", "<answer> Ulm</answer>"],
        "summariser": ["<memory> Teskel is an island.</memory>"],
    }
    episode, prompts = run_team("asearcher", said, max_turns=4)
    assert [call.role for call in episode.calls] == ["searcher", "summariser", "searcher", "searcher"]
    assert [call.legal for call in episode.calls] == [True, True, False, True]
    assert "Notes:\nnone\nLast actions:\nnone\nActions left: 4" in prompts[0]
    assert episode.searches[0].hits[0].passage.text.split()[0] in prompts[1] and "(Title: " in prompts[1]
    assert "Teskel is an island.\nLast actions:\n<search>island of Teskel</search>\nActions left: 3" in prompts[2]
    assert "(Title: " not in prompts[2]
    assert "not understood: no complete action was found\nActions left: 2" in prompts[3]
    assert (episode.answer.text, episode.calls[-1].answer) == ("Ulm", "Ulm")


def test_a_refused_memory_leaves_the_last_one():
    said = {
        "searcher": ["<search>a</search>", "<search>b</search>", "<answer>x</answer>"],
        "summariser": ["<memory>first</memory>", "second"],
    }
    episode, prompts = run_team("asearcher", said)
    assert [call.legal for call in episode.calls if call.role == "summariser"] == [True, False]
    assert "Notes:\nfirst\n" in prompts[4]


@pytest.mark.slow
def test_twenty_five_searches_and_a_right_answer_with_prompts_of_one_length(made):
    """An oracle whose only state is the agent's own memory; a page's name is learnt from the page before."""
    tokenizer = load_tokenizer("tiny-teams")
    em, costs = made.run("asearcher", 26, None, tokenizer)
    assert (em, len(costs)) == (1.0, 26)
    early, late = [c.tokens for c in costs[8:14]], [c.tokens for c in costs[19:25]]
    assert max(late) <= 1.05 * max(early)
    em, alone = made.run("search-r1", 26, None, tokenizer)
    assert em == 1.0 and alone[24].tokens > 2 * alone[9].tokens > 2 * max(late)


def test_a_chain_that_is_cut_is_not_answered(made, monkeypatch):
    """With one page missing the same oracle fails: the answer came from the searches."""
    pages, _ = made.chain(25)
    task, quotes = made.chain_task(25)
    less = build_in_memory([page for page in pages if page.id != "p10"])
    monkeypatch.setattr(made, "chain_task", lambda hops: (dataclasses.replace(task, retriever=less), quotes))
    em, costs = made.run("asearcher", 26, None, load_tokenizer("tiny-teams"))
    assert em == 0.0 and len(costs) == 12
