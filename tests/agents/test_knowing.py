"""IKEA and AdaSearch: parsers, trial answers that change nothing, and oracles that search for what is not known."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import CARD, QUESTIONS, TitleRetriever, run_team

from searchgym.agents.base import load_agent
from searchgym.agents.jade import MOST_ANSWER
from searchgym.agents.teams.knowing import read_decision, read_known
from searchgym.agents.teams.oracle import ORACLES
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.eval.evidence import awareness
from searchgym.records import title_key
from searchgym.retrieval.index.distractors import passages_of
from searchgym.rollout.api.sampler import MessageFormat
from searchgym.rollout.engine import Engine
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.models import Model
from searchgym.rollout.tokens import TokenFormat
from searchgym.testing.fakes import Replies
from searchgym.train.demonstrations.oracle import quotes_of
from searchgym.train.demonstrations.teams import play_team

KNOW, SEARCH = "<decision>know</decision>", "<decision>search</decision>"


@pytest.mark.parametrize(
    ("text", "search", "legal"),
    [
        (KNOW, False, True),
        (SEARCH, True, True),
        ("<think>I know</think>\n<decision> know </decision>", False, True),
        ("<decision>KNOW</decision>", True, False),
        ("<decision>know it</decision>", True, False),
        ("<decision></decision>", True, False),
        (f"{KNOW} surely", True, False),
        (f"{KNOW}{KNOW}", True, False),
        (f"<decision>{KNOW}</decision>", True, False),
        (f"<think>{KNOW}", True, False),
        ("know", True, False),
        ("", True, False),
    ],
)
def test_whatever_is_no_decision_to_know_is_one_to_search(text, search, legal):
    assert (read_decision(text).value, read_decision(text).legal) == (search, legal)


@pytest.mark.parametrize(
    ("text", "answer", "legal"),
    [
        ("<answer>Ulm</answer>", "Ulm", True),
        ("<think>so</think><answer> Ulm </answer>", "Ulm", True),
        (f"<answer>{'a ' * MOST_ANSWER}</answer>", ("a " * MOST_ANSWER).strip(), True),
        ("<answer></answer>", "", True),
        ("Ulm\nor Bonn", "Ulm", False),
        ("<answer>Ulm</answer> I think", "Ulm  I think", False),
        ("<answer>Ulm</answer><answer>Bonn</answer>", "Ulm  Bonn", False),
        ("", "", False),
    ],
)
def test_answers_from_memory(text, answer, legal):
    assert (read_known(text).value, read_known(text).legal) == (answer, legal)


PIECES = [
    "<decision>",
    "</decision>",
    "<answer>",
    "</answer>",
    "<think>",
    "</think>",
    "know",
    "search",
    " ",
    "\x00",
    "\n",
]


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_hostile_text_decides_and_answers_within_bounds(text):
    decision, answer = read_decision(text), read_known(text)
    assert decision.value is True or decision.legal  # by mistake it is never said to be known
    assert answer.legal or (len(answer.value) <= 200 and "<answer>" not in answer.value)


def test_a_megabyte_is_read_at_once():
    began = time.process_time()
    for piece in ("<decision>", "know", "<answer>", "<think>", "</answer>", "\n"):
        text = (piece * 2**20)[: 2**20]
        assert read_decision(text).value and len(read_known(text).value) <= 200
        assert read_decision(f"<decision>{text}</decision>").value
        assert len(read_known(f"<answer>{'a ' * 2**18}</answer>").value) <= 200
    assert time.process_time() - began < 5


# -- IKEA ----------------------------------------------------------------------------------------------------------

TURNS = ["<search>Sarn Islands</search>", "<answer>Dunmere</answer>"]


def test_ikea_tries_first_and_goes_on_as_if_it_had_not():
    episode, prompts = run_team("ikea", {"knower": ["<answer>Ulm</answer>"], "searcher": TURNS})
    assert [(call.role, call.prefix, call.turn) for call in episode.calls] == [
        ("knower", True, 1), ("searcher", False, 1), ("searcher", False, 2),
    ]  # fmt: skip
    assert [call.answer for call in episode.calls] == ["Ulm", None, "Dunmere"]
    assert "Ulm" not in prompts[1] and "Ulm" not in prompts[2] and "search only for the rest" in prompts[1]
    assert (episode.turns, episode.answer.text, episode.scores["em"]) == (2, "Dunmere", 1.0)


def trained(name, replies, training=True):
    """Returns one episode whose model draws from replies, in training or not."""
    task, found = load_task(CARD, questions=QUESTIONS[:1], retriever=TitleRetriever(), max_turns=3), []
    agent, model = load_agent(name), Model.over("scripted", Replies(replies), MessageFormat(task.rules.protocol))
    engine = Engine(task, agent, dict.fromkeys(agent.roles, model), training=training)
    asyncio.run(engine.run(task.questions, found.append))
    return found[0]


@pytest.mark.parametrize("training", [True, False])
def test_ikea_gives_no_trial_answer_in_training_and_adasearch_always(training):
    ikea = trained("ikea", ["<answer>Gamma</answer>"], training)
    assert [call.prefix for call in ikea.calls] == ([False] if training else [True, False])
    ada = trained("adasearch", ["<answer>Gamma</answer>"], training)
    assert [(call.role, call.prefix) for call in ada.calls[:2]] == [("knower", True), ("decider", False)]


# -- AdaSearch -----------------------------------------------------------------------------------------------------


def test_adasearch_answers_from_memory_what_it_knows():
    said = {"knower": ["<answer>Ulm</answer>", "<answer>Dunmere</answer>"], "decider": [KNOW]}
    episode, prompts = run_team("adasearch", said)
    assert [(call.role, call.prefix) for call in episode.calls] == [
        ("knower", True), ("decider", False), ("knower", False),
    ]  # fmt: skip
    assert "Ulm" not in prompts[1] and prompts[0] == prompts[2]
    assert (episode.answer.text, episode.calls[-1].answer, episode.turns) == ("Dunmere", "Dunmere", 1)
    assert not episode.searches and episode.stop_reason == "answer"


@pytest.mark.parametrize("decided", [SEARCH, "perhaps", ""])
def test_adasearch_searches_for_anything_else(decided):
    said = {"knower": ["no idea"], "decider": [decided], "searcher": TURNS}
    episode, prompts = run_team("adasearch", said)
    assert [call.role for call in episode.calls] == ["knower", "decider", "searcher", "searcher"]
    assert [call.legal for call in episode.calls] == [False, decided == SEARCH, True, True]
    assert [search.query for search in episode.searches] == ["Sarn Islands"]
    assert all("no idea" not in prompt for prompt in prompts[1:])


# -- oracles -------------------------------------------------------------------------------------------------------


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", ["ikea", "adasearch"])
@pytest.mark.parametrize("wrongly", [False, True])
def test_an_oracle_searches_just_for_what_is_not_known(name, wrongly):
    """Every third question is known. One that decides the other way round is right as often, but not aware."""
    task = load_task(find_env("searchgym/Demo-v0"), max_turns=8)
    form = TokenFormat(load_tokenizer("tiny"), task.rules.protocol, chat=True)
    pages = {title_key(page.title): page for page in passages_of(task.retriever)}
    oracles = {}
    for number, question in enumerate(task.questions):
        oracle = oracles[question.id] = (
            Mistaken(question, quotes_of(question, pages))
            if wrongly
            else (ORACLES[name](question, quotes_of(question, pages)))
        )
        oracle.knows = number % 3 == 0
    episodes = play_team(name, task, oracles, form)
    assert all(call.legal for episode in episodes for call in episode.calls)
    known = {question_id for question_id, oracle in oracles.items() if oracle.knows}
    assert {e.question_id for e in episodes if not e.searches} == (set(oracles) - known if wrongly else known)
    assert all(e.scores["em"] == 1.0 for e in episodes if e.searches or not wrongly)
    found = awareness(episodes, task.by_id)
    assert (found["n"], found["known"]) == (12, pytest.approx(1 / 3))
    assert found["f1"] == (0.0 if wrongly else 1.0)


class Mistaken(ORACLES["adasearch"]):
    """Searches for what it knows, and answers at once what it does not know."""

    def rounds(self):
        return super(ORACLES["adasearch"], self).rounds() if self.knows else []

    def decider(self, fields):
        return SEARCH if self.knows else KNOW
