"""Hostile text in each role of the further teams: nothing raises, and just what has a role's form is legal."""

import asyncio

import pytest

from searchgym.agents.base import load_agent
from searchgym.agents.teams.oracle import ORACLES
from searchgym.envs.cards import EnvCard
from searchgym.envs.task import load_task
from searchgym.questions.sources.dataset import DatasetQuestions
from searchgym.rollout.api.sampler import MessageFormat
from searchgym.rollout.engine import Engine
from searchgym.rollout.models import Model
from searchgym.testing import AgentTests
from searchgym.testing.fakes import HOSTILE_PASSAGES, HOSTILE_REPLIES, PASSAGES, QUESTIONS, Pages, Replies

SEARCHES = {HOSTILE_REPLIES[0], HOSTILE_REPLIES[2]}
ANSWERS = {"<answer>Gamma</answer>", "<answer></answer>"}
NESTED = "<search><answer>x</answer></search>"
"""A conversation stops at the answer's closing tag, and M-ASK's search role may search for any text."""
LEGAL = {
    ("ai-searchplanner", "planner"): SEARCHES | {NESTED, "<end>"},
    ("ai-searchplanner", "generator"): ANSWERS,
    ("parallel-search", "searcher"): SEARCHES | ANSWERS | {NESTED},
    ("mmoa-rag", "rewriter"): set(),
    ("mmoa-rag", "selector"): set(),
    ("mmoa-rag", "generator"): ANSWERS,
    ("qd-answer", "decomposer"): set(),
    ("acqo", "decomposer"): set(),
    ("acqo", "generator"): ANSWERS,
    ("qd-answer", "generator"): ANSWERS,
    ("cosearch", "reasoner"): SEARCHES | ANSWERS | {NESTED},
    ("cosearch", "ranker"): set(),
    ("asearcher", "searcher"): SEARCHES | ANSWERS,
    ("asearcher", "summariser"): set(),
    ("hiersearch", "planner"): {"<answer>Gamma</answer>"},
    ("hiersearch", "local"): SEARCHES | {NESTED, "<end>"},
    ("hiersearch", "web"): SEARCHES | {NESTED, "<end>"},
    ("hiersearch", "reader"): ANSWERS,
    ("hiersearch", "refiner"): set(),
    ("ikea", "searcher"): SEARCHES | ANSWERS | {NESTED},
    ("ikea", "knower"): ANSWERS,
    ("adasearch", "decider"): set(),
    ("adasearch", "knower"): ANSWERS,
    ("adasearch", "searcher"): SEARCHES | ANSWERS | {NESTED},
}
"""Which of the hostile replies are legal in which role."""
GOOD = {
    "planner": "<all_search_agent>Beta</all_search_agent>", "local": "<search>Beta</search>",
    "web": "<search>Beta</search>", "reader": "<answer>Gamma</answer>", "refiner": "<evidence>Gamma.</evidence>",
    "generator": "<answer>Gamma</answer>", "rewriter": "<q1>Beta</q1>", "selector": "<id>Document0</id>",
    "searcher": "<search>Beta</search>", "summariser": "<memory>Gamma.</memory>",
    "decider": "<decision>search</decision>", "knower": "<answer>Gamma</answer>",
    "decomposer": '["Beta"]', "reasoner": "<search>Beta</search>", "ranker": "<id>Document0</id>",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "role"), LEGAL)
@pytest.mark.parametrize("pages", [PASSAGES, HOSTILE_PASSAGES], ids=["plain", "hostile pages"])
def test_just_what_has_the_form_of_a_role_is_legal(name, role, pages):
    """One role says the same hostile text again and again, the others say what they should."""
    source = DatasetQuestions(dataset="none", split="test", size=4, file="none", get="nowhere")
    card = EnvCard(id="testing/Roles-v0", summary="hostile roles", questions=source, corpus="none")
    own, web = Pages(pages, always=True), Pages(PASSAGES)
    task = load_task(card, questions=QUESTIONS, retriever=own, retrievers={"web": web}, max_turns=4)
    agent, legal = load_agent(name), set()
    good = GOOD | ({"planner": "<search>Beta</search>"} if name == "ai-searchplanner" else {})
    for text in HOSTILE_REPLIES:
        said = {other: text if other == role else good[other] for other in agent.roles}
        form = MessageFormat(task.rules.protocol)
        models = {other: Model.over(other, Replies([said[other]]), form) for other in agent.roles}
        found = []
        asyncio.run(Engine(task, agent, models).run(QUESTIONS, found.append))
        assert {episode.stop_reason for episode in found} <= {"answer", "turns"}, text[:50]
        calls = [call for episode in found for call in episode.calls]
        assert all(call.legal for call in calls if call.role != role), text[:50]
        verdicts = {call.legal for call in calls if call.role == role}
        assert len(verdicts) == bool(text), text[:50]  # judged alike each time; nothing said is no call
        if verdicts == {True}:
            legal.add(text)
    assert legal == LEGAL[name, role]


def test_every_role_of_the_further_teams_is_here():
    assert set(LEGAL) == {(name, role) for name in ORACLES for role in load_agent(name).roles}


@pytest.mark.slow_cases
class TestRolesThatAreLedOn(AgentTests):
    """The contract of agents, with replies that take every branch of the workflows."""

    replies = (*GOOD.values(), "<end>", "<decision>know</decision>", "<web_search_agent>a</web_search_agent>", "junk")

    @pytest.fixture(autouse=True, params=ORACLES)
    def name_it(self, request):
        self.name = request.param

    def make_agent(self):
        return load_agent(self.name)
